"""The save that DeepSpeed chooses, the effects on a resume, and the run sizes that DeepSpeed refuses.

Source:
    `load_checkpoint`, `_get_all_zero_checkpoints` and `_load_zero_checkpoint` of `deepspeed/runtime/engine.py` 0.19.8,
    and their behaviour with deliberately damaged trees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.decide.data_effects import consumed
from ckpttool.core.domain.data_position import DataEffect, GoesOn
from ckpttool.core.domain.finding import blocking
from ckpttool.core.domain.plan import Outcome
from ckpttool.core.domain.shard import ShardRole
from ckpttool.trainers.base import Effects, Resume
from ckpttool.trainers.common.own_choice import Choice, ChoiceUnknown, ConfigChoice, OwnChoice, save_finding_text
from ckpttool.trainers.deepspeed import LATEST_UNIVERSAL, TRAINER
from ckpttool.trainers.deepspeed_tags import parse
from ckpttool.trainers.deepspeed_tags.latest import latest_pointer

if TYPE_CHECKING:
    from ckpttool.core.decide.lint_engine import View
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.pointer import Pointer
    from ckpttool.trainers.abilities import OwnStart

_UNIVERSAL, _STAGE = "checkpoint.load_universal", "zero_optimization.stage"
_WEIGHTS_PARTED = (3,)
_WITHOUT_TAG = "load_checkpoint without a tag follows `latest`"


def choose(start: OwnStart) -> Choice:
    """Choose the save that `latest` names, as `load_checkpoint(DIR)` does without a tag.

    The outcome shows whether each rank finds its file.
    """
    pointer = latest_pointer(start.storage)
    save = None if pointer.name is None else start.inventory.named(pointer.name)
    outcome, because = _without_save(pointer) if save is None else _with(start, save)
    return None if save is None else save.name, outcome, f"{_WITHOUT_TAG}, {because}"


def choice_of(start: OwnStart, view: View) -> ConfigChoice:
    """Return the effect of the JSON config on the choice.

    It depends on whether the config loads a universal checkpoint, and on the files that its ZeRO stage reads.

    Source: `load_checkpoint`, `_get_all_ckpt_names` and `_load_checkpoint` of 0.19.8: names depend on the stage.
    """
    if view.is_on(_UNIVERSAL):
        return ConfigChoice(choice=_of_universal(start), key=_UNIVERSAL, mend=f"remove `{_UNIVERSAL}`")
    pointer = latest_pointer(start.storage)
    save = None if pointer.name is None else start.inventory.named(pointer.name)
    wrote, stage = None if save is None else _stages(save), view.get(_STAGE)
    stage = 0 if stage is None else stage
    if save is None or wrote is None or stage in wrote:
        return ConfigChoice()
    made = f"{save.name} was saved with ZeRO stage {' or '.join(str(shard) for shard in wrote)}"
    mend = f"write `{_STAGE}: {wrote[0]}`"
    if stage not in {0, 1, 2, 3}:
        return ConfigChoice(choice=ChoiceUnknown(why=f"`{_STAGE}` is {stage}, and {made}"), key=_STAGE, mend=mend)
    if stage == 0 and wrote != _WEIGHTS_PARTED:  # the model's file exists; the optimizer's files are unknown
        why = f"ZeRO is off, so the optimizer is expected in the model's file, and {made}"
        return ConfigChoice(choice=ChoiceUnknown(why=why), key=_STAGE, mend=mend)
    why = f"`{_STAGE}: {stage}` looks for files with other names: {made}"
    return ConfigChoice(choice=(save.name, Outcome.STOPS, why), key=_STAGE, mend=mend)


def _of_universal(start: OwnStart) -> Choice | ChoiceUnknown:
    pointer = latest_pointer(start.storage, LATEST_UNIVERSAL)
    message = f"`load_universal` follows `{LATEST_UNIVERSAL}`"
    if pointer.trouble == "is missing":
        return None, Outcome.STOPS, f"{message}, which is missing: a ValueError"
    if pointer.name is None:
        return ChoiceUnknown(why=f"{message}, which {pointer.trouble}")
    if start.inventory.named(pointer.name) is not None:
        return None, Outcome.STOPS, f"{message}, which names {pointer.name}, which is not a universal checkpoint"
    return pointer.name, Outcome.UNKNOWN, f"{message}, which names {pointer.name}"


def _stages(save: Checkpoint) -> tuple[int, ...] | None:
    """Return the possible ZeRO stages of the run that wrote a save, judged by the file names; None if unknown."""
    files = [parsed for path in save.expected or () if (parsed := parse(path.rpartition("/")[2])) is not None]
    models = [file for file in files if file.role is ShardRole.MODEL and file.slice is not None]
    if not models:
        return None
    if all(file.replica is not None for file in models):
        return _WEIGHTS_PARTED
    return (1, 2) if any(file.role is ShardRole.OPTIMIZER and file.slice is not None for file in files) else (0,)


def _without_save(pointer: Pointer) -> tuple[Outcome, str]:
    if pointer.trouble == "is missing":
        effect = "it warns and returns (None, None), so the training starts from scratch unless the script checks that"
        return Outcome.SCRATCH, f"which is missing: {effect}"
    if pointer.unknown:
        return Outcome.UNKNOWN, f"which {pointer.trouble}"
    trouble = pointer.trouble or f"names {pointer.name}, which is not a save there"
    return Outcome.STOPS, f"which {trouble}: an AssertionError without a message"


def _with(start: OwnStart, named: Checkpoint) -> tuple[Outcome, str]:
    because = "and never falls back to an older one"
    findings = blocking(start.checked(named).findings)
    if not findings:
        return Outcome.LOADS, because
    damage = max(findings, key=lambda finding: finding.severity)
    effect = "the ranks that need it stop with an error, the others load and wait for them"
    return Outcome.STOPS, f"{because}; {effect} ({save_finding_text(damage, named)})"


def effects(resume: Resume) -> Effects:
    """Describe how DeepSpeed's counters continue: DeepSpeed does not save the position in the data."""
    read = consumed(resume.plan, resume.inventory, resume.data)
    why = (
        "DeepSpeed restores its sample count but saves no position in the data: the training script restores the "
        "position, from the client_state that it saved or by skipping the data already read"
    )
    position = GoesOn(effect=DataEffect.UNKNOWN, why=why, samples=read.samples, source=read.source)
    return Effects(position=position, settings=(), findings=())


SIMULATOR = OwnChoice(trainer=TRAINER, choose=choose, choice_of=choice_of, by_records=True)
