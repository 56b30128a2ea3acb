"""Pairing of the values of two runs, and checks of whether the runs are comparable."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import mul

from ckpttool.core.domain.finding import Finding, unknown
from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step, counted
from ckpttool.fp8.findings import Fp8Code
from ckpttool.fp8.model.curves import Curve, CurveMetric, PairedBy, Pairs, Terms

SAME_DATA = 0.8
"""Minimum correlation of two runs with the same data in the same order. Such runs reach 0.92, others at most 0.45."""
_TREND = 51
"""Number of values in a running median. Slower changes are the trend of the training run, not effects of the batch."""
_MOST_LOSS = 1e100
"""Largest plausible loss. The square of a larger value may overflow."""
_LEAST_SAME = 12
"""Minimum number of common values at which two runs cannot agree by coincidence."""
_OTHER_RATE = 0.01
_OTHER_RATES = 0.01
"""Minimum share of pairs with different learning rates that is reported."""


def curve_of(rows: Iterable[StepMetrics], *, metric: CurveMetric = CurveMetric.LOSS, by: PairedBy) -> Curve:
    """Return the losses in a log by step or by samples consumed, in ascending order, with each place once.

    If a place occurs twice, its last value counts.
    """
    points: dict[int, tuple[Step, float, float | None, float | None]] = {}
    for row in rows:
        loss = row.loss if metric is CurveMetric.LOSS else row.validation_loss
        place = row.step if by is PairedBy.STEP else row.consumed_samples
        if loss is not None and place is not None:
            points[place] = (row.step, loss, row.global_norm, row.learning_rate)
    places = sorted(points)
    ordered = [points[place] for place in places]
    return Curve(
        places=tuple(places),
        steps=tuple(step for step, _, _, _ in ordered),
        losses=tuple(loss for _, loss, _, _ in ordered),
        norms=tuple(norm for _, _, norm, _ in ordered),
        rates=tuple(rate for _, _, _, rate in ordered),
    )


def batch_size(rows: Sequence[StepMetrics]) -> float | None:
    """Return the samples per step from the first and the last row with a count, or None if the log has no counts."""
    counted = ((row.step, row.consumed_samples) for row in rows if row.consumed_samples is not None)
    backwards = ((row.step, row.consumed_samples) for row in reversed(rows) if row.consumed_samples is not None)
    first = next(counted, None)
    last = None if first is None else next(backwards, None)
    if first is None or last is None or first[0] == last[0]:
        return None
    return (last[1] - first[1]) / (last[0] - first[0])


def common(baseline: Curve, candidate: Curve) -> list[tuple[int, int]]:
    """Return the indices of equal places in both curves, in ascending order."""
    where = {place: index for index, place in enumerate(candidate.places)}
    return [(index, where[place]) for index, place in enumerate(baseline.places) if place in where]


def is_number(loss: float) -> bool:
    """Return whether a value is a usable number."""
    return abs(loss) < _MOST_LOSS


def align(baseline: Curve, candidate: Curve) -> Pairs:
    """Return the values of both runs at the same places, if both losses are numbers."""
    places = [
        (place, other_place)
        for place, other_place in common(baseline, candidate)
        if is_number(baseline.losses[place]) and is_number(candidate.losses[other_place])
    ]
    return Pairs(
        places=tuple(baseline.places[place] for place, _ in places),
        steps=tuple(baseline.steps[place] for place, _ in places),
        baseline=tuple(baseline.losses[place] for place, _ in places),
        candidate=tuple(candidate.losses[other_place] for _, other_place in places),
    )


def other_rates(baseline: Curve, candidate: Curve) -> tuple[int, int] | None:
    """Return the number of pairs with different learning rates, and of all pairs. None if nearly all are equal."""
    rates = [
        (rate, two)
        for place, other_place in common(baseline, candidate)
        if (rate := baseline.rates[place]) is not None and (two := candidate.rates[other_place]) is not None
    ]
    differ = sum(abs(rate - two) > _OTHER_RATE * max(abs(rate), abs(two)) for rate, two in rates)
    return (differ, len(rates)) if differ > _OTHER_RATES * len(rates) else None


def interval(places: Sequence[int]) -> int | None:
    """Return the most common distance between logged values, or None if there are fewer than two values."""
    gaps = Counter(after - before for before, after in pairwise(places))
    return max(gaps, key=lambda gap: (gaps[gap], -gap), default=None)


def pairing(baseline: Sequence[float], candidate: Sequence[float]) -> float | None:
    """Return the correlation of the changes from value to value in both curves, or None if one curve never changes.

    Source:
        0.92 to 1.00 for the same data in the same order, even with wrong arithmetic; 0.02 to 0.45 in a different order.
    """
    moves, two = map(_moves, (baseline, candidate))
    power = math.fsum(map(mul, moves, moves)) * math.fsum(map(mul, two, two))
    return math.fsum(map(mul, moves, two)) / math.sqrt(power) if power else None


def _moves(run: Sequence[float]) -> list[float]:
    """Return a curve without its trend, around 0."""
    moves = [value - trend for value, trend in zip(run, running_median(run), strict=True)]
    mean = math.fsum(moves) / len(moves)
    return [move - mean for move in moves]


def running_median(values: Sequence[float], width: int = _TREND) -> Iterator[float]:
    """Yield the median around each value. At the ends, the median of the available values is used."""
    reach = width // 2
    ordered = sorted(values[:reach])
    for place in range(len(values)):
        if place + reach < len(values):
            insort(ordered, values[place + reach])
        if place > reach:
            del ordered[bisect_left(ordered, values[place - reach - 1])]
        yield middle(ordered)


def middle(ordered: Sequence[float]) -> float:
    """Return the median of one or more sorted values."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def objections(baseline: Curve, candidate: Curve, terms: Terms) -> tuple[Finding, ...]:
    """Return findings about why two runs cannot be compared, regardless of their gap."""
    problems = []
    rates = other_rates(baseline, candidate)
    if rates is not None:
        message = f"the learning rate differs at {rates[0]} of {counted(rates[1], 'pair')}: this alone changes the loss"
        problems.append(unknown(Fp8Code.FP8_LR_DIFFERS, message))
    first, second = (interval(curve.steps) for curve in (baseline, candidate))
    by_place = interval(baseline.places) == interval(candidate.places)
    if (
        terms.metric is CurveMetric.LOSS
        and first is not None
        and second is not None
        and first != second
        and not by_place
    ):
        message = (
            f"the baseline logs every {counted(first, 'step')}, the candidate every {counted(second, 'step')}: a "
            "logged value may be the mean since the previous one"
        )
        problems.append(unknown(Fp8Code.FP8_INTERVAL_DIFFERS, message))
    return tuple(problems)


def is_same(first: Curve, two: Curve) -> bool:
    """Return whether two runs have the same losses to the last digit, which random variation rules out."""
    both = common(first, two)
    return len(both) >= _LEAST_SAME and all(
        first.losses[place] == two.losses[other_place] for place, other_place in both
    )
