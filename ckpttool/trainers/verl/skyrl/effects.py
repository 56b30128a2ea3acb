"""Effects of SkyRL on a resume: its data loader's position, and the numbers of ranks that SkyRL cannot use.

Source:
    The loops of skyrl 0.4.0 (`trainer.py`, `sft_trainer.py`) were read. Their loader was run with torchdata 0.11.0,
    shuffled by a seeded generator, as `build_dataloader` makes it:

    - Within an epoch, it continues with the next batch. With its own processes, later epochs also have the same order.
    - From a state at an epoch's last batch, it yields no batch once. The trainer for reinforcement learning then skips
      the whole epoch; the SFT trainer starts the loader again, and loses none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.decide.data_effects import against_size, consumed, effect_findings
from ckpttool.core.domain.data_position import DataEffect, GoesOn, Unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.question import AskedSizes
from ckpttool.core.domain.units import counted
from ckpttool.core.formats.torch.plain import text_at
from ckpttool.trainers.base import Effects, Resume
from ckpttool.trainers.common.saved_values import first_value
from ckpttool.trainers.loader_states.torchdata import batches_in, processes_in, samples_in
from ckpttool.trainers.verl import DATA
from ckpttool.trainers.verl.epochs import batch_counts, epoch_length, fits_no_epoch
from ckpttool.trainers.verl.skyrl import ASYNC_STATE, SFT, STATE, TRAINER

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.storage.base import Storage

_ASYNC = f"the fully asynchronous trainer skips the prompts in {ASYNC_STATE}, which ckpttool does not read"
_NO_STATE = "the save has no data.pt, so the loader starts with the first batch of its first epoch"
_UNREADABLE = "data.pt does not show how many batches were read"
_OTHER_BATCHES = "data.pt counts batches of the old size, and ckpttool does not know how SkyRL continues with another"
_FILTERED = "steps of dynamic sampling take several batches, and ckpttool does not know how SkyRL continues with them"
_NO_EPOCH = "the counts in data.pt fit no length of an epoch: one is of another save, or the data was restarted"
_OTHER_ORDER = "without loader processes, only the current epoch keeps its order"
_MAY_BE_LAST = "it may have been saved at the last batch of an epoch, from which SkyRL skips the whole next epoch"
AT_EPOCHS_END = "the save was made at the last batch of an epoch, and from there SkyRL skips the whole next epoch"
_STATE = "the single loader continues from its own state"
_AS_THEY_WERE = "the data set and the batch size are unchanged"
WITHOUT_STATE = "move data.pt out of the save: SkyRL then reads the next epoch, in the order of the first"


def effects(resume: Resume) -> Effects:
    """Return the position of the loader; the number of ranks does not change it."""
    checkpoint = resume.plan.point.checkpoint
    names = {shard.path.removeprefix(f"{checkpoint.name}/") for shard in checkpoint.shards}
    if ASYNC_STATE in names:
        return Effects(position=Unknown(why=_ASYNC), settings=(), findings=())
    position = _position(resume, checkpoint, has_state=DATA in names)
    remedy = WITHOUT_STATE if position.effect is DataEffect.LOSES else "resume from a save that has its data.pt"
    findings = effect_findings(position, title=TRAINER.title, remedy=remedy)
    return Effects(position=position, settings=(), findings=findings)


def _position(resume: Resume, checkpoint: Checkpoint, *, has_state: bool) -> GoesOn:
    read = consumed(resume.plan, resume.inventory, resume.data)
    position = GoesOn(effect=DataEffect.UNKNOWN, samples=read.samples, source=read.source)
    if not has_state:
        return replace(position, effect=DataEffect.RESTARTS, why=_NO_STATE)
    state = first_value(resume.storage, [loader_path(checkpoint)])
    batches, samples, processes = batches_in(state), samples_in(state), processes_in(state)
    position = replace(position, batches=batches, where=f"{resume.plan.load.path}/{DATA}")
    if not batches:
        return replace(position, why=_UNREADABLE)
    size = None if samples is None else samples // batches
    if resume.data.new_global_batch not in {None, size}:
        return replace(position, why=_OTHER_BATCHES)
    return _with_same_sizes(resume, position, size, processes or 0)


def _with_same_sizes(resume: Resume, position: GoesOn, size: int | None, processes: int) -> GoesOn:
    """Return the position with an unchanged batch size.

    Args:
        resume: The resume.
        position: The position, with the number of batches read.
        size: Global batch size in samples; None if unknown.
        processes: Number of the loader's own processes.
    """
    checkpoint, batches = resume.plan.point.checkpoint, position.batches or 0
    conditions = (_AS_THEY_WERE, f"the loader has {counted(processes, 'process', 'processes')}")
    exact = replace(position, effect=DataEffect.EXACT, why=_STATE, repeated=0, lost=0, exact_if=conditions)
    if not processes:
        exact = replace(position, effect=DataEffect.REORDERS, why=_OTHER_ORDER)
    counts = batch_counts(resume.storage, resume.inventory, checkpoint, loader_path)
    if dict(checkpoint.facts).get(SFT):
        return replace(position, why=_NO_EPOCH) if fits_no_epoch(counts) else exact
    if is_filtered(resume.storage, checkpoint):
        return replace(position, why=_FILTERED)
    if fits_no_epoch(counts):
        return replace(position, why=_NO_EPOCH)
    length = epoch_length(counts)
    if length is None:
        within = (f"an epoch has more than {counted(batches, 'batch', 'batches')}", *conditions)
        return replace(position, why=_MAY_BE_LAST, exact_if=within if processes else ())
    if length == batches:
        lost = None if size is None else length * size
        return replace(position, effect=DataEffect.LOSES, why=AT_EPOCHS_END, lost=lost)
    return exact


def is_filtered(storage: Storage, checkpoint: Checkpoint) -> bool:
    """Return whether the run draws several batches per step, because it filters their prompts."""
    record = first_value(storage, [f"{checkpoint.name}/{STATE}"])
    return text_at(record, "config", "trainer", "algorithm", "dynamic_sampling", "type") is not None


def loader_path(checkpoint: Checkpoint) -> str:
    """Return the path of the state of a save's loader."""
    return f"{checkpoint.name}/{DATA}"


def objections(checkpoint: Checkpoint, requested: AskedSizes) -> tuple[Finding, ...]:
    """Object to a different number of ranks.

    The names of the files that each rank opens contain this number.
    """
    saved = AskedSizes(world=checkpoint.topology.world_size)
    refuses = "SkyRL looks for files with the number of ranks in their names"
    return tuple(against_size(checkpoint, requested, saved=saved, refuses=refuses))
