"""Commands whose `--help` is written as every result is: typer would write it by itself, and fail in its own way."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from ckpttool.cli import output


class _Helped:
    def get_help_option(self, ctx: Any) -> Any:  # noqa: ANN401  the base class's signature
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.callback = _show_help
        return option


class Command(_Helped, TyperCommand):
    """A command."""


class Group(_Helped, TyperGroup):
    """A group of commands."""


def _show_help(ctx: Any, _option: Any, wanted: bool) -> None:  # noqa: ANN401  as typer calls it
    if wanted and not ctx.resilient_parsing:
        output.result(ctx.get_help())
        ctx.exit()
