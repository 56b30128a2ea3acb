"""Comparison of two runs, and repeats of the first: whether and when the candidate departs from the baseline."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.units import Step, counted
from ckpttool.fp8.model.curves import (
    Apart,
    Comparison,
    Curve,
    CurveClass,
    CurveMetric,
    CurveShape,
    Effect,
    Floor,
    FloorFrom,
    Gap,
    GapWindow,
    Onset,
    Pairs,
    Spike,
    Terms,
)
from ckpttool.fp8.rules.align import SAME_DATA, align, common, is_number, is_same, middle, objections, pairing
from ckpttool.fp8.rules.noise import floor_and_limit, gap_of
from ckpttool.fp8.rules.shape import STRONG, Shape, fit
from ckpttool.fp8.rules.spikes import Span, are_ordinary, calmed, common_spikes, find_spikes, spiked
from ckpttool.health.policies.robust_z import MAD_TO_SIGMA

_LEAST_PAIRS = {CurveMetric.LOSS: 200, CurveMetric.VALIDATION: 12}
_MOST_PAIRS = 20_000
"""Maximum number of pairs. Beyond it, neighbours are averaged, because windows would show no more detail."""
_WINDOWS = 40
_LEAST_WINDOW = {CurveMetric.LOSS: 10, CurveMetric.VALIDATION: 1}
_TAIL_SHARE = 5
_LEAST_TAIL = 5

_LOST_VALUES = 10
_ENDS = 5
"""Number of last windows, and of best windows, to compare with each other."""
_RISE_OF_NOISE = 8.0
_RISE = 0.02
"""Minimum rise above the best loss, as a share of that loss."""
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


def compare(baseline: Curve, candidate: Curve, repeats: Sequence[Curve] = (), *, terms: Terms) -> Comparison:
    """Return whether, when and how the candidate departs from the baseline by more than noise.

    Args:
        baseline: The trusted run.
        candidate: The judged run.
        repeats: Further runs of the baseline, with other seeds, or with the same samples summed in a different order.
        terms: The settings of the comparison.
    """
    far = apart(baseline, candidate, metric=terms.metric)
    comparison = Comparison(
        by=terms.by,
        metric=terms.metric,
        kind=CurveClass.INCONCLUSIVE,
        pairs=far.pairs,
        first=far.steps[0] if far.steps else None,
        last=far.ends[-1] if far.ends else None,
        pairing=far.pairing,
        spikes=far.spikes,
        notes=(),
        findings=objections(baseline, candidate, terms),
    )
    needed, notes = _LEAST_PAIRS[terms.metric], []
    if far.pairs >= needed:
        others = [run for run in repeats if not (is_same(baseline, run) or is_same(candidate, run))]
        spreads = [apart(baseline, run, metric=terms.metric, together=far.together) for run in others]
        comparison = _measured(comparison, far, spreads, terms)
        since = comparison.windows[-_tail(len(comparison.windows))].first
        comparison = replace(comparison, norm_gap=_norm_gap(baseline, candidate, since, terms.seed))
    else:
        notes.append(f"{counted(far.pairs, 'pair')} of values are not enough: {needed} are needed")
        named = (("baseline", baseline), ("candidate", candidate))
        notes += [f"the {name}'s log has none" for name, curve in named if not curve.losses]
    lost = _NoNumbers(baseline, candidate)
    if comparison.findings or lost.is_no_reference:
        comparison = replace(comparison, kind=CurveClass.INCONCLUSIVE)
    if comparison.kind is CurveClass.INCONCLUSIVE:
        comparison = replace(comparison, matters=None)
    if lost.is_diverged:
        comparison = replace(comparison, kind=CurveClass.DIVERGED, matters=True)
    notes += [*_notes(far, comparison, lost, terms), *_same(baseline, candidate, repeats)]
    return replace(comparison, notes=tuple(notes))


class _NoNumbers:
    """The places at which the losses of two runs are not numbers."""

    def __init__(self, baseline: Curve, candidate: Curve) -> None:
        self.of_baseline = sum(not is_number(loss) for loss in baseline.losses)
        self.of_candidate = 0
        """Places at which only the candidate's loss is not a number."""
        for place, other_place in common(baseline, candidate):
            if is_number(baseline.losses[place]) and not is_number(candidate.losses[other_place]):
                self.of_candidate += 1
        self.is_no_reference = self.of_baseline >= _LOST_VALUES or _ends_without(baseline)
        """Whether the baseline's own loss ends as NaN or infinite, or has too many such values."""
        is_lost = self.of_candidate >= _LOST_VALUES or _ends_without(candidate)
        self.is_diverged = is_lost and not self.is_no_reference
        """Whether the candidate's loss ends as NaN or infinite, or has too many such values, unlike the baseline's."""


