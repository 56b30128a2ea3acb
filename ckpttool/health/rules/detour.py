"""Ways to avoid a spike or to continue after a stop: the checkpoint to use, and the position in the data."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from ckpttool.core.domain.advice import Choice, DataDetour, LossAfter, Spike, SpikeAdvice, StopAdvice
from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.finding import Code, suspect
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.metrics import LogNote, NoteKind, StepMetrics
from ckpttool.core.domain.units import Step, counted
from ckpttool.core.errors import IncompleteError, UsageError
from ckpttool.health.findings import HealthCode
from ckpttool.health.model.events import HealthTimeline, SuspectKind
from ckpttool.health.model.reading import LogReading
from ckpttool.health.policies.robust_z import MAD_TO_SIGMA

_SAME_DATA_AGAIN = (
    "if the spike returns with the same data, skip more batches, lower the learning rate or change the seed; and "
    "move the later checkpoints away, because otherwise the next resume chooses one of them"
)


_LOSSES = 64
"""Number of losses on each side of a spike whose medians are compared."""

_FEWEST_LOSSES = 20
"""Minimum number of losses on either side for a comparison."""

_LOSS_SIGMAS = 3.0
"""Limit in robust standard deviations of a single loss; the median of twenty losses varies by a quarter of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleClock:
    """A step for which the number of consumed samples is known, and the samples per step from there."""

    step: Step
    samples: int
    """Samples consumed over all ranks, up to and including `step`."""
    global_batch_size: int
    """Samples per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindRecipe:
    """The distance to go back, and the batches to skip.

    Source:
        PaLM: restart about 100 steps before the spike, skip 200 to 500 batches. The batches alone are not bad; they
            only cause a spike in that state of the model.
    """

    margin: int = 100
    """Number of steps by which the checkpoint must precede the onset."""
    min_skip: int = 200
    """Minimum number of batches to skip."""
    max_skip: int = 500
    """Maximum number of batches to skip."""
    recovers_within: int = 50
    """Maximum number of steps of an ordinary spike, which ends on its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The point at which too many consecutive skipped steps ended training."""

    step: Step
    count: int
    """Number of consecutive steps, including `step`."""
    skipped: str | None = None
    """The log's entry about these steps, as a sentence; None if only a policy would have skipped these steps."""


_FEWEST_AT_END = 2
"""Minimum number of skipped steps at the end of a log that count as a stop if no line reports one."""


def ended_in_skips(notes: Sequence[LogNote], newest: Step | None, at_end: int = 0) -> Stop | None:
    """Return the stop after too many consecutive skipped steps; None if training continued afterwards, or did not stop.

    Args:
        notes: The logs' entries besides numbers, in order.
        newest: The last step that the logs show.
        at_end: Number of consecutive steps up to `newest` that the run skipped. A trainer's own log has no line
            about the stop if the exception is not logged.
    """
    stops = [
        Stop(step=note.step, count=note.count or 1)
        for note in notes
        if note.step is not None
        and (note.kind is NoteKind.COUNT_STOP or (note.kind is NoteKind.NAN_STOP and note.count))
    ]
    if stops and newest is not None and stops[-1].step >= newest:
        return replace(stops[-1], skipped=_skipped(stops[-1]))
    if newest is None or at_end < _FEWEST_AT_END:
        return None
    stop = Stop(step=newest, count=at_end)
    return replace(stop, skipped=f"{_skipped(stop)}; the log ends there without giving a reason")


def _skipped(stop: Stop) -> str:
    if stop.count == 1:
        return f"the training skipped step {stop.step}, whose update changed no weight"
    return f"the training skipped steps {stop.step - stop.count + 1} to {stop.step}, whose updates changed no weight"


def skipped_at_end(rows: Sequence[StepMetrics]) -> int:
    """Count the steps at the end of a log that the run skipped because of their norm, not because of an overflow."""
    number = 0
    for row in reversed(rows):
        if not row.skipped or row.overflow:
            break
        number += 1
    return number


def spike_to_pass(
    line: HealthTimeline,
    around: Step | None,
    reading: LogReading,
    threshold: float | None,
    skipped: Sequence[Step] = (),
) -> Spike:
    """Return the spike to avoid.

    Args:
        line: The suspect parts according to the logs.
        around: Use the spike nearest to this step; None for the last spike.
        reading: The logs that were read.
        threshold: The global norm from which a step is a spike; None to let a z-score decide.
        skipped: Ascending steps that the run skipped, which did no harm and are not spikes.

    Raises:
        UsageError: There is no spike; the message names alternatives.
        IncompleteError: Whether there is a spike is unknown, because the log was not read to the end, or shows no step.
    """
    spike = find_spike(line, around)
    if spike is not None:
        return spike
    if reading.unreadable or not reading.steps:
        ends = [f"{problem.source}: {problem.reason}" for problem in reading.problems if problem.ends_the_log]
        why = ends[0] if ends else f"{', '.join(reading.sources)}: no training step was found"
        raise IncompleteError(f"{why}; whether there was a spike is unknown")
    remedy = "" if threshold is not None else "; --threshold X defines a spike by the global norm"
    if line.judged is not None and line.judged.first is None:
        raise IncompleteError(f"whether there was a spike is unknown: {line.judged.why}{remedy}")
    but = ""
    if skipped:
        steps = counted(len(skipped), "step")
        but = f"; the training skipped {steps}, {skipped[0]} to {skipped[-1]}, whose updates changed no weight"
    applied = " whose update was applied" if skipped else ""
    if threshold is not None:
        raise UsageError(f"no step of the log{applied} has a global norm of {threshold:g} or more{but}")
    raise UsageError(f"the log shows no spike{remedy}{but}")


