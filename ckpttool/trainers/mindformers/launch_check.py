"""Check that the training config fits the checkpoint to resume from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.data_position import GoesOn
from ckpttool.core.domain.finding import Code, Finding, note, suspect
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.settings import RunConfig, dotted
from ckpttool.trainers.findings import TrainersCode
from ckpttool.trainers.mindformers.counters import mindformers_counters
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.load import LoadKeys, load_keys, planned_skip
from ckpttool.trainers.mindformers.train_config import TrainConfig


def check(config: TrainConfig, plan: ResumePlan, run: Sequence[Checkpoint] = ()) -> tuple[Finding, ...]:
    """Return the contradictions between a base config and the plan, excluding the config's own findings.

    A contradiction that a launch config corrects is a note, so that the user knows about the change. A contradiction
    that it must not correct, because the user may intend it, is suspect.

    Args:
        config: The base config, before a launch rewrites it.
        plan: The plan of the resume.
        run: All saves of the same run.

    Returns:
        Findings in the order in which MindFormers would encounter them.
    """
    keys = load_keys(plan.load)
    return (
        *_layout(config, keys),
        *_format(config, keys),
        *_prefix(config, plan),
        *_world(config, plan.point.checkpoint, keys),
        *_batch(config, plan),
        *_recorded_by_1_3(config, plan.point.checkpoint),
        *_sink(config, plan),
        *_counters(config, plan, run),
    )


def other_devices(config: RunConfig, devices: int) -> Iterator[Finding]:
    """Report a config that is written for a different number of devices, whatever the checkpoint."""
    if config.world_size is not None and config.world_size != devices:
        yield _suspect(
            config,
            "parallel_config",
            f"the config is for {config.world_size} ranks, but {devices} will start",
            "make nodes x devices per node equal to data_parallel x model_parallel x pipeline_stage x context_parallel",
        )


def _suspect(config: RunConfig, key: str, message: str, remedy: str) -> Finding:
    return suspect(Code.CONFIG_DISAGREES, message, path=config.path, remedy=remedy, line=config.line(key))


def _note(config: RunConfig, key: str, message: str, remedy: str) -> Finding:
    return note(Code.CONFIG_DISAGREES, message, path=config.path, remedy=remedy, line=config.line(key))


def _layout(config: TrainConfig, keys: LoadKeys) -> Iterator[Finding]:
    legacy = keys.use_legacy_format
    if legacy and config.has_checkpoint_section:
        yield _suspect(
            config,
            "checkpoint",
            "with the `checkpoint:` section MindFormers loads only the newer layout, but the checkpoint has the "
            "`rank_N` layout",
            "remove the `checkpoint:` section, or resume with weights converted to the newer layout",
        )
    elif legacy != config.use_legacy_format:
        first_kind, second_kind = ("newer", "`rank_N`") if legacy else ("`rank_N`", "newer")
        yield _note(
            config,
            config.legacy_switch,
            f"the config is for the {first_kind} layout, the checkpoint has the {second_kind} layout",
            f"the launch config sets `{config.legacy_switch}: {legacy}`; checkpoints will be saved in that layout too",
        )
    if not legacy:
        yield from _newer_layout(config)


def _newer_layout(config: TrainConfig) -> Iterator[Finding]:
    if config.health_check_picks:
        key = "use_checkpoint_health_monitor"
        if config.line(key) is None:
            key = "monitor_config.health_checkpoint.embedding_local_norm_threshold"
        yield _suspect(
            config,
            key,
            "with the health monitor on, MindFormers ignores the iteration in the launch config: it loads the "
            "newest one of `<output_dir>/checkpoint` whose common.json says healthy, intact or not",
            f"switch `{key}` off for this start",
        )
    if config.no_load_optim:
        yield _note(
            config,
            "checkpoint.no_load_optim",
            "`no_load_optim: True` loads only weights and starts at step 0",
            "the launch config sets `no_load_optim: False`",
        )


def _format(config: TrainConfig, keys: LoadKeys) -> Iterator[Finding]:
    wanted, fmt = keys.load_ckpt_format, config.load_ckpt_format
    if fmt != wanted:
        yield _note(
            config,
            "load_ckpt_format",
            f"`load_ckpt_format` is {fmt}, but the files are {wanted}: if this stays, MindFormers does not find them",
            f"the launch config sets `load_ckpt_format: {wanted}`",
        )
    message = _two_formats(config.resume_training, fmt)
    if message:
        yield _note(config, "resume_training", message, "the launch config sets the file and its format together")
    message = _two_formats(keys.resume_training, wanted)
    if message:
        remedy = f"rename the files of this checkpoint to end in .{wanted}"
        yield _suspect(config, "resume_training", message, remedy)


def _two_formats(name: object, fmt: str) -> str:
    """Describe the file that MindFormers searches for if a name has the wrong suffix; otherwise return ""."""
    if not isinstance(name, str) or not name.endswith(".ckpt" if fmt == "safetensors" else ".safetensors"):
        return ""
    return f"`resume_training: {name}` with `load_ckpt_format: {fmt}` makes MindFormers look for {name}.{fmt}"


def _prefix(config: TrainConfig, plan: ResumePlan) -> Iterator[Finding]:
    """Report a different prefix.

    MindFormers ignores the loaded save's prefix, and uses the config's prefix for new saves.
    """
    saved_prefix = plan.point.checkpoint.prefix
    if config.prefix is None or not saved_prefix or config.prefix == saved_prefix:
        return
    lines = {dotted(entry.key): entry.line for entry in config.settings.entries if entry.line is not None}
    keys = ("checkpoint.prefix", *(key for key in lines if key.startswith("callbacks.") and key.endswith(".prefix")))
    yield suspect(
        MindFormersCode.PREFIX_DIFFERS,
        f"the config saves with the prefix {config.prefix}, but the checkpoint has {saved_prefix}: by its names, the "
        "next save starts a second training beside it",
        path=config.path,
        expected=saved_prefix,
        actual=config.prefix,
        remedy=f"write `prefix: {saved_prefix}`; --allow prefix-differs if the change is intended",
        line=next((lines[key] for key in keys if key in lines), None),
    )


def _world(config: TrainConfig, checkpoint: Checkpoint, keys: LoadKeys) -> Iterator[Finding]:
    # A chosen checkpoint is intact. If no record contains the world size, the ranks with a shard are the ranks that
    # wrote it.
    saved_world = checkpoint.topology.world_size or len(checkpoint.ranks)
    world = config.world_size
    if not saved_world or world is None or world == saved_world:
        return
    one_file_a_rank = keys.use_legacy_format and isinstance(keys.resume_training, str)
    message = f"the checkpoint was written by {saved_world} ranks, but the config starts {world}"
    if config.auto_trans_ckpt or not one_file_a_rank:
        yield _note(config, "auto_trans_ckpt", message, "MindFormers re-slices it while loading")
    elif config.data_parallel and world < saved_world:
        yield _fewer_devices(config, saved_world, world)
    else:
        remedy = "set `auto_trans_ckpt: True` and `src_strategy_path_or_dir`, or start the same number of ranks"
        yield _suspect(config, "auto_trans_ckpt", message, remedy)


def _fewer_devices(config: TrainConfig, saved_world: int, config_world: int) -> Finding:
    """Report fewer devices in data-parallel mode, in which every rank's file has the complete model."""
    message = (
        f"the checkpoint was written by {saved_world} ranks, and {config_world} devices will start in data-parallel "
        "mode: "
    )
    if config.shards_optimizer:
        message += "with `enable_parallel_optimizer` their files lack the optimizer state of the other ranks"
        return _suspect(config, "parallel.enable_parallel_optimizer", message, f"start {saved_world} devices")
    message += "each device loads the file of its own rank, which has the whole model"
    remedy = "nothing: the steps are scaled to the smaller batches"
    return _note(config, "parallel.parallel_mode", message, remedy)


