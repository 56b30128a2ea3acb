"""Statistics of logged columns: printed unit, step noise, and correlations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

_NOISE_ROWS = 200
"""Number of rows before the save from which the noise is taken."""

LEAST_ROWS = 20
"""Fewer rows before the save do not show the noise: with a log printed every 100 steps, 520 of 606 right resumes were
accused otherwise."""

_MAD_TO_SIGMA = 1.4826
_FULL_DIGITS = 12
"""Significant digits from which a number was not rounded for printing."""


def printed_unit(values: Sequence[float]) -> float:
    """Return the last printed digit of a column's typical value, as 0.001 for `2.507`; 0 for full floats.

    A column is printed with as many decimals, or with as many significant digits, as the longest of its numbers has:
    trailing zeros are lost when a number is read.
    """
    shown = [_digits(value) for value in values if value and math.isfinite(value)]
    if not shown:
        return 0.0
    significant = max(digits for digits, _ in shown)
    if significant >= _FULL_DIGITS:
        return 0.0
    finest: dict[int, int] = {}  # decimals by order of magnitude
    for digits, decimals in shown:
        order = digits - decimals
        finest[order] = max(finest.get(order, 0), decimals)
    decimals = max(finest.values())
    if len(finest) > 1 and finest[min(finest)] > finest[max(finest)]:
        decimals = significant - sorted(digits - decimals for digits, decimals in shown)[len(shown) // 2]
    return 10.0**-decimals


def _digits(value: float) -> tuple[int, int]:
    """Return the significant digits and the decimals of a number in its shortest form."""
    mantissa, _, exponent = f"{value!r}".lower().lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    decimals = max(0, len(fraction) - int(exponent or 0))
    return len((whole + fraction).lstrip("0")), decimals


def step_noise(values: Sequence[float], unit: float) -> float | None:
    """Return the noise from step to step: `1.4826 · MAD(first differences) / √2`; None if there are too few rows.

    Args:
        values: A column up to the save.
        unit: Its printed unit.
    """
    if len(values) < LEAST_ROWS:
        return None
    recent = values[-_NOISE_ROWS:]
    changes = changes_of(recent)
    middle = median(changes)
    noise = _MAD_TO_SIGMA * median(abs(change - middle) for change in changes) / math.sqrt(2)
    return max(noise, unit / 4) or None


def changes_of(values: Sequence[float]) -> list[float]:
    """Return the difference of each value and the one before it."""
    return [second - first for first, second in pairwise(values)]


def correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Pearson's correlation; 0 if one of the two does not vary."""
    first_mean, second_mean = fmean(first), fmean(second)
    both = sum((x - first_mean) * (y - second_mean) for x, y in zip(first, second, strict=True))
    spread = math.sqrt(sum((x - first_mean) ** 2 for x in first) * sum((y - second_mean) ** 2 for y in second))
    return both / spread if spread else 0.0


def ranks_of(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal values share their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    first = 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and values[order[last + 1]] == values[order[first]]:
            last += 1
        for place in order[first : last + 1]:
            ranks[place] = (first + last) / 2
        first = last + 1
    return ranks


def rms(values: Sequence[float]) -> float:
    """Return the root mean square."""
    return math.sqrt(fmean(value * value for value in values))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error; an infinite error for fewer than two values."""
    mean = fmean(values)
    if len(values) < 2:  # noqa: PLR2004  a spread needs two values
        return mean, math.inf
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))
