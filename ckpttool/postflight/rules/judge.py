"""Whether a resumed run is the one that was planned, from its log and the log of the run before it.

A run that crashed at step 530 and resumes from step 500 repeats steps 501 to 530. The first run logged them already: if
weights, data, optimizer, learning rate and random numbers came back, the second log repeats the first.

The constants are ratios to the step noise. They were measured on 249 small training runs in 38 printings: none of 606
right resumes exceeds them. Logs of accelerators and of larger models have not confirmed them yet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step, counted
from ckpttool.postflight.model import Aspect, Comparison, Judged, Repeated, State, Word
from ckpttool.postflight.rules.columns import ENOUGH, EQUAL, JUDGED, Column, column_of, loss_of, norm_of
from ckpttool.postflight.rules.data import (
    changed_data,
    judged_data,
    rows_of_same_data,
    same_as_after_another_save,
)
from ckpttool.postflight.rules.learning_rate import Rate, RateState, rate_of
from ckpttool.postflight.rules.numbers import LEAST_ROWS
from ckpttool.postflight.rules.weights import (
    judged_start,
    judged_update,
    judged_weights,
    may_have_other_masks,
    starts_from_scratch,
)

_MOST_MEDIAN = 0.02
"""Median loss difference, in units of the step noise, that no right resume reached (the largest was 0.0056)."""

_MOST_MEDIAN_SPARSE = 0.1
"""The same for a log that does not show every step."""

_SAME = frozenset({State.PROVEN, State.CONSISTENT})
"""What the rows show about data that are the planned ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """What is known about a resume besides the logs."""

    saved: Step
    """The step of the save."""
    saves: tuple[Step, ...] = ()
    """The steps of all saves that the run could have loaded instead, ascending."""
    is_planned: bool = True
    """Whether a plan or the user named the save; else it is the newest one before the first new step."""
    is_averaged: bool = False
    """Whether the logged loss is the mean since the last log line."""
    changes_arithmetic: bool = False
    """Whether ranks, precision or device differ, so that random numbers and roundings may differ, too."""
    random_state_lost_by: str | None = None
    """Why no resume may restore the random numbers, in one clause, so that dropout masks may differ lawfully."""


class NothingToCompare(Exception):  # noqa: N818  the name is a statement
    """The logs do not show a resume."""


def compare(before: Sequence[StepMetrics], after: Sequence[StepMetrics], resume: Resume) -> Comparison:
    """Compare the logs of a run and of its resume.

    Args:
        before: The rows of the run before, ascending by step.
        after: The rows of the resumed run, ascending by step.
        resume: The save, and what is known about it.

    Raises:
        NothingToCompare: A log has no rows.
    """
    if not after:
        raise NothingToCompare("the resumed run has not logged a step yet")
    if not any(row.step <= resume.saved for row in before):
        raise NothingToCompare(f"the log has no step before the save at step {resume.saved}")
    comparison = _compared(before, after, resume)
    diverged = _first_non_finite(before, after, resume.saved)
    if diverged is None:
        return comparison
    return replace(comparison, aspects=(*map(_weaker, comparison.aspects[:-1]), diverged))


def _first_non_finite(before: Sequence[StepMetrics], after: Sequence[StepMetrics], saved: Step) -> Judged | None:
    """Report the first repeated step whose loss or gradient norm is not finite, although it was in the first run."""
    rows = {row.step: row for row in before}
    for row in after:
        old = rows.get(row.step)
        if row.step <= saved or old is None:
            continue
        for name, value in (("loss", loss_of), ("gradient norm", norm_of)):
            first, second = value(old), value(row)
            if first is not None and second is not None and math.isfinite(first) and not math.isfinite(second):
                why = f"the {name} of step {row.step} is {second}; the first run logged {first:g}"
                return Judged(aspect=Aspect.UPDATE, state=State.CONTRADICTED, word=Word.DIFFERS, why=why)
    return None


def _compared(before: Sequence[StepMetrics], after: Sequence[StepMetrics], resume: Resume) -> Comparison:
    """Compare the finite values of both logs."""
    interval = interval_of(before)
    first = after[0].step
    position, resume = _position(first, interval, resume)
    if resume.is_averaged and interval > 1 and resume.saved % interval:
        after = after[1:]  # its mean begins at the resume
    loss = column_of(loss_of, before, after, resume.saved)
    norm = column_of(norm_of, before, after, resume.saved)
    rate = rate_of(before, after, resume.saved)
    steps = _repeated(before, after, resume.saved)
    comparison = Comparison(
        saved=resume.saved,
        loaded=resume.saved if resume.saved < first else None,
        first=first,
        aspects=(),
        repeated=tuple(_rows(before, after, steps)),
        median_z=None if loss is None or not steps else median(loss.z(_within(loss, steps)[:JUDGED]) or [0.0]),
        loss_noise=None if loss is None else loss.noise,
        resolution=None if loss is None else loss.resolution,
    )
    if first <= interval and position.word is not None:
        weights = judged_start(before, after, loss, resume.saved)
        return replace(comparison, loaded=None, repeated=(), median_z=None, aspects=_of_start(position, weights))
    if loss is None:
        return replace(comparison, aspects=(position, *_unjudged(before, after, resume.saved), _of_rate(rate)))
    if starts_from_scratch(loss, resume.saved, resume.saves):
        scratch = Judged(
            aspect=Aspect.WEIGHTS,
            state=State.CONTRADICTED,
            word=Word.SCRATCH,
            why="the loss begins near the value with which the first run began",
        )
        data = Judged(aspect=Aspect.DATA, state=State.NOT_SHOWN, why="the weights are not those of the save")
        update = _of_rate(rate) if rate.state is not RateState.EQUAL else replace(data, aspect=Aspect.UPDATE)
        return replace(comparison, loaded=None, aspects=(position, data, scratch, update))
    return _with_columns(
        comparison,
        position,
        _Rows(before=before, after=after, steps=steps, interval=interval),
        loss,
        norm,
        rate,
        resume,
    )


