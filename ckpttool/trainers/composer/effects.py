"""Position in the data after a resume with Composer, and other numbers of ranks.

Source:
    `_spin_dataloaders_to_cur_epoch` and `_train_loop` in trainer/trainer.py and `_load_dataset_state` in core/state.py
    of mosaicml 0.32.1; and its runs with DDP and FSDP, with other batch sizes and other numbers of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckpttool.core.decide.data_effects import Consumed, against_size, consumed, effect_findings
from ckpttool.core.decide.lint_engine import View
from ckpttool.core.domain.checkpoint import Content
from ckpttool.core.domain.data_position import DataEffect, GoesOn
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.question import AskedSizes
from ckpttool.trainers.base import Effects, Resume
from ckpttool.trainers.common.complete import complete
from ckpttool.trainers.composer import RANKS, TRAINER
from ckpttool.trainers.composer.config import DURATION, duration
from ckpttool.trainers.composer.kinds import is_folder
from ckpttool.trainers.composer.record import Record, read_file, read_folder

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.finding import Finding

_WEIGHTS = "only weights are loaded, so the data starts from the beginning"
_STATE = "the data set continues after the samples that it counted"
_OTHER_BATCHES = "the data set continues after the samples that it counted, in batches of another size"
_SKIPS = "Composer reads the epoch's batches again up to the save, without training on them"
_SKIPS_OTHERS = "Composer drops as many batches of the new size as it had read of the old one"
_NO_SPIN = "`spin_dataloaders: false` reads the epoch from its beginning"
_SAME_SET = "the data set and the batch size are unchanged"
_SAME_ORDER = "the order of an epoch depends only on its number and the seed, as with Composer's dist.get_sampler"
_UNKNOWN = "the save does not show how far the data had been read"
_ENDS = "Composer stops with a ValueError"


def effects(resume: Resume) -> Effects:
    """Return the position in the data, which the data set keeps, or which Composer finds by counting batches."""
    checkpoint = resume.plan.point.checkpoint
    record = _record(resume)
    read = consumed(resume.plan, resume.inventory, resume.data)
    if checkpoint.content is Content.WEIGHTS_ONLY:
        position = GoesOn(effect=DataEffect.RESTARTS, why=_WEIGHTS, samples=read.samples, source=read.source)
    else:
        position = _position(record, read, spins=_spins(resume))
    findings = (*effect_findings(position, title=TRAINER.title), *_complete(resume, record))
    return Effects(position=position, settings=(), findings=findings)


def _record(resume: Resume) -> Record:
    checkpoint = resume.plan.point.checkpoint
    try:
        if is_folder(checkpoint):
            from ckpttool.core.formats.torch.dcp import MOST_METADATA_BYTES
            from ckpttool.trainers.torch_dcp.store import read_store

            store = read_store(resume.storage, checkpoint.name, most=MOST_METADATA_BYTES)
            return read_folder(resume.storage, checkpoint.name, store)
        with resume.storage.open(checkpoint.name) as source:
            return read_file(source)
    except OSError:  # it was read when the save was judged
        return Record()


def _spins(resume: Resume) -> bool:
    config = resume.config
    is_own = config is not None and config.trainer == TRAINER.name
    return not (is_own and config is not None and View(config.settings).get("spin_dataloaders") is False)


def _position(record: Record, read: Consumed, *, spins: bool) -> GoesOn:
    place = GoesOn(effect=DataEffect.UNKNOWN, why=_UNKNOWN, samples=read.samples, source=read.source)
    batches, samples = record.number("in_epoch"), record.number("samples_in_epoch")
    if record.has_data_state is None or batches is None or samples is None:
        return place
    changes = read.new_batch is not None and read.old_batch is not None and read.changes
    if record.has_data_state:
        if changes:
            return replace(place, effect=DataEffect.REORDERS, why=_OTHER_BATCHES)
        return replace(place, effect=DataEffect.EXACT, why=_STATE, repeated=0, lost=0, exact_if=(_SAME_SET,))
    if not spins:
        effect = DataEffect.RESTARTS if samples else DataEffect.EXACT
        return replace(place, effect=effect, why=_NO_SPIN, repeated=samples, lost=samples)
    ahead = batches * (read.new_batch or 0) - samples
    if changes and ahead:
        effect = DataEffect.LOSES if ahead > 0 else DataEffect.REPEATS
        return replace(place, effect=effect, why=_SKIPS_OTHERS, lost=max(0, ahead), repeated=max(0, -ahead))
    return replace(place, why=_SKIPS, exact_if=(_SAME_ORDER, _SAME_SET))


def _complete(resume: Resume, record: Record) -> Iterator[Finding]:
    """Report a config whose `max_duration` has been reached."""
    config = resume.config
    if config is None or config.trainer != TRAINER.name:
        return
    view = View(config.settings)
    length = duration(view)
    counters = {"ba": "step", "sp": "samples", "tok": "tokens", "ep": "epoch"}
    done = None if length is None else record.number(counters[length[1]])
    if length is not None and done is not None and done >= length[0]:
        yield complete(resume, view, DURATION, ends=_ENDS)


def objections(checkpoint: Checkpoint, requested: AskedSizes) -> tuple[Finding, ...]:
    """Note another number of ranks: every rank loads the file, and slices are resharded."""
    return tuple(
        against_size(checkpoint, requested, saved=AskedSizes(world=dict(checkpoint.facts).get(RANKS)), refuses=None)
    )
