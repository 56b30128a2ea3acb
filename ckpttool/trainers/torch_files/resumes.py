"""Effects of a file by `torch.save` on a resume: the script chooses the file, and moves the data or does not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckpttool.core.domain.data_position import Unknown
from ckpttool.core.domain.finding import Severity, blocking, worst
from ckpttool.core.domain.plan import Outcome
from ckpttool.trainers.base import Effects, Resume
from ckpttool.trainers.common.named_path import inside
from ckpttool.trainers.common.own_choice import Choice, ChoiceUnknown, OwnChoice, holder, save_finding_text
from ckpttool.trainers.torch_files import TRAINER

if TYPE_CHECKING:
    from ckpttool.core.storage.base import Storage
    from ckpttool.trainers.abilities import OwnStart

LAST = "last_checkpoint"
"""The record in which MMEngine writes the path of its last save, and Detectron2 the name."""
_LIMIT = 4096
_OWN = "torch.load does not restore the position in the data: the training's own script does, if it saved it"


def effects(resume: Resume) -> Effects:
    """Report that only the script decides where the data continue."""
    del resume
    return Effects(position=Unknown(why=_OWN), settings=(), findings=())


def last_named(storage: Storage) -> str | None:
    """Return the file name in `last_checkpoint`; None if the record is missing or cannot be read."""
    return re.split(r"[/\\]", _last(storage) or "")[-1] or None


def _last(storage: Storage) -> str | None:
    """Return the path in `last_checkpoint`; None if the record is missing, empty, or cannot be read."""
    try:
        return storage.small_file(LAST, limit=_LIMIT).decode("utf-8", "replace").strip() or None
    except OSError:
        return None


def choose(start: OwnStart) -> Choice | ChoiceUnknown:
    """Report that the script chooses the file, unless there is a `last_checkpoint`.

    Source: runs of mmengine 0.10.7, and the code of fvcore's `Checkpointer.resume_or_load`.
    """
    path = _last(start.storage)
    if path is None:
        return ChoiceUnknown(why="it chooses nothing: the training's own script names the file", by_script=True)
    # A name alone is Detectron2's; MMEngine writes a path, which leads elsewhere if the folder was moved or copied.
    taken = inside(start.inventory.root, path) if "/" in path else path
    message = f"a start of MMEngine or Detectron2 with resume loads {taken or path}, which {LAST} names"
    if taken is None:
        return path, Outcome.UNKNOWN, f"{message}; it is not in this folder"
    save = holder(start.inventory.checkpoints, taken)
    if save is None:
        return taken, Outcome.UNKNOWN, f"{message}; it is not a known save"
    against = blocking(start.checked(save).findings)
    if against:
        outcome = Outcome.STOPS if worst(against) >= Severity.DAMAGE else Outcome.UNKNOWN
        return save.name, outcome, f"{message}; {save_finding_text(against[0], save)}"
    return save.name, Outcome.LOADS, message


SIMULATOR = OwnChoice(trainer=TRAINER, choose=choose)
