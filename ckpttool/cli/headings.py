"""What a command's help shows under which heading, and how the command can end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckpttool.cli.settings import variable_of

HEADINGS = {
    "Arguments": (
        "FILE|DIR...", "FILE...", "LOG...", "EVENTS...", "NAME", "NAME...", "CODE", "TOPIC", "STRING", "FOLDER",
        "BASELINE", "CANDIDATE", "OUT",
    ),
    "Which tree": (
        "DIR", "DIR...", "FILE|DIR|NAME", "A", "B", "--tree", "--layout", "--world-size", "--config", "--sink-size",
        "--root", "--skew",
    ),
    "Which checkpoint": (
        "--checkpoint", "--from", "--tensor", "--prefix", "--before", "--allow-renames", "--allow-weights-only",
        "--strict", "--tp", "--pp", "--dp", "--max-lost-steps", "--max-lost-time",
    ),
    "Evidence": (
        "--level", "--dry-run", "--yes", "--subset", "--jump", "--max-age", "--no-ledger",
        "--no-replicas", "--jobs", "--timeout", "--engine", "--ray-address",
        "--health-file", "--require-health", "--ignore-health", "--threshold", "--health-threshold",
        "--log", "--columns", "--from-weights", "--spikes-from", "--health-timeline", "--spike-threshold", "--margin",
        "--around-spike", "--every", "--warm-up",
    ),
    "Which part": ("--part", "--split", "--run-id", "--ranks"),
    "Data position": (
        "--new-gbs", "--gbs", "--old-gbs", "--steps", "--segment", "--new-dataset", "--dataset-changed-at",
    ),
    "Launch": (
        "--output", "--force", "--nodes", "--devices-per-node", "--devices", "--master-addr", "--script", "--allow",
        "--load-checkpoint",
        "--skip-foreign",
    ),
    "Policy": (
        "--policy", "--count", "--nan", "--dialect", "--asd-config", "--with-checksum", "--cooldown", "--strikes-num",
        "--strikes-window", "--checksum-cooldown", "--upper-thresh1", "--upper-thresh2", "--grad-sample-interval",
        "--disable",
    ),
    "FP8": (
        "--baseline", "--candidate", "--framework", "--framework-version", "--round", "--checkpoint-step", "--horizon",
        "--recipe", "--format-of", "--optimizer", "--as-stored", "--history", "--swiglu", "--te-version", "--layers",
        "--repeat", "--metric", "--by", "--tolerance", "--switch-step", "--evals",
    ),
    "Replay": ("--entry", "--rank", "--device", "--exact", "--no-locate", "--weights"),
    "What stays": (
        "--keep-last", "--keep-every", "--keep-healthy", "--keep", "--drop-abandoned", "--grace", "--wait",
        "--trash-days", "--older-than", "--apply", "--reseal", "--write",
    ),
    "Watch": (
        "--once", "--settle", "--patience", "--again", "--seal", "--max-rate", "--on-event", "--part-out", "--metrics",
        "--listen",
    ),
    "Output": (
        "--out", "--output", "--format", "--json", "--print", "--top", "--limit", "--all", "--exit-code", "--report",
        "--prometheus", "--stats", "--fix", "--diff", "--simulate", "--simulate-mindformers", "--ranks-per-node",
        "--verbose", "--quiet", "--no-config", "--debug",
    ),
}  # fmt: skip
"""Every option by its first long name, every argument by its name, in the order in which help shows them."""

OUTPUT = "Output"
"""The heading of all that has no place: an option that is not in the table comes last."""

_OF_ONE_COMMAND = {
    ("replay", "--threshold"): "Policy",
    ("scan", "--all"): "Which tree",
    ("watch", "--every"): "Watch",
    ("nan", "--timeout"): "Replay",
    ("fp8", "--exact"): "FP8",
    ("launch", "--config"): "Launch",
    ("preflight", "--config"): "Launch",
    ("report", "--output"): OUTPUT,
    ("part", "--devices-per-node"): "Which part",
    **{
        (command, "--sink-size"): "Data position"
        for command in ("resolve", "launch", "preflight", "report", "scale-skip")
    },
}
"""One word, two meanings: where a command means the other."""

MEANS_NOTHING = {command: {"--health-file"} for command in ("seal", "trash")}
"""Accepted as ever, and shown no more: there they change no answer."""

_EVERYWHERE = ("1, 2, 130", "ckpttool failed; a wrong command line; interrupted.")


def by_heading(command: Any, name: str, ctx: Any) -> dict[str, list[tuple[str, str]]]:  # noqa: ANN401  typer's own
    """Return each option and argument of a command as (`-q, --quiet`, what it does), by heading."""
    found: dict[str, list[tuple[int, tuple[str, str]]]] = {heading: [] for heading in HEADINGS}
    for param in command.get_params(ctx):
        word = _word(param)
        if param.hidden or word in MEANS_NOTHING.get(name, ()):
            continue
        heading = _OF_ONE_COMMAND.get((name, word)) or next((key for key in HEADINGS if word in HEADINGS[key]), OUTPUT)
        order = HEADINGS[heading]
        found[heading].append((order.index(word) if word in order else len(order), (_form(param), _about(param, name))))
    return {
        heading: [row for _, row in sorted(rows, key=lambda each: each[0])] for heading, rows in found.items() if rows
    }


def ends(ctx: Any) -> list[tuple[str, str]]:  # noqa: ANN401  typer's own
    """Return every exit code of a command, or of one in a group (`trash list`), with what it means there."""
    exits = exits_of(ctx.command) or exits_of(ctx.parent.command)
    return [*((str(code), text) for code, text in sorted(exits.items())), _EVERYWHERE]


def exits_of(command: Any) -> Mapping[int, str]:  # noqa: ANN401  typer's own
    """Return what `exits` says of a command; nothing of one in a group that ends as the group does."""
    found: Mapping[int, str] = getattr(command.callback, "exits", {})
    return found


def _word(param: Any) -> str:  # noqa: ANN401  as above
    """Return what a parameter is found by."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name).strip("[]")
    return str(next((each for each in param.opts if each.startswith("--")), param.opts[0]))


def _form(param: Any) -> str:  # noqa: ANN401  as above
    """Spell it as it is typed, without its other names."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name).strip("[]")
    short = [each for each in param.opts if not each.startswith("--")]
    text = ", ".join([*short, _word(param)])
    if param.is_flag:
        return " / ".join([text, *param.secondary_opts])
    return f"{text} {param.metavar}"


def _about(param: Any, command: str) -> str:  # noqa: ANN401  as above
    """Say what it does, and what it is where it is left out."""
    variable = variable_of(param.name, command)
    return " ".join([_with_default(param), *([] if variable is None else [f" [env:{variable}]"])])


def _with_default(param: Any) -> str:  # noqa: ANN401  as above
    shown, default = param.show_default, param.default
    if isinstance(shown, str):
        shown, default = True, shown
    text = str(param.help or "")
    if param.required and param.param_type_name == "option":
        return f"{text}  [required]"
    if not shown or default is None or default is False or callable(default):
        return text
    return f"{text}  [default: {getattr(default, 'value', default)}]"
