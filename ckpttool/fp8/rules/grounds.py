"""Decisions about experiments on a candidate: whether they are useful, where to start, and how long to run."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Step
from ckpttool.fp8.model.curves import Comparison, CurveClass, Onset, PairedBy
from ckpttool.fp8.model.plan import LAST, Fp8Plan, Suspicion

MARGIN = 100
"""Number of steps between the checkpoint and the earliest possible start of the gap."""
LEAST_STEPS = 200
MOST_STEPS = 5000
SHORTEST, LONGEST = 50, 1_000_000
"""Limits of the number of steps that a user may request. Fewer show nothing, and more would be a full training run."""

_TIMES_LIMIT = 3
_RESERVE = 1.2
_TAIL = 5
"""Number of equal parts of an experiment. Its mean gap is computed over the last one."""


def suspicion_of(comparison: Comparison) -> Suspicion:
    """Return the facts that a later verdict uses."""
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
    CurveClass.MATCH: "the candidate matches its baseline: there is no gap to explain",
    CurveClass.SPIKES: "apart from ordinary spikes the candidate matches its baseline: there is no gap to explain",
    CurveClass.TRANSIENT: "the candidate recovered on its own: there is no gap at its end to explain",
}


def nothing_to_learn(comparison: Comparison) -> str | None:
    """Return why experiments would not help, or None if they would."""
    if comparison.kind in _WELL:
        return _WELL[comparison.kind]
    if comparison.findings:
        return f"the runs cannot be compared: {comparison.findings[0].message}"
    if comparison.gap is None:
        return f"the runs cannot be compared: {comparison.notes[0]}"
    if comparison.by is PairedBy.SAMPLES:
        return "the runs have different batch sizes, but experiments are compared step by step"
    if comparison.onset is None and comparison.kind is not CurveClass.INCONCLUSIVE:
        return "the step at which the candidate leaves its baseline is unknown"
    return None


def start_before(comparison: Comparison, switch: Step | None) -> Step:
    """Return the latest step at which a checkpoint has no trace of the gap.

    Args:
        comparison: Comparison of the two runs.
        switch: The step at which the candidate begins with FP8, or None for the candidate's first step.
    """
    onset = comparison.onset
    if switch is not None and comparison.kind is CurveClass.EARLY:
        return switch
    if onset is None:
        last = comparison.last or Step(0)
        return Step(max(0, last - without_onset(comparison.first or Step(0), last)))
    return onset.not_before if comparison.kind is CurveClass.EARLY else latest_start(onset)


def latest_start(onset: Onset) -> Step:
    """Return the latest step at which a checkpoint precedes the beginning of the gap."""
    return Step(max(0, onset.not_before - MARGIN))


def horizon(steps: Sequence[Step], gaps: Sequence[float], onset: Onset, *, start: Step, limit: float) -> int | None:
    """Return the number of steps after which the gap in an experiment is three times the detectable size.

    Args:
        steps: Steps of the comparison, in ascending order.
        gaps: Candidate minus baseline at each step.
        onset: Start of the gap.
        start: The checkpoint's step.
        limit: The smallest gap that counts.

    Returns:
        From 200 to 5,000, with a fifth as reserve, or None if no experiment of that length can show it.
    """
    first = bisect_left(steps, onset.step)
    before = [0.0]
    for gap in gaps:
        before.append(before[-1] + gap)
    for count in range(_TAIL, len(steps) - first + 1):
        tail = max(1, count // _TAIL)
        if abs(before[first + count] - before[first + count - tail]) / tail >= _TIMES_LIMIT * limit:
            needed = onset.not_after - start + steps[first + count - 1] - steps[first]
            return min(MOST_STEPS, max(LEAST_STEPS, math.ceil(needed * _RESERVE))) if needed <= MOST_STEPS else None
    return None


def without_onset(first: Step, last: Step) -> int:
    """Return the number of steps to assume if the beginning of the gap is unknown: a fifth of the compared steps."""
    return min(MOST_STEPS, max(LEAST_STEPS, (last - first) // _TAIL))


@dataclass(frozen=True, slots=True, kw_only=True)
class LastStart:
    """The candidate's checkpoint from which BF16 is tried on FP8-trained weights."""

    step: Step
    path: str
    """Path of the folder that contains the checkpoint."""
    note: str | None
    """The condition under which the run can be judged, or None if there is no condition."""


def last_judged(plan: Fp8Plan, ends: Step | None) -> Step | None:
    """Return the last start whose complete run can be compared with the old baseline, or None if no such start exists.

    Args:
        plan: The plan, which defines the length of a run.
        ends: The last step of the baseline's log, or None if there is no such log.
    """
    return None if ends is None or ends < plan.horizon else Step(ends - plan.horizon)


def last_start(plan: Fp8Plan, ends: Step | None, good: Mapping[Step, str]) -> LastStart | str:
    """Choose the newest checkpoint with the gap, preferably within the baseline's log, or return why none qualifies.

    Args:
        plan: The plan, which defines the start of the gap and the length of a run.
        ends: The last step of the baseline's log, or None if there is no such log.
        good: Steps of the candidate's good checkpoints, each with its folder.
    """
    onset, judged = plan.suspicion.onset, last_judged(plan, ends)
    since = plan.start.step if onset is None else onset.not_after
    later = [step for step in good if step > since]
    if not later:
        return f"the candidate has no good checkpoint after step {since}, when the gap existed"
    step = max([step for step in later if judged is not None and step <= judged] or later)
    if judged is not None and step <= judged:
        return LastStart(step=step, path=good[step], note=None)
    reason = "there is no log of the baseline" if ends is None else f"the baseline's log ends at step {ends}"
    once = f"it can be judged once that run has reached step {step + plan.horizon}"
    return LastStart(step=step, path=good[step], note=f"{LAST} starts from step {step}, but {reason}: {once}")
