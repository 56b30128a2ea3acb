"""The save that OLMo-core loads on its own, and the position at which its data loader continues.

Source:
    `Trainer.fit`, `Trainer.load_checkpoint`, `Checkpointer` and `data/data_loader.py` of ai2-olmo-core 3.0.0, and runs
    of it with two ranks in healthy and damaged trees.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckpttool.core.decide.data_effects import against_size, consumed, effect_findings
from ckpttool.core.decide.lint_engine import View
from ckpttool.core.domain.checkpoint import Content
from ckpttool.core.domain.data_position import DataEffect, GoesOn, Unknown
from ckpttool.core.domain.finding import Code, blocking
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.plan import Outcome
from ckpttool.core.domain.question import AskedSizes
from ckpttool.core.formats.torch.plain import text_at, value_at
from ckpttool.core.storage.base import is_there
from ckpttool.trainers.base import Effects, Resume
from ckpttool.trainers.common.named_path import elsewhere, inside, is_gone
from ckpttool.trainers.common.next_save import blocked
from ckpttool.trainers.common.own_choice import Choice, ConfigChoice, OwnChoice, choice_with
from ckpttool.trainers.common.saved_values import count_at, first_value
from ckpttool.trainers.listing import list_root
from ckpttool.trainers.olmo_core import MARK, SAVE, SLICES, STATES, TRAINER
from ckpttool.trainers.torch_dcp import METADATA

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.finding import Finding
    from ckpttool.trainers.abilities import OwnStart

_FIRST = f"{STATES}/rank0.pt"
_NEEDED = (_FIRST, f"{SLICES}/{METADATA}", MARK)
"""The files that a folder must have to be a checkpoint."""

_OWN_LOADER = "the training run has its own data loader, and ckpttool does not know how that continues"
_ORDER = "the data loader continues in the order of its own seed and epoch, whatever the number of ranks"
_ROUNDED = "the data loader converts the tokens already read to batches of the new size, and rounds down"
_OTHER_BATCHES = "the data loader counts batches of the old size"
_AS_THEY_WERE = "the data set, the sequence length and the batch size are unchanged"
_OTHER_SIZE = "the data set and the sequence length are unchanged"
_MENDS = {
    "trainer.load_trainer_state": "the steps are counted from 0 and the data start from the beginning",
    "trainer.load_optim_state": "the optimizer is re-initialized",
}
"""The switches for parts of the save at `load_path`, and the consequences of switching them off."""


def effects(resume: Resume) -> Effects:
    """Return the position of the data loader, according to the state of rank 0."""
    state = first_value(resume.storage, (f"{resume.plan.point.checkpoint.name}/{_FIRST}",))
    loader = value_at(state, "data_loader")
    kind = text_at(loader, "dataset_type")
    is_fixed = kind == "fsl" or isinstance(value_at(loader, "source_fingerprints"), (list, tuple))
    if not is_fixed and kind != "vsl":
        return Effects(position=Unknown(why=_OWN_LOADER), settings=(), findings=_later(resume))
    position = GoesOn(
        effect=DataEffect.EXACT,
        why=_ORDER,
        tokens=count_at(state, "global_train_tokens_seen"),
        repeated=0,
        lost=0,
        exact_if=(_AS_THEY_WERE,),
        where=f"{resume.plan.load.path}/{_FIRST}",
    )
    size = resume.data.new_global_batch
    if size is not None and consumed(resume.plan, resume.inventory, resume.data).changes:
        position = _at_another_size(position, loader, size) if is_fixed else _UNLIKE
    findings = (*effect_findings(position, title=TRAINER.title), *_later(resume))
    return Effects(position=position, settings=(), findings=findings)


def _later(resume: Resume) -> tuple[Finding, ...]:
    """Report later saves, which OLMo-core does not overwrite by default."""
    config = resume.config
    if config is not None and config.trainer == TRAINER.name:
        view = View(config.settings)
        if any(view.is_on(f"trainer.{key}") for key in ("save_overwrite", "checkpointer.save_overwrite")):
            return ()
    numbers = {save.name: save.named.number or 0 for save in resume.inventory.checkpoints if save.named is not None}
    chosen = numbers.get(resume.plan.point.checkpoint.name, 0)
    later = [save for save in resume.inventory.checkpoints if numbers.get(save.name, 0) > chosen]
    later.sort(key=lambda save: numbers[save.name])
    return blocked(resume, later, unless=", unless `save_overwrite` is on")


_UNLIKE = GoesOn(effect=DataEffect.UNKNOWN, why=_OTHER_BATCHES)


def _at_another_size(position: GoesOn, loader: object, size: int) -> GoesOn:
    """Return the position at another batch size, as far as the state shows the samples of this epoch."""
    tokens, length = count_at(loader, "tokens_processed"), count_at(loader, "sequence_length")
    if tokens is None or not length:
        return replace(position, effect=DataEffect.UNKNOWN, why=_ROUNDED, repeated=None, lost=None, exact_if=())
    repeated = tokens // length % size
    effect = DataEffect.REPEATS if repeated else DataEffect.EXACT
    return replace(position, effect=effect, why=_ROUNDED, repeated=repeated, exact_if=(_OTHER_SIZE,))


def objections(checkpoint: Checkpoint, requested: AskedSizes) -> tuple[Finding, ...]:
    """Report a different number of ranks, but only as a note: slices are resharded, random numbers are not restored."""
    saved = AskedSizes(world=checkpoint.topology.world_size)
    findings = against_size(checkpoint, requested, saved=saved, refuses=None)
    lost = "; OLMo-core does not restore the random-number states"
    return tuple(replace(finding, message=f"{finding.message}{lost}") for finding in findings)


def _numbered(start: OwnStart) -> Iterator[tuple[int, str]]:
    """Yield each folder that OLMo-core treats as a checkpoint, with the number in its name.

    Raises:
        OSError: The tree cannot be listed.
    """
    for name in list_root(start.storage).folders("step"):
        match = re.fullmatch(SAVE, name)
        if match is None:
            continue
        is_complete = all(is_there(start.storage, f"{name}/{path}") for path in _NEEDED)
        if is_complete or is_there(start.storage, f"{name}/{METADATA}"):
            yield int(match[1]), name


def choose(start: OwnStart) -> Choice:
    """Choose the highest number in the save folder, as `load_strategy: if_available` does."""
    try:
        numbered = list(_numbered(start))
    except OSError as error:
        return None, Outcome.UNKNOWN, f"the folder cannot be listed here ({error.strerror or error})"
    if not numbered:
        return None, Outcome.SCRATCH, "no stepN has the three files of a complete save, so it starts from scratch"
    highest, name = max(numbered)
    if [number for number, _ in numbered].count(highest) > 1:
        return (
            None,
            Outcome.UNKNOWN,
            f"several folders have the number {highest}: it takes the one that is listed first",
        )
    because = "it has the highest number of the complete saves"
    save = start.inventory.named(name)
    if save is None:
        return name, Outcome.UNKNOWN, f"{because}; it cannot be read here"
    return _loaded(start, save, because)


def _loaded(start: OwnStart, save: Checkpoint, because: str) -> Choice:
    """Return whether OLMo-core loads a save."""
    against = [finding for finding in blocking(start.checked(save).findings) if not _is_overlooked(finding)]
    if against:
        return choice_with(against, save, because)
    if save.content is Content.WEIGHTS_ONLY:
        return save.name, Outcome.STOPS, f"{because}, and then it stops: the save has no optimizer or no trainer state"
    return save.name, Outcome.LOADS, because


def _is_overlooked(finding: Finding) -> bool:
    """Return whether OLMo-core loads a save in spite of a finding.

    It reads the step only from the states, checks only that the mark exists, and replaces a missing state.
    """
    path = finding.path or ""
    is_state = f"/{STATES}/" in path
    is_replaced = finding.code is Code.SHARD_MISSING and is_state and not path.endswith(_FIRST)
    is_copy = finding.code is Code.STEP_DISAGREES and not is_state
    return is_replaced or is_copy or path.endswith(f"/{MARK}")


def choice_of(start: OwnStart, view: View) -> ConfigChoice:
    """Return the effect of a config's trainer settings: the save folder is searched first, then `load_path`."""
    for key, value in (("trainer.no_checkpoints", True), ("trainer.load_strategy", "never")):
        if view.get(key) == value:
            why = f"`{key.rpartition('.')[2]}: {str(value).lower()}`: it loads no checkpoint"
            return ConfigChoice(choice=(None, Outcome.SCRATCH, why), key=key, mend=f"remove `{key}`")
    root, key = start.inventory.root, "trainer.save_folder"
    folder = view.get(key)
    if not isinstance(folder, str) or inside(root, folder) == "":
        mend = "set a new `save_folder`, and name the checkpoint with `load_path`, which a folder with saves overrides"
        return ConfigChoice(path=folder if isinstance(folder, str) else None, mend=mend)
    if not is_gone(root, folder):
        mend = f"set `save_folder` to {root}, or `load_path` with a new save folder"
        return ConfigChoice(
            choice=(folder, Outcome.UNKNOWN, f"it looks in {folder} first, not in {root}"), key=key, mend=mend
        )
    return _of_load_path(start, view)


def _of_load_path(start: OwnStart, view: View) -> ConfigChoice:
    root, key = start.inventory.root, "trainer.load_path"
    path = view.get(key)
    if not isinstance(path, str):
        why = "the save folder does not exist, and there is no `load_path`, so it starts from scratch"
        return ConfigChoice(choice=(None, Outcome.SCRATCH, why), key="trainer.save_folder")
    lacks = [f"with `{switch}: false` {effect}" for switch, effect in _MENDS.items() if view.get(switch) is False]
    message, place = f"`load_path` names {path}", inside(root, path)
    save = start.inventory.named(place or "")
    if place == "":
        choice = choose(start)
    elif save is None:
        choice = elsewhere(root, path, message)
    else:
        choice = _loaded(start, save, message)
    return ConfigChoice(choice=choice, key=key, lacks=lacks[0] if lacks else None, path=path)


SIMULATOR = OwnChoice(trainer=TRAINER, choose=choose, choice_of=choice_of)
