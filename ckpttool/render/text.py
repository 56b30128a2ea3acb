"""How lists and tables meet a width: lines break between words and never inside, so that a path can be copied whole.

rich breaks or crops a word that does not fit. Here it sticks out: a terminal goes on on its next line by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

if TYPE_CHECKING:
    from rich.table import Column, Table

MANY_ROWS = 200
"""Rows from which rich is not asked: it takes a third of a millisecond for each."""

_WORD = re.compile(r"\s*\S+\s*")


def stack(*parts: RenderableType) -> Group:
    """Put one part below the other."""
    return Group(*map(_unbroken, parts))


class Indented:
    """What it holds, moved to the right; `Padding` would crop it."""

    def __init__(self, renderable: RenderableType, by: int = 2) -> None:
        """Take what to move, and by how many columns."""
        self._renderable = renderable
        self._by = by

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _beside(Text(" " * self._by), self._renderable, console, options)


class Pairs:
    """Names and their values in two columns; a value that sticks out changes no other's lines."""

    def __init__(self, rows: Iterable[tuple[str | Text, str | Text]], *, by: int = 2) -> None:
        """Take names with values, and by how many columns to move them."""
        self._rows = [(Text(" " * by) + name, value) for name, value in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widest = max((name.cell_len for name, _ in self._rows), default=0)
        for name, value in self._rows:
            margin = name.copy()
            margin.pad_right(widest + 2 - name.cell_len)
            yield from _beside(margin, Text(value) if isinstance(value, str) else value, console, options)


def _beside(margin: Text, renderable: RenderableType, console: Console, options: ConsoleOptions) -> RenderResult:
    """Put something to the right of a margin, which is said once."""
    inner = options.update(width=max(1, options.max_width - margin.cell_len))
    first = True
    for line in Segment.split_lines(console.render(_unbroken(renderable), inner)):
        yield from margin.render(console) if first else (Segment(" " * margin.cell_len),)
        yield from line
        yield Segment.line()
        first = False


class _Words:
    """A text whose words are never broken."""

    def __init__(self, text: Text) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for paragraph in self._text.split("\n", allow_blank=True):
            for line in paragraph.divide(_breaks(paragraph.plain, options.max_width)):
                line.rstrip()
                line.no_wrap, line.overflow = True, "ignore"
                yield line


def _breaks(text: str, width: int) -> Iterator[int]:
    used = 0
    for word in _WORD.finditer(text):
        if used and used + cell_len(word[0].rstrip()) > width:
            yield word.start()
            used = 0
        used += cell_len(word[0])


def _unbroken(part: RenderableType) -> RenderableType:
    if not isinstance(part, Text):
        return part
    if not part.no_wrap:
        return _Words(part)
    whole = part.copy()
    whole.overflow = part.overflow or "ignore"  # a picture is cropped, and says so
    return whole


def whole_words(table: Table) -> RenderableType:
    """Let no column of a table, rows and all, become narrower than its longest word."""
    if table.row_count > MANY_ROWS:
        return _Rows(table)
    return _with_whole_words(table)


def _with_whole_words(table: Table) -> Table:
    for column in table.columns:
        column.min_width = max(_longest(cell, column) for cell in (column.header, *column.cells))
    return table


class _Rows:
    """A table without borders as rich draws it, at a twentieth of what rich takes; rich itself where it must wrap."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [[_text(cell) for cell in (column.header, *column.cells)] for column in self._table.columns]
        widths = [max(text.cell_len for text in column) for column in columns]
        _, right, _, left = self._table.padding
        if sum(widths) + (right + left) * (len(widths) - 1) > options.max_width:
            yield _with_whole_words(self._table)
            return
        is_right = [column.justify == "right" for column in self._table.columns]
        gap = " " * (right + left)
        for number, row in enumerate(zip(*columns, strict=True)):
            plain = ""
            for index, text in enumerate(row):
                blanks = " " * (widths[index] - text.cell_len)
                look = (self._table.header_style or "") if not number else text.style
                plain += f"{gap if index else ''}{blanks if is_right[index] else ''}"
                if look or text.spans:
                    yield Segment(plain)
                    yield from Segment.apply_style(text.render(console), console.get_style(look))
                    plain = ""
                else:
                    plain += text.plain
                plain += "" if is_right[index] else blanks
            yield Segment(f"{plain}\n")


def _text(cell: RenderableType) -> Text:
    return cell if isinstance(cell, Text) else Text(str(cell))


def _longest(cell: RenderableType, column: Column) -> int:
    text = _text(cell)
    words = [text.plain] if text.no_wrap or column.no_wrap else text.plain.split()
    return max(map(cell_len, words), default=0)
