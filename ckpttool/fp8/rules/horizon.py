"""How long an experiment must be to tell anything, and how far back it must begin."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from ckpttool.core.domain.units import Step
from ckpttool.fp8.model.curves import Onset

MARGIN = 100
"""Steps between the checkpoint and the earliest moment at which the gap may have begun."""
LEAST_STEPS = 200
MOST_STEPS = 5000
SHORTEST, LONGEST = 50, 1_000_000
"""Steps that a person may ask for instead: fewer tell nothing, and more is a training."""

_TIMES_LIMIT = 3
_RESERVE = 1.2
_TAIL = 5
"""The last of so many parts of what an experiment shows must be that far apart."""
_WINDOW = 3
"""The last of so many parts of an experiment is what it is judged by."""


def latest_start(onset: Onset) -> Step:
    """Return the step at or before which a checkpoint must lie so that nothing of the gap is in it."""
    return Step(max(0, onset.not_before - MARGIN))


def horizon(steps: Sequence[Step], gaps: Sequence[float], onset: Onset, *, start: Step, limit: float) -> int | None:
    """Return how many steps an experiment needs until the gap is three times what can be seen.

    Args:
        steps: Of the comparison, ascending.
        gaps: Candidate minus baseline at each.
        onset: When the gap began.
        start: The checkpoint's step.
        limit: The least gap that counts.

    Returns:
        From 200 to 5,000, a fifth as reserve; None where no experiment of that length can tell.
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
    """Return how many steps to train where there is no gap that began: a fifth of what was compared."""
    return min(MOST_STEPS, max(LEAST_STEPS, (last - first) // _TAIL))


def window(start: Step, steps: int) -> tuple[Step, Step]:
    """Return the stretch by which an experiment is judged: the last third, first and last step."""
    return Step(start + steps - steps // _WINDOW), Step(start + steps)
