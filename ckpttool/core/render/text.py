"""Components of answers for people, and the layout of lists and tables within a width.

Lines break only between words, so that a path can be copied whole. rich breaks or crops a word that does not fit; here
such a word overflows, and the terminal continues it on the next line. rich is imported only for output for people, so
that an answer in JSON does not wait for the import.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group, OverflowMethod, RenderableType, RenderResult
    from rich.table import Table as RichTable
    from rich.text import Text

NARROW = 60
"""Width below which a table shows fewer columns, because the name of a checkpoint must never be truncated."""

UNLIMITED = 1 << 20
"""Width of output that is not a terminal, so that lines are not broken."""

WIDTH = 80
"""Width that every terminal and every email has."""

WIDEST = 100
"""Maximum width of a plot: a wider curve does not show more."""


def line(
    text: str = "", style: str = "", *, no_wrap: bool | None = None, overflow: OverflowMethod | None = None
) -> Text:
    """Return a line or a paragraph, whose markup is treated as text."""
    from rich.text import Text

    return Text(text, style, no_wrap=no_wrap, overflow=overflow)


def stack(*parts: RenderableType) -> Group:
    """Stack parts vertically."""
    from rich.console import Group

    return Group(*map(_unbroken, parts))


class Indented:
    """Indented content; `Padding` would crop it."""

    def __init__(self, renderable: RenderableType, by: int = 2) -> None:
        """Store the content, and the number of columns by which it is indented."""
        self._renderable = renderable
        self._by = by

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _with_margin(line(" " * self._by), self._renderable, console, options)


class Summary:
    """A headline with details below it, for which only a terminal needs rich."""

    def __init__(self, headline: str, details: Sequence[str], *, style: str, remark: str = "") -> None:
        """Store the headline with its style, a paragraph for each detail, and a remark after the headline."""
        self._headline = headline
        self._details = details
        self._style = style
        self._remark = remark

    def plain(self) -> str:
        """Return the text without styles and without breaking lines."""
        return "\n".join([self._headline + self._remark, "", *(f"  {detail}" for detail in self._details)])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        headline = line(self._headline, self._style).append(self._remark, "dim")
        yield stack(headline, line(), *(Indented(line(detail)) for detail in self._details))


class Pairs:
    """Names and their values in two columns; a long value does not affect other lines."""

    def __init__(self, rows: Iterable[tuple[str | Text, str | Text]], *, by: int = 2) -> None:
        """Store names with values, and the number of columns to indent."""
        self._rows = [(line(" " * by) + name, value) for name, value in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widest = max((name.cell_len for name, _ in self._rows), default=0)
        for name, value in self._rows:
            margin = name.copy()
            margin.pad_right(widest + 2 - name.cell_len)
            yield from _with_margin(margin, line(value) if isinstance(value, str) else value, console, options)


class Picture:
    """A drawing that adapts to the terminal that shows it."""

    def __init__(self, draw: Callable[..., str]) -> None:
        """Store a function that draws for a `width` in columns, with `unicode` characters if available."""
        self._draw = draw

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(WIDEST, options.max_width) if options.max_width < UNLIMITED else WIDTH
        drawn = self._draw(width=width, unicode=not options.ascii_only)
        yield line(drawn.rstrip("\n"), no_wrap=True, overflow="crop")


def _with_margin(margin: Text, renderable: RenderableType, console: Console, options: ConsoleOptions) -> RenderResult:
    """Indent a renderable by a margin, which is printed once."""
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
    piece.overflow = part.overflow or "ignore"  # a plot is cropped, and shows that it is
    return piece


_GAP = 2
"""Spaces between two columns."""

_HEADER_STYLE = "dim"


class _Column(NamedTuple):
    header: str
    justify: Literal["left", "right"]
    no_wrap: bool
    cells: list[str | Text]


class Table:
    """A table without borders, drawn as by rich in a twentieth of the time; if a cell must wrap, rich itself draws it.

    No column becomes narrower than its longest word.
    """

    def __init__(self, *, gap: int = _GAP) -> None:
        """Store the number of spaces between two columns."""
        self._gap = gap
        self._columns: list[_Column] = []

    def add_column(self, header: str, *, justify: Literal["left", "right"] = "left", no_wrap: bool = False) -> None:
        """Add a column without cells."""
        self._columns.append(_Column(header, justify, no_wrap, []))

    def add_row(self, *cells: str | Text) -> None:
        """Add a cell to each column."""
        for column, cell in zip(self._columns, cells, strict=True):
            column.cells.append(cell)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        cells = [[column.header, *map(_plain, column.cells)] for column in self._columns]
        widths = [max(map(_width, column)) for column in cells]
        if sum(widths) + self._gap * (len(widths) - 1) > options.max_width:
            yield self.by_rich()
            return
        is_right = [column.justify == "right" for column in self._columns]
        gap = " " * self._gap
        for number, row in enumerate(zip(*cells, strict=True)):
            plain = ""
            for index, cell in enumerate(row):
                blanks = " " * (widths[index] - _width(cell))
                plain += f"{gap if index else ''}{blanks if is_right[index] else ''}"
                if isinstance(cell, str) and number:
                    plain += cell
                else:
                    text = _text(cell)
                    style = text.style if number else _HEADER_STYLE
                    yield Segment(plain)
                    yield from Segment.apply_style(text.render(console), console.get_style(style))
                    plain = ""
                plain += "" if is_right[index] else blanks
            yield Segment(f"{plain}\n")

    def by_rich(self) -> RichTable:
        """Return the same table as a table that rich draws."""
        from rich.table import Table as RichTable

        padding = (0, 1, 0, self._gap - 1)
        table = RichTable(box=None, pad_edge=False, header_style=_HEADER_STYLE, padding=padding)
        for column in self._columns:
            widest = max(_longest(cell, no_wrap=column.no_wrap) for cell in (column.header, *column.cells))
            # rich first shrinks all columns that may wrap, so a column of single words must not take space from the
            # others.
            is_rigid = column.no_wrap or widest == max(map(_width, (column.header, *map(_plain, column.cells))))
            table.add_column(column.header, justify=column.justify, no_wrap=is_rigid, min_width=widest)
        for row in zip(*(column.cells for column in self._columns), strict=True):
            table.add_row(*row)
        return table


class Columns:
    """A table that drops the least important columns on a narrow terminal, and names the dropped columns."""

    def __init__(self, headers: Sequence[tuple[str, int]], rows: Sequence[Sequence[str | Text]]) -> None:
        """Store the rows, and the header and priority of each column.

        If space is short, columns are dropped by priority; priority 0 is never dropped. A header that begins with a
        space marks a column of numbers, which is right-aligned.
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
        table = Table()
        for at in sorted(order):
            header = self._headers[at][0]
            table.add_column(header.strip(), justify="right" if header.startswith(" ") else "left")
        for row in self._rows:
            table.add_row(*(row[at] for at in sorted(order)))
        # Text that still does not fit overflows.
        yield from console.render(table, options.update(width=UNLIMITED))
        lost = [header.strip() for at, (header, _) in enumerate(self._headers) if at not in order]
        if lost:
            yield from console.render(no_room(lost))


def no_room(headers: Sequence[str]) -> Text:
    """Name the columns that a narrow terminal drops, and say how to see them."""
    return line(f"not shown: {', '.join(headers)}; use a wider terminal or --json", style="dim")


def _plain(cell: str | Text) -> str | Text:
    """Return a cell without style as plain text, because creating a `Text` takes longer than printing it."""
    if isinstance(cell, str):
        return cell
    return cell if cell.style or cell.spans else cell.plain


def _width(cell: str | Text) -> int:
    if isinstance(cell, str):
        return len(cell) if cell.isascii() else _text(cell).cell_len
    return cell.cell_len


def _text(cell: str | Text) -> Text:
    from rich.text import Text

    return Text(cell) if isinstance(cell, str) else cell


def _longest(cell: str | Text, *, no_wrap: bool) -> int:
    from rich.cells import cell_len

    text = _text(cell)
    parts = [text.plain] if text.no_wrap or no_wrap else text.plain.split()
    return max(map(cell_len, parts), default=0)
