"""Commands in ckpttool's style: help is a result, and a wrong option gets a clear message."""

from __future__ import annotations

import re
from copy import copy
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ckpttool.core.commands import output
from ckpttool.core.commands.settings import Settings
from ckpttool.core.errors import UsageError, nearest, unknown_word

_MAY_BE_EMPTY = frozenset({"prefix", "string", "asd_config"})
"""Options for which an empty value has a meaning. Otherwise it is probably an unset shell variable."""

_NO_NUMBER = r"(?s:(?P<value>.+) is not (?:a valid (?:int|integer|float)(?: range)?|in the range .+)\.?)"

_OF_EVERY_COMMAND = r"-[qv]+|--quiet|--verbose|--json|--no-config|--format(?:=.*)?"
"""Options that may come before a command as well as after it."""

_ALL = "ckpttool.help_all"

_UNBROKEN = "\u2011"
"""The non-breaking hyphen."""

_COLUMN = 28
"""Rightmost column for the start of descriptions; a longer option has its own line."""

_OTHERWISE = {
    "--full --deep": "--level checksum reads every byte",
    "--all": "--checkpoint all selects all of them",
    "--rank --ranks": "ckpttool inspect FILE shows one rank",
    "--color --no-color --colour --no-colour": "NO_COLOR=1 in the environment turns colors off",
    "--output": "ckpttool launch --output writes a config",
}
"""Options that do not exist but that users guess, with the alternative."""


class _Helped:
    _help_all: Any = None

    def get_help_option(self, ctx: Any) -> Any:  # noqa: ANN401  the base class's signature
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.callback = _show_help
        return option

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401  as above
        """Add `--help-all`, which every command accepts; help lists it only if it shows more."""
        *params, option = super().get_params(ctx)  # type: ignore[misc]
        if self._help_all is None:  # made once: typer compares parameters by identity
            self._help_all = copy(option)
            self._help_all.name, self._help_all.opts = "help_all", ["--help-all"]
            self._help_all.help = "Show all options or commands."
            self._help_all.callback = _show_all_help
            self._help_all.hidden = ctx.parent is not None and isinstance(self, TyperGroup)
        return [*params, self._help_all, option]

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  as above
        """Write the help without line breaks at hyphens, which would split the names of options."""
        write, write_text, write_dl = formatter.write, formatter.write_text, formatter.write_dl
        formatter.write = lambda text: write(text.replace(_UNBROKEN, "-"))
        formatter.write_text = lambda text: write_text(text.replace("-", _UNBROKEN))
        formatter.write_dl = lambda rows: write_dl([(term, text.replace("-", _UNBROKEN)) for term, text in rows])
        super().format_help(ctx, formatter)  # type: ignore[misc]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  as above
        """Show the exit codes, and the pages to read next."""
        from ckpttool.core.commands.headings import FIRST_SCREEN, ends

        with formatter.section("Exit codes"):
            formatter.write_dl(ends(ctx))
        formatter.write_paragraph()
        if _top(ctx) in FIRST_SCREEN and not is_all_shown(ctx):
            formatter.write_text(f"All options: ckpttool {_top(ctx)} --help-all")
        pages = "" if _top(ctx) == "guide" else f" {_top(ctx)}, ckpttool guide exits"
        formatter.write_text(f"More: ckpttool guide{pages}")


