"""Cost of resuming from a checkpoint: steps to redo, their duration, and whether these exceed the limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ckpttool.core.decide.lineage import Lineage
from ckpttool.core.decide.steps import is_out_of_place
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, Finding, note, suspect, unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.plan import LostTime, LostTimeSource, Rejection, ResumePoint
from ckpttool.core.domain.question import ResumeQuestion
from ckpttool.core.domain.units import Step, counted, lasting

Written = Callable[[Checkpoint], "tuple[int, int] | None"]
"""Function that returns when a save's first and last shards were written.

Both times are in nanoseconds since 1970. The result is None if they are unknown.
"""

LEAST_SECONDS = 60.0
"""Minimum time between two saves, in seconds. Files with closer times may be copies with the time of copying."""

LEAST_GAP = 2
"""Minimum ratio between the pause before a save and the duration of writing it. Copying makes no such pause."""

_NS = 1e9


def lost_steps(checkpoint: Checkpoint, lineage: Lineage) -> tuple[int, int | None]:
    """Return the number of steps and samples between a checkpoint and the furthest one that was not abandoned.

    Returns:
        Steps of the checkpoint's own batch size, rounded up, and samples; samples are None if no batch size is known.
    """
    progress = lineage.progress
    on_lineage = _on_lineage(checkpoint, lineage)
    places = [place for save in on_lineage if (place := progress.of(save)) is not None]
    ahead = max(0, max(places, default=0) - (progress.of(checkpoint) or 0))
    size = progress.batch_size(checkpoint)
    if not progress.counts_samples(checkpoint.prefix):
        return ahead, None if size is None else ahead * size
    if size is None:  # a trainer that counts samples may not record a batch size
        steps = [save.step for save in on_lineage if save.step is not None]
        return max(0, max(steps, default=0) - (checkpoint.step or 0)), ahead
    return -(-ahead // size), ahead


def _on_lineage(checkpoint: Checkpoint, lineage: Lineage) -> list[Checkpoint]:
    """Return the saves of a checkpoint's run that were not abandoned, excluding copies under a higher number."""
    saves = (save for save in lineage.inventory.checkpoints if save is checkpoint or not is_out_of_place(save))
    return [save for save in saves if save.prefix == checkpoint.prefix and lineage.abandoned(save) is None]


def perhaps_lost(newer: Sequence[Rejection]) -> list[Finding]:
    """Report that the number of lost steps does not include newer checkpoints with an unknown step."""
    return [
        note(
            Code.STEP_UNKNOWN,
            f"{rejection.checkpoint.name} "
            f"{'has a newer label, but' if rejection.checkpoint.label else 'may be newer, but'} no shard records its "
            "step: more may be lost",
            path=next((shard.path for shard in rejection.checkpoint.shards), rejection.checkpoint.name),
        )
        for rejection in newer
        if rejection.checkpoint.step is None
    ]


def with_saves(point: ResumePoint, lineage: Lineage, written: Written) -> ResumePoint:
    """Add the duration of the lost steps from the times of saves, unless a log shows it or the times are implausible.

    The times are plausible if nothing is written for some time between two saves, because a copy writes one file after
    another without a pause. If each save has a single file, such a pause cannot be distinguished from copying a file.
    """
    if point.lost_time is not None or not point.lost_steps:
        return point
    for earlier, later in _pairs(point.checkpoint, lineage):
        before, after = written(earlier), written(later)
        steps = (later.step or 0) - (earlier.step or 0)
        if before is None or after is None or before[1] >= after[0] or steps <= 0:
            continue
        seconds = (after[1] - before[1]) / _NS
        if seconds >= LEAST_SECONDS and len(later.shards) > 1 and paused(before, after):
            is_it = earlier is point.checkpoint and steps == point.lost_steps
            pace = None if is_it else (earlier.step or Step(0), later.step or Step(0))
            took = LostTime(seconds=seconds * point.lost_steps / steps, source=LostTimeSource.SAVES, pace=pace)
            return replace(point, lost_time=took)
    return point


def paused(before: tuple[int, int], after: tuple[int, int]) -> bool:
    """Return whether nothing was written between two saves for much longer than writing them took."""
    return after[0] - before[1] >= LEAST_GAP * max(before[1] - before[0], after[1] - after[0])


def _pairs(chosen: Checkpoint, lineage: Lineage) -> Iterator[tuple[Checkpoint, Checkpoint]]:
    """Yield pairs of saves of one run with only training between them, most reliable pair first."""
    ahead = [(place, save) for save in _on_lineage(chosen, lineage) if (place := lineage.progress.of(save)) is not None]
    ordered = [save for _, save in sorted(ahead, key=lambda pair: pair[0])]
    furthest = ordered[-1]
    first_of_run = next(save for save in ordered if save.run == furthest.run)
    if furthest.run == chosen.run:
        yield chosen, furthest
    elif first_of_run is not furthest:
        yield first_of_run, furthest
    own_saves = [save for save in ordered if save.run == chosen.run]
    if own_saves[0] is not chosen:
        yield own_saves[0], chosen


def beyond_limits(point: ResumePoint, question: ResumeQuestion) -> tuple[Finding, ...]:
    """Report that a choice loses more than the user allows, or that the loss is unknown."""
    lost, took, name = point.lost_steps, point.lost_time, point.checkpoint.name
    steps, seconds = question.max_lost_steps, question.max_lost_seconds
    by_steps = "" if steps is None else f"--max-lost-steps allows {steps}"
    by_time = "" if seconds is None else f"--max-lost-time allows {lasting(seconds)}"
    beyond = [by_steps] if steps is not None and lost > steps else []
    beyond += [by_time] if seconds is not None and took is not None and took.seconds > seconds else []
    if beyond:
        about = "" if took is None else f", about {took.words}"
        return (
            suspect(
                Code.TOO_MUCH_LOST,
                f"resuming from {name} repeats {counted(lost, 'step')}{about}, but {' and '.join(beyond)}",
                remedy="ckpttool resolve shows why each newer checkpoint was rejected: restore one, or raise the limit",
            ),
        )
    if by_time and lost and took is None:
        message = f"{by_time}, but it is unknown how long the steps after {name} took"
        remedy = "pass the training log with --log; copied files do not show when they were saved"
    elif point.may_lose_more and (by_steps or by_time):
        message = f"{by_steps or by_time}, but the step of a checkpoint newer than {name} is unknown"
        if point.unlisted:
            message = f"{by_steps or by_time}, but {point.unlisted[0]} cannot be read, and may be newer than {name}"
        silent = (rejection.checkpoint for rejection in point.rejected if rejection.checkpoint.step is None)
        remedies = [f"; {checkpoint.step_remedy}" for checkpoint in silent if checkpoint.step_remedy is not None]
        remedy = f"ckpttool resolve shows which checkpoint{next(iter(remedies), '')}"
    else:
        return ()
    return (unknown(Code.TOO_MUCH_LOST, message, remedy=remedy),)
