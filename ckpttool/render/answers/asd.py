"""What a parser makes of a detector's configuration, for people."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from rich.text import Text

from ckpttool.domain.finding import blocking
from ckpttool.domain.log_answer import AsdAnswer
from ckpttool.render.escape import shown
from ckpttool.render.text import Pairs, stack

if TYPE_CHECKING:
    from rich.console import RenderableType


def asd_table(answer: AsdAnswer) -> RenderableType:
    """Show what is in force with this string, and every trap in it."""
    names = [field.name for field in fields(answer.check.config)]
    rows = [(name, str(getattr(answer.check.config, name)).lower()) for name in names]
    parts: list[RenderableType] = [_headline(answer), Text("")]
    if answer.check.error is None:
        parts += [Text(f"In force for {answer.check.dialect.value}:"), Pairs(rows), Text("")]
    # All of them: a string has few, and each one counts.
    lines = [Text(f"{each.severity.word} {each.code.value} {shown(each.message)}") for each in answer.findings]
    return stack(*parts, *lines)


def _headline(answer: AsdAnswer) -> Text:
    if answer.check.error is not None:
        return Text(f"The training does not start with this {answer.variable}", style="bold red")
    traps = len(blocking(answer.findings))
    if traps:
        what = "thing is" if traps == 1 else "things are"
        return Text(f"{traps} {what} not as meant in this {answer.variable}", style="bold yellow")
    return Text(f"{answer.variable} is read as it is written", style="bold green")