def _of_start(position: Judged, weights: Judged) -> tuple[Judged, ...]:
    """Return the judgements of a run whose step counter began at the first step again."""
    why = "the step counter began again, so no step repeats the one after the save"
    data, update = (Judged(aspect=aspect, state=State.NOT_SHOWN, why=why) for aspect in (Aspect.DATA, Aspect.UPDATE))
    return position, data, weights, update


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    before: Sequence[StepMetrics]
    after: Sequence[StepMetrics]
    steps: list[Step]
    interval: int


def _with_columns(  # noqa: PLR0913, PLR0917  all that the logs show
    comparison: Comparison,
    position: Judged,
    rows: _Rows,
    loss: Column,
    norm: Column | None,
    rate: Rate,
    resume: Resume,
) -> Comparison:
    """Judge data, weights and update by the columns of both logs."""
    columns = [column for column in (loss, norm) if column is not None]
    other = same_as_after_another_save(columns, resume.saved, resume.saves, rows.interval)
    if other is not None:
        weights = Judged(
            aspect=Aspect.WEIGHTS,
            state=State.CONTRADICTED,
            word=Word.CHECKPOINT,
            why=f"the resumed run repeats the first run's values from step {other + rows.interval} on",
        )
        data = Judged(
            aspect=Aspect.DATA,
            state=State.CONTRADICTED,
            word=Word.DATA_REPEATED,
            why=f"{counted(resume.saved - other, 'step')} of data are trained on again",
        )
        return replace(comparison, loaded=other, aspects=(position, data, weights, _of_rate(rate)))
    steps = [step for step in rows.steps if all(step in column.before and step in column.after for column in columns)]
    has_first = bool(steps) and steps[0] <= resume.saved + rows.interval
    is_averaged = resume.is_averaged and rows.interval > 1
    data = judged_data(columns, steps, resume.saved, is_averaged=is_averaged, interval=rows.interval)
    same = steps[: rows_of_same_data(columns, steps)] if data.state in _SAME else steps
    lost_by = None if resume.changes_arithmetic else resume.random_state_lost_by
    if not has_first or not may_have_other_masks(columns, same):
        lost_by = None
    weights = judged_weights(
        columns,
        same,
        data,
        has_first=has_first,
        changes_arithmetic=resume.changes_arithmetic,
        random_state_lost_by=lost_by,
        is_fine=_is_fine(columns),
    )
    update = judged_update(
        columns,
        same,
        data,
        rate,
        has_first=has_first,
        has_other_masks=lost_by is not None,
        is_fine=_is_fine(columns),
    )
    if rate.state in {RateState.RESTARTED, RateState.NEW_OPTIMIZER, RateState.DIFFERS}:
        update = _of_rate(rate)
        if resume.random_state_lost_by is not None and weights.state is State.CONTRADICTED:
            why = "the random-number state and the learning rate differ, and with them the losses"
            weights = replace(weights, state=State.NOT_SHOWN, why=why, word=None)
    aspects: tuple[Judged, ...] = (position, data, weights, update)
    if not any(judged.state is State.CONTRADICTED for judged in aspects):
        middle = median(loss.z(same[:JUDGED])) if same else None
        aspects = _caught(aspects, middle, len(same), rows.interval, resume)
    if len(same) < len(steps):
        aspects = (position, changed_data(columns, steps, len(same)), *aspects[2:])
    return replace(comparison, aspects=aspects)


def _is_fine(columns: Sequence[Column]) -> bool:
    """Return whether the finer column is printed finely enough for a proof."""
    return min(column.resolution for column in columns) <= EQUAL


def _caught(
    aspects: tuple[Judged, ...], middle: float | None, count: int, interval: int, resume: Resume
) -> tuple[Judged, ...]:
    """Contradict the weights without a word if the median difference is larger than in any right resume."""
    most = _MOST_MEDIAN if interval == 1 else _MOST_MEDIAN_SPARSE
    position, data, weights, update = aspects
    has_other_masks = resume.random_state_lost_by is not None and weights.state is State.NOT_SHOWN
    if resume.changes_arithmetic or has_other_masks or middle is None or count < ENOUGH or middle <= most:
        return aspects
    caught = Judged(
        aspect=Aspect.WEIGHTS,
        state=State.CONTRADICTED,
        word=Word.DIFFERS,
        why=(
            f"half of the first {min(count, JUDGED)} repeated losses differ by more than {middle:.2g} of the step "
            f"noise; right resumes stay below {most:g}"
        ),
    )
    return position, _weaker(data), caught, _weaker(update)


