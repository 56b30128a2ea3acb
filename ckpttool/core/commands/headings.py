"""The headings of a command's help, and its exit codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckpttool.core.commands.settings import variable_of

OUTPUT = "Output"
"""The heading of parameters that declare no heading."""

HEADINGS = ("Arguments", "Which tree", "Which checkpoint", "Evidence")
"""The headings that many commands share, in the order of the help. Headings of a single command come next, `OUTPUT`
last."""

_LAST = ("--verbose", "--quiet", "--no-config", "--debug", "--help-all", "--help")
"""Options of every command, shown last in the help."""

_FIRST = (
    "DIR", "--config", "--world-size", "--checkpoint", "--max-lost-steps", "--level", "--log",
    "--gbs", "--format", "--help-all", "--help",
)  # fmt: skip
FIRST_SCREEN = {
    "resolve": {*_FIRST, "--or-start", "--before", "--strict", "--simulate"},
    "launch": {*_FIRST, "--or-start", "--output", "--nodes", "--dry-run"},
    "preflight": {*_FIRST, "--or-start", "--devices", "--allow", "--report"},
    "report": {*_FIRST, "--health-threshold", "--output", "--keep-last", "--simulate"},
}
"""Options in the short `--help` of the commands with the most options; `--help-all` shows all of them."""

MEANS_NOTHING = {command: {"--health-file"} for command in ("seal", "trash", "mark")}
"""Options that are still accepted but no longer shown, because they have no effect in these commands."""

_EVERYWHERE = ("1, 2, 130", "Internal or system error; invalid command line; interrupted.")


def by_heading(
    command: Any,  # noqa: ANN401  typer's own
    name: str,
    ctx: Any,  # noqa: ANN401  typer's own
    *,
    first_screen: bool = False,
) -> dict[str, list[tuple[str, str]]]:
    """Return each option and argument of a command as (`-q, --quiet`, its help), by its `rich_help_panel`.

    Args:
        command: The command.
        name: The command's name; for a command in a group, the group's name.
        ctx: The command's context.
        first_screen: Whether to leave out the options that only `--help-all` shows.
    """
    shown = FIRST_SCREEN.get(name) if first_screen else None
    by_title: dict[str, list[tuple[str, str]]] = {heading: [] for heading in HEADINGS}
    last: list[tuple[str, str]] = []
    for param in sorted(command.get_params(ctx), key=_place):
        word = _param_name(param)
        if param.hidden or word in MEANS_NOTHING.get(name, ()):
            continue
        if (shown is not None and word not in shown) or (word == "--help-all" and name not in FIRST_SCREEN):
            continue
        heading = param.rich_help_panel or OUTPUT
        rows = last if heading == OUTPUT else by_title.setdefault(heading, [])
        rows.append((_form(param), _about(param, name)))
    by_title[OUTPUT] = last
    return {heading: rows for heading, rows in by_title.items() if rows}


def _place(param: Any) -> int:  # noqa: ANN401  as above
    """Return a parameter's position under its heading; equal positions keep the order of declaration."""
    name = _param_name(param)
    if param.param_type_name == "argument" or name in {"--format", "--json"}:
        return 0
    return 2 + _LAST.index(name) if name in _LAST else 1


def ends(ctx: Any) -> list[tuple[str, str]]:  # noqa: ANN401  typer's own
    """Return the exit codes of a command, or of a subcommand such as `trash list`, with their meanings."""
    exits = exits_of(ctx.command) or exits_of(ctx.parent.command)
    return [*((str(code), text) for code, text in sorted(exits.items())), _EVERYWHERE]


def exits_of(command: Any) -> Mapping[int, str]:  # noqa: ANN401  typer's own
    """Return the exit codes that a command declares with `exits`; empty if it uses those of its group."""
    meanings: Mapping[int, str] = getattr(command.callback, "exits", {})
    return meanings


def _param_name(param: Any) -> str:  # noqa: ANN401  as above
    if param.param_type_name == "argument":
        return str(param.metavar or param.name).strip("[]")
    return str(next((opt for opt in param.opts if opt.startswith("--")), param.opts[0]))


def _form(param: Any) -> str:  # noqa: ANN401  as above
    """Return a parameter as typed on the command line, leaving out its other names."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name).strip("[]")
    short = [opt for opt in param.opts if not opt.startswith("--")]
    text = ", ".join([*short, _param_name(param)])
    if param.is_flag:
        return " / ".join([text, *param.secondary_opts])
    return f"{text} {param.metavar}"


def _about(param: Any, command: str) -> str:  # noqa: ANN401  as above
    """Return a parameter's help, with its default."""
    variable = variable_of(param.name, command)
    return " ".join([_with_default(param), *([] if variable is None else [f" [env:{variable}]"])])


def _with_default(param: Any) -> str:  # noqa: ANN401  as above
    shown_default, default = param.show_default, param.default
    if isinstance(shown_default, str):
        shown_default, default = True, shown_default
    text = str(param.help or "")
    if param.required and param.param_type_name == "option":
        return f"{text}  [required]"
    if not shown_default or default is None or default is False or callable(default):
        return text
    return f"{text}  [default: {getattr(default, 'value', default)}]"
