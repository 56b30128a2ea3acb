"""Position in the data after a resume with Lightning; only the data loader may have saved this position.

Source: loops/fit_loop.py and loops/training_epoch_loop.py of Lightning 2.6, and its runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpttool.core.decide.data_effects import Consumed, consumed, effect_findings
from ckpttool.core.decide.lint_engine import View
from ckpttool.core.domain.data_position import DataEffect, GoesOn
from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.frozen import replace
from ckpttool.trainers.base import Effects, Resume
from ckpttool.trainers.common.complete import complete
from ckpttool.trainers.lightning import META, TRAINER
from ckpttool.trainers.lightning.callbacks import fit_prefix
from ckpttool.trainers.lightning.deepspeed_saves import is_with_deepspeed, record_file
from ckpttool.trainers.lightning.record import Record, read_record

_ITS_STATE = "the data loader continues from its saved state"
_AS_THEY_WERE = "the batch size and the number of ranks are unchanged"
_OTHER_BATCHES = "the data loader's state is for another batch size"
_NO_STATE = (
    "the data loader saves no state, so the epoch's first batches are read again and its last ones are never read"
)
_NEXT_EPOCH = "an epoch had ended, so the next one starts; a random order is drawn again"
_SKIPS_EPOCH = (
    "the data continues with the next epoch, but Lightning counts an empty epoch before it, which also counts for "
    "max_epochs"
)
_UNKNOWN = "the save does not record the epoch"
_ENDS = "Lightning ends with exit code 0 without a step"
_STOPS = "Lightning stops with a MisconfigurationException"
_REMEDY = "use a loader with state_dict() and load_state_dict(), such as torchdata's StatefulDataLoader"


def effects(resume: Resume) -> Effects:
    """Return the position in the data, which depends on the loader."""
    checkpoint = resume.plan.point.checkpoint
    is_folder = any("/" in shard.path for shard in checkpoint.shards)
    path = f"{checkpoint.name}/{META}" if is_folder else checkpoint.name
    if is_with_deepspeed(checkpoint):
        path = record_file(checkpoint) or path
    try:
        with resume.storage.open(path) as source:
            record = read_record(source, sharded=is_folder)
    except OSError:  # it was read when the save was judged
        record = Record()
    read = consumed(resume.plan, resume.inventory, resume.data)
    if record.optimizers not in {None, 1}:  # the step counts the updates of each optimizer
        read = replace(read, samples=None, source=None)
    position = _position(record, read)
    findings = (*effect_findings(position, title=TRAINER.title, remedy=_REMEDY), *_complete(resume, record))
    return Effects(position=position, settings=(), findings=findings)


def _complete(resume: Resume, record: Record) -> Iterator[Finding]:
    """Report a config that requests no more steps or epochs than have been trained.

    Source: runs of Lightning 2.6.6, which begins an epoch regardless of the limit if the save was made before its end.
    """
    if resume.config is None:
        return
    view = View(resume.config.settings)
    prefix = f"{fit_prefix(view)}trainer."
    steps, epochs = view.count(f"{prefix}max_steps", -1), view.count(f"{prefix}max_epochs", -1)
    done = record.epochs_over
    if 0 <= steps <= resume.plan.point.step:
        yield complete(resume, view, f"{prefix}max_steps", ends=_ENDS)
    elif done is not None and 0 <= epochs <= done:
        further = record.epoch is not None and record.epoch > epochs
        yield complete(resume, view, f"{prefix}max_epochs", ends=_STOPS if further else _ENDS)


def _position(record: Record, read: Consumed) -> GoesOn:
    exact = GoesOn(effect=DataEffect.EXACT, samples=read.samples, source=read.source, repeated=0, lost=0)
    if record.has_loader_state:
        if read.changes:
            return replace(exact, effect=DataEffect.REORDERS, why=_OTHER_BATCHES, repeated=None, lost=None)
        return replace(exact, why=_SKIPS_EPOCH if record.ends_epoch else _ITS_STATE, exact_if=(_AS_THEY_WERE,))
    if record.in_epoch is None:
        return replace(exact, effect=DataEffect.UNKNOWN, why=_UNKNOWN, repeated=None, lost=None)
    if record.ends_epoch or not record.in_epoch:
        return replace(exact, why=_NEXT_EPOCH)
    offset = _samples_in_epoch(record, read)
    return replace(exact, effect=DataEffect.RESTARTS, why=_NO_STATE, repeated=offset, lost=offset)


def _samples_in_epoch(record: Record, read: Consumed) -> int | None:
    """Return the number of samples of the epoch that all ranks have read; None if the batch size is unknown."""
    if read.samples is None or not record.batches or record.in_epoch is None:
        return None
    samples, rest = divmod(record.in_epoch * read.samples, record.batches)
    return None if rest else samples
