"""Since when there is a gap, and whether it grows: steps and ramps, fitted to the means of windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import mul

from ckpttool.domain.frozen import dataclass

STRONG = 6.0
"""Difference in Bayes' information criterion from which one shape is clearly the better one."""
_LEAST_INDEPENDENT = 8
_MOST_CORRELATION = 0.9
_SLACK = 4.0
"""By so many independent windows' share may a fit be worse and still tell where it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What fits a row of windows best."""

    ramp_over_step: float
    """By how much the information criterion of a ramp is above that of a step: over 6 it is a step, under -6 none."""
    onset: int
    """Window in which the better one begins, from 0."""
    earliest: int
    """With `latest`: the windows in which it may begin as well."""
    latest: int


def fit(means: Sequence[float]) -> Shape:
    """Fit a step (nothing, then the same) and a ramp (nothing, then a line that begins there) by least squares.

    Args:
        means: Of all windows, at least two.
    """
    steps = _errors(means, lambda _: 1.0)
    ramps = _errors(means, lambda place: place + 0.5)  # the mean over a window of a line that begins with it
    step, ramp = steps.index(min(steps)), ramps.index(min(ramps))
    independent = _independent(means, step)
    tiny = len(means) * (1e-9 * max(map(abs, means))) ** 2 or 1.0
    ratio = max(ramps[ramp], tiny) / max(steps[step], tiny)
    errors, onset = (ramps, ramp) if ratio < 1 else (steps, step)
    bound = max(errors[onset], tiny) * (1 + _SLACK / independent)
    likely = [place for place, error in enumerate(errors) if error <= bound]
    return Shape(ramp_over_step=independent * math.log(ratio), onset=onset, earliest=likely[0], latest=likely[-1])


def _errors(means: Sequence[float], form: Callable[[int], float]) -> list[float]:
    """Return the squared errors of a form that begins in each window, its height free."""
    whole = math.fsum(map(mul, means, means))
    errors = []
    for start in range(len(means)):
        heights = [form(place) for place in range(len(means) - start)]
        explained = math.fsum(map(mul, heights, means[start:])) ** 2 / math.fsum(map(mul, heights, heights))
        errors.append(max(0.0, whole - explained))
    return errors


def _independent(means: Sequence[float], start: int) -> float:
    """Return as how many independent windows these count: neighbours know of each other."""
    count = len(means)
    height = math.fsum(means[start:]) / (count - start)
    rest = [mean - (height if place >= start else 0.0) for place, mean in enumerate(means)]
    power = math.fsum(map(mul, rest, rest))
    correlation = math.fsum(map(mul, rest, rest[1:])) / power if power else 0.0
    correlation = min(max(correlation, 0.0), _MOST_CORRELATION)
    return max(_LEAST_INDEPENDENT, count * (1 - correlation) / (1 + correlation))
