"""Effects of torch.distributed.checkpoint on a resume: it loads the named save, but does not move the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.decide.data_effects import batches_read, consumed
from ckpttool.core.domain.data_position import DataEffect, GoesOn, Unknown
from ckpttool.trainers.base import Effects, Resume
from ckpttool.trainers.common.own_choice import ChoiceUnknown, OwnChoice
from ckpttool.trainers.torch_dcp import TRAINER

if TYPE_CHECKING:
    from ckpttool.trainers.abilities import OwnStart

_OWN = "torch.distributed.checkpoint does not restore the position in the data: the training's own script does"


def effects(resume: Resume) -> Effects:
    """Return the number of samples read, if the save shows it.

    Only the script decides where the data continue.
    """
    read = consumed(resume.plan, resume.inventory, resume.data)
    if read.samples is None:
        return Effects(position=Unknown(why=_OWN), settings=(), findings=())
    batches = batches_read(resume.plan.point.step, read)
    position = GoesOn(effect=DataEffect.UNKNOWN, why=_OWN, samples=read.samples, source=read.source, batches=batches)
    return Effects(position=position, settings=(), findings=())


def choose(start: OwnStart) -> ChoiceUnknown:
    """Report that torch chooses no save.

    Source: `torch.distributed.checkpoint.load`, whose `checkpoint_id` has no default for the newest.
    """
    del start
    why = "it chooses nothing: the training's own script names the folder (checkpoint_id)"
    return ChoiceUnknown(why=why, by_script=True)


SIMULATOR = OwnChoice(trainer=TRAINER, choose=choose)
