"""The save that Megatron-LM chooses, the effects on a resume, and the run sizes that Megatron-LM refuses.

Source:
    `load_checkpoint` and `_load_base_checkpoint` of `megatron/training/checkpointing.py`, `data_samplers.py` next to
    that file, and `megatron/core/optimizer/distrib_optimizer.py`, core_r0.16.0; and their behaviour with deliberately
    damaged trees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.decide.data_effects import against_size, by_samples, consumed, effect_findings
from ckpttool.core.domain.data_position import DataEffect, GoesOn, Unknown
from ckpttool.core.domain.finding import Code, Finding, blocking, note, suspect, unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.plan import Outcome
from ckpttool.core.domain.question import AskedSizes
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.formats.torch.plain import integer_at, text_at, value_at
from ckpttool.core.render.shell import quote
from ckpttool.core.storage.base import is_there
from ckpttool.trainers.base import Effects, Resume
from ckpttool.trainers.common import TRACKER
from ckpttool.trainers.common.own_choice import Choice, OwnChoice, save_finding_text
from ckpttool.trainers.common.saved_values import first_value
from ckpttool.trainers.common.tracker_file import tracker_pointer
from ckpttool.trainers.megatron import (
    BRIDGE_TRACKER,
    COMMON,
    INTEGRITY,
    MODEL,
    NON_PERSISTENT,
    RELEASE,
    TRAIN_STATE,
    TRAINER,
    iteration_folder,
)
from ckpttool.trainers.megatron.findings import MegatronCode
from ckpttool.trainers.megatron.integrity import with_digests
from ckpttool.trainers.megatron.load import by_bridge, mixes_saves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.pointer import Pointer
    from ckpttool.core.storage.base import Storage
    from ckpttool.trainers.abilities import OwnStart


def choose(start: OwnStart) -> Choice:
    """Choose the save that the tracker names, as `--load DIR` does without `--ckpt-step`.

    The outcome shows whether each rank finds its file.
    """
    if is_there(start.storage, BRIDGE_TRACKER):
        why = f"Megatron-Bridge follows {BRIDGE_TRACKER} before any other tracker, and ckpttool does not read it"
        return None, Outcome.UNKNOWN, why
    pointer = tracker_pointer(start.storage, iteration_folder, content=RELEASE)
    save = None if pointer.name is None else start.inventory.named(pointer.name)
    outcome, because = _without_save(pointer) if save is None else _with(start, save)
    return None if save is None else save.name, outcome, because


def _without_save(pointer: Pointer) -> tuple[Outcome, str]:
    if pointer.trouble == "is missing":
        effect = (
            "it starts at iteration 0 with random weights and no error, unless --exit-on-missing-checkpoint is given"
        )
        return Outcome.SCRATCH, f"there is no tracker: {effect}"
    if pointer.unknown:
        return Outcome.UNKNOWN, f"the tracker {pointer.trouble}"
    if pointer.trouble is not None:
        return (
            Outcome.STOPS,
            f"the tracker {pointer.trouble}: the run exits with code 0, as if the training were complete",
        )
    return Outcome.STOPS, f"the tracker names {pointer.name}, which does not exist: it stops with FileNotFoundError"


def _with(start: OwnStart, named: Checkpoint) -> tuple[Outcome, str]:
    because = "the tracker names it, and it never falls back to an older one"
    findings = blocking(start.checked(named).findings)
    if not findings:
        return Outcome.LOADS, because
    damage = max(findings, key=lambda finding: finding.severity)
    is_legacy = any(shard.path.endswith(f"/{MODEL}") for shard in named.shards)
    effect = (
        "the ranks whose file cannot be read end with exit code 0, and the others hang"
        if is_legacy
        else "it stops with an error on the ranks that need the damaged files"
    )
    return Outcome.STOPS, f"{because}; {effect} ({save_finding_text(damage, named)})"


def effects(resume: Resume) -> Effects:
    """Return the position of Megatron-LM's samplers, and the tracker's effect on the start."""
    checkpoint = with_digests(resume.storage, resume.plan.point.checkpoint)
    if by_bridge(checkpoint):
        return Effects(position=Unknown(why=_OF_BRIDGE), settings=(), findings=())
    position = _position(resume)
    unread = (finding for finding in checkpoint.findings if finding.path == f"{checkpoint.name}/{INTEGRITY}")
    findings = (*_tracked(resume), *effect_findings(position, title=TRAINER.title, remedy=_REORDERED_REMEDY), *unread)
    return Effects(position=position, settings=(), findings=findings)


_OF_BRIDGE = f"Megatron-Bridge counts the samples read in {TRAIN_STATE}, a file that ckpttool does not read"
_REORDERED_REMEDY = "keep the global batch size, or set the length of the run with --train-samples from the start"


def _position(resume: Resume) -> GoesOn:
    """Return the position after the samples that are counted in the save's `args`."""
    arguments = _args(resume.storage, resume.plan.point.checkpoint)
    read = consumed(resume.plan, resume.inventory, resume.data)
    kind = text_at(arguments, "dataloader_type") or "single"
    exact = by_samples(
        resume.plan.point.step, read, why="the sampler starts after the consumed_train_samples of the save"
    )
    if kind == "single" and (not read.changes or integer_at(arguments, "train_samples") is not None):
        return exact
    if kind == "single":
        why = "with --train-iters the sample index is rebuilt for another number of samples and shuffled differently"
        return replace(exact, effect=DataEffect.REORDERS, why=why, repeated=None, lost=None)
    if kind == "cyclic" and not read.changes:
        return exact
    why = f"--dataloader-type {kind} is implemented by the script"
    if kind == "cyclic":
        why = (
            "the cyclic sampler stops unless the samples per epoch are divisible by the micro batch size times the "
            "data-parallel ranks"
        )
    return replace(exact, effect=DataEffect.UNKNOWN, why=why, repeated=None, lost=None)


