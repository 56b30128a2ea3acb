"""Position at which the data loader starts, computed in integers because a float could round to a different step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.data_position import BatchSegment, DataQuestion, PastSizes, SkipBatches
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import UsageError

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Inventory
    from ckpttool.core.domain.plan import ResumePlan
    from ckpttool.core.domain.settings import RunConfig

_NO_PAST = PastSizes()

_MOST_TRIED = 2_000_000
"""Maximum number of sizes that are tried as divisors, which takes a fraction of a second."""


def skip_seen_data(
    segments: Sequence[BatchSegment], *, new_global_batch: int, sink_size: int | None = None
) -> SkipBatches:
    """Return the number of batches to skip so that the resumed run loses no sample.

    The samples of all segments are summed first and divided once. The result is rounded down to a whole number of new
    batches and, for trainers with data sinking, of data sinks. Rounding down repeats the remainder; rounding up would
    lose it.

    Args:
        segments: Batches consumed, per global batch size.
        new_global_batch: Global batch size of the resumed run, in samples.
        sink_size: Batches per data sink in the resumed run; None if the run does not use data sinking.

    Returns:
        Batches of `new_global_batch` samples, and the number of repeated samples.

    Raises:
        ValueError: A batch size or sink size is below 1, or a number of steps is negative.

    Source:
        Trainers multiply the step by a floating-point ratio and truncate the result; this function is exact and returns
        the remainder.
    """
    sizes = [new_global_batch, *(segment.global_batch_size for segment in segments)]
    if min(sizes) < 1 or (sink_size is not None and sink_size < 1) or any(segment.steps < 0 for segment in segments):
        raise ValueError(f"need steps >= 0, batch and sink sizes >= 1: {segments}, {new_global_batch}, {sink_size}")
    samples = sum(segment.steps * segment.global_batch_size for segment in segments)
    batches = samples // new_global_batch
    if sink_size is not None:
        batches -= batches % sink_size
    return SkipBatches(
        batches=batches,
        repeated_samples=samples - batches * new_global_batch,
        samples=samples,
        global_batch_size=new_global_batch,
        sink_size=sink_size,
    )


def plan_data(
    step: Step, recorded_global_batch: int | None, question: DataQuestion, past: PastSizes = _NO_PAST
) -> SkipBatches:
    """Return the position at which the data start after resuming at `step`.

    Args:
        step: Actual global step of the checkpoint.
        recorded_global_batch: Global batch size in samples, as recorded in the checkpoint's shards; None if not
            recorded.
        question: The user's settings.
        past: Batch sizes in earlier saves.

    Raises:
        UsageError: The past batch size is needed but unknown, or the question contradicts the checkpoint.
    """
    old = recorded_global_batch if recorded_global_batch is not None else question.old_global_batch
    if question.old_global_batch not in {None, old}:
        raise UsageError(
            f"--old-gbs is {question.old_global_batch}, but the checkpoint records {old} samples per batch; omit it, "
            f"or override the checkpoint with --segment {step}:{question.old_global_batch}"
        )
    new = question.new_global_batch if question.new_global_batch is not None else old
    if new is None:
        return _without_batch_size(step, question)
    if recorded_global_batch is not None:
        _assert_not_recorded(step, recorded_global_batch, question, past)
    changed_at = _checked(step, _in_own_batches(old, question, past))
    stretches = _since(_past(step, old, new, question, past), changed_at)
    since = skip_seen_data(stretches, new_global_batch=new, sink_size=question.sink_size)
    if question.new_dataset:
        return replace(since, batches=0, repeated_samples=0, begins_anew=True)
    return since


def batches_seen(plan: ResumePlan, inventory: Inventory, question: DataQuestion) -> SkipBatches:
    """Return the batches to skip: the consumed batches, and the batches that the advice avoids.

    This is for trainers that skip batches at a resume.

    Args:
        plan: The plan to resume, and its advice, if any.
        inventory: The complete tree, because earlier saves show batch sizes.
        question: The user's settings, completed with the config's.

    Raises:
        UsageError: As for `plan_data`.
    """
    from ckpttool.core.decide.lineage import Lineage  # pure arithmetic needs no tree

    point, advice = plan.point, plan.advice
    recorded = point.checkpoint.scalars.global_batch_size
    past = Lineage(inventory).past(point.checkpoint)
    skip = plan_data(point.step, recorded, question, past)
    if advice is None or advice.detour is None or not advice.followed:
        return skip
    return moved_on(skip, plan_data(advice.detour.last_skipped, recorded, question, past))


def moved_on(skip: SkipBatches, further: SkipBatches) -> SkipBatches:
    """Return a skip beyond the checkpoint's position, which omits the batches in between on purpose."""
    size = further.global_batch_size
    if skip.samples is None or size is None:
        return replace(further, lost_samples=None)
    return replace(further, lost_samples=max(0, further.batches * size - skip.samples))


def with_config(question: DataQuestion, config: RunConfig | None) -> DataQuestion:
    """Return the question about the data, with unset fields taken from the config."""
    if config is None:
        return question
    return replace(
        question,
        new_global_batch=question.new_global_batch or config.global_batch_size,
        sink_size=question.sink_size or config.sink_size,
    )