class Command(_Helped, TyperCommand):
    """A command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  as above
        """Reject empty arguments: an empty DIR would be the current folder, and `prune` would delete its checkpoints.

        Raises:
            BadParameter: A value is empty.
            UsageError: The environment or a file has an invalid value.
        """
        if ctx.resilient_parsing:  # for shell completion: an option without its value would hide DIR
            return super().parse_args(ctx, args[:-1] if args and args[-1].startswith("-") else args)
        before_dashes = args[: args.index("--") if "--" in args else None]
        settings = Settings(ctx, with_file="--no-config" not in before_dashes)
        ctx.default_map = settings
        try:
            remaining: list[str] = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            param: Any = error.param
            if param is None or param.name not in settings.places:
                raise
            raise UsageError(f"{settings.places[param.name]}: {in_plain_words(error).rstrip('.')}") from None
        typed = {arg.partition("=")[0] for arg in before_dashes}
        for param in self.params:
            names = [opt for opt in param.opts if opt in typed]
            if len(names) > 1 and not (param.multiple or getattr(param, "is_flag", False)):
                raise UsageError(f"{' and '.join(names)} are the same option: give one of them")
            value = ctx.params.get(str(param.name))
            if param.name not in _MAY_BE_EMPTY and "" in (value if isinstance(value, (list, tuple)) else [value]):
                raise typer.BadParameter(
                    "the value is empty: check whether a shell variable is unset", ctx=ctx, param=param
                )
        return remaining

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401  as above
        """Report an ignored settings file and, with `--verbose`, the source of each setting not on the command line."""
        settings = ctx.default_map
        lines = [settings.describe()] if ctx.params.get("verbose") else []
        for text in () if ctx.params.get("quiet") else (*settings.passed_over, *filter(None, lines)):
            output.note(text)
        return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  as above
        """Show the options in groups, all in the same two columns."""
        from ckpttool.core.commands.headings import by_heading

        by_title = by_heading(self, _top(ctx), ctx, first_screen=not is_all_shown(ctx))
        longest = max((len(form) for rows in by_title.values() for form, _ in rows if len(form) <= _COLUMN), default=0)
        for heading, rows in by_title.items():
            with formatter.section(heading):
                for form, text in rows:
                    _write_row(formatter, form, text, column=2 + longest + 2)


class Group(_Helped, TyperGroup):
    """A group of commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  as above
        """Pass the common options on to the command: `ckpttool -q scan` is `ckpttool scan -q`."""
        group_args: list[str] = []
        common: list[str] = []
        rest = list(args)
        while rest and rest[0].startswith("-") and rest[0] != "--":
            name = rest.pop(0)
            (common if re.fullmatch(_OF_EVERY_COMMAND, name) else group_args).append(name)
            if name == "--format" and rest:
                common.append(rest.pop(0))
        remaining: list[str] = super().parse_args(ctx, [*group_args, *rest[:1], *(common if rest else ()), *rest[1:]])
        return remaining

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401  as above
        """Find the command.

        Raises:
            UsageError: No command has that name; the message suggests the closest match.
        """
        names = self.list_commands(ctx)
        if args[0] not in names and not ctx.resilient_parsing:
            from difflib import get_close_matches

            matches = get_close_matches(args[0].lower(), names, n=2, cutoff=0.75)
            raise unknown_word("command", args[0], names, f"`{ctx.command_path} --help` lists them", matches or None)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  as above
        """Show each command's complete summary; typer truncates it at 45 columns."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, (command.help or "").partition("\n")[0])
                    for name, command in ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
                    if command is not None and not command.hidden
                ]
            )


def command_group(name: str, *, cls: type[Group] = Group) -> typer.Typer:
    """Return a group, to which `command(cls=Command)` adds commands."""
    return typer.Typer(
        name=name,
        cls=cls,
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


def _write_row(formatter: Any, form: str, text: str, *, column: int) -> None:  # noqa: ANN401  as above
    """Write an option's help next to the option or below it; typer would break `mindformers-rank` at the hyphen."""
    import textwrap

    lines = textwrap.wrap(text, max(formatter.width - column, 20), break_on_hyphens=False)
    first = f"  {form}"
    fits_line = bool(lines) and len(first) + 2 <= column
    formatter.write(f"{first:{column}}{lines.pop(0)}\n" if fits_line else f"{first}\n")
    for line in lines:
        formatter.write(f"{'':{column}}{line}\n")