def _args(storage: Storage, checkpoint: Checkpoint) -> object:
    """Return the arguments of the run that wrote a save."""
    records = (shard.path for shard in checkpoint.shards if shard.path.endswith((f"/{COMMON}", f"/{MODEL}")))
    return value_at(first_value(storage, records), "args")


def _tracked(resume: Resume) -> Iterator[Finding]:
    """Report a tracker that contradicts `--ckpt-step`.

    The tracker overrides or complements this option.
    """
    checkpoint = resume.plan.point.checkpoint
    pointer = tracker_pointer(resume.storage, iteration_folder, content=RELEASE)
    says = pointer.trouble or f"names {pointer.name}"
    remedy = f"ckpttool repair pointer {quote(resume.plan.root)} --checkpoint {checkpoint.name} --apply"
    if pointer.unknown:
        message = f"the tracker {says}: it takes precedence over --ckpt-step, and how Megatron-LM reads it is unknown"
        yield unknown(MegatronCode.TRACKER_MIXES, message, path=TRACKER, remedy="make the file readable and run again")
    elif mixes_saves(checkpoint) and pointer.name != checkpoint.name:
        yield suspect(
            MegatronCode.TRACKER_MIXES,
            f"the tracker {says}, and Megatron-LM loads the state of the distributed optimizer from there, whatever "
            "--ckpt-step says: moments of one iteration with weights of another, without an error",
            path=TRACKER,
            expected=checkpoint.name,
            actual=pointer.name,
            remedy=remedy,
        )
    elif pointer.name == RELEASE != checkpoint.name:
        message = (
            f"the tracker says {RELEASE}, which takes precedence over --ckpt-step: those weights are loaded, at "
            "iteration 0"
        )
        yield suspect(MegatronCode.TRACKER_MIXES, message, path=TRACKER, remedy=remedy)
    elif pointer.trouble not in {None, "is missing"}:
        message = f"the tracker {says}: Megatron-LM ends with exit code 0 before it reads --ckpt-step"
        yield suspect(MegatronCode.TRACKER_MIXES, message, path=TRACKER, remedy=remedy)
    if is_there(resume.storage, NON_PERSISTENT):
        message = "Megatron-LM prefers a save in there that is at --ckpt-step or later, and loads it instead"
        yield note(Code.STRAY_TAKES_OVER, message, path=NON_PERSISTENT, remedy="move the folder away before the start")


def objections(checkpoint: Checkpoint, requested: AskedSizes) -> tuple[Finding, ...]:
    """Report tensor and pipeline sizes that the loader refuses; it accepts other data-parallel sizes."""
    values = dict(checkpoint.scalars.rest)
    sizes = {name: int(values[name]) for name in ("world_size", "tensor", "pipeline", "data") if name in values}
    saved = AskedSizes(
        world=sizes.get("world_size"),
        tensor=sizes.get("tensor"),
        pipeline=sizes.get("pipeline"),
        data=sizes.get("data"),
    )
    cut = AskedSizes(tensor=requested.tensor, pipeline=requested.pipeline).differing(saved)
    refuses = None
    if cut and any(shard.role is ShardRole.MODEL for shard in checkpoint.shards):
        refuses = (
            "the legacy format cannot be loaded with other tensor and pipeline sizes: Megatron-LM's "
            "tools/checkpoint converts it"
        )
    elif cut and values.get("fully_reshardable") == 0:
        refuses = (
            "the distributed optimizer's state was split for these sizes (dp_reshardable): only a save with "
            "--dist-ckpt-optim-fully-reshardable can be loaded with others"
        )
    return tuple(against_size(checkpoint, requested, saved=saved, refuses=refuses))


SIMULATOR = OwnChoice(trainer=TRAINER, choose=choose, by_records=True)