def find_spike(line: HealthTimeline, around: Step | None = None) -> Spike | None:
    """Return the last spike of the timeline, or the spike nearest to a step, or None if there is no spike."""
    spikes = [
        Spike(onset=interval.first_step, end=interval.recovered_step)
        for interval in line.intervals
        if interval.kind is SuspectKind.SPIKE and interval.first_step is not None
    ]
    if around is None:
        return max(spikes, key=lambda spike: spike.onset, default=None)
    return min(spikes, key=lambda spike: _distance(spike, around), default=None)


def sample_clock(metrics: Iterable[StepMetrics]) -> SampleClock | None:
    """Return the samples per step, from the first two neighbouring steps that show the samples consumed."""
    before: StepMetrics | None = None
    for row in metrics:
        if row.consumed_samples is None:
            continue
        if before is not None and row.step == before.step + 1 and before.consumed_samples is not None:
            batch = row.consumed_samples - before.consumed_samples
            if batch > 0:
                return SampleClock(step=row.step, samples=row.consumed_samples, global_batch_size=batch)
        before = row
    return None


def loss_after(spike: Spike, losses: Iterable[tuple[Step, float]]) -> LossAfter:
    """Return whether the loss recovered after a spike, by comparing its medians before and after.

    Args:
        spike: The norm's spike.
        losses: Finite losses by ascending step.
    """
    from statistics import median  # loads fractions and random, which would slow down every start

    before: deque[float] = deque(maxlen=_LOSSES)
    since: deque[float] = deque(maxlen=_LOSSES)
    for step, loss in losses:
        if step < spike.onset:
            before.append(loss)
        elif spike.end is not None and step >= spike.end:
            since.append(loss)
    if len(before) < _FEWEST_LOSSES or len(since) < _FEWEST_LOSSES:
        few = f"{len(before)} losses before it and {len(since)} after it"
        return LossAfter(is_back=None, clause=f"whether the loss has recovered too is unknown: the log has {few}")
    usual = median(before)
    spread = MAD_TO_SIGMA * median(abs(loss - usual) for loss in before)
    loss_now = median(since)
    if loss_now - usual <= _LOSS_SIGMAS * spread:
        return LossAfter(is_back=True, clause="the loss has recovered too")
    sigmas = "far" if not spread else f"{(loss_now - usual) / spread:.1f} robust standard deviations"
    return LossAfter(
        is_back=False,
        clause=(
            f"the loss has not recovered: its median over the last {len(since)} steps is {loss_now:.5g}, {sigmas} "
            f"above {usual:.5g} before step {spike.onset}"
        ),
    )


def advise_spike(
    spike: Spike,
    good: Sequence[Step],
    *,
    newest: Step,
    clock: SampleClock | None = None,
    recipe: RewindRecipe | None = None,
) -> SpikeAdvice:
    """Return both ways to avoid a spike, the cost of each, and the recommended way.

    Going back loses every step since the checkpoint, so it pays only if the training does not recover on its own.

    Args:
        spike: The beginning and the end of the spike.
        good: Steps of checkpoints that may be loaded, in any order.
        newest: The last trained step.
        clock: Samples consumed at some step, for trainers that count samples.
        recipe: The distance to go back, and the batches to skip.
    """
    recipe = recipe or RewindRecipe()
    end = spike.end if spike.end is not None else Step(newest + 1)
    base = max((step for step in good if step <= spike.onset - recipe.margin), default=None)
    skip = None if base is None else max(recipe.min_skip, end - base)
    detour = None if base is None or skip is None else _detour(base, skip, clock)
    is_off = spike.loss is not None and spike.loss.is_back is False
    wait_cost = None if spike.end is None or is_off else spike.end - spike.onset
    choice, reason = _choose(spike, wait_cost, detour, recipe)
    return SpikeAdvice(
        spike=spike,
        choice=choice,
        reason=reason,
        detour=detour,
        rewind_cost=None if base is None else newest - base,
        wait_cost=wait_cost,
        notes=tuple(_notes(detour, recipe)),
    )


