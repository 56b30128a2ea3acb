"""Whether the resumed run has the weights of the save, and updates them as planned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step, counted
from ckpttool.postflight.model import Aspect, Judged, State, Word
from ckpttool.postflight.rules.columns import ENOUGH, EQUAL, JUDGED, Column, largest_z
from ckpttool.postflight.rules.learning_rate import Rate, RateState
from ckpttool.postflight.rules.numbers import LEAST_ROWS, correlation, mean_and_error, rms

_FAR = 0.05
"""Difference, in units of the step noise, above the first repeated step of every right resume (0.038)."""

_BEGINS_EQUAL = 0.004
"""Difference of the first repeated step with which a lost optimizer begins; right resumes reached 0.0036."""

_ROWS_FOR_LEVEL = 8

ROWS_FOR_WORD = 20
"""Repeated rows from which the cause of other weights has a word."""

_ROWS_FOR_OPTIMIZER = 5
"""Fewer rows could also be those of a new epoch, which begins with other data."""


def starts_from_scratch(loss: Column, saved: Step, saves: Sequence[Step]) -> bool:
    """Return whether the resumed run begins with fresh weights."""
    old = [loss.before[step] for step in sorted(loss.before) if step <= saved]
    new = [loss.after[step] for step in sorted(loss.after) if step > saved][:3]
    if not new:
        return False
    level = median(old[-20:])
    top = old[0] - level
    steps = [step for step in sorted(loss.after) if step > saved][:3]
    shifts = [loss.after[step] - loss.before.get(step, level) for step in steps]
    if top <= 5 * loss.noise or shifts[0] <= 0.7 * top or fmean(shifts) <= 3 * loss.noise:
        return False
    levels = [_level_at(loss, save) for save in saves if save <= saved] + [level]
    nearest = min(abs(new[0] - value) for value in levels if value is not None)
    return nearest > 2 * abs(new[0] - old[0])


def judged_start(
    before: Sequence[StepMetrics], after: Sequence[StepMetrics], loss: Column | None, saved: Step
) -> Judged:
    """Judge the weights of a run whose step counter began at the first step again.

    Args:
        before: The rows of the first run.
        after: The rows of the resumed run.
        loss: The losses of both; None if too few rows before the save show the step noise.
        saved: The step of the save.
    """

    def judged(state: State, why: str, word: Word | None = None) -> Judged:
        return Judged(aspect=Aspect.WEIGHTS, state=state, why=why, word=word)

    first = {row.step: row.loss for row in before if row.loss is not None}
    again = [row.loss == first[row.step] for row in after if row.step in first]
    if len(again) >= ENOUGH and all(again):
        return judged(
            State.CONTRADICTED, "the losses repeat those of the first run from its first step on", Word.SCRATCH
        )
    if loss is None:
        return judged(State.NOT_SHOWN, f"fewer than {LEAST_ROWS} rows before the save show its loss")
    level = median([loss.before[step] for step in sorted(loss.before) if step <= saved][-20:])
    top = loss.before[min(loss.before)] - level
    height = fmean([loss.after[step] for step in sorted(loss.after)][:3]) - level
    if top <= 5 * loss.noise:
        return judged(State.NOT_SHOWN, "the loss at the save is too near to that of the first step")
    if height > 0.7 * top:
        why = "the loss begins near the value with which the first run began"
        return judged(State.CONTRADICTED, why, Word.SCRATCH)
    return judged(
        State.NOT_SHOWN, "the loss begins below that of a new training run: only weights may have been loaded"
    )


def _is_near_start(loss: Column, steps: Sequence[Step]) -> bool:
    """Return whether the new losses are nearer to the start of the first run than to those that they repeat.

    Then they may be those of fresh weights, or of an early save.
    """
    start = median([loss.before[step] for step in sorted(loss.before)][:5])
    new = fmean([loss.after[step] for step in steps[:3]])
    old = fmean([loss.before[step] for step in steps[:3]])
    return abs(new - start) < abs(new - old)


def _level_at(loss: Column, save: Step) -> float | None:
    """Return the loss around a save."""
    values = [loss.before[step] for step in sorted(loss.before) if step <= save][-20:]
    return median(values) if values else None


def judged_weights(  # noqa: PLR0913  callers name them
    columns: Sequence[Column],
    steps: Sequence[Step],
    data: Judged,
    *,
    has_first: bool,
    changes_arithmetic: bool,
    random_state_lost_by: str | None,
    is_fine: bool,
) -> Judged:
    """Judge whether the weights are those of the save.

    Args:
        columns: Loss, and gradient norm if both logs have it.
        steps: Steps that both logs have, ascending.
        data: The judgement of the data.
        has_first: Whether the first step after the save is among them.
        changes_arithmetic: Whether ranks, precision or device differ.
        random_state_lost_by: Why dropout may be the reason for the differences, in one clause, or None if it may not.
        is_fine: Whether the log is printed finely enough for a proof.
    """

    def judged(state: State, why: str, word: Word | None = None) -> Judged:
        return Judged(aspect=Aspect.WEIGHTS, state=state, why=why, word=word)

    if not has_first:
        which = "the first step after the save was not" if steps else "no step after the save was"
        return judged(State.NOT_SHOWN, f"{which} logged by both runs")
    if data.state not in {State.PROVEN, State.CONSISTENT}:
        differs = data.state is State.CONTRADICTED
        return judged(State.NOT_SHOWN, "the data differ" if differs else "it is not shown that the data are the same")
    if random_state_lost_by is not None:
        middle = median(largest_z(columns, steps)[:JUDGED])
        why = f"the repeated steps differ by {middle:.2g} of the step noise, as with other dropout masks"
        return judged(State.NOT_SHOWN, f"{why}: {random_state_lost_by}")
    return judged(*_by_difference(columns, steps, changes_arithmetic=changes_arithmetic, is_fine=is_fine))


def _by_difference(
    columns: Sequence[Column], steps: Sequence[Step], *, changes_arithmetic: bool, is_fine: bool
) -> tuple[State, str, Word | None]:
    """Return what the differences of the repeated steps show about the weights."""
    z = largest_z(columns, steps)
    why = f"step {steps[0]} differs by {z[0]:.2g} of the step noise"
    if z[0] <= EQUAL:
        return State.PROVEN if is_fine else State.CONSISTENT, why, None
    if changes_arithmetic:
        return State.NOT_SHOWN, "ranks, precision or device changed, and with them the arithmetic", None
    if z[0] > _FAR and median(z[:JUDGED]) > _FAR:
        return State.CONTRADICTED, why, _word(columns[0], steps)
    return State.CONSISTENT, why, None


def may_have_other_masks(columns: Sequence[Column], steps: Sequence[Step]) -> bool:
    """Return whether the repeated steps differ as with other dropout masks: from the first one on, around no level."""
    middle = median(largest_z(columns, steps)[:JUDGED])
    return middle > EQUAL and not _begins_equal(columns, steps) and not _has_other_level(columns[0], steps)


def _begins_equal(columns: Sequence[Column], steps: Sequence[Step]) -> bool:
    """Return whether the first step is too nearly equal for other dropout masks.

    These make one of two columns as nearly equal by luck in one of 30 resumes.
    """
    most = _BEGINS_EQUAL if len(columns) > 1 else _BEGINS_EQUAL / 10
    return all(column.z(steps[:1])[0] <= most for column in columns)


def _has_other_level(loss: Column, steps: Sequence[Step]) -> bool:
    """Return whether the losses are higher than other random numbers make them.

    In 162 resumes of three models with dropout of 0.1 to 0.5, these shifted the mean over 30 steps by at most 0.10 of
    the step noise and 2.9 standard errors, and that of the first 5 steps by at most 0.15. Weights that were 50 steps
    older shifted the former by 0.08 to 1.8; early in a training run, older weights shifted the latter by 7 to 17.
    """
    differences = [d / loss.noise for d in loss.differences(steps[:JUDGED])]
    if len(differences) < _ROWS_FOR_LEVEL:
        return False
    mean, error = mean_and_error(differences)
    is_far = len(differences) >= ROWS_FOR_WORD and mean > max(5 * error, 0.2)
    return is_far or mean > max(8 * error, _FAR) or fmean(differences[:5]) > 1


def _word(loss: Column, steps: Sequence[Step]) -> Word:
    """Return the likely cause of other weights, or of other random numbers."""
    differences = [d / loss.noise for d in loss.differences(steps)]
    if len(differences) < ROWS_FOR_WORD:
        return Word.DIFFERS
    mean, error = mean_and_error(differences)
    if mean > 3.5 * error and mean > 0.05:  # noqa: PLR2004  as measured
        return Word.DIFFERS if _is_near_start(loss, steps) else Word.CHECKPOINT
    third = len(differences) // 3
    thirds = [rms(differences[part * third : (part + 1) * third]) for part in range(3)]
    even = max(thirds) <= 1.7 * min(thirds)
    unrelated = correlation(differences[:-1], differences[1:]) < 0.4  # noqa: PLR2004  as measured
    if abs(mean) < 2 * error and even and unrelated and rms(differences) < 0.3:  # noqa: PLR2004  as measured
        return Word.RANDOM
    return Word.DIFFERS


def judged_update(  # noqa: PLR0913  callers name them
    columns: Sequence[Column],
    steps: Sequence[Step],
    data: Judged,
    rate: Rate,
    *,
    has_first: bool,
    has_other_masks: bool,
    is_fine: bool,
) -> Judged:
    """Judge whether the updates after the first step are those of the first run.

    Args:
        columns: Loss, and gradient norm if both logs have it.
        steps: Steps that both logs have, ascending.
        data: The judgement of the data.
        rate: The comparison of the learning rates.
        has_first: Whether the first step after the save is among them.
        has_other_masks: Whether dropout may be the reason for the differences.
        is_fine: Whether the log is printed finely enough for a proof.
    """

    def judged(state: State, why: str, word: Word | None = None) -> Judged:
        return Judged(aspect=Aspect.UPDATE, state=state, why=why, word=word)

    has_same_data = data.state in {State.PROVEN, State.CONSISTENT}
    if not has_first or not has_same_data or len(steps) < 2:  # noqa: PLR2004  one update shows in the second step
        if rate.state is RateState.EQUAL:
            return judged(State.NOT_SHOWN, f"{rate.why}; the optimizer's effect is not shown")
        return judged(State.NOT_SHOWN, "an update shows only in the steps after the first repeated one")
    by_column = [column.z(steps) for column in columns]
    for place, z in enumerate(() if has_other_masks else by_column):
        others = [other[0] for number, other in enumerate(by_column) if number != place]
        if _shows_lost_optimizer(z, columns[place].resolution) and all(first <= _FAR for first in others):
            cause = "" if rate.state is RateState.EQUAL else "; or the learning rate, which the logs do not show"
            why = f"step {steps[0]} is equal, and the difference grows to {max(z[1:6]):.2g} of the step noise after it"
            return judged(State.CONTRADICTED, why + cause, Word.OPTIMIZER)
    z = largest_z(columns, steps)
    quiet = sum(value <= EQUAL for value in z) / len(z)
    count = counted(len(z), "repeated step")
    if len(z) >= ENOUGH and quiet >= 0.9 and max(z) <= _FAR and is_fine:  # noqa: PLR2004  as measured
        return judged(State.PROVEN, f"{count} differ by at most {max(z):.2g} of the step noise")
    why = f"{count} differ by {median(z):.2g} of the step noise"
    if len(z) < ENOUGH:
        return judged(State.NOT_SHOWN, f"{why}; a lost optimizer shows in {ENOUGH}")
    return judged(State.CONSISTENT, why)


def _shows_lost_optimizer(z: Sequence[float], resolution: float) -> bool:
    """Return whether the first step is equal, and the next ones move away from it."""
    largest = max(z[1:6], default=0.0)
    middle = median(z[1:JUDGED]) if len(z) >= _ROWS_FOR_OPTIMIZER else 0.0
    is_growing = largest > _FAR and largest > 10 * max(z[0], resolution)
    return z[0] <= _BEGINS_EQUAL and is_growing and middle > 0.03 and not math.isnan(middle)  # noqa: PLR2004  as measured
