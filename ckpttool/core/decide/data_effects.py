"""Data position after a resume without a data setting, computed in integers from facts about the trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.decide.data_position import batches_seen
from ckpttool.core.domain.data_position import DataEffect, GoesOn, SampleSource
from ckpttool.core.domain.finding import Code, Finding, note, suspect
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import counted

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.data_position import DataQuestion
    from ckpttool.core.domain.plan import ResumePlan
    from ckpttool.core.domain.question import AskedSizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """Number of samples that were read before a save, according to the save itself."""

    samples: int | None
    """Number of samples; None if unknown."""
    source: SampleSource | None
    """Source of `samples`; None if `samples` is None."""
    old_batch: int | None
    """Global batch size at the time of the save, in samples; None if unknown."""
    new_batch: int | None
    """Global batch size of the resumed run; the old size unless the user or a config sets it."""

    @property
    def changes(self) -> bool:
        """Whether the batch size changes, or may change because the old size is unknown."""
        return self.new_batch != self.old_batch


def consumed(plan: ResumePlan, inventory: Inventory, question: DataQuestion) -> Consumed:
    """Return the number of samples read before a save, from its own record or from its step and batch size.

    Args:
        plan: The plan to resume.
        inventory: The complete tree: earlier saves show batch sizes.
        question: The user's settings, completed with the config's.

    Raises:
        UsageError: The question contradicts the checkpoint.
    """
    scalars = plan.point.checkpoint.scalars
    old = scalars.global_batch_size if scalars.global_batch_size is not None else question.old_global_batch
    new = question.new_global_batch if question.new_global_batch is not None else old
    if scalars.samples is not None:
        return Consumed(samples=scalars.samples, source=SampleSource.CONTENT, old_batch=old, new_batch=new)
    if old is None and not question.segments:
        return Consumed(samples=None, source=None, old_batch=None, new_batch=new)
    samples = batches_seen(plan, inventory, question).samples
    return Consumed(samples=samples, source=SampleSource.COMPUTED, old_batch=old, new_batch=new)


def by_samples(step: int, read: Consumed, *, why: str) -> GoesOn:
    """Return the position of a trainer that continues after the samples already read, so that none repeats or is lost.

    Args:
        step: Steps completed when the checkpoint was saved.
        read: The samples read, according to the save.
        why: How the trainer does this, in one sentence.
    """
    if read.samples is None:
        return GoesOn(effect=DataEffect.UNKNOWN, why=why)
    return GoesOn(
        effect=DataEffect.EXACT,
        why=why,
        samples=read.samples,
        source=read.source,
        batches=batches_read(step, read),
        repeated=0,
        lost=0,
    )


def batches_read(step: int, read: Consumed) -> int | None:
    """Return the number of batches of the new size in the samples already read; None if there is no single old size.

    If the size changed during the run, for example by a schedule, the steps did not all use batches of one size.

    Args:
        step: Steps completed when the checkpoint was saved.
        read: The samples read, according to the save.
    """
    if read.samples is None or read.new_batch is None:
        return None
    if read.old_batch is not None and read.samples != step * read.old_batch:
        return None
    return read.samples // read.new_batch


def place(step: int, *, batch: int, epoch_steps: int | None, epoch_samples: int | None) -> int:
    """Return the number of the sample that a run reads after a number of steps, counted over all epochs.

    Args:
        step: Steps completed, or treated as completed.
        batch: Samples per step over all ranks.
        epoch_steps: Steps per epoch; None if the data are endless.
        epoch_samples: Samples per epoch; the last step may use less than a full batch.

    Raises:
        ValueError: A size is below 1, or the step is negative.
    """
    if step < 0 or min(batch, epoch_steps or 1, epoch_samples or 1) < 1:
        raise ValueError(f"need a step >= 0 and sizes >= 1: {step}, {batch}, {epoch_steps}, {epoch_samples}")
    if epoch_steps is None or epoch_samples is None:
        return step * batch
    epochs, rest = divmod(step, epoch_steps)
    return epochs * epoch_samples + min(rest * batch, epoch_samples)


def by_step(
    step: int, read: Consumed, *, epoch_steps: int | None, epoch_samples: int | None = None, why: str
) -> GoesOn:
    """Return the position of a trainer that computes it from the step, as if all steps had the new batch size.

    The position is correct only if the size did not change. It is compared with the run's position at the save, which
    is computed with the batch size at that time.

    Args:
        step: Steps completed when the checkpoint was saved; the new run skips the same number of its steps.
        read: The samples read, according to the save.
        epoch_steps: Steps per epoch at the old size; None if the data are endless or the number is unknown.
        epoch_samples: Samples per epoch; None computes the number from the steps, as if the last batch were full.
        why: How the trainer does this, in one sentence.
    """
    old, new = read.old_batch, read.new_batch
    if old is None or new is None:
        effect = DataEffect.EXACT if new is None else DataEffect.UNKNOWN
        return GoesOn(effect=effect, why=why, samples=read.samples, source=read.source, batches=step)
    epoch = epoch_samples
    if epoch is None and epoch_steps is not None:
        epoch = epoch_steps * old
    before = place(step, batch=old, epoch_steps=epoch_steps, epoch_samples=epoch)
    steps = None if epoch is None else -(-epoch // new)
    ahead = place(step, batch=new, epoch_steps=steps, epoch_samples=epoch) - before
    effect = DataEffect.EXACT
    if ahead:
        effect = DataEffect.LOSES if ahead > 0 else DataEffect.REPEATS
    return GoesOn(
        effect=effect,
        why=why,
        samples=before if read.samples is None else read.samples,
        source=read.source or SampleSource.COMPUTED,
        batches=step,
        repeated=max(0, -ahead),
        lost=max(0, ahead),
    )


def restarting(read: Consumed, *, epoch_samples: int | None, why: str) -> GoesOn:
    """Return the position of a trainer that reads the epoch from its beginning while its counters continue.

    The number of samples that are never read equals the number of repeated samples.

    Args:
        read: The samples read, according to the save.
        epoch_samples: Samples per epoch; None if unknown.
        why: The reason, in one sentence.
    """
    cycle = None if read.samples is None or epoch_samples is None else read.samples % epoch_samples
    return GoesOn(
        effect=DataEffect.EXACT if cycle == 0 else DataEffect.RESTARTS,
        why=why,
        samples=read.samples,
        source=read.source,
        batches=0,
        repeated=cycle,
        lost=cycle,
    )


def effect_findings(position: GoesOn, *, title: str, remedy: str | None = None) -> tuple[Finding, ...]:
    """Return findings for the effects that every reader of the plan should see.

    Args:
        position: Position at which the data continue.
        title: The trainer's name in sentences.
        remedy: The remedy for the effects, if there is one.
    """
    why = "" if position.why is None else f": {position.why}"
    match position.effect:
        case DataEffect.RESTARTS:
            return (suspect(Code.DATA_RESTARTS, f"{title} restarts the data from the beginning{why}", remedy=remedy),)
        case DataEffect.REORDERS:
            return (note(Code.DATA_REORDERED, f"{title} continues the data in a different order{why}", remedy=remedy),)
        case DataEffect.LOSES:
            return (suspect(Code.DATA_MISPLACED, f"{title} skips {_samples(position.lost)}{why}", remedy=remedy),)
        case DataEffect.REPEATS:
            repeated = _samples(position.repeated)
            return (suspect(Code.DATA_MISPLACED, f"{title} reads {repeated} again{why}", remedy=remedy),)
        case DataEffect.REFUSES:
            return (suspect(Code.WORLD_SIZE_REFUSED, f"{title} stops at its data{why}", remedy=remedy),)
        case _:
            return ()


def _samples(number: int | None) -> str:
    return "an unknown number of samples" if number is None else counted(number, "sample")


def against_size(
    checkpoint: Checkpoint, requested: AskedSizes, *, saved: AskedSizes, refuses: str | None
) -> list[Finding]:
    """Report sizes that differ from the save's sizes.

    A difference is a suspicion if the trainer cannot load the save at other sizes, and otherwise a note.

    Args:
        checkpoint: The save.
        requested: The sizes of the resumed run, from the user or the config.
        saved: The sizes of the save.
        refuses: Why the save cannot be loaded at other sizes, as a clause that completes "…, and "; None if it can.
    """
    differing = requested.differing(saved)
    if not differing:
        return []
    sizes = " and ".join(f"{name} {current}, not {before}" for name, current, before in differing)
    message = f"the save was made with sizes other than those requested ({sizes})"
    if refuses is None:
        message = f"{message}, and is resharded when it is loaded"
        return [note(Code.WORLD_SIZE_DIFFERS, message, path=checkpoint.name)]
    option = ", ".join(f"{name} {before}" for name, _, before in differing)
    return [
        suspect(
            Code.WORLD_SIZE_REFUSED, f"{message}, and {refuses}", path=checkpoint.name, remedy=f"start with {option}"
        )
    ]


def stray_taken(path: str, *, title: str, instead: str, remedy: str, stops: bool = False) -> Finding:
    """Report a path that is not a checkpoint, but that the trainer's own search would choose as the newest checkpoint.

    Args:
        path: Path relative to the root.
        title: The trainer's name in sentences.
        instead: The consequence, such as "and load a copy of step 300".
        remedy: The remedy.
        stops: Whether the path does harm even if the user names a checkpoint.
    """
    make = suspect if stops else note
    message = f"{title} on its own would choose it as the newest save, {instead}"
    return make(Code.STRAY_TAKES_OVER, message, path=path, remedy=remedy)
