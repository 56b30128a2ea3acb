"""Effects of verl on a resume: its data loader's position, and the numbers of ranks that verl cannot use.

Source:
    Runs of torchdata 0.11.0: a StatefulDataLoader whose state was taken at an epoch's last batch, as verl saves inside
    its loop, yields no batch after a restore; any other loader continues with the next batch. At that batch,
    `_load_checkpoint` of verl 0.9.1 does not load the state, so that the loader starts with the first epoch's order.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from ckpttool.core.decide.data_effects import against_size, consumed, effect_findings
from ckpttool.core.domain.data_position import DataEffect, GoesOn
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.question import AskedSizes
from ckpttool.core.domain.units import counted
from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError
from ckpttool.core.formats.torch.plain import plain_values
from ckpttool.trainers.base import Effects, Resume
from ckpttool.trainers.loader_states.torchdata import batches_in
from ckpttool.trainers.verl import DATA, TRAINER, holds_a_model

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.finding import Finding

_NO_STATE = "the save has no data.pt, so the loader starts with its first batch"
_OTHER_BATCHES = "data.pt counts batches of the old size"
_STATE = "the driver's single loader continues from its own state"
_MAY_BE_LAST = "it may have been saved at the last batch of an epoch, after which torchdata 0.11 yields no batches"
_AS_THEY_WERE = "the data set and data.train_batch_size are unchanged"
_MOST_SAVES = 16
"""Maximum number of saves whose loaders are read to find the minimum length of an epoch."""


def effects(resume: Resume) -> Effects:
    """Return the position of the loader.

    With a driver, only the driver has a loader, so the number of ranks changes nothing. In the SFT trainer, each
    data-parallel rank has a loader.
    """
    checkpoint = resume.plan.point.checkpoint
    if is_fine_tuning(checkpoint):
        from ckpttool.trainers.verl.fine_tuning import fine_tuning_position

        position, remedy = fine_tuning_position(resume)
        return Effects(
            position=position, settings=(), findings=effect_findings(position, title=TRAINER.title, remedy=remedy)
        )
    read = consumed(resume.plan, resume.inventory, resume.data)
    path = f"{checkpoint.name}/{DATA}"
    if all(shard.path != path for shard in checkpoint.shards):
        position = GoesOn(effect=DataEffect.RESTARTS, why=_NO_STATE, samples=read.samples, source=read.source)
    else:
        batches = _yielded(resume, path)
        position = GoesOn(
            effect=DataEffect.UNKNOWN,
            why=_MAY_BE_LAST,
            samples=read.samples,
            source=read.source,
            batches=batches,
            where=f"{resume.plan.load.path}/{DATA}",
            exact_if=(_is_within(batches), _AS_THEY_WERE),
        )
        if resume.data.new_global_batch is not None and read.changes:
            position = replace(position, effect=DataEffect.REORDERS, why=_OTHER_BATCHES, exact_if=())
        elif batches is not None and _goes_further(resume, batches):
            position = replace(
                position, effect=DataEffect.EXACT, why=_STATE, repeated=0, lost=0, exact_if=(_AS_THEY_WERE,)
            )
    remedy = "skip the data already read, or resume from a save that has its data.pt"
    return Effects(
        position=position, settings=(), findings=effect_findings(position, title=TRAINER.title, remedy=remedy)
    )


def is_fine_tuning(checkpoint: Checkpoint) -> bool:
    """Return whether the SFT trainer wrote a save: the model's files are in the save's own folder."""
    return holds_a_model(
        posixpath.basename(shard.path)
        for shard in checkpoint.shards
        if posixpath.dirname(shard.path) == checkpoint.name
    )


def _is_within(batches: int | None) -> str:
    """Format the condition that the save was not made at an epoch's last batch."""
    if batches is None:
        return "an epoch has more batches than were read"
    return f"an epoch has more than {counted(batches, 'batch', 'batches')}"


def _goes_further(resume: Resume, batches: int) -> bool:
    """Return whether another save, made later in an epoch, shows that an epoch has more than `batches` batches."""
    checkpoint = resume.plan.point.checkpoint
    saves = [save.name for save in resume.inventory.checkpoints if save.name != checkpoint.name]
    return any((_yielded(resume, f"{name}/{DATA}") or 0) > batches for name in saves[-_MOST_SAVES:])


def _yielded(resume: Resume, path: str) -> int | None:
    """Return the number of batches of the epoch that the loader had yielded, according to its state."""
    try:
        with resume.storage.open(path) as source:
            state = plain_values(source)
    except (OSError, BrokenPickleError):  # reported by the check of the file
        return None
    return batches_in(state)


def objections(checkpoint: Checkpoint, requested: AskedSizes) -> tuple[Finding, ...]:
    """Object to a different number of ranks.

    The names of the files that each rank opens contain this number.
    """
    saved = AskedSizes(world=checkpoint.topology.world_size)
    refuses = "verl looks for files with the number of ranks in their names"
    return tuple(against_size(checkpoint, requested, saved=saved, refuses=refuses))
