"""Effects of the PyNative trainer on a resume: its first step, the data, the learning rate, and the next saves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ckpttool.core.decide.data_effects import effect_findings
from ckpttool.core.domain.checkpoint import Content
from ckpttool.core.domain.data_position import DataEffect
from ckpttool.core.domain.finding import Code, note, suspect
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.scalars import RequestedScalar, ShardFacts
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.units import Step, counted
from ckpttool.core.errors import IncompleteError
from ckpttool.core.formats import read_header
from ckpttool.trainers.base import Effects
from ckpttool.trainers.common.named_path import inside
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.layouts.names import ITERATION_LAYOUT, iteration_step
from ckpttool.trainers.mindformers.pynative.position import begin_step, data_position, save_steps
from ckpttool.trainers.mindformers.pynative_load import load_settings
from ckpttool.trainers.mindformers.scalars import PLANNED_STEPS, by_pynative

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.plan import ResumePlan
    from ckpttool.trainers.base import Resume
    from ckpttool.trainers.mindformers.pynative.config import PyNativeConfig

_OPTIMIZER = ShardFacts(scalars=(RequestedScalar(name="global_step"),))
_EPOCH = (
    "set training.steps so that the run ends within the epoch, or accept it with --allow data-misplaced; no setting "
    "avoids it"
)
_MICRO_BATCHES = (
    "choose training.local_batch_size or the number of devices so that micro-batches divide the samples, or accept it "
    "with --allow data-misplaced"
)


def effects(resume: Resume, config: PyNativeConfig | None) -> Effects:
    """Return the effects of the PyNative trainer on a resume.

    Args:
        resume: The resume.
        config: The config of the run; None if unknown.
    """
    plan, checkpoint = resume.plan, resume.plan.point.checkpoint
    scalars = checkpoint.scalars
    weights_only = checkpoint.content is Content.WEIGHTS_ONLY
    if weights_only:
        scalars = replace(scalars, step=Step(0), samples=0)
    batch = resume.data.new_global_batch
    position = data_position(scalars, config, batch)
    begin = begin_step(scalars, config, batch)
    findings = [*config.findings] if config is not None else []
    remedy = _MICRO_BATCHES if position.effect is DataEffect.REPEATS else _EPOCH
    findings += effect_findings(position, title="MindFormers", remedy=remedy)
    if begin is not None and not weights_only:
        findings += _other_batch(resume, config, begin)
    if config is not None and begin is not None:
        findings += [*_other_length(plan, config), *_overwritten(resume, config, begin)]
    load = load_settings(plan.load.path, checkpoint, plan.load.remarks)
    if config is not None and begin is not None:
        load = replace(load, remarks=(*load.remarks, _next_saves(begin, config)))
    return Effects(
        position=position,
        settings=(),
        load=load,
        next_step=None if begin is None else Step(begin + 1),
        findings=tuple(findings),
    )


def of_other_trainer(resume: Resume, config: PyNativeConfig | None) -> Iterator[Finding]:
    """Report that one of MindFormers' two trainers wrote the save, but the config is for the other trainer.

    Args:
        resume: The resume.
        config: The config, if it is for the PyNative trainer; None if it is for the static trainer.
    """
    checkpoint, path = resume.plan.point.checkpoint, None if resume.config is None else resume.config.path
    if config is None and by_pynative(checkpoint):
        message = f"{checkpoint.name} was saved by the PyNative trainer, but the config is for the static trainer"
    elif config is not None and resume.inventory.layout != ITERATION_LAYOUT:
        message = f"{checkpoint.name} was saved by the static trainer, but the config is for the PyNative trainer"
        message += ", which finds no checkpoint there"
    elif config is not None and not any(map(by_pynative, resume.inventory.checkpoints)):
        message = f"the config is for the PyNative trainer, but nothing shows that it wrote {checkpoint.name}: its "
        message += "common.json looks like that of the static trainer, whose tensors may have other names"
    else:
        return
    remedy = "give the config of the training that wrote it, or accept it with --allow config-disagrees"
    yield suspect(Code.CONFIG_DISAGREES, message, path=path, remedy=remedy)


def _other_batch(resume: Resume, config: PyNativeConfig | None, begin: int) -> Iterator[Finding]:
    """Report a changed batch size.

    The trainer scales its own step, but not that of the optimizer or the schedule.
    """
    step = resume.plan.point.step
    if begin == step:
        return
    updates = _updates(resume)
    own_step = "its own step" if updates is None else f"its own step {updates}"
    steps = "" if config is None else f", and trains up to step {config.steps}, which is not scaled"
    yield suspect(
        MindFormersCode.COUNTER_ROUNDED,
        f"with the new global batch size the step counter continues from {begin} instead of {step}{steps}; the "
        f"optimizer continues from {own_step}, whose learning rate it uses, while the log shows that of step {begin}",
        path=None if config is None else config.path,
        line=None if config is None else config.line("training.global_batch_size"),
        expected=str(begin),
        actual=None if updates is None else str(updates),
        remedy="keep the global batch size, or adapt the schedule to the optimizer's own step; accept it with --allow "
        "counter-rounded",
    )


def _updates(resume: Resume) -> int | None:
    """Read the optimizer's step from the optimizer file.

    It differs from the trainer's step if the batch size has changed.

    Raises:
        IncompleteError: The file cannot be read.
    """
    shards = (shard for shard in resume.plan.point.checkpoint.shards if shard.role is ShardRole.OPTIMIZER)
    shard = next(shards, None)
    if shard is None:
        return None
    try:
        with resume.storage.open(shard.path) as source:
            values = dict(read_header(source, named=shard.format, facts=_OPTIMIZER).scalars)
    except OSError as error:
        raise IncompleteError(f"{shard.path} cannot be read: {error.strerror or error}") from None
    step = values.get("global_step")
    return None if step is None else int(step)


def _other_length(plan: ResumePlan, config: PyNativeConfig) -> Iterator[Finding]:
    """Report a change in the number of steps, which changes the learning rate of each later step."""
    planned = dict(plan.point.checkpoint.scalars.rest).get(PLANNED_STEPS)
    if planned and int(planned) != config.steps:
        yield note(
            Code.CONFIG_DISAGREES,
            f"the run of the checkpoint had {int(planned)} steps, and `training.steps` is {config.steps}: the schedule "
            "of the learning rate spans all steps, so each later rate differs, unless it is constant",
            path=config.path,
            line=config.line("training.steps"),
            remedy=f"write {int(planned)} to continue the same schedule",
        )


def _next_saves(begin: int, config: PyNativeConfig) -> str:
    """Describe the run's first step, and the steps of its saves, which the run counts from its first step."""
    begins = f"The run begins after step {begin}"
    if not config.enable_save:
        return f"{begins} and saves nothing, because of `enable_save: False`."
    if begin >= config.steps:
        return f"{begins}, trains nothing, because `training.steps` is {config.steps}, and saves step {begin}."
    steps = save_steps(begin, config)
    if not steps or steps[0] == config.steps:
        return f"{begins} and saves only at its end, at step {config.steps}."
    return f"{begins}, and saves every {counted(config.save_every, 'step')} from step {steps[0]} to {config.steps}."


def _overwritten(resume: Resume, config: PyNativeConfig, begin: int) -> Iterator[Finding]:
    root = resume.inventory.root
    if resume.inventory.layout != ITERATION_LAYOUT or not config.enable_save:
        return
    if inside(root, config.save_path or os.curdir) != "":
        return
    steps, last = save_steps(begin, config), max(begin, config.steps)
    replaced = [
        save.name
        for save in resume.inventory.checkpoints
        if (step := iteration_step(save.name)) in steps or step == last
    ]
    if replaced:
        yield note(
            MindFormersCode.SAVES_OVERWRITTEN,
            f"the run saves every {counted(config.save_every, 'step')} from step "
            f"{steps[0] if steps else last} on and overwrites {', '.join(replaced[:3])}"
            + (f" and {len(replaced) - 3} more" if len(replaced) > 3 else ""),  # noqa: PLR2004
            path=config.path,
            line=config.line("checkpoint.save_path"),
            remedy="set checkpoint.save_path to another folder to keep them",
        )
