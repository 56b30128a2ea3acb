"""In which way a candidate leaves its baseline: the first rule that holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from ckpttool.core.domain.frozen import dataclass
from ckpttool.fp8.model.curves import CurveClass, CurveShape, Gap, Spike
from ckpttool.fp8.rules.shape import STRONG, Shape
from ckpttool.fp8.rules.spikes import are_ordinary
from ckpttool.health.policies.robust_z import MAD_TO_SIGMA

_LOST_VALUES = 10
_ENDS = 5
"""Windows at the end, and best ones, that are held against each other."""
_RISE_OF_NOISE = 8.0
_RISE = 0.02
"""Of the best loss."""
_TIMES_THE_BASELINE = 2
_EARLY_WINDOWS = 3
_EARLY_SHARE = 0.05
_BY_SHAPE = {
    CurveShape.STEP: CurveClass.STEP,
    CurveShape.DRIFT: CurveClass.DRIFT,
    CurveShape.OPEN: CurveClass.LATE,
}
_TRANSIENT = 3.0
_NOISE_OF_TWO = 4 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """How the losses of two runs that are no numbers lie."""

    lost: int
    """Places at which the candidate's is none and the baseline's is one."""
    last: bool
    """Whether the candidate's last one is none."""
    lost_baseline: int
    """Places at which the baseline's is none."""
    last_baseline: bool
    """Whether the baseline's last one is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Means of neighbouring pairs, as many for each; in the order of time."""

    gaps: tuple[float, ...]
    baseline: tuple[float, ...]
    candidate: tuple[float, ...]


def is_no_reference(ends: Ends) -> bool:
    """Tell whether the baseline's own loss is no number any more, or was none too often."""
    return ends.last_baseline or ends.lost_baseline >= _LOST_VALUES


def has_diverged_to_nothing(ends: Ends) -> bool:
    """Tell whether the candidate's loss is no number any more, or was none too often, and the baseline's was one."""
    return not is_no_reference(ends) and (ends.last or ends.lost >= _LOST_VALUES)


def classify(  # noqa: PLR0913 (all that a class rests on)
    windows: Windows,
    gap: Gap,
    shape: Shape,
    *,
    limit: float,
    tolerance: float,
    repeated: bool,
    switch: int,
    spikes: Sequence[Spike],
) -> CurveClass:
    """Return the class of a candidate whose loss is a number to the end.

    Args:
        windows: The means of both curves and of their gap.
        gap: At the end.
        shape: What fits the gaps best.
        limit: How large a gap must be to count.
        tolerance: What counts as the same.
        repeated: Whether a repeat of the baseline tells how far apart two runs of one kind are.
        switch: Window in which the candidate's arithmetic changes, from 0.
        spikes: Of both runs.
    """
    if abs(gap.mean) > limit:
        return _class_of_gap(windows, shape, limit=limit, switch=switch)
    if not are_ordinary(spikes) or _was_apart(windows.gaps, limit):
        return CurveClass.TRANSIENT
    if not repeated and abs(gap.mean) > tolerance:
        return CurveClass.INCONCLUSIVE
    return CurveClass.SPIKES if any(spike.candidate for spike in spikes) else CurveClass.MATCH


def _class_of_gap(windows: Windows, shape: Shape, *, limit: float, switch: int) -> CurveClass:
    if _rises(windows, limit):
        return CurveClass.DIVERGED
    soon = max(_EARLY_WINDOWS, _EARLY_SHARE * (len(windows.gaps) - switch))
    if switch <= shape.onset + 1 and shape.onset - switch < soon and shape.ramp_over_step > -STRONG:
        return CurveClass.EARLY
    return _BY_SHAPE[shape_of(shape)]


def shape_of(shape: Shape) -> CurveShape:
    """Return which shape fits clearly better."""
    if abs(shape.ramp_over_step) <= STRONG:
        return CurveShape.OPEN
    return CurveShape.STEP if shape.ramp_over_step > 0 else CurveShape.DRIFT


def _rises(windows: Windows, limit: float) -> bool:
    """Tell whether the candidate's loss ends far above its best, further than the baseline's does."""
    best, rise = _rise(windows.candidate)
    least = max(2 * limit, _RISE_OF_NOISE * scatter(windows.candidate) / math.sqrt(_ENDS), _RISE * abs(best))
    return rise > least and rise > _TIMES_THE_BASELINE * _rise(windows.baseline)[1]


def _rise(means: Sequence[float]) -> tuple[float, float]:
    """Return the mean of the best windows, and how far the last ones lie above it."""
    best, last = (math.fsum(some) / len(some) for some in (sorted(means)[:_ENDS], means[-_ENDS:]))
    return best, last - best


def _was_apart(gaps: Sequence[float], limit: float) -> bool:
    """Tell whether two neighbouring windows lie far off on the same side."""
    far = _TRANSIENT * max(limit, _NOISE_OF_TWO * scatter(gaps))
    return any(min(gap, two) > far or max(gap, two) < -far for gap, two in pairwise(gaps))


def scatter(means: Sequence[float]) -> float:
    """Return the robust standard deviation of what a window's mean varies by, whatever its course."""
    moves = sorted(abs(after - before) for before, after in pairwise(means))
    half = len(moves) // 2
    middle = moves[half] if len(moves) % 2 else (moves[half - 1] + moves[half]) / 2
    return MAD_TO_SIGMA * middle / math.sqrt(2)


def windows_of(differences: Sequence[float], baseline: Sequence[float], bounds: Iterable[tuple[int, int]]) -> Windows:
    """Return the means of windows, each from a place up to and without another."""
    spans = list(bounds)
    gaps, means = (
        tuple(math.fsum(values[first:end]) / (end - first) for first, end in spans)
        for values in (differences, baseline)
    )
    return Windows(gaps=gaps, baseline=means, candidate=tuple(map(sum, zip(means, gaps, strict=True))))
