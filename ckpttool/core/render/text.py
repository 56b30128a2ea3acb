"""What answers for people are made of, and how lists and tables meet a width.

Lines break between words and never inside, so that a path can be copied whole. rich breaks or crops a word that does
not fit; here it sticks out: a terminal goes on on its next line by itself. rich is imported where something is made for
people and not before: an answer in JSON must not wait for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group, OverflowMethod, RenderableType, RenderResult
    from rich.table import Column, Table
    from rich.text import Text

NARROW = 60
"""Columns below which a table shows less: the name of a checkpoint must never be what is cut."""

MANY_ROWS = 200
"""Rows from which rich is not asked: it takes a third of a millisecond for each."""

UNLIMITED = 1 << 20
"""Columns of a line that nobody breaks: where the result is no terminal's."""

WIDTH = 80
"""Columns that every terminal and every mail has."""

WIDEST = 100
"""Columns of a picture: wider than that no curve says more."""


def line(
    text: str = "", style: str = "", *, no_wrap: bool | None = None, overflow: OverflowMethod | None = None
) -> Text:
    """Return a line, or a paragraph; markup in it is text."""
    from rich.text import Text

    return Text(text, style, no_wrap=no_wrap, overflow=overflow)


def columns(*, padding: tuple[int, int, int, int] = (0, 1, 0, 1)) -> Table:
    """Return a table without borders, still without its columns."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, header_style="dim", padding=padding)


def stack(*parts: RenderableType) -> Group:
    """Put one part below the other."""
    from rich.console import Group

    return Group(*map(_unbroken, parts))


class Indented:
    """What it holds, moved to the right; `Padding` would crop it."""

    def __init__(self, renderable: RenderableType, by: int = 2) -> None:
        """Take what to move, and by how many columns."""
        self._renderable = renderable
        self._by = by

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _with_margin(line(" " * self._by), self._renderable, console, options)


class Pairs:
    """Names and their values in two columns; a value that sticks out changes no other's lines."""

    def __init__(self, rows: Iterable[tuple[str | Text, str | Text]], *, by: int = 2) -> None:
        """Take names with values, and by how many columns to move them."""
        self._rows = [(line(" " * by) + name, value) for name, value in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widest = max((name.cell_len for name, _ in self._rows), default=0)
        for name, value in self._rows:
            margin = name.copy()
            margin.pad_right(widest + 2 - name.cell_len)
            yield from _with_margin(margin, line(value) if isinstance(value, str) else value, console, options)


class Picture:
    """A drawing that is made for the terminal it is shown on."""

    def __init__(self, draw: Callable[..., str]) -> None:
        """Take what draws it, given a `width` in columns and whether there is more than ASCII: `unicode`."""
        self._draw = draw

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(WIDEST, options.max_width) if options.max_width < UNLIMITED else WIDTH
        drawn = self._draw(width=width, unicode=not options.ascii_only)
        yield line(drawn.rstrip("\n"), no_wrap=True, overflow="crop")


def _with_margin(margin: Text, renderable: RenderableType, console: Console, options: ConsoleOptions) -> RenderResult:
    """Put something to the right of a margin, which is said once."""
    from rich.segment import Segment

    inner = options.update(width=max(1, options.max_width - margin.cell_len))
    first = True
    for segments in Segment.split_lines(console.render(_unbroken(renderable), inner)):
        yield from margin.render(console) if first else (Segment(" " * margin.cell_len),)
        yield from segments
        yield Segment.line()
        first = False


class _UnbrokenText:
    """A text whose words are never broken."""

    def __init__(self, text: Text) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for paragraph in self._text.split("\n", allow_blank=True):
            for part in paragraph.divide(_breaks(paragraph.plain, options.max_width)):
                part.rstrip()
                part.no_wrap, part.overflow = True, "ignore"
                yield part


def _breaks(text: str, width: int) -> Iterator[int]:
    from rich.cells import cell_len

    used = 0
    for match in re.finditer(r"\s*\S+\s*", text):
        if used and used + cell_len(match[0].rstrip()) > width:
            yield match.start()
            used = 0
        used += cell_len(match[0])


def _unbroken(part: RenderableType) -> RenderableType:
    from rich.text import Text

    if not isinstance(part, Text):
        return part
    if not part.no_wrap:
        return _UnbrokenText(part)
    piece = part.copy()
    piece.overflow = part.overflow or "ignore"  # a picture is cropped, and says so
    return piece


def unbroken_words(table: Table) -> RenderableType:
    """Let no column of a table, rows and all, become narrower than its longest word."""
    if table.row_count > MANY_ROWS:
        return _Rows(table)
    return _with_unbroken_words(table)


class Columns:
    """A table of which a narrow terminal shows only the columns that matter most, and says which it left out."""

    def __init__(self, headers: Sequence[tuple[str, int]], rows: Sequence[Sequence[str | Text]]) -> None:
        """Take the rows, and for each column its header and its place when room is short; 0 is never left out.

        A header that begins with a blank stands over numbers, which go to the right.
        """
        self._headers = headers
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [
            max(map(_width, (header.strip(), *column)))
            for (header, _), *column in zip(self._headers, *self._rows, strict=True)
        ]
        order = sorted(range(len(widths)), key=lambda at: self._headers[at][1])
        while self._headers[order[-1]][1] and sum(widths[at] + _GAP for at in order) - _GAP > options.max_width:
            order.pop()
        table = columns()
        for at in sorted(order):
            header = self._headers[at][0]
            table.add_column(header.strip(), justify="right" if header.startswith(" ") else "left")
        for row in self._rows:
            table.add_row(*(row[at] for at in sorted(order)))
        # What still does not fit sticks out.
        yield from console.render(_Rows(table), options.update(width=UNLIMITED))
        lost = [header.strip() for at, (header, _) in enumerate(self._headers) if at not in order]
        if lost:
            yield from console.render(no_room(lost))


def no_room(headers: Sequence[str]) -> Text:
    """Say which columns a narrow terminal leaves out, and how they come."""
    return line(f"no room for {', '.join(headers)}: a wider terminal or --json has all", style="dim")


_GAP = 2


def _with_unbroken_words(table: Table) -> Table:
    for column in table.columns:
        column.min_width = max(_longest(cell, column) for cell in (column.header, *column.cells))
    return table


class _Rows:
    """A table without borders as rich draws it, at a twentieth of what rich takes; rich itself where it must wrap."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        cells = [[_plain(cell) for cell in (column.header, *column.cells)] for column in self._table.columns]
        widths = [max(map(_width, column)) for column in cells]
        _, right, _, right_padding = self._table.padding
        if sum(widths) + (right + right_padding) * (len(widths) - 1) > options.max_width:
            yield _with_unbroken_words(self._table)
            return
        is_right = [column.justify == "right" for column in self._table.columns]
        gap = " " * (right + right_padding)
        for number, row in enumerate(zip(*cells, strict=True)):
            plain = ""
            for index, cell in enumerate(row):
                blanks = " " * (widths[index] - _width(cell))
                plain += f"{gap if index else ''}{blanks if is_right[index] else ''}"
                if isinstance(cell, str) and number:
                    plain += cell
                else:
                    text = _text(cell)
                    style = text.style if number else self._table.header_style or ""
                    yield Segment(plain)
                    yield from Segment.apply_style(text.render(console), console.get_style(style))
                    plain = ""
                plain += "" if is_right[index] else blanks
            yield Segment(f"{plain}\n")


def _plain(cell: RenderableType) -> str | Text:
    """Return a cell without a look as the text that it is: to make a `Text` of it takes longer than to print it."""
    if isinstance(cell, str):
        return cell
    text = _text(cell)
    return text if text.style or text.spans else text.plain


def _width(cell: str | Text) -> int:
    if isinstance(cell, str):
        return len(cell) if cell.isascii() else _text(cell).cell_len
    return cell.cell_len


def _text(cell: RenderableType) -> Text:
    from rich.text import Text

    return cell if isinstance(cell, Text) else Text(str(cell))


def _longest(cell: RenderableType, column: Column) -> int:
    from rich.cells import cell_len

    text = _text(cell)
    parts = [text.plain] if text.no_wrap or column.no_wrap else text.plain.split()
    return max(map(cell_len, parts), default=0)
