"""Count the batches of data to skip after the global batch size changed."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from ckpttool.core.decide.data_position import exact_batches_near, plan_data
from ckpttool.core.domain.data_position import DataQuestion, GoesOn, PastSizes, SkipAnswer, SkipBatches
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import NothingToResumeError, UnknownLayoutError, UsageError
from ckpttool.trainers.registry import phrasings

if TYPE_CHECKING:
    from ckpttool.core.domain.data_position import TrainersSkip
    from ckpttool.core.domain.plan import ResumePlan
    from ckpttool.core.verbs.scanning import Tree
    from ckpttool.trainers.base import Trainer


def scale_skip(data: DataQuestion, *, steps: int | None = None, path: str | None = None) -> SkipAnswer:
    """Compute the number of batches to skip after the global batch size changed.

    Args:
        data: Batch sizes, segments and sink size.
        steps: Batches consumed; None to use the segments or the tree's resume point.
        path: A tree whose resume point gives steps and old batch size.

    Raises:
        UsageError: Steps or the old batch size are unknown.
    """
    if path is not None and steps is not None:
        raise UsageError("give --steps or DIR, not both")
    steps_taken = sum(segment.steps for segment in data.segments)
    recorded, past, owner = None, PastSizes(), None
    if steps is None and (path is not None or not data.segments):
        tree, plan = _resume_point_of(path, data)
        if isinstance(plan.data, GoesOn) and plan.data.samples is not None and plan.data.unchanged is None:
            return _counted_by_trainer(plan, plan.data, plan.data.samples, data)
        from ckpttool.core.decide.lineage import Lineage  # a division of two numbers must not wait for it

        chosen, owner = plan.point.checkpoint, tree.trainer
        recorded, past = chosen.scalars.global_batch_size, Lineage(tree.inventory).past(chosen)
        steps = plan.point.step
    total = Step(steps_taken if steps is None else steps)
    old = recorded if recorded is not None else data.old_global_batch
    if old is None and steps_taken < total:
        raise UsageError("give --old-gbs: the global batch size of the run that wrote the checkpoint")
    skip = plan_data(total, recorded, data, past)
    samples, new = skip.samples or 0, skip.global_batch_size or 1
    exact = () if skip.repeated_samples == 0 else exact_batches_near(samples, new, sink_size=skip.sink_size)
    before = None if data.segments else old
    setting = skip_setting(skip, owner)
    return SkipAnswer(skip=skip, steps=total, old_global_batch=before, exact_sizes=exact, told=setting)


def skip_setting(skip: SkipBatches, trainer: Trainer | None) -> TrainersSkip | None:
    """Return a skip as its trainer's setting or, if the trainer is unknown, that of the first trainer with one."""
    if trainer is not None:
        return None if trainer.words is None else trainer.words.skip(skip)
    return next(filter(None, (phrasing.skip(skip) for phrasing in phrasings())), None)


def _counted_by_trainer(plan: ResumePlan, position: GoesOn, samples: int, data: DataQuestion) -> SkipAnswer:
    """Return the answer for a trainer that itself skips the samples of a save."""
    recorded = plan.point.checkpoint.scalars.global_batch_size
    new = data.new_global_batch or recorded or data.old_global_batch
    if new is None:
        raise UsageError(f"{plan.point.checkpoint.name} records no global batch size: pass --new-gbs")
    skip = SkipBatches(
        batches=samples // new, repeated_samples=position.repeated, samples=samples, global_batch_size=new
    )
    return SkipAnswer(
        skip=skip,
        steps=plan.point.step,
        old_global_batch=recorded,
        exact_sizes=(),
        told=None,
        by_trainer=position.why,
    )


def _resume_point_of(path: str | None, data: DataQuestion) -> tuple[Tree, ResumePlan]:
    """Return the tree, and the plan for the checkpoint that `resolve` would choose."""
    from ckpttool.core.domain.plan import NoResumePoint
    from ckpttool.core.domain.question import DEFAULT_DIR, ResumeQuestion, TreeQuestion
    from ckpttool.core.verbs.resolving import resolve

    try:
        sizes = DataQuestion(new_global_batch=data.new_global_batch, old_global_batch=data.old_global_batch)
        answer = resolve(TreeQuestion(path=path), ResumeQuestion(), sizes)
    except UnknownLayoutError:
        if path is not None or os.path.isdir(DEFAULT_DIR):
            raise
        old, new = data.old_global_batch or 1, data.new_global_batch or 1
        common = math.gcd(old, new)
        rule = f"data_skip_steps = steps * {old // common} // {new // common}"
        if data.old_global_batch is None:
            rule = f"data_skip_steps = steps * old // {data.new_global_batch or 'new'}; --old-gbs gives the old size"
        raise UsageError(f"give --steps or DIR: there is no {DEFAULT_DIR} here (the rule is {rule})") from None
    if isinstance(answer.decision, NoResumePoint):
        root = answer.decision.root
        raise NothingToResumeError(f"there is no checkpoint in {root} to resume from; ckpttool resolve shows why")
    return answer.tree, answer.decision
