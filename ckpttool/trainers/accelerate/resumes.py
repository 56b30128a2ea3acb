"""Accelerate's settings to load exactly one save; the script is responsible for the position in the data.

Source:
    `Accelerator.load_state`, `skip_first_batches` and `ProjectConfiguration` of accelerate 1.15, and runs that use
    them. Runs with stateful loaders (torchdata 0.11, shuffled) were compared with uninterrupted runs: accelerate 1.14
    and 1.15 continue exactly only within the first epoch. In later epochs they use the order of the first epoch. After
    a save at the end of an epoch, nothing matches.
"""

from __future__ import annotations

import re

from ckpttool.core.decide.data_effects import consumed, effect_findings
from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.data_position import DataEffect, GoesOn
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.load_settings import LoadSettings, Place, TrainerSetting
from ckpttool.trainers.accelerate import LOADER, NUMBERED, TRAINER, first_number, folder_of
from ckpttool.trainers.base import Effects, Resume

_SKIPS = "only the training script can skip the data already read, with accelerator.skip_first_batches(loader, batches)"
_STATE = (
    "the data loader's state does not include its epoch, so a later epoch of shuffled data continues in the first "
    "epoch's order"
)
_FIRST_EPOCH = "the save is from within the first epoch, before its end (accelerate up to 1.15, torchdata 0.11)"
_AS_THEY_WERE = "the batch size and the number of ranks are unchanged"
_OTHER = "the data loader's state is for another batch size"
_OTHER_RANKS = "the data loader's state is for another number of ranks"


def load(inventory: Inventory, checkpoint: Checkpoint) -> LoadSettings:
    """Return settings for the folder and, if saves are numbered automatically, the number of the next save."""
    path = inventory.path_of(folder_of(checkpoint.name, checkpoint.shards))
    place = Place.parsed("code:accelerator.load_state(input_dir)")
    settings = [TrainerSetting(place=place, value=path, is_path=True)]
    remarks = ["Never call load_state() without a path: it loads the entry with the highest number in its name."]
    if re.fullmatch(NUMBERED, checkpoint.name):
        numbers = [first_number(save.name) or 0 for save in inventory.checkpoints]
        iteration_place = Place.parsed("code:ProjectConfiguration(..., iteration)")
        settings.append(TrainerSetting(place=iteration_place, value=max(numbers) + 1))
        remarks.append("Without iteration, a resumed run numbers its saves from 0 again and overwrites the old ones.")
    return LoadSettings(trainer=TRAINER.name, path=path, settings=tuple(settings), remarks=tuple(remarks))


def effects(resume: Resume) -> Effects:
    """Describe the position in the data.

    The loaders' saved states determine it; without them, the script does.
    """
    read = consumed(resume.plan, resume.inventory, resume.data)
    states = [
        shard.path
        for shard in resume.plan.point.checkpoint.shards
        if re.fullmatch(LOADER, shard.path.rpartition("/")[2])
    ]
    if not states:
        position = GoesOn(effect=DataEffect.UNKNOWN, why=_SKIPS, samples=read.samples, source=read.source)
    else:
        world = resume.plan.point.checkpoint.topology.world_size
        position = GoesOn(
            effect=DataEffect.UNKNOWN,
            why=_STATE,
            samples=read.samples,
            source=read.source,
            where=states[0],
            exact_if=(_FIRST_EPOCH, _AS_THEY_WERE),
        )
        if resume.sizes.world not in {None, world}:
            position = replace(position, why=_OTHER_RANKS, exact_if=())
        elif read.changes:
            position = replace(position, effect=DataEffect.REORDERS, why=_OTHER, exact_if=())
    return Effects(position=position, settings=(), findings=effect_findings(position, title=TRAINER.title))
