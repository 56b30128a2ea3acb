"""The records that a command writes next to saves, as JSON and for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.pointer import PointerFix
from ckpttool.core.render.escape import shown
from ckpttool.core.render.json import Document
from ckpttool.core.render.text import line

if TYPE_CHECKING:
    from rich.text import Text

MOST_RECORDS = 4
"""Maximum number of displayed records; thousands of ranks may have the same problem."""


def records_document(fixes: Iterable[PointerFix]) -> list[Document]:
    """Encode the records to be written."""
    return [
        {"path": fix.path, "trouble": fix.trouble, "names": fix.text.name, "content": fix.text.content.decode("ascii")}
        for fix in fixes
    ]


def record_lines(fixes: Sequence[PointerFix]) -> list[Text]:
    """Show the first records to be written."""
    lines = [line(f"{shown(fix.path)} {shown(fix.trouble)} -> {shown(fix.text.name)}") for fix in fixes[:MOST_RECORDS]]
    if len(fixes) > MOST_RECORDS:
        lines.append(line(f"and {len(fixes) - MOST_RECORDS} more: --format json", style="dim"))
    return lines
