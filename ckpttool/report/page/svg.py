"""The pictures on a page, drawn with lines: strips of ranks, and curves over steps.

They stretch with the page, so they contain no text, which would shrink with the picture. Lines and dots must look the
same at any width, so they are strokes that do not scale. A dot is a line of length zero with round ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Step
from ckpttool.core.render.rank_map import Mark, Row

STRIP = 512
"""Width of a strip of ranks in units."""

_TALL = 12
_BAR = (3, 6)
"""Top and height of the bar of intact ranks. Other marks are taller."""

_LEAST = {Mark.DOUBT: 3, Mark.MISSING: 5, Mark.DAMAGED: 3}
"""Minimum width of a bad mark in units. One rank in ten thousand must be visible, and a hollow mark recognizable."""

_CLASS = {Mark.GOOD: "ok", Mark.DOUBT: "doubt", Mark.MISSING: "gone", Mark.DAMAGED: "bad"}

_SINGLE = 64
"""Maximum number of columns with gaps between them."""


def strip(row: Row, columns: int, title: str) -> str:
    """Draw the ranks of one save as a bar of the intact ranks, with the other ranks enlarged on it."""
    unit = STRIP / max(columns, 1)
    good = [span for span in row.spans if span.mark is Mark.GOOD]
    bad = [span for span in row.spans if span.mark is not Mark.GOOD]
    marks = [_rect(span.first * unit, (span.last + 1) * unit, _BAR, _CLASS[span.mark], span.title) for span in good]
    if columns <= _SINGLE and good:
        cuts = "".join(f"M{_n(at * unit)} 2v8" for at in range(1, columns))
        marks.append(f'<path class="cut" d="{cuts}"/>' if cuts else "")
    for span in bad:
        low, high = span.first * unit, (span.last + 1) * unit
        least = _LEAST[span.mark]
        if high - low < least:
            low = min(max((low + high - least) / 2, 0), STRIP - least)
            high = low + least
        marks.append(_rect(low, high, (0, _TALL), _CLASS[span.mark], span.title))
    label = escape(f"{title}: {row.summary}")
    return (
        f'<svg class="strip" viewBox="0 0 {STRIP} {_TALL}" preserveAspectRatio="none" role="img" '
        f'aria-label="{label}">{"".join(marks)}</svg>'
    )


def _rect(low: float, high: float, place: tuple[int, int], kind: str, title: str) -> str:
    top, height = place
    return (
        f'<rect class="{kind}" x="{_n(low)}" y="{top}" width="{_n(high - low)}" height="{height}">'
        f"<title>{escape(title)}</title></rect>"
    )


def _n(value: float) -> str:
    """Format a length with no more digits than a screen can show."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


WIDE, HIGH = 1000, 300
"""Width and height of a curve in units."""

_DRAWN = 500
"""Number of columns in a curve. For each, the lowest and the highest value are drawn."""