def _ends_without(curve: Curve) -> bool:
    return bool(curve.losses) and not is_number(curve.losses[-1])


# --- the gap, and the noise that it must exceed
# -------------------------------------------------------------------------------


def _measured(comparison: Comparison, far: Apart, repeats: Sequence[Apart], terms: Terms) -> Comparison:
    """Add the results that require enough pairs."""
    bounds = _groups(len(far.steps), max(_LEAST_WINDOW[terms.metric], len(far.steps) // _WINDOWS), is_even=True)
    gaps, baseline = _averaged(far.differences, bounds), _averaged(far.baseline, bounds)
    windows = tuple(
        GapWindow(first=far.steps[first], last=far.ends[end - 1], gap=gap)
        for (first, end), gap in zip(bounds, gaps, strict=True)
    )
    tail = bounds[-_tail(len(bounds))][0]
    gap = gap_of(far.differences[tail:], seed=terms.seed)
    loss = math.fsum(far.baseline[tail:]) / (len(far.steps) - tail)
    tolerance = terms.tolerance.of(loss)
    spreads = [(run.differences, terms.metric is CurveMetric.VALIDATION or _is_paired(run)) for run in repeats]
    floor, limit = floor_and_limit(gap, spreads, length=len(far.steps) - tail, tolerance=tolerance)
    comparison = replace(
        comparison,
        effect=_effect(gap, floor),
        gap=gap,
        relative_gap=gap.mean / abs(loss) if loss else None,
        floor=floor,
        tolerance=tolerance,
        limit=limit,
        windows=windows,
    )
    if abs(gap.mean) <= limit:
        is_unknown = floor.source is FloorFrom.SAMPLING and abs(gap.mean) > tolerance
        kind = _class_without_gap(gaps, far.spikes, limit=limit, is_unknown=is_unknown)
        return replace(comparison, kind=kind, matters=False)
    shape, switch = fit(gaps), 0
    if terms.switch_step is not None:
        lasts = [window.last for window in windows]
        switch = min(bisect_left(lasts, terms.switch_step), len(lasts) - 1)
    candidate = tuple(map(sum, zip(baseline, gaps, strict=True)))
    if _rises(baseline, candidate, limit):
        kind = CurveClass.DIVERGED
    else:
        kind = CurveClass.EARLY if _is_early(shape, len(gaps), switch) else _BY_SHAPE[shape.kind]
    first, last = windows[shape.earliest].first, windows[shape.latest].last
    onset = Onset(step=windows[shape.onset].first, not_before=first, not_after=last)
    return replace(comparison, kind=kind, matters=True, shape=shape.kind, onset=onset)


def _tail(windows: int) -> int:
    """Return the number of windows that form the end of the curves."""
    return max(_LEAST_TAIL, windows // _TAIL_SHARE)


def _class_without_gap(gaps: Sequence[float], spikes: Sequence[Spike], *, limit: float, is_unknown: bool) -> CurveClass:
    """Return the class of a candidate without a gap at the end. A single baseline leaves the class unknown."""
    if not are_ordinary(spikes) or _was_apart(gaps, limit):
        return CurveClass.TRANSIENT
    if is_unknown:
        return CurveClass.INCONCLUSIVE
    return CurveClass.SPIKES if any(spike.candidate for spike in spikes) else CurveClass.MATCH


def _is_early(shape: Shape, windows: int, switch: int) -> bool:
    """Return whether the gap begins with the candidate's arithmetic, which changes in the window `switch`, from 0."""
    soon = max(_EARLY_WINDOWS, _EARLY_SHARE * (windows - switch))
    return -1 <= shape.onset - switch < soon and shape.ramp_over_step > -STRONG


def _rises(baseline: Sequence[float], candidate: Sequence[float], limit: float) -> bool:
    """Return whether the candidate's loss ends far above its best, further than the baseline's does."""
    best, rise = _rise(candidate)
    least = max(2 * limit, _RISE_OF_NOISE * _scatter(candidate) / math.sqrt(_ENDS), _RISE * abs(best))
    return rise > least and rise > _TIMES_THE_BASELINE * _rise(baseline)[1]


def _rise(means: Sequence[float]) -> tuple[float, float]:
    """Return the mean of the best windows, and the rise of the last windows above that mean."""
    best, last = (math.fsum(some) / len(some) for some in (sorted(means)[:_ENDS], means[-_ENDS:]))
    return best, last - best


def _was_apart(gaps: Sequence[float], limit: float) -> bool:
    """Return whether two neighbouring windows are outliers on the same side."""
    far = _TRANSIENT * max(limit, _NOISE_OF_TWO * _scatter(gaps))
    return any(min(gap, two) > far or max(gap, two) < -far for gap, two in pairwise(gaps))


def _scatter(means: Sequence[float]) -> float:
    """Return the robust standard deviation of the window means, without their trend."""
    moves = sorted(abs(after - before) for before, after in pairwise(means))
    return MAD_TO_SIGMA * middle(moves) / math.sqrt(2)


def _effect(gap: Gap, floor: Floor) -> Effect:
    """Return whether there is any difference.

    Only a repeat with the same data can show the smallest real difference.
    """
    if floor.paired is None:
        return Effect.UNKNOWN
    if abs(gap.mean) <= floor.paired:
        return Effect.NO
    return Effect.UNKNOWN if gap.low <= 0 <= gap.high else Effect.YES


def _is_paired(far: Apart) -> bool:
    """Return whether two runs saw the same data in the same order."""
    return far.pairing is not None and far.pairing >= SAME_DATA


def _norm_gap(baseline: Curve, candidate: Curve, since: Step, seed: int) -> Gap | None:
    """Return the gap between the logarithms of the gradient norms at the end."""
    ratios = [
        math.log(two / norm)
        for place, other_place in common(baseline, candidate)
        if baseline.steps[place] >= since
        and (norm := baseline.norms[place])
        and (two := candidate.norms[other_place])
        and 0 < norm < math.inf
        and 0 < two < math.inf
    ]
    return gap_of(ratios, seed=seed) if len(ratios) >= _LEAST_TAIL else None


def _same(baseline: Curve, candidate: Curve, repeats: Sequence[Curve]) -> Iterator[str]:
    """Yield descriptions of duplicate logs, because a repeated log adds no information."""
    if is_same(baseline, candidate):
        yield "the candidate's losses equal the baseline's to the last digit: was the same log given twice?"
    for place, repeat in enumerate(repeats, 1):
        of = next(
            (name for name, run in (("baseline", baseline), ("candidate", candidate)) if is_same(run, repeat)), None
        )
        if of is not None:
            yield f"repeat {place} equals the {of}'s losses to the last digit and is ignored: is it the same log?"


def _notes(far: Apart, comparison: Comparison, lost: _NoNumbers, terms: Terms) -> Iterator[str]:
    if lost.is_no_reference:
        places = counted(lost.of_baseline, "place")
        yield f"the baseline's own loss is not a number at {places}: it cannot be used for a comparison"
    if lost.of_candidate:
        places = counted(lost.of_candidate, "place")
        yield f"the candidate's loss is not a number at {places} at which the baseline's loss is a number"
    if far.pairing is not None and far.pairing < SAME_DATA:
        yield "the runs did not see the same data in the same order: the noise is larger"
    if far.together > 1:
        yield f"because there are so many values, means of {far.together} neighbours are compared"
    if any(spike.candidate and far.ends and spike.last >= far.ends[-1] for spike in far.spikes):
        yield "the candidate's last spike has not ended yet: it may be a spike, or the new level of its loss"
    if comparison.floor is not None and comparison.floor.source is FloorFrom.SAMPLING:
        yield (
            "one baseline cannot separate the effect of FP8 from differences between runs: seeds alone may change a "
            "loss by 1 %"
        )
    onset, switch = comparison.onset, terms.switch_step
    if onset is not None and switch is not None and onset.not_after < switch:
        yield f"the gap begins before step {switch}: a change that begins there did not cause it"


# --- pair by pair ----------------------------------------------------------------------------------------------------


def apart(
    baseline: Curve, candidate: Curve, *, metric: CurveMetric = CurveMetric.LOSS, together: int | None = None
) -> Apart:
    """Return the gap between a run and its baseline, pair by pair, without the spikes of either run.

    Args:
        baseline: The trusted run.
        candidate: Any other run.
        metric: The loss to compare. Losses of a fixed set of samples have no spikes.
        together: Number of neighbouring pairs per value, or None for the smallest that limits the number of values.
    """
    pairs = align(baseline, candidate)
    baseline_side, candidate_side = ((curve, _spikes(curve, pairs, metric)) for curve in (baseline, candidate))
    out = spiked(pairs, (baseline_side, candidate_side))
    places = [place for place in range(len(pairs.places)) if place not in out][-_MOST_PAIRS:]
    rho = None
    if metric is CurveMetric.LOSS and places:
        rho = pairing([pairs.baseline[place] for place in places], [pairs.candidate[place] for place in places])
    together = together or math.ceil(len(pairs.places) / _MOST_PAIRS) or 1
    differences = [two - loss for loss, two in zip(pairs.baseline, pairs.candidate, strict=True)]
    groups = _groups(len(pairs.places), together)
    return Apart(
        steps=tuple(pairs.steps[first] for first, _ in groups),
        ends=tuple(pairs.steps[end - 1] for _, end in groups),
        baseline=_averaged(calmed(pairs.baseline, out), groups),
        differences=_averaged(calmed(differences, out), groups),
        pairs=len(pairs.places) if groups else 0,
        spikes=common_spikes(baseline_side, candidate_side, by_step=_by_step(baseline)),
        pairing=rho,
        together=together,
    )


def _spikes(curve: Curve, pairs: Pairs, metric: CurveMetric) -> list[Span]:
    """Return a run's spikes within the paired range."""
    if metric is CurveMetric.VALIDATION or not pairs.places:
        return []
    first, last = pairs.places[0], pairs.places[-1]
    return [
        span
        for span in find_spikes(curve.losses)
        if first <= curve.places[span.last] and curve.places[span.first] <= last
    ]


def _by_step(curve: Curve) -> float:
    """Return the increase in places per step."""
    if len(curve.steps) < 2 or curve.steps[-1] == curve.steps[0]:  # noqa: PLR2004
        return 1.0
    return (curve.places[-1] - curve.places[0]) / (curve.steps[-1] - curve.steps[0])


def _groups(pairs: int, together: int, *, is_even: bool = False) -> list[tuple[int, int]]:
    """Return the bounds of groups of this many neighbours. The rest joins the last group, or is spread over all."""
    count = pairs // together
    if is_even:
        return [(at * pairs // count, (at + 1) * pairs // count) for at in range(count)]
    return [(at * together, pairs if at == count - 1 else (at + 1) * together) for at in range(count)]


def _averaged(values: Sequence[float], groups: Sequence[tuple[int, int]]) -> tuple[float, ...]:
    return tuple(math.fsum(values[first:end]) / (end - first) for first, end in groups)
