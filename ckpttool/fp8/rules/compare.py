"""Two runs, and repeats of the first: does the candidate leave the baseline, since when, and does it matter."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from ckpttool.core.domain.finding import Code, Finding, unknown
from ckpttool.core.domain.frozen import dataclass
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
    Terms,
)
from ckpttool.fp8.rules.align import SAME_DATA, align, common, interval, is_number, other_rates, pairing
from ckpttool.fp8.rules.classify import (
    Ends,
    classify,
    has_diverged_to_nothing,
    is_no_reference,
    shape_of,
    windows_of,
)
from ckpttool.fp8.rules.noise import floor_and_limit, gap_of
from ckpttool.fp8.rules.shape import Shape, fit
from ckpttool.fp8.rules.spikes import Span, calmed, common_spikes, find_spikes, spiked

_LEAST_PAIRS = {CurveMetric.LOSS: 200, CurveMetric.VALIDATION: 12}
_MOST_PAIRS = 20_000
"""More are averaged: no window would show more of them."""
_LEAST_SAME = 12
"""Values in common from which no two runs show the same by chance."""
_WINDOWS = 40
_LEAST_WINDOW = {CurveMetric.LOSS: 10, CurveMetric.VALIDATION: 1}
_TAIL_SHARE = 5
_LEAST_TAIL = 5


def compare(baseline: Curve, candidate: Curve, repeats: Sequence[Curve] = (), *, terms: Terms) -> Comparison:
    """Say whether the candidate leaves the baseline, since when and in which way, and whether that is more than noise.

    Args:
        baseline: The run that is trusted.
        candidate: The run that is judged.
        repeats: Further runs of the baseline: other seeds, or the same samples summed in another order.
        terms: How they are compared.
    """
    far = apart(baseline, candidate, metric=terms.metric)
    findings = objections(baseline, candidate, terms)
    ends = _ends(baseline, candidate)
    pairs = far.pairs
    short = pairs < _LEAST_PAIRS[terms.metric]
    refusal = _too_few(baseline, candidate, pairs, terms) if short else ()
    told_apart = [repeat for repeat in repeats if not (_is_same(baseline, repeat) or _is_same(candidate, repeat))]
    judged = None if short else _judge(far, [_repeat(baseline, repeat, far, terms) for repeat in told_apart], terms)
    kind = CurveClass.INCONCLUSIVE if judged is None or findings or is_no_reference(ends) else judged.kind
    is_lost = has_diverged_to_nothing(ends)
    if is_lost:
        kind = CurveClass.DIVERGED
    return Comparison(
        by=terms.by,
        metric=terms.metric,
        kind=kind,
        pairs=pairs,
        first=far.steps[0] if far.steps else None,
        last=far.ends[-1] if far.ends else None,
        pairing=far.pairing,
        shape=None if judged is None else judged.shape,
        effect=Effect.UNKNOWN if judged is None else judged.effect,
        matters=is_lost or (None if kind is CurveClass.INCONCLUSIVE or judged is None else judged.matters),
        gap=None if judged is None else judged.gap,
        relative_gap=None if judged is None else judged.relative_gap,
        floor=None if judged is None else judged.floor,
        tolerance=None if judged is None else judged.tolerance,
        limit=None if judged is None else judged.limit,
        onset=None if judged is None else judged.onset,
        spikes=far.spikes,
        norm_gap=None if judged is None else _norm_gap(baseline, candidate, far.steps[judged.tail], terms.seed),
        windows=() if judged is None else judged.windows,
        notes=(*refusal, *_notes(far, judged, ends, terms), *_same(baseline, candidate, repeats)),
        findings=findings,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """What enough pairs say."""

    kind: CurveClass
    tail: int
    """Pair at which the end begins, from 0."""
    gap: Gap
    relative_gap: float | None
    floor: Floor
    tolerance: float
    limit: float
    shape: CurveShape | None
    onset: Onset | None
    effect: Effect
    windows: tuple[GapWindow, ...]

    @property
    def matters(self) -> bool:
        """Whether the gap is larger than what counts."""
        return abs(self.gap.mean) > self.limit


def _too_few(baseline: Curve, candidate: Curve, pairs: int, terms: Terms) -> tuple[str, ...]:
    """Say how many values in common are needed, and which log shows none."""
    named = (("baseline", baseline), ("candidate", candidate))
    empty = (f"the {name}'s log shows none" for name, curve in named if not curve.losses)
    return (f"{counted(pairs, 'pair')} of values are too few: {_LEAST_PAIRS[terms.metric]} are needed", *empty)


def _judge(far: Apart, repeats: Sequence[tuple[Sequence[float], bool]], terms: Terms) -> _Judged:
    bounds = _bounds(len(far.steps), terms.metric)
    windows = windows_of(far.differences, far.baseline, bounds)
    tail = bounds[-max(_LEAST_TAIL, len(bounds) // _TAIL_SHARE)][0]
    gap = gap_of(far.differences[tail:], seed=terms.seed)
    loss = math.fsum(far.baseline[tail:]) / (len(far.steps) - tail)
    tolerance = terms.tolerance.of(loss)
    floor, limit = floor_and_limit(gap, repeats, length=len(far.steps) - tail, tolerance=tolerance)
    shape = fit(windows.gaps)
    lasts = [far.ends[end - 1] for _, end in bounds]
    kind = classify(
        windows,
        gap,
        shape,
        limit=limit,
        tolerance=tolerance,
        repeated=floor.source is FloorFrom.REPEAT,
        switch=0 if terms.switch_step is None else min(bisect_left(lasts, terms.switch_step), len(lasts) - 1),
        spikes=far.spikes,
    )
    counts = abs(gap.mean) > limit
    return _Judged(
        kind=kind,
        tail=tail,
        gap=gap,
        relative_gap=gap.mean / abs(loss) if loss else None,
        floor=floor,
        tolerance=tolerance,
        limit=limit,
        shape=shape_of(shape) if counts else None,
        onset=_onset(shape, [far.steps[first] for first, _ in bounds], lasts) if counts else None,
        effect=_effect(gap, floor),
        windows=tuple(
            GapWindow(first=far.steps[first], last=last, gap=mean)
            for (first, _), last, mean in zip(bounds, lasts, windows.gaps, strict=True)
        ),
    )


def _bounds(pairs: int, metric: CurveMetric) -> list[tuple[int, int]]:
    """Return where windows begin and end, so that each pair is in one."""
    count = pairs // max(_LEAST_WINDOW[metric], pairs // _WINDOWS)
    return [(number * pairs // count, (number + 1) * pairs // count) for number in range(count)]


def _onset(shape: Shape, firsts: Sequence[Step], lasts: Sequence[Step]) -> Onset:
    return Onset(step=firsts[shape.onset], not_before=firsts[shape.earliest], not_after=lasts[shape.latest])


def _effect(gap: Gap, floor: Floor) -> Effect:
    """Tell whether there is a difference at all: only a repeat on the same data knows how small one may be."""
    if floor.paired is None:
        return Effect.UNKNOWN
    if abs(gap.mean) <= floor.paired:
        return Effect.NO
    return Effect.UNKNOWN if gap.low <= 0 <= gap.high else Effect.YES


def _repeat(baseline: Curve, repeat: Curve, far: Apart, terms: Terms) -> tuple[Sequence[float], bool]:
    """Return how far a repeat is from the baseline, and whether it saw the same data in the same order."""
    spread = apart(baseline, repeat, metric=terms.metric, together=far.together)
    return spread.differences, terms.metric is CurveMetric.VALIDATION or is_paired(spread)


def is_paired(far: Apart) -> bool:
    """Tell whether two runs saw the same data in the same order."""
    return far.pairing is not None and far.pairing >= SAME_DATA


def _ends(baseline: Curve, candidate: Curve) -> Ends:
    both = common(baseline, candidate)
    return Ends(
        lost=sum(
            is_number(baseline.losses[place]) and not is_number(candidate.losses[other_place])
            for place, other_place in both
        ),
        last=bool(candidate.losses) and not is_number(candidate.losses[-1]),
        lost_baseline=sum(not is_number(loss) for loss in baseline.losses),
        last_baseline=bool(baseline.losses) and not is_number(baseline.losses[-1]),
    )


def _norm_gap(baseline: Curve, candidate: Curve, since: Step, seed: int) -> Gap | None:
    """Return how far the logarithms of the gradient norms are apart at the end."""
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


def objections(baseline: Curve, candidate: Curve, terms: Terms) -> tuple[Finding, ...]:
    """Return why two runs cannot be compared, however far apart they are."""
    problems = []
    rates = other_rates(baseline, candidate)
    if rates is not None:
        message = (
            f"the learning rate is another one at {rates[0]} of {counted(rates[1], 'pair')}: that alone moves a loss"
        )
        problems.append(unknown(Code.FP8_LR_DIFFERS, message))
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
            f"the baseline logs every {counted(first, 'step')}, the candidate every {counted(second, 'step')}: "
            "a line may be the mean since the last one"
        )
        problems.append(unknown(Code.FP8_INTERVAL_DIFFERS, message))
    return tuple(problems)


def _is_same(first: Curve, two: Curve) -> bool:
    """Tell whether two runs show the same losses to the last digit: chance moves no two runs alike."""
    both = common(first, two)
    return len(both) >= _LEAST_SAME and all(
        first.losses[place] == two.losses[other_place] for place, other_place in both
    )


def _same(baseline: Curve, candidate: Curve, repeats: Sequence[Curve]) -> Iterator[str]:
    """Say which logs are those of others: whoever gives one twice learns nothing."""
    if _is_same(baseline, candidate):
        yield "the candidate's losses are the baseline's to the last digit: is it one log, given twice?"
    for place, repeat in enumerate(repeats, 1):
        of = next(
            (name for name, run in (("baseline", baseline), ("candidate", candidate)) if _is_same(run, repeat)), None
        )
        if of is not None:
            yield f"repeat {place} has the {of}'s losses to the last digit, and counts for nothing: is it the same log?"


def _notes(far: Apart, judged: _Judged | None, ends: Ends, terms: Terms) -> Iterator[str]:
    if is_no_reference(ends):
        places = counted(ends.lost_baseline, "place")
        yield f"the baseline's own loss is no number at {places}: it is nothing to compare with"
    if ends.lost:
        yield f"the candidate's loss is no number at {counted(ends.lost, 'place')} where the baseline's is one"
    if far.pairing is not None and far.pairing < SAME_DATA:
        yield "the runs did not see the same data in the same order: the noise is larger"
    if far.together > 1:
        yield f"so many values are told by the means of {far.together} neighbours"
    if any(spike.candidate and far.ends and spike.last >= far.ends[-1] for spike in far.spikes):
        yield "the candidate's last spike has not ended yet: it may be one, or where its loss now is"
    if judged is None:
        return
    if judged.floor.source is FloorFrom.SAMPLING:
        yield "one baseline cannot tell FP8 from what differs from run to run: seeds alone may move a loss by 1 %"
    onset, switch = judged.onset, terms.switch_step
    if onset is not None and switch is not None and onset.not_after < switch:
        yield f"the gap begins before step {switch}: what begins there did not cause it"


def apart(
    baseline: Curve, candidate: Curve, *, metric: CurveMetric = CurveMetric.LOSS, together: int | None = None
) -> Apart:
    """Return how far a run is from its baseline, pair by pair, without the spikes of either.

    Args:
        baseline: The run that is trusted.
        candidate: Any other.
        metric: Losses of a fixed set of samples have no spikes.
        together: Neighbouring pairs for which one value is to stand; None for as few as keep the number of them low.
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
    """Return a run's spikes where it has pairs."""
    if metric is CurveMetric.VALIDATION or not pairs.places:
        return []
    first, last = pairs.places[0], pairs.places[-1]
    return [
        span
        for span in find_spikes(curve.losses)
        if first <= curve.places[span.last] and curve.places[span.first] <= last
    ]


def _by_step(curve: Curve) -> float:
    """Return by how much the places grow in a step."""
    if len(curve.steps) < 2 or curve.steps[-1] == curve.steps[0]:  # noqa: PLR2004
        return 1.0
    return (curve.places[-1] - curve.places[0]) / (curve.steps[-1] - curve.steps[0])


def _groups(pairs: int, together: int) -> list[tuple[int, int]]:
    """Return where groups of neighbours begin and end; what is left over belongs to the last one."""
    count = pairs // together
    return [(at * together, pairs if at == count - 1 else (at + 1) * together) for at in range(count)]


def _averaged(values: Sequence[float], groups: Sequence[tuple[int, int]]) -> tuple[float, ...]:
    return tuple(math.fsum(values[first:end]) / (end - first) for first, end in groups)
