"""Which data the resumed run trains on: the planned batches, batches that were trained on before, or others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import TypeAlias

from ckpttool.core.domain.units import Step, counted
from ckpttool.postflight.model import Aspect, Judged, State, Word
from ckpttool.postflight.rules.columns import ENOUGH, EQUAL, Column, largest_z
from ckpttool.postflight.rules.numbers import changes_of, correlation, ranks_of, rms

_QUIET = 0.05
_ROWS_FOR_CORRELATION = 8
_ROWS_FOR_MEDIAN = 4
_SAME_CORRELATION = 0.8
_OTHER_CORRELATION = 0.5
_SEARCHED = 100
_LEAST_CHANGES = 20
_SURE = 5.5
"""Fisher's z of a rank correlation that no wrong offset reached."""
_MARGIN = 1.5
_MOST_OFFSETS = 20_000


def same_as_after_another_save(
    columns: Sequence[Column], saved: Step, saves: Sequence[Step], interval: int
) -> Step | None:
    """Return the save whose next rows the resumed run repeats under another counter; None if no save fits.

    It needs loss and gradient norm: by the loss alone, 2 of 249 answers were wrong.
    """
    if len(columns) < 2:  # noqa: PLR2004  loss and norm
        return None
    first = Step(saved + interval)
    for save in saves:
        if save == saved:
            continue
        begin = _shifted_z(columns, first, save - saved)
        after_it = [_shifted_z(columns, Step(first + k * interval), save - saved) for k in (1, 2)]
        unshifted = _shifted_z(columns, first, 0)
        if begin is None or None in after_it or begin > EQUAL:
            continue
        if any(z is not None and z >= 0.5 for z in after_it):  # noqa: PLR2004  half of the step noise
            continue
        if unshifted is None or unshifted > 10 * max(begin, EQUAL / 10):
            return save
    return None


def _shifted_z(columns: Sequence[Column], step: Step, offset: int) -> float | None:
    """Return the largest difference of a new row and the old row at an offset; None if one is missing."""
    largest = 0.0
    for column in columns:
        old, new = column.before.get(Step(step + offset)), column.after.get(step)
        if old is None or new is None:
            return None
        largest = max(largest, max(0.0, abs(new - old) - column.unit) / column.noise)
    return largest


def judged_data(
    columns: Sequence[Column], steps: Sequence[Step], saved: Step, *, is_averaged: bool, interval: int
) -> Judged:
    """Judge whether the resumed run trains on the batches that followed the save.

    Args:
        columns: Loss, and gradient norm if both logs have it.
        steps: Steps that both logs have, ascending.
        saved: The step of the save.
        is_averaged: Whether the logged loss is a mean over the interval.
        interval: Steps between two rows.
    """
    loss = columns[0]
    state, why = _same_or_other(columns, steps, saved, interval)
    if state is State.PROVEN:
        resolution = min(column.resolution for column in columns)
        return Judged(aspect=Aspect.DATA, state=state if resolution <= EQUAL else State.CONSISTENT, why=why)
    offset = None if is_averaged else _repeated_offset(loss, saved, interval)
    if offset is not None and (state is State.CONTRADICTED or not steps):
        if offset == saved:
            why = "the losses follow those of the first run from its first step on: the data began again"
        else:
            why = f"the losses follow those that the first run logged {counted(offset, 'step')} earlier"
        return Judged(aspect=Aspect.DATA, state=State.CONTRADICTED, word=Word.DATA_REPEATED, why=why)
    if state is State.CONTRADICTED:
        return Judged(aspect=Aspect.DATA, state=state, word=Word.DATA_OTHER, why=why)
    return Judged(aspect=Aspect.DATA, state=State.NOT_SHOWN, why=why)


def rows_of_same_data(columns: Sequence[Column], steps: Sequence[Step]) -> int:
    """Return how many of the first rows are equal before other data begins; all if no other data is seen.

    Other data may begin with an epoch, if its order is drawn again. Wrong updates make a difference that grows; other
    data makes a sudden one.
    """
    z = largest_z(columns, steps)
    first = next((place for place, value in enumerate(z) if value > _QUIET), 0)
    while first > 1 and z[first - 1] > EQUAL:
        first -= 1
    rest = steps[first:]
    if first >= ENOUGH and max(z[first : first + 3]) >= 0.5:  # noqa: PLR2004  half of the step noise
        return first
    if not first or len(rest) < _ROWS_FOR_MEDIAN:
        return len(steps)
    is_long = len(rest) >= _ROWS_FOR_CORRELATION
    state, _ = _by_correlation(columns[0], rest) if is_long else _by_few_rows(columns[0], rest, z[first:])
    return first if state is State.CONTRADICTED else len(steps)


