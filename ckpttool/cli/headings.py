"""What a command's help shows under which heading, and how the command can end."""

from __future__ import annotations

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

_TREE = {
    12: "There is no checkpoint folder that ckpttool knows.",
    14: "Something could not be read, or changed meanwhile.",
    15: "Refused for safety: a link, a pipe, a pickle that would run code.",
}
_NO_CAPTURE = "There is no capture of a step that was not finite."
_WRITES = {13: "Another ckpttool is writing here.", 16: "Written, but the disk did not confirm it."}

EXITS: dict[str, dict[int, str]] = {
    "scan": {
        0: "Listed; nothing is missing.",
        10: "A shard is missing or damaged, by name or header.",
        **_TREE,
    },
    "verify": {
        0: "Every shard that was looked at is whole.",
        10: "Damage, or something suspect.",
        11: "There is no checkpoint to look at.",
        **_TREE,
    },
    "inspect": {
        0: "Shown.",
        10: "It is damaged; with --stats: it holds NaN or infinity.",
        11: "There is no checkpoint to look into.",
        **_TREE,
    },
    "diff": {
        0: "Compared, whatever differs.",
        10: "One is damaged; with --exit-code: a tensor differs.",
        11: "There is no checkpoint to compare.",
        **_TREE,
    },
    "part": {
        0: "The part is written, whatever it found.",
        15: "Refused for safety: it is larger than any that is read.",
        16: _WRITES[16],
    },
    "seal": {
        0: "Sealed.",
        10: "One is not whole, or not what was sealed before.",
        11: "There is no checkpoint to seal.",
        **_TREE,
        **_WRITES,
    },
    "watch": {
        0: "Ended by SIGTERM; with --once: nothing is known to be wrong.",
        10: "With --once: a checkpoint is damaged, or suspect.",
        11: "With --once: there is no checkpoint.",
        **_TREE,
        13: "The tree is watched already.",
    },
    "resolve": {
        0: "One was chosen, even if newer ones were passed over.",
        10: "A newer one was passed over, with --strict; or more is lost than --max-lost-… allows.",
        11: "Nothing can be resumed from.",
        **_TREE,
    },
    "health": {
        0: "The newest checkpoint is healthy.",
        10: "The newest is unhealthy, or its record is wrong.",
        11: "There is no checkpoint.",
        **_TREE,
        14: "Its health is unknown, or something could not be read.",
    },
    "scale-skip": {0: "Computed.", 11: "Nothing in DIR can be resumed from.", **_TREE},
    "launch": {
        0: "The config is written.",
        10: "A start would not do what it should: nothing is written.",
        11: "Nothing can be resumed from.",
        **_TREE,
        16: _WRITES[16],
    },
    "preflight": {0: "Go.", 10: "No-go.", 11: "No-go: nothing can be resumed from.", **_TREE},
    "report": {
        0: "Written; a checkpoint was chosen, even if newer ones were passed over.",
        10: "Written; a newer one was passed over, with --strict; or more is lost than --max-lost-… allows.",
        11: "Written; nothing can be resumed from.",
        **_TREE,
        16: _WRITES[16],
    },
    "lint-config": {0: "Nothing to say against it.", 10: "A start would not do what it should.", 14: _TREE[14]},
    "prune": {
        0: "The plan stands, done or (without --apply) not.",
        10: "Refused: damage is in the way.",
        11: "No checkpoint is good, so nothing goes.",
        13: _WRITES[13],
        **_TREE,
        14: "Refused: somebody is saving, or something could not be read.",
        16: _WRITES[16],
    },
    "trash": {
        0: "Listed; or done, or would be with --apply.",
        10: "Restored, but a header shows that it is damaged, or a part of it is gone.",
        **_TREE,
        14: "Refused: somebody is saving, or something could not be read.",
        **_WRITES,
    },
    "trash list": {
        0: "Listed.",
        **_TREE,
        14: "A change of the tree was interrupted, or something could not be read.",
    },
    "trash restore": {
        0: "Restored, and its headers show no damage.",
        10: "Restored, but a header shows that it is damaged, or a part of it is gone.",
        **_TREE,
        14: "Refused: somebody is saving, or something could not be read.",
        **_WRITES,
    },
    "trash empty": {
        0: "Deleted, or (without --apply) would be.",
        **_TREE,
        14: "A change of the tree was interrupted, or something could not be read.",
        **_WRITES,
    },
    "heal": {
        0: "Nothing is wrong, or all of it can be rebuilt.",
        10: "Something is wrong that no copy can mend.",
        11: "Refused: nothing proves a copy, or it is in doubt itself. Or there is no checkpoint.",
        **_TREE,
        14: "Refused: somebody is saving, or something could not be read.",
        **_WRITES,
    },
    "repair-meta": {
        0: "The records are right, or would be with --apply.",
        10: "Refused: damage is in the way.",
        11: "There is no whole checkpoint to name.",
        **_TREE,
        **_WRITES,
    },
    "replay": {
        0: "Replayed.",
        12: "--tree names no checkpoint folder.",
        14: "A log could not be read, or shows nothing.",
    },
    "calibrate": {
        0: "Thresholds are recommended.",
        10: "The stretch is not normal: over 1 % of its steps would be alarms.",
        14: "A log could not be read, or shows too little.",
    },
    "fp8": {
        0: "Answered: nothing in FP8 that hurts.",
        10: "It hurts: a weight would be lost, or an FP8 checkpoint is damaged.",
        11: "There is no checkpoint to look into.",
        **_TREE,
    },
    "fp8 probe": {
        0: "No weight would be lost under the recipe that decides.",
        10: "A weight would be lost; or a shard, or what is FP8 in it, is damaged.",
        11: "There is no checkpoint to look into.",
        **_TREE,
        14: "A tensor could not be read, or changed meanwhile.",
    },
    "fp8 lint": {
        0: "Nothing to say against it.",
        10: "A setting does not do what it says.",
        15: "Refused for safety: a config is larger or deeper than any can be.",
    },
    "fp8 compare": {
        0: "It does not leave the baseline, or only for spikes that pass as quickly.",
        10: "It leaves the baseline; or downstream tasks do.",
        14: "That cannot be told from these logs, or one could not be read.",
    },
    "fp8 plan": {
        0: "The experiments are written.",
        11: "No good checkpoint lies before the gap.",
        **_TREE,
        14: "Nothing can be learned by experiments: the answer says why.",
        15: "The folder holds something else, or logs that would be lost.",
    },
    "fp8 verdict": {
        0: "FP8 is innocent, or a cure that keeps all products in FP8 was shown.",
        10: "Somebody is guilty; the cure says what to change.",
        14: "Not decidable yet: the answer says what is missing.",
        15: "The folder holds no plan of ckpttool's.",
    },
    "asd": {0: "The setting is read as it is meant.", 10: "It is not."},
    "guard": {
        0: "Nothing happened that a person has to look at.",
        10: "The training stopped, or its last save failed; a strike, a wrong product, a disagreement, a capture.",
        14: "A file could not be read, or tells nothing.",
        16: _WRITES[16],
    },
    "nan": {
        0: "Shown; or the step came out as it was.",
        10: "Computed again, it did not come out as it was.",
        12: _NO_CAPTURE,
        14: "A rank's part is not there, or not what was written; or it cannot be computed again.",
    },
    "nan list": {0: "Listed.", 12: _NO_CAPTURE, 14: "A rank's part is not there, or not what was written."},
    "nan inspect": {0: "Shown.", 12: _NO_CAPTURE, 14: "A rank's part is not there, or not what was written."},
    "nan replay": {
        0: "The same losses in every bit, and the same gradients not finite.",
        10: "It did not come out as it was.",
        12: _NO_CAPTURE,
        14: "It cannot be computed again, and it is said why.",
    },
    "explain": {0: "Shown."},
    "guide": {0: "Shown."},
    "schema": {0: "Shown."},
    "demo": {0: "Written."},
}
"""By command, each code below 130 that is its own, and what it means there."""

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


def ends(command: str) -> list[tuple[str, str]]:
    """Return every exit code of a command, or of one in a group (`trash list`), with what it means there."""
    exits = EXITS.get(command) or EXITS.get(command.partition(" ")[0], {})
    return [*((str(code), text) for code, text in sorted(exits.items())), _EVERYWHERE]


def meant_by(code: int) -> dict[str, str]:
    """Return what an exit code means in each command of which it is one of its own; a group speaks for its commands."""
    return {command: exits[code] for command, exits in EXITS.items() if code in exits and " " not in command}


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
