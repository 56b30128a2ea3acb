"""A map of the state of each rank or file in each save. A column that represents several shows the worst state."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Finding, Severity, blocking
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import counted
from ckpttool.core.domain.verdict import VerdictWord, word_of
from ckpttool.core.render.escape import shown

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


class Mark(str, Enum):
    """The symbols for the parts of a save, best first. The symbols differ in shape, not just in colour."""

    GOOD = "intact"
    DOUBT = "uncertain"
    MISSING = "missing"
    DAMAGED = "damaged"


_MARK = {
    VerdictWord.UNSUPPORTED: Mark.DOUBT,
    VerdictWord.SUSPECT: Mark.DOUBT,
    VerdictWord.UNREADABLE: Mark.DOUBT,
    VerdictWord.UNSTABLE: Mark.DOUBT,
    VerdictWord.MISSING: Mark.MISSING,
    VerdictWord.DAMAGED: Mark.DAMAGED,
    VerdictWord.UNSAFE: Mark.DAMAGED,
}

_BEST_FIRST = {verdict_word: place for place, verdict_word in enumerate(VerdictWord)}


def mark_of(verdict_word: VerdictWord) -> Mark:
    """Return the symbol for a verdict."""
    return _MARK.get(verdict_word, Mark.GOOD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Neighbouring columns with the same state."""

    first: int
    """Column, from 0."""
    last: int
    mark: Mark
    title: str
    """The range and state of the span: `ranks 512 to 527: damaged (1)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One save, over all columns."""

    spans: tuple[Span, ...]
    """Ascending; empty if nothing is expected."""
    summary: str
    """A description of the row: `ranks 0 to 8191: 8189 intact, 1 missing, 1 damaged`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMap:
    """A grid of saves by ranks, or by files if saves are not arranged by ranks."""

    noun: str
    """The unit of a column: `rank` or `file`."""
    width: int
    """Number of ranks or files."""
    columns: int
    """Number of columns; if it is lower than `width`, each column represents several ranks or files."""
    rows: tuple[Row, ...]


MANY_MARKS = 400
"""Maximum number of spans in a row; above this number, all rows are drawn coarser."""


def rank_map(
    saves: Sequence[tuple[Checkpoint, Sequence[Finding]]], *, columns: int, coarse: int | None = None
) -> RankMap:
    """Build the map of saves.

    Args:
        saves: The saves in row order, each with all its findings.
        columns: Maximum number of columns.
        coarse: Number of columns if a row would have more than `MANY_MARKS` spans; None for no such limit.
    """
    axis = _axis(saves)
    parts = [axis.parts(checkpoint, findings) for checkpoint, findings in saves]
    drawn = _drawn(parts, axis, min(columns, axis.width))
    if coarse is not None and any(len(row.spans) > MANY_MARKS for row in drawn.rows):
        return _drawn(parts, axis, min(coarse, axis.width))
    return drawn


def _drawn(parts: Iterable[_Parts], axis: _Axis, columns: int) -> RankMap:
    rows = tuple(Row(spans=tuple(_spans(part, axis, columns)), summary=_summary(part, axis)) for part in parts)
    return RankMap(noun=axis.noun, width=axis.width, columns=columns, rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """The state of each rank or file of a save."""

    places: Sequence[int]
    """Positions, ascending."""
    bad: Mapping[int, VerdictWord]
    """Bad states, by position."""
    expected: int
    """Number of positions, from 0, that must be present."""
    worst: VerdictWord | None
    """The problem of the whole save; None if there is no problem."""
    extra_names: Mapping[int, str]
    """Names of files that no other save has, by position."""

    def has(self, place: int) -> bool:
        at = bisect_left(self.places, place)
        return at < len(self.places) and self.places[at] == place


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """The meaning of the columns."""

    noun: str
    width: int
    places: Mapping[str, int]
    """Column of each file, by its common name in all saves."""
    names: Sequence[str] = ()
    """Names of the files that several saves have, by column; empty if columns are ranks."""
    by_rank: bool = True

    def parts(self, checkpoint: Checkpoint, findings: Iterable[Finding]) -> _Parts:
        bad: dict[int, VerdictWord] = {}
        worst_word: VerdictWord | None = None
        for finding in findings:
            if finding.severity is Severity.NOTE:
                continue
            verdict_word, is_selected = word_of(finding), self._places_of(finding, checkpoint)
            for place in is_selected:
                bad[place] = _worse(bad.get(place), verdict_word)
            worst_word = worst_word if is_selected else _worse(worst_word, verdict_word)
        if self.by_rank:
            world = checkpoint.topology.world_size or 0
            return _Parts(places=checkpoint.ranks, bad=bad, expected=world, worst=worst_word, extra_names={})
        names = {inner(shard.path, checkpoint) for shard in checkpoint.shards}
        places = sorted(self.places[name] for name in names)
        extra_names = {place: name for name in names if (place := self.places[name]) >= len(self.names)}
        return _Parts(places=places, bad=bad, expected=0, worst=worst_word, extra_names=extra_names)

    def _places_of(self, finding: Finding, checkpoint: Checkpoint) -> Sequence[int]:
        """Return the positions that a finding is about; empty if the finding is about the whole save."""
        if finding.ranks and self.by_rank:
            return finding.ranks
        place = None if finding.path is None else self.places.get(inner(finding.path, checkpoint))
        return () if place is None else (place,)

    def named(self, first: int, last: int, extra_names: Mapping[int, str]) -> str:
        if self.by_rank:
            return f"rank {first}" if first == last else f"ranks {first} to {last}"
        ends = [
            self.names[place] if place < len(self.names) else extra_names.get(place, f"file {place + 1}")
            for place in (first, last)
        ]
        return ends[0] if first == last else " to ".join(ends)


def _axis(saves: Sequence[tuple[Checkpoint, Sequence[Finding]]]) -> _Axis:
    """Return an axis of ranks if every file belongs to a rank, otherwise an axis of files."""
    if all(shard.rank is not None for checkpoint, _ in saves for shard in checkpoint.shards):
        worlds = [checkpoint.topology.world_size or 0 for checkpoint, _ in saves]
        lasts = [checkpoint.shards[-1].rank or 0 for checkpoint, _ in saves if checkpoint.shards]  # by rank
        # A rank's absence in one save and presence in another identifies it.
        places: dict[str, int] = {
            inner(shard.path, checkpoint): shard.rank
            for checkpoint, _ in (saves if any(f.path and not f.ranks for _, names in saves for f in names) else ())
            for shard in checkpoint.shards
            if shard.rank is not None
        }
        return _Axis(noun="rank", width=max([*worlds, *(last + 1 for last in lasts)], default=0), places=places)
    names_of_saves: list[set[str]] = []
    for checkpoint, findings in saves:
        missing = (finding.path for finding in findings if finding.path and word_of(finding) is VerdictWord.MISSING)
        paths = (*(shard.path for shard in checkpoint.shards), *(checkpoint.expected or ()), *missing)
        names_of_saves.append({inner(path, checkpoint) for path in paths})
    of_saves = Counter(name for names in names_of_saves for name in names)
    names = sorted(name for name, number in of_saves.items() if number > 1)
    places = {name: place for place, name in enumerate(names)}
    # Files that only one save has share a column across saves, because their names may differ in each save.
    extra_names = [sorted(name for name in names if of_saves[name] == 1) for names in names_of_saves]
    places |= {name: len(names) + at for those in extra_names for at, name in enumerate(those)}
    width = len(names) + max(map(len, extra_names), default=0)
    return _Axis(noun="file", width=width, places=places, names=names, by_rank=False)


def inner(path: str, checkpoint: Checkpoint) -> str:
    """Return a file's path without the save's own folder, to compare the files of two saves."""
    *folders, name = path.split("/")
    return "/".join([*(folder for folder in folders if folder != checkpoint.name), name])


def _worse(first: VerdictWord | None, second: VerdictWord) -> VerdictWord:
    return second if first is None or _BEST_FIRST[second] > _BEST_FIRST[first] else first


def _spans(parts: _Parts, axis: _Axis, columns: int) -> Iterator[Span]:
    """Yield the cells of a save, with equal neighbours joined."""
    cells = list(_cells(parts, axis.width, columns))
    if parts.worst is not None and all(verdict_word is None for _, verdict_word, _ in cells):
        cells = [(column, parts.worst, 0) for column in range(columns)]
    # A file that is neither expected nor present has no cell: equal cells are joined only if they are adjacent.
    for (_, verdict_word), same in groupby(enumerate(cells), key=lambda item: (item[1][0] - item[0], item[1][1])):
        run = [cell for _, cell in same]
        first, last = run[0][0], run[-1][0]
        named = axis.named(
            _first(first, axis.width, columns), _first(last + 1, axis.width, columns) - 1, parts.extra_names
        )
        number = sum(count for _, _, count in run)
        state = "intact"
        if verdict_word is not None:
            state = f"{verdict_word.value} ({number})" if number else f"{verdict_word.value} as a checkpoint"
        yield Span(
            first=first,
            last=last,
            mark=Mark.GOOD if verdict_word is None else mark_of(verdict_word),
            title=f"{named}: {state}",
        )


def _cells(parts: _Parts, width: int, columns: int) -> Iterator[tuple[int, VerdictWord | None, int]]:
    """Yield each non-empty column, with its worst verdict (None if good) and the number of positions with it."""
    bad: dict[int, list[tuple[int, VerdictWord]]] = {}
    for place, verdict_word in parts.bad.items():
        bad.setdefault(min(place * columns // width, columns - 1), []).append((place, verdict_word))
    for column in range(columns):
        first, after = _first(column, width, columns), _first(column + 1, width, columns)
        low, high = bisect_left(parts.places, first), bisect_left(parts.places, after)
        faults = bad.get(column)
        lacking = min(after, parts.expected) - first
        if faults is None and lacking <= high - low:
            if low < high:
                yield column, None, high - low
            continue
        counts = Counter(verdict_word for _, verdict_word in faults or ())
        silent = high - low - sum(map(parts.has, (place for place, _ in faults or ())))
        absent = lacking - silent - sum(place < parts.expected for place, _ in faults or ())
        if absent > 0:
            counts[VerdictWord.MISSING] += absent
        worst = max(counts, key=_BEST_FIRST.__getitem__)
        yield column, worst, counts[worst]


def _first(column: int, width: int, columns: int) -> int:
    """Return the first position of a column."""
    return -(-column * width // columns)


def _summary(parts: _Parts, axis: _Axis) -> str:
    counts = Counter(verdict_word.value for verdict_word in parts.bad.values())
    silent = len(parts.places) - sum(map(parts.has, parts.bad))
    absent = parts.expected - silent - sum(place < parts.expected for place in parts.bad)
    if absent > 0:
        counts["missing"] += absent
    texts = [f"{silent} intact"] if silent or not counts else []
    texts += [f"{number} {name}" for name, number in sorted(counts.items())]
    if parts.worst is not None:
        texts.append(f"the checkpoint itself {parts.worst.value}")
    return f"{counted(silent + sum(counts.values()), axis.noun)}: {', '.join(texts)}"


MANY_RANKS = 16
"""Minimum number of ranks for a map on a terminal; for fewer ranks, the table and the findings say the same."""

_LEAST_CELLS = 32
"""Minimum number of cells for a map."""

_MOST_ROWS = 20

_SIGNS = {Mark.GOOD: "▪", Mark.DOUBT: "?", Mark.MISSING: "○", Mark.DAMAGED: "✗"}
_ASCII = {Mark.GOOD: ".", Mark.DOUBT: "?", Mark.MISSING: "o", Mark.DAMAGED: "x"}
_STYLES = {Mark.GOOD: "green", Mark.DOUBT: "yellow", Mark.MISSING: "red", Mark.DAMAGED: "bold red"}


class Drawn:
    """Map of the damage in the saves: one row of cells per save, for a wide terminal.

    The map is shown only on a terminal, and only if something is wrong.
    """

    def __init__(self, saves: Sequence[tuple[Checkpoint, Sequence[Finding]]]) -> None:
        """Store the saves in display order, each with all its findings."""
        self._saves = [(checkpoint, findings) for checkpoint, findings in saves if blocking(findings)][:_MOST_ROWS]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        if not self._saves or not console.file.isatty():
            return
        names = [Text(shown(checkpoint.name)) for checkpoint, _ in self._saves]
        margin = max(name.cell_len for name in names) + 2
        room = options.max_width - margin
        drawn = rank_map(self._saves, columns=room)
        if drawn.width < MANY_RANKS or room < _LEAST_CELLS:
            return
        signs = _ASCII if options.ascii_only else _SIGNS
        yield Text()
        yield Text(" " * margin + self._axis(drawn), style="dim")
        for name, row in zip(names, drawn.rows, strict=True):
            line = name.copy()
            line.pad_right(margin - name.cell_len)
            for span in row.spans:
                line.append(" " * (margin + span.first - line.cell_len))
                line.append(signs[span.mark] * (span.last - span.first + 1), style=_STYLES[span.mark])
            yield line
        marks = {span.mark for row in drawn.rows for span in row.spans}
        yield Text(
            " " * margin + "  ".join(f"{signs[mark]} {mark.value}" for mark in Mark if mark in marks), style="dim"
        )

    def _axis(self, drawn: RankMap) -> str:
        """Describe the columns, with the last rank."""
        per_cell = "" if drawn.columns == drawn.width else ", the worst of each cell"
        if drawn.noun == "file":
            return f"{drawn.width} files{per_cell}"
        last = str(drawn.width - 1)
        first = f"rank 0{per_cell}"
        return first + last.rjust(drawn.columns - len(first))