def next_step(step: Step, recorded_global_batch: int | None, question: DataQuestion) -> Step:
    """Return the first step of the resumed run, counted in batches of the new size; segments do not affect it.

    Args:
        step: Actual global step of the checkpoint.
        recorded_global_batch: Samples per batch, according to the checkpoint's shards.
        question: The user's settings.
    """
    old = recorded_global_batch if recorded_global_batch is not None else question.old_global_batch
    new = question.new_global_batch
    return Step((step if old is None or new is None else step * old // new) + 1)


def _without_batch_size(step: Step, question: DataQuestion) -> SkipBatches:
    """Return a skip in batches only, because the batch size is unknown and not known to change."""
    if question.segments:
        raise UsageError("--segment needs the new global batch size: pass --gbs")
    since = step - _checked(step, _in_own_batches(None, question, _NO_PAST))
    batches = 0 if question.new_dataset else since
    repeated = batches % (question.sink_size or 1)
    batches -= repeated
    return SkipBatches(
        batches=batches,
        repeated_samples=None if repeated else 0,
        samples=None,
        global_batch_size=None,
        sink_size=question.sink_size,
        begins_anew=question.new_dataset,
    )


def _past(step: Step, old: int | None, new: int, question: DataQuestion, told_by: PastSizes) -> list[BatchSegment]:
    steps_given = sum(segment.steps for segment in question.segments)
    if steps_given > step:
        raise UsageError(f"the --segment options cover {steps_given} steps, but the checkpoint is at step {step}")
    past = list(question.segments)
    if steps_given < step:
        if old is None:
            why = "" if told_by.why_unrecorded is None else f" ({told_by.why_unrecorded})"
            raise UsageError(
                f"the checkpoint does not record its global batch size{why}, so "
                f"{step - steps_given} steps cannot be converted to batches of {new}: pass --old-gbs"
            )
        past.append(BatchSegment(steps=step - steps_given, global_batch_size=old))
    return past


def _assert_not_recorded(step: Step, recorded: int, question: DataQuestion, past: PastSizes) -> None:
    """Reject values that the shards already record, except a single segment that covers all steps."""
    steps_given = sum(segment.steps for segment in question.segments)
    overrules = len(question.segments) == 1 and steps_given == step
    if question.segments and not overrules and steps_given > past.unrecorded_steps:
        raise UsageError(
            f"--segment is only for steps whose batch size no shard records: step {step} counts batches of {recorded} "
            f"samples, even if earlier runs used another size, so {step * recorded} samples were read; omit it, or "
            f"override the whole record with --segment {step}:GBS"
        )


def _in_own_batches(own_size: int | None, question: DataQuestion, past: PastSizes) -> Step | None:
    """Return the step at which the data changed, in batches of the checkpoint's own size.

    The result is rounded down at each change of the batch size, as trainers do.
    """
    step, batch = question.dataset_changed_at, question.dataset_changed_batch
    if not step:
        return step
    if batch is not None:
        if own_size is None or question.segments:
            raise UsageError(
                f"--dataset-changed-at {step}:{batch} needs the checkpoint's global batch size: "
                "pass --old-gbs, or with --segment only the step"
            )
        return Step(step * batch // own_size)
    other_sizes = [size for size in past.batch_sizes if size != own_size]
    if own_size is not None and other_sizes:
        options = " or ".join(f"--dataset-changed-at {step}:{size}" for size in (*other_sizes, own_size))
        raise UsageError(
            f"the checkpoint counts batches of {own_size} samples, and earlier runs counted batches of "
            f"{', '.join(map(str, other_sizes))}, so step {step} is ambiguous: pass {options}"
        )
    return step


def _checked(step: Step, changed_at: Step | None) -> int:
    if changed_at is None:
        return 0
    if not 0 <= changed_at <= step:
        raise UsageError(f"--dataset-changed-at {changed_at} is not between 0 and the checkpoint's step {step}")
    return changed_at


def _since(past: Sequence[BatchSegment], changed_at: int) -> list[BatchSegment]:
    """Drop the first `changed_at` steps, which used the old data set."""
    remaining = changed_at
    segments = []
    for segment in past:
        dropped = min(remaining, segment.steps)
        remaining -= dropped
        segments.append(replace(segment, steps=segment.steps - dropped))
    return segments


def exact_batches_near(samples: int, global_batch: int, *, sink_size: int | None = None) -> tuple[int, ...]:
    """Return the global batch sizes nearest to `global_batch` at which no sample is repeated.

    Args:
        samples: Number of samples consumed.
        global_batch: The preferred size, in samples.
        sink_size: Batches per data sink; the skip must also be a multiple of this number.

    Returns:
        The next smaller and the next larger size, if they exist (the larger size is at most 8 times the preferred
        size).
    """
    unit = sink_size or 1
    if samples % unit:
        return ()
    if samples == 0:  # every size is exact
        return (global_batch - 1,) if global_batch > 1 else ()
    sizes = _divisors(samples // unit)
    smaller = max((size for size in sizes if size < global_batch), default=None)
    larger = min((size for size in sizes if global_batch < size <= 8 * global_batch), default=None)
    return tuple(size for size in (smaller, larger) if size is not None)


def _divisors(number: int) -> set[int]:
    """Return the divisors of a positive number; above 10**12, only the divisors that a short search finds."""
    most = min(math.isqrt(number), _MOST_TRIED)
    small = [size for size in range(1, most + 1) if number % size == 0]
    return {*small, *(number // size for size in small)}
