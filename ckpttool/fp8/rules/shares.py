"""The remaining gap in each experiment, with its confidence, and each product's share of the total."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from operator import mul

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Step
from ckpttool.fp8.model.curves import SEED, Curve, Gap
from ckpttool.fp8.model.fp8 import Gemm
from ckpttool.fp8.model.plan import Outcome
from ckpttool.fp8.rules.align import align
from ckpttool.fp8.rules.noise import block_of, gap_of, percentiles, resampled_means

RESTORED = 0.9
"""Minimum closed share of a gap that counts as closed. Published recoveries of 0.85 do not count."""

_PART = 0.25
_TIMES_FLOOR = 3
_GROWING = 0.5
"""Growth within the window, as a share of the mean, from which a gap is incomplete. A drift from the start has 0.4."""
_RISING = 0.05
"""Rise of a share within the window from which it differs from that of longer runs."""
_PARTS = 10
"""Number of windows whose means determine a slope."""
_STUDENT = 2.306
"""Bound of Student's t that contains 95% of the values, with eight degrees of freedom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The distance of a run from its reference in the window."""

    values: tuple[float, ...]
    steps: tuple[Step, ...]
    gap: Gap


def stretch(reference: Curve, curve: Curve, window: tuple[Step, Step], *, seed: int = SEED) -> Stretch | None:
    """Return the distance of a run from its reference, or None unless both have a loss in the window."""
    pairs = align(reference, curve)
    first, last = bisect_left(pairs.steps, window[0]), bisect_right(pairs.steps, window[1])
    values = tuple(
        value - base for base, value in zip(pairs.baseline[first:last], pairs.candidate[first:last], strict=True)
    )
    return Stretch(values=values, steps=pairs.steps[first:last], gap=gap_of(values, seed=seed)) if values else None


def floor_of(regrouped: Gap) -> float:
    """Return the random difference between two paired runs: three times the effect of a different summation order."""
    return max(_TIMES_FLOOR * abs(regrouped.mean), (regrouped.high - regrouped.low) / 2)


Share = tuple[float, float, float]
"""Share of the gap, with the bounds of its 95% interval."""


def recovered(unchanged: Stretch, part: Stretch, *, seed: int = SEED) -> Share | None:
    """Return the share of the gap that an experiment closes, or None if its log and C's have no common step.

    The same blocks are drawn for both, so variation that they share does not make their ratio uncertain.
    """
    common = {step: place for place, step in enumerate(unchanged.steps)}
    base_values = [unchanged.values[common[step]] for step in part.steps if step in common]
    values = [value for value, step in zip(part.values, part.steps, strict=True) if step in common]
    if not base_values:
        return None
    block = max(block_of(base_values), block_of(values))
    shares = [
        _closed(gap, two)
        for gap, two in zip(
            resampled_means(values, block=block, seed=seed),
            resampled_means(base_values, block=block, seed=seed),
            strict=True,
        )
    ]
    low, high = percentiles(shares)
    return _closed(part.gap.mean, unchanged.gap.mean), low, high


def _closed(remainder: float, total: float) -> float:
    return 1 - remainder / total if total else 0.0


def outcome(gap: float, share: Share, counts: float) -> Outcome:
    """Return the effect of an experiment on the gap.

    Args:
        gap: The remaining gap.
        share: The closed share of the gap, with its bounds.
        counts: The smallest gap that counts.
    """
    closed, low, high = share
    if closed >= RESTORED or abs(gap) <= counts:
        return Outcome.RESTORES
    if low > 0 and closed >= _PART:
        return Outcome.PART
    return Outcome.WORSE if high < -_PART else Outcome.NO


def recovery(remainder: Stretch, counts: float) -> tuple[Outcome, float | None]:
    """Return whether a run from bad weights recovers, and after how many further steps at this rate.

    Args:
        remainder: Distance of the run from the baseline in the window.
        counts: The smallest gap that counts.
    """
    if abs(remainder.gap.mean) <= counts:
        return Outcome.RECOVERED, None
    if len(remainder.values) < _PARTS:
        return Outcome.STUCK, None
    means, places = _means(remainder.values), _means(remainder.steps)
    slope, error = _slope(places, means)
    towards = -slope if remainder.gap.mean > 0 else slope
    if towards - _STUDENT * error <= 0:
        return Outcome.STUCK, None
    return Outcome.RECOVERING, abs(means[-1]) / towards


def is_settled(unchanged: Stretch, part: Stretch) -> bool:
    """Return whether longer runs would give the same share, because the gap is complete and the closed part is stable.

    Args:
        unchanged: The candidate's distance from BF16 in the window.
        part: The distance of an experiment from BF16 in the window.
    """
    base_values = dict(zip(unchanged.steps, unchanged.values, strict=True))
    common = [
        (step, base_values[step], value)
        for step, value in zip(part.steps, part.values, strict=True)
        if step in base_values
    ]
    if len(common) < _PARTS:
        return False
    places, gaps, remainders = (_means(values) for values in zip(*common, strict=True))
    shares = [_closed(remainder, gap) for gap, remainder in zip(gaps, remainders, strict=True)]
    parts_of_gap = [gap / unchanged.gap.mean for gap in gaps]
    return not (_rises(places, parts_of_gap, by=_GROWING) or _rises(places, shares, by=_RISING))


def _rises(places: Sequence[float], values: Sequence[float], *, by: float) -> bool:
    """Return whether values rise significantly by this amount from the first place to the last."""
    slope, error = _slope(places, values)
    return slope > _STUDENT * error and slope * (places[-1] - places[0]) >= by


def _means(values: Sequence[float]) -> list[float]:
    """Return the means of as many windows as a slope needs."""
    bounds = [place * len(values) // _PARTS for place in range(_PARTS + 1)]
    return [math.fsum(values[bound:two]) / (two - bound) for bound, two in pairwise(bounds)]


def _slope(places: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Return the slope of the best-fitting line, and its standard error."""
    count = len(values)
    middle, mean = math.fsum(places) / count, math.fsum(values) / count
    away = [place - middle for place in places]
    power = math.fsum(map(mul, away, away))
    slope = math.fsum(map(mul, away, values)) / power
    rest = [value - mean - slope * place for value, place in zip(values, away, strict=True)]
    return slope, math.sqrt(math.fsum(map(mul, rest, rest)) / (count - 2) / power)


def shapley(gaps: Mapping[frozenset[Gemm], float]) -> tuple[tuple[Gemm, float], ...]:
    """Return each product's share of the gap: its average addition over all orders of switching to FP8.

    Args:
        gaps: Gaps by the set of products in FP8, for all eight sets.

    Source:
        L. S. Shapley, A value for n-person games (1953).
    """
    shares = []
    for gemm in Gemm:
        other_gemms = [peer for peer in Gemm if peer is not gemm]
        share = 0.0
        for size in range(len(other_gemms) + 1):
            weight = math.factorial(size) * math.factorial(len(other_gemms) - size) / math.factorial(len(Gemm))
            for chosen in combinations(other_gemms, size):
                share += weight * (gaps[frozenset({*chosen, gemm})] - gaps[frozenset(chosen)])
        shares.append((gemm, share))
    return tuple(shares)
