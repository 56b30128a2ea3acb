"""Commands that speak as the rest of ckpttool does: help is a result, and a wrong option is told in plain words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ckpttool.cli import output
from ckpttool.errors import UsageError

_MAY_BE_EMPTY = frozenset({"prefix", "string", "asd_config"})
"""Values that mean something where they are empty. Whatever else is empty is a shell variable that was not set."""

_NO_NUMBER = r"(?s:(?P<value>.+) is not (?:a valid (?:int|integer|float)(?: range)?|in the range .+)\.?)"


class _Helped:
    def get_help_option(self, ctx: Any) -> Any:  # noqa: ANN401  the base class's signature
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.callback = _show_help
        return option


class Command(_Helped, TyperCommand):
    """A command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  as above
        """Refuse what is empty: an empty DIR would be the current folder, and `prune` would let its checkpoints go.

        Raises:
            BadParameter: A value is empty.
        """
        left: list[str] = super().parse_args(ctx, args)
        for param in self.params:
            value = ctx.params.get(str(param.name))
            if param.name not in _MAY_BE_EMPTY and "" in (value if isinstance(value, (list, tuple)) else [value]):
                raise typer.BadParameter("it is empty: is a shell variable not set?", ctx=ctx, param=param)
        return left


class Group(_Helped, TyperGroup):
    """A group of commands."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  as above
        """Show each command's first sentence whole; typer cuts it at 45 columns."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, (command.help or "").partition("\n")[0])
                    for name, command in ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
                    if command is not None
                ]
            )


def in_plain_words(error: typer.BadParameter) -> str:
    """Say what is wrong with an option's value, and of a number which ones it takes."""
    text = error.format_message()
    found = re.fullmatch(_NO_NUMBER, error.message)
    kind: Any = getattr(getattr(error, "param", None), "type", None)
    if found is None or kind is None:
        return text
    noun = "number" if "float" in kind.name else "whole number"
    low, high = getattr(kind, "min", None), getattr(kind, "max", None)
    if low is not None and high is not None:
        noun += f" from {low} to {high}"
    elif low is not None:
        noun += f" of at least {low}"
    elif high is not None:
        noun += f" of at most {high}"
    return text.replace(error.message, f"{found['value']} is not a {noun}")


def unknown_word(noun: str, word: str, known: Sequence[str], where: str) -> UsageError:
    """Say that there is nothing of this name, and what was meant, else where all of them are listed."""
    from difflib import get_close_matches

    close = get_close_matches(word.lower(), known, cutoff=0.5)
    advice = f"did you mean {' or '.join(close)}?" if close else where
    return UsageError(f"there is no {noun} {word!r}: {advice}")


def _show_help(ctx: Any, _option: Any, wanted: bool) -> None:  # noqa: ANN401  as typer calls it
    if wanted and not ctx.resilient_parsing:
        output.result(ctx.get_help())
        ctx.exit()