def _weaker(judged: Judged) -> Judged:
    """Return a judgement that does not claim a proof, because something unnamed is wrong."""
    return replace(judged, state=State.CONSISTENT) if judged.state is State.PROVEN else judged


def interval_of(rows: Sequence[StepMetrics]) -> int:
    """Return the usual number of steps between two rows."""
    gaps = [second.step - first.step for first, second in pairwise(rows)]
    return max(1, int(median(gaps))) if gaps else 1


def _loaded(first: Step, interval: int, saves: Sequence[Step]) -> Step | None:
    """Return the step of the save before the first new step; None if it is unknown, or the run began at step 1.

    A log of every step shows it without the save, which may have been deleted since.
    """
    newest = max((save for save in saves if save < first), default=None)
    if newest is not None and newest >= first - interval:
        return newest
    if interval == 1 and first > 1:
        return Step(first - 1)
    return newest


def _position(first: Step, interval: int, resume: Resume) -> tuple[Judged, Resume]:
    """Judge the first new step; if another save was loaded, return the resume from that one."""
    saved, aspect = resume.saved, Aspect.POSITION
    loaded = _loaded(first, interval, resume.saves)
    if first <= saved - interval + 1 or (interval == 1 and loaded in resume.saves and loaded > saved):
        if loaded is not None:
            source = f"it continues from step {loaded}"
        elif first <= interval:
            source = "the step counter began again"
        else:
            source = "no save before that step is known"
        judged = Judged(
            aspect=aspect,
            state=State.CONTRADICTED,
            word=Word.POSITION,
            why=f"the first new step is {first}, not one after {saved}: {source}",
        )
        return judged, resume if loaded is None else replace(resume, saved=loaded)
    if first > saved + interval:
        why = f"the first logged step is {first}: rows between {saved} and {first} are missing"
        return Judged(aspect=aspect, state=State.NOT_SHOWN, why=why), resume
    if not resume.is_planned:
        why = f"the first new step is {first}; no plan names the save, so the newest one before it is assumed"
        return Judged(aspect=aspect, state=State.CONSISTENT, why=why), resume
    return Judged(aspect=aspect, state=State.PROVEN, why=f"the first new step is {first}"), resume


def _repeated(before: Sequence[StepMetrics], after: Sequence[StepMetrics], saved: Step) -> list[Step]:
    logged = {row.step for row in before}
    return [row.step for row in after if row.step > saved and row.step in logged]


def _within(column: Column, steps: Sequence[Step]) -> list[Step]:
    return [step for step in steps if step in column.before and step in column.after]


def _rows(before: Sequence[StepMetrics], after: Sequence[StepMetrics], steps: Sequence[Step]) -> list[Repeated]:
    first = {row.step: row.loss for row in before}
    second = {row.step: row.loss for row in after}
    rows = []
    for step in steps:
        old, new = first[step], second[step]
        if old is not None and new is not None and math.isfinite(old) and math.isfinite(new):
            rows.append(Repeated(step=step, before=old, after=new))
    return rows


def _unjudged(before: Sequence[StepMetrics], after: Sequence[StepMetrics], saved: Step) -> tuple[Judged, Judged]:
    """Return data and weights, if a log lacks the loss, or too few rows before the save show the step noise."""
    count = sum(1 for row in before if row.step <= saved and _is_finite(row.loss))
    why = f"{counted(count, 'row')} with a finite loss before the save; the step noise needs {LEAST_ROWS}"
    if count >= LEAST_ROWS and not any(_is_finite(row.loss) for row in after):
        why = "the resumed run logged no finite loss"
    return (
        Judged(aspect=Aspect.DATA, state=State.NOT_SHOWN, why=why),
        Judged(aspect=Aspect.WEIGHTS, state=State.NOT_SHOWN, why=why),
    )


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _of_rate(rate: Rate) -> Judged:
    """Return the judgement of the update by the learning rate alone."""
    match rate.state:
        case RateState.RESTARTED:
            return Judged(aspect=Aspect.UPDATE, state=State.CONTRADICTED, word=Word.LEARNING_RATE, why=rate.why)
        case RateState.NEW_OPTIMIZER:
            return Judged(aspect=Aspect.UPDATE, state=State.CONTRADICTED, word=Word.OPTIMIZER, why=rate.why)
        case RateState.DIFFERS:
            return Judged(aspect=Aspect.UPDATE, state=State.CONTRADICTED, word=Word.DIFFERS, why=rate.why)
        case RateState.EQUAL:
            return Judged(aspect=Aspect.UPDATE, state=State.CONSISTENT, why=rate.why)
        case RateState.NOT_SHOWN:
            return Judged(aspect=Aspect.UPDATE, state=State.NOT_SHOWN, why=rate.why)
