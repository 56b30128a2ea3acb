"""The parse result of a detector's configuration string."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import blocking
from ckpttool.core.domain.units import counted
from ckpttool.core.render.escape import shown
from ckpttool.core.render.json import Document, finding_document
from ckpttool.core.render.text import Pairs, line, stack
from ckpttool.health.model.answers import AsdAnswer

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


def document(answer: AsdAnswer) -> Document:
    """Return `ckpttool/asd/1`, the parse result of a configuration string."""
    config = answer.check.config
    return {
        "schema": "ckpttool/asd/1",
        "dialect": answer.check.dialect.name,
        "variable": answer.variable,
        "string": answer.text,
        "starts": answer.check.error is None,
        "error": answer.check.error,
        "config": {field.name: getattr(config, field.name) for field in fields(config)},
        "findings": [finding_document(finding) for finding in answer.findings],
    }


def table(answer: AsdAnswer) -> RenderableType:
    """Show the effective settings of this string, and every trap in it."""
    names = [field.name for field in fields(answer.check.config)]
    rows = [(name, str(getattr(answer.check.config, name)).lower()) for name in names]
    parts: list[RenderableType] = [_headline(answer), line()]
    if answer.check.error is None:
        parts += [line(f"Effective settings for {answer.check.dialect.name}:"), Pairs(rows), line()]
    # All traps: a string has few, and each of them matters.
    lines = [
        line(f"{finding.severity.word} {finding.code.value} {shown(finding.message)}") for finding in answer.findings
    ]
    return stack(*parts, *lines)


def _headline(answer: AsdAnswer) -> Text:
    if answer.check.error is not None:
        return line(f"The training does not start with this {answer.variable}", style="bold red")
    traps = len(blocking(answer.findings))
    if traps:
        return line(f"{counted(traps, 'problem')} in this {answer.variable}", style="bold yellow")
    return line(f"{answer.variable} is read as written", style="bold green")