def changed_data(columns: Sequence[Column], steps: Sequence[Step], count: int) -> Judged:
    """Return the judgement of data that are equal only in the first rows.

    Args:
        columns: Loss, and gradient norm if both logs have it.
        steps: Steps that both logs have, ascending.
        count: The number of steps with the same data.
    """
    same = f"steps {steps[0]} to {steps[count - 1]} are equal" if count > 1 else f"step {steps[0]} is equal"
    most = max(largest_z(columns, steps[count:]))
    why = (
        f"{same}, and from step {steps[count]} on they differ by up to {most:.2g} of the step noise, as if a new epoch "
        "had another order"
    )
    return Judged(aspect=Aspect.DATA, state=State.NOT_SHOWN, why=why)


_Shown: TypeAlias = "tuple[State, str]"
"""What the rows show about the data, and the evidence."""


def _same_or_other(columns: Sequence[Column], steps: Sequence[Step], saved: Step, interval: int) -> _Shown:
    """Return whether the batches are the planned ones, and the evidence."""
    if not steps:
        return State.NOT_SHOWN, "no step after the save was logged by both runs"
    z = largest_z(columns, steps)
    if steps[0] <= saved + interval and z[0] <= EQUAL:
        names = "loss and gradient norm" if len(columns) > 1 else "the loss"
        return State.PROVEN, f"step {steps[0]} is equal in {names}"
    if len(steps) >= _ROWS_FOR_CORRELATION:
        return _by_correlation(columns[0], steps)
    return _by_few_rows(columns[0], steps, z)


def _by_correlation(loss: Column, steps: Sequence[Step]) -> _Shown:
    """Compare the changes of the loss from step to step."""
    first, second = [loss.before[step] for step in steps], [loss.after[step] for step in steps]
    differences = [d / loss.noise for d in loss.differences(steps)]
    r = correlation(changes_of(first), changes_of(second))
    why = f"the changes of the loss over {counted(len(steps), 'repeated step')} correlate by"
    if r >= _SAME_CORRELATION:
        return State.PROVEN, f"{why} {r:.3f}"
    mean = fmean(differences)
    spread = rms([d - mean for d in differences])
    if r <= _OTHER_CORRELATION and spread >= 0.7 and abs(mean) <= 2:  # noqa: PLR2004  in step noise, as measured
        return State.CONTRADICTED, f"{why} only {r:.2f}"
    return State.NOT_SHOWN, f"{why} {r:.2f}"


def _by_few_rows(loss: Column, steps: Sequence[Step], z: Sequence[float]) -> _Shown:
    """Judge the differences of fewer rows than a correlation needs."""
    differences = [d / loss.noise for d in loss.differences(steps)]
    count = counted(len(steps), "repeated step")
    if sum(value <= _QUIET for value in z) >= 2:  # noqa: PLR2004  two rows
        return State.PROVEN, f"two of {count} are nearly equal"
    if len(steps) >= _ROWS_FOR_MEDIAN:
        mean, size = abs(fmean(differences)), fmean([abs(d) for d in differences])
        has_both_signs = min(differences) < 0 < max(differences)
        if median(z) >= 0.5 and min(z) > _QUIET and has_both_signs and mean < size / 2:  # noqa: PLR2004  as measured
            return State.CONTRADICTED, f"none of {count} is close to the first run"
    return State.NOT_SHOWN, f"{count}; {_ROWS_FOR_CORRELATION} are needed to show it"


def _repeated_offset(loss: Column, saved: Step, interval: int) -> int | None:
    """Return by how many steps the new losses follow older ones; None if no offset is clear.

    Ranks are compared, because early large drops of the loss dominate Pearson's correlation: it named wrong offsets.
    """
    new = [(step, loss.after[step]) for step in sorted(loss.after)[:_SEARCHED]]
    old = loss.before
    found: list[tuple[float, int]] = []
    for offset in range(interval, min(saved, _MOST_OFFSETS * interval) + 1, interval):
        pairs = [(old[Step(step - offset)], value) for step, value in new if Step(step - offset) in old]
        if len(pairs) <= _LEAST_CHANGES:
            continue
        first, second = changes_of([pair[0] for pair in pairs]), changes_of([pair[1] for pair in pairs])
        r = correlation(ranks_of(first), ranks_of(second))
        found.append((math.atanh(min(r, 0.999999)) * math.sqrt(len(first) - 4), offset))
    if not found:
        return None
    found.sort(reverse=True)
    best, offset = found[0]
    others = [z for z, other in found[1:] if abs(other - offset) > interval] or [0.0]
    return offset if best > _SURE and best > _MARGIN * max(others[0], 0.0) else None
