"""Effects of MindFormers on a resume: the data position, the save that it loads instead, and rounded counters."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ckpttool.core.decide.data_position import batches_seen, next_step, with_config
from ckpttool.core.domain.data_position import DataEffect, DataPosition, GoesOn, SkipBatches
from ckpttool.core.domain.frozen import replace
from ckpttool.core.errors import IncompleteError
from ckpttool.core.formats import read_header
from ckpttool.trainers.base import Effects, Resume
from ckpttool.trainers.mindformers.load import counts_data_itself, data_settings, load_keys, planned_skip
from ckpttool.trainers.mindformers.loaded_instead import Start, loaded_instead
from ckpttool.trainers.mindformers.scalars import by_pynative, same_run, state_of

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.data_position import DataQuestion
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.plan import ResumePlan
    from ckpttool.core.storage.base import Storage
    from ckpttool.trainers.mindformers.train_config import TrainConfig


def effects(resume: Resume) -> Effects:
    """Return the effects of MindFormers on a resume."""
    own = None
    if resume.config is not None:
        from ckpttool.trainers.mindformers.pynative.config import PyNativeConfig

        own = resume.config if isinstance(resume.config, PyNativeConfig) else None
    if own is not None or by_pynative(resume.plan.point.checkpoint):
        from ckpttool.trainers.mindformers.pynative import effects as pynative

        answer = pynative.effects(resume, own)
        if resume.config is None:
            return answer
        return replace(answer, findings=(*pynative.of_other_trainer(resume, own), *answer.findings))
    config = None
    if resume.config is not None:
        from ckpttool.trainers.mindformers.train_config import with_trainer_defaults

        config = with_trainer_defaults(resume.config)
    question = with_config(resume.data, resume.config)
    checkpoint = resume.plan.point.checkpoint
    position = _position(resume, question, batches_seen(resume.plan, resume.inventory, question))
    step = next_step(resume.plan.point.step, checkpoint.scalars.global_batch_size, question)
    plan = replace(resume.plan, data=position, next_step=step)
    start = Start(
        plan=plan,
        inventory=resume.inventory,
        load_path=os.path.abspath(plan.load.path),
        config=config,
        fault_tolerance=(resume.environment or {}).get("MS_ENABLE_TFT", ""),
        logged_epoch=None if config is None else _logged_epoch(resume.storage, checkpoint, config),
        deduplicated=_deduplicated(resume.storage, checkpoint) if config and config.data_parallel else None,
    )
    findings = (*loaded_instead(start), *_counted(plan, resume.inventory, resume.data, config))
    settings = data_settings(position)
    if config is not None and config.streaming is not None:
        from ckpttool.trainers.mindformers.streaming import state_findings, state_folder

        findings = (*state_findings(plan, config, config.streaming, resume.data), *findings)
        folder = state_folder(config.streaming, plan)
        if folder is not None:
            position = GoesOn(
                effect=DataEffect.EXACT,
                why="from the state files of the streaming data, regardless of the settings",
                where=folder,
                repeated=0,
                lost=0,
                unchanged=planned_skip(plan),
            )
    return Effects(position=position, settings=settings, next_step=step, findings=findings)


def _position(resume: Resume, question: DataQuestion, skip: SkipBatches) -> DataPosition:
    """Return the position, or leave it to MindFormers if only MindFormers can determine the batch size."""
    advice = resume.plan.advice
    is_moved = advice is not None and advice.detour is not None and advice.followed
    if resume.config is None or skip.samples is None or is_moved:
        return skip
    if not counts_data_itself(resume.plan.point.checkpoint.scalars, question):
        return skip
    return GoesOn(samples=skip.samples, effect=DataEffect.UNKNOWN, unchanged=skip)


def _logged_epoch(storage: Storage, checkpoint: Checkpoint, config: TrainConfig) -> int | None:
    """Read the batches per epoch from the training log, if the config does not contain the data set's size."""
    state = state_of(checkpoint.scalars)
    if config.dataset_samples is not None or not state.step_num:
        return None
    from ckpttool.trainers.mindformers.logs.places import logged_epoch

    return logged_epoch(storage.root, step=state.step_num, epoch=state.epoch_num)


def _deduplicated(storage: Storage, checkpoint: Checkpoint) -> bool | None:
    """Read from a shard whether each tensor is in only one shard; None if unknown."""
    shard = checkpoint.shards[0]
    try:
        with storage.open(shard.path) as source:
            value = dict(read_header(source, named=shard.format).metadata).get("remove_redundancy")
    except OSError as error:
        raise IncompleteError(f"{shard.path} cannot be read: {error.strerror or error}") from None
    return None if value is None else value == "True"


def _counted(
    plan: ResumePlan, inventory: Inventory, data: DataQuestion, config: TrainConfig | None
) -> tuple[Finding, ...]:
    """Report the counters that MindFormers rounds, and settings that contradict each other."""
    run = same_run(plan.point.checkpoint, inventory)
    if config is not None:
        from ckpttool.trainers.mindformers import launch_check

        return (*config.findings, *launch_check.check(config, plan, run))
    if data.new_global_batch is None and data.sink_size is None:
        return ()
    from ckpttool.trainers.mindformers.counters import mindformers_counters

    counters = mindformers_counters(
        scalars=plan.point.checkpoint.scalars,
        new_global_batch_size=planned_skip(plan).global_batch_size,
        new_sink_size=planned_skip(plan).sink_size,
        legacy=load_keys(plan.load).use_legacy_format,
        run=run,
    )
    return counters.findings