def advise_after_stop(
    stop: Step, good: Sequence[Step], *, count: int, clock: SampleClock | None = None, skipped: str | None = None
) -> StopAdvice:
    """Return how to continue after this many consecutive skipped steps.

    None of the skipped updates reached the weights, so a checkpoint of the stop itself is good. But the data must
    advance: the same batches give the same norms, and training would stop again immediately.

    Args:
        stop: The step at which training stopped.
        good: Steps of checkpoints that may be loaded, in any order.
        count: Number of consecutive steps, including `stop`.
        clock: Samples consumed at some step.
        skipped: The log's entries about these steps; None if only a policy would have skipped them.
    """
    base = max((step for step in good if step <= stop), default=None)
    notes = [] if skipped is None else [skipped]
    if base is None:
        notes.append("no good checkpoint before the stop")
        return StopAdvice(stop=stop, detour=None, good_batches_lost=0, notes=tuple(notes))
    lost = max(0, stop - count - base)
    if lost:
        notes.append(
            f"{lost} good batches are skipped too: a skip starts at the checkpoint, so it is not possible to train "
            f"on the data after step {base} first and skip then"
        )
    if base == stop:  # nothing to skip: the checkpoint is already after the bad batches
        notes.append("the checkpoint at the stop is already past the bad data; its step number is the data skip")
    return StopAdvice(stop=stop, detour=_detour(base, stop - base, clock), good_batches_lost=lost, notes=tuple(notes))


def _detour(base: Step, skip: int, clock: SampleClock | None) -> DataDetour:
    before = None if clock is None else clock.samples - (clock.step - base) * clock.global_batch_size
    after = None if clock is None or before is None else before + skip * clock.global_batch_size
    return DataDetour(
        checkpoint_step=base,
        skip_batches=skip,
        first_skipped=Step(base + 1),
        last_skipped=Step(base + skip),
        samples_before=before,
        samples_after=after,
    )


def _choose(spike: Spike, wait_cost: int | None, detour: DataDetour | None, recipe: RewindRecipe) -> tuple[Choice, str]:
    loss = spike.loss
    if wait_cost is not None and wait_cost <= recipe.recovers_within:
        of_loss = "" if loss is None else f"; {loss.clause}"
        return Choice.WAIT, (
            f"the norm recovered on its own {wait_cost} steps after step {spike.onset}: an ordinary spike{of_loss}"
        )
    of_loss = f"; {loss.clause}" if loss is not None and loss.is_back is False else ""
    if detour is None:
        reason = f"there is no good checkpoint {recipe.margin} steps before step {spike.onset}{of_loss}"
        return (Choice.NONE if wait_cost is None else Choice.WAIT), reason
    if of_loss:
        return Choice.REWIND, f"the norm recovered after step {spike.onset}{of_loss}"
    length = "has not recovered on its own" if wait_cost is None else f"took {wait_cost} steps to recover"
    return Choice.REWIND, f"the spike of step {spike.onset} {length}"


def _notes(detour: DataDetour | None, recipe: RewindRecipe) -> Iterator[str]:
    if detour is None:
        return
    if detour.skip_batches > recipe.max_skip:
        yield (
            f"{detour.skip_batches} batches have to be skipped to pass the spike's data, more than the recipe's "
            f"{recipe.max_skip}: save more often, or use a checkpoint closer to the onset"
        )
    yield _SAME_DATA_AGAIN


def _distance(spike: Spike, step: Step) -> tuple[int, int]:
    """Return the distance between a step and a spike as a sort key; at equal distance, the earlier spike is first."""
    end = spike.onset if spike.end is None else spike.end
    return (max(spike.onset - step, step - end, 0), spike.onset)


def finite_losses(rows: Iterable[StepMetrics]) -> Iterator[tuple[Step, float]]:
    """Yield the losses of a log that are numbers, with their steps."""
    for row in rows:
        if row.loss is not None and math.isfinite(row.loss):
            yield row.step, row.loss


def only_up_to(inventory: Inventory, limit: Step, why: str) -> Inventory:
    """Reject each checkpoint after a step, because training goes back further than that.

    Args:
        inventory: The tree.
        limit: The last step that is early enough.
        why: A clause with the reason for going back.
    """
    checkpoints = []
    for checkpoint in inventory.checkpoints:
        if checkpoint.step is None or checkpoint.step <= limit:
            checkpoints.append(checkpoint)
            continue
        message = f"step {checkpoint.step} is after step {limit}, {why}"
        reason = suspect(Code.REWOUND_PAST, message)
        checkpoints.append(replace(checkpoint, findings=(*checkpoint.findings, reason)))
    return replace(inventory, checkpoints=tuple(checkpoints))


def without_spikes(inventory: Inventory) -> Inventory:
    """Remove the objections to checkpoints saved in a spike: after a stop, the skipped steps have changed no weight."""

    def cleared(checkpoint: Checkpoint) -> Checkpoint:
        retained = tuple(finding for finding in checkpoint.findings if finding.code is not HealthCode.SAVED_IN_SPIKE)
        return checkpoint if len(retained) == len(checkpoint.findings) else replace(checkpoint, findings=retained)

    return replace(inventory, checkpoints=tuple(map(cleared, inventory.checkpoints)))
