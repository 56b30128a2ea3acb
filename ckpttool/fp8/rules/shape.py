"""The start of a gap, and whether the gap grows, by fitting steps and ramps to the means of windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

from ckpttool.core.domain.frozen import dataclass
from ckpttool.fp8.model.curves import CurveShape

STRONG = 6.0
"""Difference in Bayes' information criterion at which one shape is clearly better."""
_LEAST_INDEPENDENT = 8
_MOST_CORRELATION = 0.9
_SLACK = 4.0
"""Divided by the number of independent windows: the tolerated relative error of a fit for the start of the gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The best fit for a series of windows."""

    ramp_over_step: float
    """Information criterion of the ramp minus that of the step. Above 6 the shape is a step, below -6 a ramp."""
    onset: int
    """Window in which the better shape begins, counted from 0."""
    earliest: int
    """First window in which the shape may begin. `latest` is the last."""
    latest: int

    @property
    def kind(self) -> CurveShape:
        """The shape that fits clearly better."""
        if abs(self.ramp_over_step) <= STRONG:
            return CurveShape.OPEN
        return CurveShape.STEP if self.ramp_over_step > 0 else CurveShape.DRIFT


def fit(means: Sequence[float]) -> Shape:
    """Fit a step (zero, then constant) and a ramp (zero, then linear) by least squares.

    If a ramp that ends on a level fits clearly better than both, it determines the start of the gap. Otherwise a gap
    that grows and then stays would seem to have begun much earlier.

    Args:
        means: Means of all windows, at least two.
    """
    count = len(means)
    steps, ramps = ([_error(means, start, length) for start in range(count)] for length in (0, count))
    independent = _independent(means, steps.index(min(steps)))
    tiny = count * (1e-9 * max(map(abs, means))) ** 2 or 1.0
    step, ramp = (max(min(errors), tiny) for errors in (steps, ramps))
    errors, error = (ramps, ramp) if ramp < step else (steps, step)
    levels = [min(_error(means, start, length) for length in range(count - start)) for start in range(count)]
    level = max(min(levels), tiny)
    if independent * math.log(error / level) > STRONG:
        errors, error = levels, level
    slack = 1 + _SLACK / independent
    likely = [place for place, error_at in enumerate(errors) if error_at <= error * slack]
    later = [
        place for place, level_at in enumerate(levels) if level_at <= level * slack
    ]  # a line may reach back too far
    return Shape(
        ramp_over_step=independent * math.log(ramp / step),
        onset=errors.index(min(errors)),
        earliest=likely[0],
        latest=max(likely[-1], later[-1]),
    )


def _error(means: Sequence[float], start: int, length: int) -> float:
    """Return the squared error of zero before `start`, a line over `length` windows, and a level of free height."""
    heights = [min(1.0, (place + 0.5) / length) if length else 1.0 for place in range(len(means) - start)]
    explained = math.fsum(map(mul, heights, means[start:])) ** 2 / math.fsum(map(mul, heights, heights))
    return max(0.0, math.fsum(map(mul, means, means)) - explained)


def _independent(means: Sequence[float], start: int) -> float:
    """Return the number of independent windows among these, because neighbours are correlated."""
    count = len(means)
    height = math.fsum(means[start:]) / (count - start)
    rest = [mean - (height if place >= start else 0.0) for place, mean in enumerate(means)]
    power = math.fsum(map(mul, rest, rest))
    correlation = math.fsum(map(mul, rest, rest[1:])) / power if power else 0.0
    correlation = min(max(correlation, 0.0), _MOST_CORRELATION)
    return max(_LEAST_INDEPENDENT, count * (1 - correlation) / (1 + correlation))
