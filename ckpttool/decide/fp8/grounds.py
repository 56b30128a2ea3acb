"""Whether there is anything to learn from a candidate, and from where experiments must begin."""

from __future__ import annotations

from ckpttool.decide.fp8.horizon import latest_start, without_onset
from ckpttool.domain.fp8_curves import Comparison, CurveClass, PairedBy
from ckpttool.domain.fp8_plan import Suspicion
from ckpttool.domain.units import Step


def suspicion_of(comparison: Comparison) -> Suspicion:
    """Return what a verdict goes by later."""
    return Suspicion(
        kind=comparison.kind,
        gap=None if comparison.gap is None else comparison.gap.mean,
        relative_gap=comparison.relative_gap,
        limit=comparison.limit,
        tolerance=comparison.tolerance,
        floor_from=None if comparison.floor is None else comparison.floor.source,
        onset=comparison.onset,
    )


_WELL = {
    CurveClass.MATCH: "the candidate matches its baseline: there is nothing to explain",
    CurveClass.SPIKES: "but for ordinary spikes the candidate matches its baseline: there is nothing to explain",
    CurveClass.TRANSIENT: "the candidate came back by itself: there is no gap at its end to explain",
}


def nothing_to_learn(comparison: Comparison) -> str | None:
    """Say why nothing can be learned, where that is so."""
    if comparison.kind in _WELL:
        return _WELL[comparison.kind]
    if comparison.findings:
        return f"the runs cannot be compared: {comparison.findings[0].message}"
    if comparison.gap is None:
        return f"the runs cannot be compared: {comparison.notes[0]}"
    if comparison.by is PairedBy.SAMPLES:
        return "the runs have different batch sizes, and experiments are held against each other step by step"
    if comparison.onset is None and comparison.kind is not CurveClass.INCONCLUSIVE:
        return "since when the candidate leaves its baseline cannot be told"
    return None


def start_before(comparison: Comparison, switch: Step | None) -> Step:
    """Return the step at or before which a checkpoint holds nothing of the gap.

    Args:
        comparison: Of the two runs.
        switch: Where the candidate begins with FP8; None: at its start.
    """
    onset = comparison.onset
    if switch is not None and comparison.kind is CurveClass.EARLY:
        return switch
    if onset is None:
        last = comparison.last or Step(0)
        return Step(max(0, last - without_onset(comparison.first or Step(0), last)))
    return onset.not_before if comparison.kind is CurveClass.EARLY else latest_start(onset)