def _top(ctx: Any) -> str:  # noqa: ANN401  as above
    """Return the name of a command in the manual: `asd` for `ckpttool asd check`."""
    while ctx.parent is not None and ctx.parent.parent is not None:
        ctx = ctx.parent
    return "" if ctx.parent is None else str(ctx.info_name)


def in_plain_words(error: typer.TyperException) -> str:
    """Describe a usage error: the option, its valid values, and the value used."""
    fault: Any = error
    param = getattr(fault, "param", None)
    if hasattr(fault, "possibilities"):
        return _unknown_option(fault.option_name, fault.ctx)
    if hasattr(fault, "option_name"):
        return f"{fault.option_name} {'takes no' if 'not take' in error.message else 'needs a'} value"
    if param is None:
        return _too_many(fault)
    option = next((opt for opt in param.opts if opt.startswith("--")), None) or str(param.metavar).strip("[]")
    if hasattr(fault, "param_type"):
        return f"{' '.join(filter(None, (option, param.metavar if option.startswith('--') else None)))} is missing"
    match = re.fullmatch(_NO_NUMBER, error.message)
    if match is None:  # also in typer 0.29, whose own message does not include the value
        return f"{option}: {error.message}"
    noun = "number" if "float" in param.type.name else "whole number"
    low, high = getattr(param.type, "min", None), getattr(param.type, "max", None)
    limits = "".join(f" {side} {end}" for side, end in (("from", low), ("to", high)) if end is not None)
    return f"{option} takes a {noun}{limits}, not {match['value']}"


def _too_many(fault: Any) -> str:  # noqa: ANN401  as above
    """Describe a surplus argument, and suggest `--checkpoint` if it may be a name.

    Return typer's message for other errors.
    """
    extra = re.fullmatch(r"(?s:Got unexpected extra arguments?(?:\(s\))? \((?P<words>.+)\)\.?)", fault.message)
    if extra is None or fault.ctx is None:
        return str(fault.format_message())
    arguments, params = extra["words"], fault.ctx.command.get_params(fault.ctx)
    takes = any("--checkpoint" in param.opts for param in params)
    from pathlib import Path

    from ckpttool.core.records import PART_SUFFIX

    if arguments.endswith(PART_SUFFIX):
        return f"unexpected argument {arguments}: to give parts, give the folder that contains them"
    if takes and Path(arguments.partition(" ")[0]).is_dir():
        return f"unexpected argument {arguments}: {_top(fault.ctx)} takes one tree at a time"
    return f"unexpected argument {arguments}" + (
        f": to name a checkpoint, use --checkpoint {arguments}" if takes else ""
    )


def _unknown_option(typed: str, ctx: Any) -> str:  # noqa: ANN401  as above
    """Report an unknown option, with the closest match."""
    options = [opt for param in ctx.command.get_params(ctx) for opt in (*param.opts, *param.secondary_opts)]
    otherwise = next((advice for options, advice in _OTHERWISE.items() if typed in options.split()), None)
    option = str(otherwise).partition(" ")[0]
    if otherwise is not None and (not option.startswith("--") or option in options):
        return f"unknown option {typed}: {otherwise}"
    # Without the dashes, which all options have in common.
    names = nearest(typed.lstrip("-"), [option[2:] for option in options if option.startswith("--")])
    return f"unknown option {typed}" + (f": did you mean --{' or --'.join(names)}?" if names else "")


def is_all_shown(ctx: Any) -> bool:  # noqa: ANN401  as above
    """Return whether help shows everything, as with `--help-all`."""
    return bool(ctx.meta.get(_ALL))


def _show_help(ctx: Any, _option: Any, wanted: bool) -> None:  # noqa: ANN401  as typer calls it
    if wanted and not ctx.resilient_parsing:
        output.help_page(ctx.get_help())
        ctx.exit()


def _show_all_help(ctx: Any, option: Any, wanted: bool) -> None:  # noqa: ANN401  as above
    ctx.meta[_ALL] = wanted
    _show_help(ctx, option, wanted)