_LEAST_DRAWN = 2
_DECADES = 100
"""Ratio of the largest to the smallest value above which the scale is logarithmic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The scale of steps and values in a curve."""

    first: Step
    last: Step
    low: float
    """Lowest value on the drawn scale, as a logarithm if the scale is logarithmic."""
    high: float
    logarithmic: bool

    @staticmethod
    def over(steps: Iterable[Step], values: Iterable[float]) -> Scale | None:
        """Return the scale for drawing all values, or None if there are too few steps or no finite values."""
        steps_sorted, finite = sorted({*steps}), [value for value in values if math.isfinite(value)]
        if len(steps_sorted) < _LEAST_DRAWN or not finite:
            return None
        low, high = min(finite), max(finite)
        logarithmic = low > 0 and high / low > _DECADES
        if logarithmic:
            low, high = math.log10(low), math.log10(high)
        margin = (high - low) * 0.06 or max(abs(high), 1.0) * 0.1
        return Scale(
            first=steps_sorted[0], last=steps_sorted[-1], low=low - margin, high=high + margin, logarithmic=logarithmic
        )

    def x(self, step: Step) -> float:
        """Return the horizontal position of a step, from 0 to 1."""
        return (step - self.first) / (self.last - self.first)

    def y(self, value: float) -> float:
        """Return the vertical position of a value, from 0 to 1. A non-finite value is at the top."""
        if not math.isfinite(value):
            return 0.0
        if self.logarithmic:
            value = math.log10(value) if value > 0 else self.low
        return min(max((self.high - value) / (self.high - self.low), 0.0), 1.0)

    def ticks(self) -> list[float]:
        """Return some round values for the axis, in ascending order."""
        if self.logarithmic:
            lowest, highest = math.ceil(self.low), math.floor(self.high)
            every = max(1, (highest - lowest) // 3)
            return [10.0**power for power in range(lowest, highest + 1, every)]
        return round_values(self.low, self.high)


def round_values(low: float, high: float) -> list[float]:
    """Return two to six round values between the lowest and the highest."""
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def curve(  # noqa: PLR0913  what can be in a picture
    points: Sequence[tuple[Step, float]],
    scale: Scale,
    *,
    threshold: float | None,
    spikes: Iterable[tuple[Step, float]],
    summary: str,
    earlier: Sequence[tuple[Step, float]] = (),
) -> str:
    """Draw a value over the steps, the threshold line, and the spikes."""
    parts = [f'<path class="grid" d="{_grid(scale)}"/>']
    if threshold is not None:
        at = _n(scale.y(threshold) * HIGH)
        parts.append(f'<rect class="over" x="0" y="0" width="{WIDE}" height="{at}"/>')
        parts.append(f'<path class="limit" d="M0 {at}H{WIDE}"/>')
    if earlier:
        parts.append(f'<path class="earlier" d="{_line(earlier, scale)}"/>')
    parts.append(f'<path class="curve" d="{_line(points, scale)}"/>')
    dots = [(scale.x(step) * WIDE, scale.y(value) * HIGH, step, value) for step, value in spikes]
    if dots:
        stems = "".join(f"M{_n(x)} {_n(y)}V{HIGH}" for x, y, _, _ in dots)
        parts.append(f'<path class="stem" d="{stems}"/>')
    for kind in ("ring", "spike"):
        parts += [
            f'<path class="{kind}" d="M{_n(x)} {_n(y)}h0"><title>step {step}: {value:.5g}</title></path>'
            for x, y, step, value in dots
        ]
    return (
        f'<svg class="plot" viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(summary)}">{"".join(parts)}</svg>'
    )


def _grid(scale: Scale) -> str:
    return "".join(f"M0 {_n(scale.y(value) * HIGH)}H{WIDE}" for value in scale.ticks())


def _line(points: Sequence[tuple[Step, float]], scale: Scale) -> str:
    """Join the lowest and the highest value of each column. The line is interrupted at non-finite values."""
    commands: list[str] = []
    down = False
    for x, value in _thinned(points, scale):
        if not math.isfinite(value):
            down = False
            continue
        commands.append(f"{'L' if down else 'M'}{_n(x * WIDE)} {_n(scale.y(value) * HIGH)}")
        down = True
    return "".join(commands)


def _thinned(points: Sequence[tuple[Step, float]], scale: Scale) -> Iterator[tuple[float, float]]:
    if len(points) <= 2 * _DRAWN:
        yield from ((scale.x(step), value) for step, value in points)
        return
    columns: dict[int, list[tuple[Step, float]]] = {}
    for step, value in points:
        columns.setdefault(int(scale.x(step) * _DRAWN), []).append((step, value))
    for _, those in sorted(columns.items()):
        finite = [point for point in those if math.isfinite(point[1])]
        if len(finite) < len(those):
            yield scale.x(those[0][0]), math.nan
        ends = {min(finite, key=lambda point: point[1]), max(finite, key=lambda point: point[1])} if finite else set()
        yield from ((scale.x(step), value) for step, value in sorted(ends))