def _batch(config: TrainConfig, plan: ResumePlan) -> Iterator[Finding]:
    skip = planned_skip(plan)
    planned = skip.global_batch_size
    if isinstance(plan.data, GoesOn):
        yield note(
            TrainersCode.BATCH_SIZE_UNKNOWN,
            f"the config does not show the new batch size: MindFormers computes the data skip itself, {skip.batches} "
            f"steps if batches stay at {planned} samples, and a number from ckpttool would override it",
            path=config.path,
            remedy="give --gbs to write `data_skip_steps`",
        )
    if planned is not None and config.global_batch_size is not None and planned != config.global_batch_size:
        yield _suspect(
            config,
            "runner_config.batch_size",
            f"the data skip was computed for batches of {planned} samples, but this config has batches of "
            f"{config.global_batch_size}",
            "omit --gbs to use the batch size of the config, or set runner_config.batch_size so that batches have "
            f"{planned} samples",
        )


def _recorded_by_1_3(config: TrainConfig, checkpoint: Checkpoint) -> Iterator[Finding]:
    recorded = checkpoint.scalars.global_batch_size
    old_way, real = config.global_batch_size_1_3, config.global_batch_size
    if old_way is None or recorded != old_way or real is None:
        return
    yield _suspect(
        config,
        "parallel.full_batch",
        f"the checkpoint records {recorded} samples per batch, which MindFormers 1.3.2 and older compute from these "
        f"settings by counting every device; 1.6 and later compute {real} and would multiply the steps by "
        f"{recorded / real:g}",
        "if it was written by 1.3.2 or older, give the real batch size with --segment "
        f"{checkpoint.scalars.step}:{real}, and raise runner_config.epochs until the last step is right",
    )


def _sink(config: TrainConfig, plan: ResumePlan) -> Iterator[Finding]:
    planned = planned_skip(plan).sink_size
    if planned is not None and config.sink_size is not None and planned != config.sink_size:
        yield _suspect(
            config,
            "runner_config.sink_size",
            f"the data skip was rounded to sinks of {planned} batches, but this config has sinks of {config.sink_size}",
            f"use --sink-size {config.sink_size}, or omit it to use the value of the config",
        )


def _counters(config: TrainConfig, plan: ResumePlan, run: Sequence[Checkpoint]) -> tuple[Finding, ...]:
    checkpoint = plan.point.checkpoint
    if checkpoint.scalars.step is None or (config.sink_mode and config.sink_size is None):
        return ()  # nothing to scale, or sinks of unknown size
    return mindformers_counters(
        scalars=checkpoint.scalars,
        new_global_batch_size=config.global_batch_size,
        new_sink_size=config.sink_size,
        legacy=load_keys(plan.load).use_legacy_format,
        run=run,
    ).findings
