"""Steps stored in columns, which need a fifth of the memory of separate objects, for logs of millions of steps."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields
from typing import overload

from ckpttool.core.domain.metrics import StepMetrics

_KINDS = {"consumed_samples": "q", "overflow": "b", "skipped": "b", "time": "t"}
FIELDS = tuple(field.name for field in fields(StepMetrics) if field.name != "step")
_TIME_CHARS = 19
"""Length of `2024-05-01 12:30:00`, the form of nearly all times in logs."""


class StepTable(Sequence[StepMetrics]):
    """Steps in the order in which they were added; each access creates the object."""

    __slots__ = ("_columns", "_steps")

    def __init__(self, keep: Collection[str] = FIELDS) -> None:
        """Create an empty table.

        Args:
            keep: Fields to store in addition to the step; other fields are dropped.
        """
        self._steps: array[int] | list[int] = array("q")
        self._columns = [(name, _column(_KINDS.get(name, "d"))) for name in FIELDS if name in keep]

    def append(self, metrics: StepMetrics) -> None:
        """Add a step at the end."""
        place = len(self._steps)
        try:
            self._steps.append(metrics.step)
        except OverflowError:  # too large for any training run, but a log may contain it
            self._steps = [*self._steps, metrics.step]
        for name, column in self._columns:
            value = getattr(metrics, name)
            if value is not None:
                column.put(place, value)

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[StepMetrics]:
        return map(self.__getitem__, range(len(self)))

    def step(self, place: int) -> int:
        """Return the step at a position, without creating the object."""
        return self._steps[place]

    @overload
    def __getitem__(self, place: int) -> StepMetrics: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[StepMetrics]: ...
    def __getitem__(self, place: int | slice) -> StepMetrics | Sequence[StepMetrics]:
        if isinstance(place, slice):
            return Rows(self, range(len(self))[place])
        place = range(len(self))[place]  # also accepts negative positions
        values = {name: value for name, column in self._columns if (value := column.get(place)) is not None}
        return StepMetrics(step=self._steps[place], **values)  # type: ignore[arg-type]  # the fields have different types


class Rows(Sequence[StepMetrics]):
    """A selection of steps from a table, in any order."""

    __slots__ = ("_places", "_table")

    def __init__(self, table: StepTable, places: Sequence[int]) -> None:
        """Select the steps of the table at the given positions."""
        self._table = table
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> StepMetrics: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[StepMetrics]: ...
    def __getitem__(self, place: int | slice) -> StepMetrics | Sequence[StepMetrics]:
        if isinstance(place, slice):
            return Rows(self._table, self._places[place])
        return self._table[self._places[place]]

    def __iter__(self) -> Iterator[StepMetrics]:
        return map(self._table.__getitem__, self._places)


class _Numbers:
    """A column of numbers with gaps, which ends at its last value."""

    __slots__ = ("_kind", "_present", "_values")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._values: array[float] | list[float] = array(kind)
        self._present = bytearray()

    def put(self, place: int, value: float) -> None:
        gap = place - len(self._present)
        if gap:
            self._values.extend([0] * gap)
            self._present.extend(bytes(gap))
        try:
            self._values.append(value)
        except OverflowError:
            self._values = [*self._values, value]
        self._present.append(1)

    def get(self, place: int) -> float | None:
        if place >= len(self._present) or not self._present[place]:
            return None
        value = self._values[place]
        return value != 0 if self._kind == "b" else value


class _Times:
    """A column of times in the log's format."""

    __slots__ = ("_odd", "_usual")

    def __init__(self) -> None:
        self._usual = bytearray()
        self._odd: dict[int, str] = {}

    def put(self, place: int, text: str) -> None:
        if len(text) == _TIME_CHARS and text.isascii():
            self._usual.extend(bytes(place * _TIME_CHARS - len(self._usual)))
            self._usual += text.encode("ascii")
        else:
            self._odd[place] = text

    def get(self, place: int) -> str | None:
        usual = self._usual[place * _TIME_CHARS : (place + 1) * _TIME_CHARS]
        return usual.decode("ascii") if usual.strip(b"\0") else self._odd.get(place)


def _column(kind: str) -> _Numbers | _Times:
    return _Times() if kind == "t" else _Numbers(kind)
