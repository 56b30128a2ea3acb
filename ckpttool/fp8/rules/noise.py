"""Confidence in the mean of a range, and the smallest significant gap.

Neighbouring values of a loss are not independent samples, so stretches are drawn in blocks. All random numbers come
from a seed, so the same input produces the same bytes.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from operator import mul, sub

from ckpttool.fp8.model.curves import SEED, Floor, FloorFrom, Gap

RESAMPLES = 1000

_MASK = (1 << 64) - 1
_UNCORRELATED = 0.05
_MEANS_OF_FLOOR = {1: 3.0, 2: 2.5}
"""Factor by number of repeats, because a single repeat says little about the distance of the next."""
_MEANS_WITH_MANY = 2.0
_WITHOUT_REPEAT = 3
_TOLERANCES_WITHOUT_REPEAT = 4
_WARM_UP = 5
"""Number of equal parts of a run. The first says nothing about the distance between the ends of two runs."""


def draws(seed: int, limit: int) -> Iterator[int]:
    """Yield uniformly distributed random integers from 0, without end.

    Args:
        seed: The same seed gives the same numbers on every machine.
        limit: Exclusive upper limit, at most 2^32.

    Source:
        SplitMix64 (Steele, Lea, Flood 2014); the high half of the product with `limit` is the number.
    """
    state = seed & _MASK
    while True:
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        yield ((mixed ^ (mixed >> 31)) * limit) >> 64


def block_of(values: Sequence[float]) -> int:
    """Return how many neighbours must be drawn together, because values further apart are nearly independent.

    The result is twice the first lag with hardly any correlation, limited to between the cube root and a quarter of the
    length.
    """
    count = len(values)
    most = max(1, count // 4)
    mean = math.fsum(values) / count
    centred = [value - mean for value in values]
    power = math.fsum(map(mul, centred, centred))
    lag = 1
    while 2 * lag < most and math.fsum(map(mul, centred, islice(centred, lag, None))) >= _UNCORRELATED * power > 0:
        lag += 1
    return min(most, max(2 * lag, math.ceil(math.pow(count, 1 / 3))))


def resampled_means(
    values: Sequence[float], *, block: int, seed: int = SEED, resamples: int = RESAMPLES
) -> list[float]:
    """Return the means of random resamples of the same length, drawn in blocks.

    The choice of blocks depends only on the length, the block and the seed. Two stretches of the same length get the
    same blocks.
    """
    count = len(values)
    starts = count - block + 1
    before = [0.0]
    for value in values:
        before.append(before[-1] + value)
    full, rest = divmod(count, block)
    blocks = list(map(sub, before[block:], before))
    rests = list(map(sub, before[rest:], before))
    length = full + bool(rest)
    places = _drawn(seed, starts, resamples * length)
    return [
        (math.fsum(map(blocks.__getitem__, places[at : at + full])) + (rests[places[at + full]] if rest else 0.0))
        / count
        for at in range(0, resamples * length, length)
    ]


@lru_cache(maxsize=4)  # the runs of a verdict are of one length, and the drawing costs more than the sums
def _drawn(seed: int, limit: int, count: int) -> array[int]:
    return array("Q", islice(draws(seed, limit), count))


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the bounds that contain 95% of the values."""
    ordered = sorted(values)
    out = len(ordered) * 25 // 1000
    return ordered[max(0, out - 1)], ordered[min(len(ordered) - 1, len(ordered) - out)]


def gap_of(values: Sequence[float], *, seed: int = SEED) -> Gap:
    """Return the mean of one or more differences, with its confidence."""
    count = len(values)
    low, high = percentiles(resampled_means(values, block=block_of(values), seed=seed))
    flat = _flattened(values)
    lower, above = percentiles(resampled_means(flat, block=block_of(flat), seed=seed))
    return Gap(mean=math.fsum(values) / count, low=low, high=high, half=(above - lower) / 2)


def _flattened(values: Sequence[float]) -> list[float]:
    """Remove the best linear trend from the values, but not their mean, because growth is not noise."""
    middle = (len(values) - 1) / 2
    times = [place - middle for place in range(len(values))]
    slope = math.fsum(map(mul, times, values)) / (math.fsum(map(mul, times, times)) or 1)
    return [value - slope * time for value, time in zip(values, times, strict=True)]


def floor_of(repeats: Sequence[tuple[Sequence[float], bool]], length: int) -> float | None:
    """Return the random difference between the ends of two runs with equal settings, or None if no repeat is usable.

    Args:
        repeats: For each repeat, the differences from the baseline, and whether both had the same data in order.
        length: Length of the stretch at whose end the runs are compared, in pairs.
    """
    means = [
        mean for differences, _ in repeats for mean in _sliding(differences[len(differences) // _WARM_UP :], length)
    ]
    if not means:
        return None
    times = _MEANS_OF_FLOOR.get(len(repeats), _MEANS_WITH_MANY)
    return times * math.sqrt(math.fsum(map(mul, means, means)) / len(means))


def _sliding(values: Sequence[float], length: int) -> Iterator[float]:
    """Yield moving averages over `length` values, or over all values if there are fewer but at least half as many."""
    if 2 * len(values) < length or not values:
        return
    length = min(length, len(values))
    before = [0.0]
    for value in values:
        before.append(before[-1] + value)
    yield from ((after - start) / length for after, start in zip(before[length:], before, strict=False))


def floor_and_limit(
    gap: Gap, repeats: Sequence[tuple[Sequence[float], bool]], *, length: int, tolerance: float
) -> tuple[Floor, float]:
    """Return the random difference between two runs with equal settings, and the smallest significant gap.

    Args:
        gap: The gap to judge.
        repeats: Differences of further runs of the baseline, and whether each saw the same data in the same order.
        length: Number of pairs behind the mean `gap`.
        tolerance: The tolerance, in units of the loss.
    """
    floor = floor_of(repeats, length)
    if floor is None:
        floor = _WITHOUT_REPEAT * gap.half
        limit = max(floor, _TOLERANCES_WITHOUT_REPEAT * tolerance)
        return Floor(value=floor, source=FloorFrom.SAMPLING, paired=None), limit
    paired = floor_of([repeat for repeat in repeats if repeat[1]], length)
    return Floor(value=floor, source=FloorFrom.REPEAT, paired=paired), limit_of(floor, tolerance, gap.half)


def limit_of(floor: float, tolerance: float, half: float) -> float:
    """Return the smallest significant gap, if the random difference between runs is known."""
    return max(floor, tolerance, half)
