"""Small charts for a terminal: a value over the steps, and the distribution from which a threshold was derived."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ckpttool.core.domain.advice import Threshold
from ckpttool.core.domain.units import Step
from ckpttool.core.render.text import WIDTH

_HEIGHT = 12
_LABEL = 9  # columns for a number at the left edge
_LEAST_DRAWN = 2  # least number of different steps for a curve


@dataclass(frozen=True, slots=True)
class _Signs:
    point: str
    earlier: str
    threshold: str
    healthy: str
    unhealthy: str
    unknown: str
    over: str
    bar: str
    axis: str
    corner: str
    floor: str


_UNICODE = _Signs("•", "o", "─", "▲", "✗", "?", "↑", "█", "│", "└", "─")
_ASCII = _Signs("*", "o", "-", "^", "x", "?", "!", "#", "|", "+", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A checkpoint that is marked under the curve."""

    step: Step
    healthy: bool | None
    """Whether the checkpoint is healthy; None if unknown."""


def norm_chart(  # noqa: PLR0913 (what can be in a chart)
    title: str,
    points: Sequence[tuple[Step, float]],
    *,
    lines: Sequence[float] = (),
    marks: Iterable[Mark] = (),
    earlier: Sequence[tuple[Step, float]] = (),
    unicode: bool = True,
    width: int = WIDTH,
) -> str:
    """Draw the value furthest from 0 in each column's steps, horizontal lines, and the checkpoints below.

    The scale is logarithmic if positive values spread over more than two decades. Non-finite values are drawn at the
    upper edge, because they may be the most important ones.

    Args:
        title: First line.
        points: Step and value, in any order.
        lines: Values drawn as lines across the chart: a threshold, or the edges of a band.
        marks: Checkpoints.
        earlier: Values of an earlier run at the same steps, hidden by `points` if both are equal.
        unicode: Whether the terminal shows more than ASCII.
        width: Columns.
    """
    signs = _UNICODE if unicode else _ASCII
    columns = max(1, width - _LABEL - 2)
    finite = [norm for _, norm in points if math.isfinite(norm)]
    if not finite or len({step for step, _ in points}) < _LEAST_DRAWN:
        return f"{title}\n(too few values for a curve)\n"
    finite_earlier = [(step, value) for step, value in earlier if math.isfinite(value)]
    scale = _Scale.over([*finite, *lines, *(value for _, value in finite_earlier)])
    first, last = min(step for step, _ in points), max(step for step, _ in points)

    def column(step: Step) -> int:
        return min(columns - 1, (step - first) * columns // (last - first + 1))

    cells = [[" "] * columns for _ in range(_HEIGHT)]
    for value in lines:
        cells[scale.row(value)] = [signs.threshold] * columns
    for index, value in _furthest(finite_earlier, column).items():
        cells[scale.row(value)][index] = signs.earlier
    for index, norm in _furthest(points, column).items():
        row = scale.row(norm) if math.isfinite(norm) else 0
        cells[row][index] = signs.point if math.isfinite(norm) else signs.over
    labels = {0: scale.value(0), _HEIGHT - 1: scale.value(_HEIGHT - 1)}
    labels.update({scale.row(value): value for value in lines})
    drawn = [f"{title} ({signs.point} resumed run, {signs.earlier} first run)" if earlier else title]
    drawn += [f"{_label(labels.get(row))} {signs.axis}{''.join(cells[row])}".rstrip() for row in range(_HEIGHT)]
    marks_below = _marks_line([mark for mark in marks if first <= mark.step <= last], column, columns, signs)
    ends = f"{first}{last:>{max(1, columns - len(str(first)))}}"
    return "\n".join([*drawn, *_floor(marks_below, ends, columns, signs)]) + "\n"


def histogram(threshold: Threshold, *, unicode: bool = True, width: int = WIDTH) -> str:
    """Draw the distribution of a quantity, one bar per bin, with the position of the threshold."""
    signs = _UNICODE if unicode else _ASCII
    room = max(1, width - 2 * _LABEL - 12)
    most = max(bar.count for bar in threshold.bins)
    lines = [f"{threshold.quantity}: {threshold.points} normal values, median {threshold.median:.4g}"]
    drawn = False
    for bar in threshold.bins:
        if not drawn and bar.low >= threshold.value:
            lines.append(_threshold_line(threshold, signs, room))
            drawn = True
        # A single value among millions must be visible, however long the longest bar is.
        length = math.ceil(bar.count * room / most)
        lines.append(f"{_label(bar.low)} {signs.axis}{signs.bar * length} {bar.count or ''}".rstrip())
    if not drawn:
        lines.append(_threshold_line(threshold, signs, room))
    return "\n".join(lines) + "\n"


def _threshold_line(threshold: Threshold, signs: _Signs, room: int) -> str:
    return f"{_label(threshold.value)} {signs.axis}{signs.threshold * room} threshold"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """The rows of values, from top to bottom."""

    low: float
    high: float
    logarithmic: bool

    @staticmethod
    def over(values: Sequence[float]) -> _Scale:
        low, high = min(values), max(values)
        logarithmic = low > 0 and high / low > 100  # noqa: PLR2004 (two decades)
        if logarithmic:
            return _Scale(low=math.log10(low), high=math.log10(high), logarithmic=True)
        if low == high:
            low, high = low - 1, high + 1
        return _Scale(low=low, high=high, logarithmic=False)

    def row(self, value: float) -> int:
        place = math.log10(value) if self.logarithmic else value
        return round((self.high - place) / (self.high - self.low) * (_HEIGHT - 1))

    def value(self, row: int) -> float:
        place = self.high - (self.high - self.low) * row / (_HEIGHT - 1)
        return 10**place if self.logarithmic else place


def _floor(marks: str, ends: str, columns: int, signs: _Signs) -> Iterator[str]:
    """Yield the lines below the curve: checkpoints, first and last step, and the legend."""
    yield f"{_label(None)} {signs.corner}{signs.floor * columns}"
    if marks:
        yield f"{_label(None)}  {marks}"
    yield f"{_label(None)}  {ends}"
    if marks:
        legend = f"{signs.healthy} healthy  {signs.unhealthy} unhealthy  {signs.unknown} unknown"
        yield f"{_label(None)}  checkpoints: {legend}"


def _furthest(points: Iterable[tuple[Step, float]], column: Callable[[Step], int]) -> dict[int, float]:
    furthest: dict[int, float] = {}
    for step, value in points:
        index = column(step)
        furthest_value = furthest.get(index, value)
        furthest[index] = value if math.isnan(value) or abs(value) > abs(furthest_value) else furthest_value
    return furthest


def _marks_line(marks: Iterable[Mark], column: Callable[[Step], int], columns: int, signs: _Signs) -> str:
    cells = [" "] * columns
    # If several are in one column, the worst must be visible.
    for is_healthy, sign in ((True, signs.healthy), (None, signs.unknown), (False, signs.unhealthy)):
        for mark in marks:
            if mark.healthy is is_healthy:
                cells[column(mark.step)] = sign
    return "".join(cells).rstrip()


def _label(value: float | None) -> str:
    if value is None:
        return " " * _LABEL
    text = f"{value:.4g}"
    return f"{text if len(text) <= _LABEL else f'{value:.2g}':>{_LABEL}}"
