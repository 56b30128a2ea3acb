"""The comparison of two logs after the global batch size grew: a new step trains on the samples of several old steps.

A new step's loss is close to the mean loss of the old steps with the same samples, because the learning rate follows
the samples or changes slowly. The optimizer and an older save do not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step, counted
from ckpttool.postflight.model import Aspect, Judged, State, Word
from ckpttool.postflight.rules.columns import Column, column_of, loss_of
from ckpttool.postflight.rules.numbers import changes_of, correlation
from ckpttool.postflight.rules.weights import starts_from_scratch

_PAIRS = 15
"""Least number of new steps to compare: with fewer, other data can look like the planned data."""

_SAME = 0.7
_OTHER = 0.5


def in_steps_of(batches: int, rows: Sequence[StepMetrics], saved: Step, resumed_at: Step) -> list[StepMetrics]:
    """Return the old rows as a run with larger batches would have logged them: mean losses, in its own steps.

    Args:
        batches: Old batches per new batch.
        rows: The rows of the first run, every step, ascending.
        saved: The step of the save, in steps of the first run.
        resumed_at: The same point in steps of the resumed run.
    """
    losses = {row.step: row.loss for row in rows}
    earliest = min(losses, default=saved)
    first = -((saved - earliest + 1) // batches)
    last = (max(losses, default=saved) - saved) // batches
    larger = []
    for place in range(first, last):
        same_samples = [losses.get(Step(saved + place * batches + k)) for k in range(1, batches + 1)]
        known = [loss for loss in same_samples if loss is not None]
        step = resumed_at + place + 1
        if len(known) == batches and step > 0:
            larger.append(StepMetrics(step=Step(step), loss=fmean(known)))
    return larger


def judged_by_samples(
    before: Sequence[StepMetrics], after: Sequence[StepMetrics], resumed_at: Step
) -> tuple[Judged, Judged] | None:
    """Judge data and weights by the mean losses of the same samples; None if too few rows show the step noise.

    Args:
        before: The first run's rows, as `in_steps_of` returns them.
        after: The rows of the resumed run.
        resumed_at: The step of the save, in steps of the resumed run.
    """
    loss = column_of(loss_of, before, after, resumed_at)
    if loss is None:
        return None
    if starts_from_scratch(loss, resumed_at, ()):
        return (
            Judged(aspect=Aspect.DATA, state=State.NOT_SHOWN, why="the weights are not those of the save"),
            Judged(
                aspect=Aspect.WEIGHTS,
                state=State.CONTRADICTED,
                word=Word.SCRATCH,
                why="the loss begins near the value with which the first run began",
            ),
        )
    weights = "a larger batch shows a fresh start, but not the weights of an older save"
    return _data(loss, resumed_at), Judged(aspect=Aspect.WEIGHTS, state=State.NOT_SHOWN, why=weights)


def _data(loss: Column, resumed_at: Step) -> Judged:
    steps = [step for step in sorted(loss.after) if step > resumed_at and step in loss.before]
    if len(steps) < _PAIRS:
        why = f"{counted(len(steps), 'step')} with the samples of earlier steps; {_PAIRS} show the data"
        return Judged(aspect=Aspect.DATA, state=State.NOT_SHOWN, why=why)
    old, new = ([values[step] for step in steps] for values in (loss.before, loss.after))
    similar = correlation(changes_of(old), changes_of(new))
    why = (
        f"the losses of {counted(len(steps), 'step')} and the mean losses of the same samples before have a "
        f"correlation of {similar:.2f}"
    )
    if similar >= _SAME:
        return Judged(aspect=Aspect.DATA, state=State.CONSISTENT, why=why)
    if similar <= _OTHER:
        return Judged(aspect=Aspect.DATA, state=State.CONTRADICTED, word=Word.DATA_OTHER, why=why)
    return Judged(aspect=Aspect.DATA, state=State.NOT_SHOWN, why=why)
