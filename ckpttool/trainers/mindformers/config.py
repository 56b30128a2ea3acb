"""The settings of a MindFormers training config that affect a resume."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.decide.lint_engine import as_the_file_has_them
from ckpttool.core.domain.frozen import replace
from ckpttool.core.errors import ConfigError
from ckpttool.core.formats.config_text import TOML, ConfigFile
from ckpttool.core.formats.safe_yaml import Document, settings_of
from ckpttool.trainers.mindformers.layouts.names import ITERATION_LAYOUT, RANK_LAYOUT
from ckpttool.trainers.mindformers.lint import BEFORE_A_START, WHEN_READ, lint, safe_fixes
from ckpttool.trainers.mindformers.pynative import config as pynative
from ckpttool.trainers.mindformers.pynative import lint as pynative_lint
from ckpttool.trainers.mindformers.pynative.config import PyNativeConfig
from ckpttool.trainers.mindformers.train_config import (
    AUTO_PARALLEL,
    KNOWN_KEYS,
    LEGACY_SWITCHES,
    TOP_ONLY,
    WHOLE_DATA_SET,
    StreamingData,
    TrainConfig,
    with_trainer_defaults,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.settings import RunConfig, SafeFix

Section = dict[str, object]

_STREAMING = ("HFDataLoader", "CommonDataLoader")  # not a set: a config may have a list here
_PACKS = "PackingHandler"
_BOTH = 3
"""The effective `dataset_broadcast_opt_level` if the config sets none and data are broadcast."""

_BASE = "base_config"
"""Key of a base config.

Its settings apply if this config has none of its own.
"""

_COMMON = frozenset({"load_checkpoint", "run_mode"})
"""Keys that other trainers' configs may also contain."""
_NOT_ALONE = _COMMON | {"ignore_data_skip"}  # also an argument of Hugging Face
_OWN_WORDS = frozenset(TOP_ONLY) - _NOT_ALONE | {
    _BASE, "micro_batch_interleave_num", "only_save_strategy", "runner_wrapper", "src_strategy_path_or_dir",
    "train_dataset_task",
}  # fmt: skip
_OWN_SECTIONS = {
    **KNOWN_KEYS, "context": "device_target max_device_memory", "parallel": "full_batch parallel_mode",
}  # fmt: skip
"""Sections that other trainers' configs may also have, each with settings that only MindFormers uses."""
_PYNATIVE_SECTION = {"training": "local_batch_size global_batch_size"}
"""The same for the PyNative trainer, whose configs need additional evidence."""


class TrainConfigs:
    """Reader of MindFormers' YAML configs, for both of its trainers."""

    def may_be_own(self, content: bytes) -> bool:
        """Return whether the content has MindFormers' characteristic keys."""

        def has(values: Iterable[str]) -> Iterator[bool]:
            return (value.encode() in content for value in values)

        named = {**_OWN_SECTIONS, **_PYNATIVE_SECTION}
        sections = (name for name, keys in named.items() if all(has((name,))) and any(has(keys.split())))
        return any(has(_OWN_WORDS)) or all(has(_COMMON)) or any(sections)

    def read(self, file: ConfigFile, *, devices: int | None = None) -> TrainConfig | PyNativeConfig | None:
        """Return the config; None if the file has none of the known keys.

        MindFormers itself requires no key.
        """
        if file.path.endswith(TOML):
            return None
        try:
            file.content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{file.path!r} is not UTF-8 (byte {error.start}); YAML for MindFormers must be UTF-8"
            ) from error
        if pynative.is_pynative(file.yaml.data):
            return pynative.read_config(file.yaml, path=file.path, devices=devices)
        return train_config_of(file.yaml, path=file.path, devices=devices) if _is_own(file.yaml.data) else None

    def saves_in(self, config: RunConfig) -> str | None:
        """Return the layout that the config's switch selects."""
        if isinstance(config, PyNativeConfig):
            return ITERATION_LAYOUT
        return RANK_LAYOUT if with_trainer_defaults(config).use_legacy_format else ITERATION_LAYOUT

    def lint(self, config: RunConfig) -> tuple[Finding, ...]:
        """Return the findings from reading the config, and the findings of the remaining rules."""
        if isinstance(config, PyNativeConfig):
            further = pynative_lint.lint(config.settings, pynative_lint.BEFORE_A_START)
        else:
            further = lint(config.settings, BEFORE_A_START)
        return as_the_file_has_them((*config.findings, *further))

    def fixes(self, config: RunConfig) -> tuple[SafeFix, ...]:
        """Return the fixes for the mistakes that these rules find."""
        fixes = pynative_lint.safe_fixes if isinstance(config, PyNativeConfig) else safe_fixes
        return fixes(config.settings)


def _is_own(data: Section) -> bool:
    """Distinguish a MindFormers config, which need not have every section, from other YAML.

    Source:
        All configs in the MindFormers repository, and other projects' YAML with one of these words at the top level.
    """
    if data.keys() & _OWN_WORDS or data.keys() >= _COMMON:
        return True
    return any(not _section(data, name).keys().isdisjoint(keys.split()) for name, keys in _OWN_SECTIONS.items())


def train_config_of(document: Document, *, path: str, devices: int | None = None) -> TrainConfig:
    """Return a YAML config's settings for resuming, parallelism and data, with findings about suspicious values.

    Defaults are those of MindFormers' own template (1.6 and later), so that a short config has the same meaning here:
    `sink_mode: True` and `sink_size: 1`, parallel sizes of 1, semi-automatic parallelism if `use_parallel` is set.

    Args:
        document: The config.
        path: The config's path as the user typed it.
        devices: Number of ranks to start. Only data-parallel mode needs this number: no config contains the world size
            of such a run.
    """
    data, settings = document.data, settings_of(document, path=path)
    runner = _section(data, "runner_config")
    sink_mode = bool(runner.get("sink_mode", True))
    has_section = bool(data.get("checkpoint"))
    resume = data.get("resume_training")
    switch = next((key for key in LEGACY_SWITCHES if key in data), LEGACY_SWITCHES[0])
    config = TrainConfig(
        path=path,
        world_size=None,
        global_batch_size=None,
        sink_mode=sink_mode,
        sink_size=_count(runner, "sink_size") if sink_mode and _is_known(data, runner, "sink_size") else None,
        epochs=_count(runner, "epochs"),
        load_ckpt_format=_text(data.get("load_ckpt_format")) or "ckpt",
        auto_trans_ckpt=data.get("auto_trans_ckpt", False) is True,
        use_legacy_format=not has_section and bool(data.get(switch, True)),
        reslices_by_time=bool(data.get("transform_by_rank")) or (_count(data, "transform_process_num") or 1) > 1,
        sinks_all=sink_mode and runner.get("sink_size") == WHOLE_DATA_SET,
        dataset_samples=_dataset_samples(data),
        legacy_switch=switch,
        remove_redundancy=_switch(data, "remove_redundancy"),
        has_checkpoint_section=has_section,
        use_checkpoint_health_monitor=bool(data.get("use_checkpoint_health_monitor", False)),
        health_check_picks=_health_check_picks(data),
        no_load_optim=bool(_section(data, "checkpoint").get("no_load_optim")),
        no_save_optim=_no_save_optim(data),
        prefix=_text(_section(data, "checkpoint").get("prefix")) or _text(_monitor(data).get("prefix")),
        resume_training=resume if isinstance(resume, str | bool) else None,
        use_parallel=_switch(data, "use_parallel"),
        shards_optimizer=_section(data, "parallel").get("enable_parallel_optimizer") is True,
        text=document.text,
        settings=settings,
        findings=lint(settings, WHEN_READ),
    )
    sized = _with_sizes(config, data)
    return replace(sized, streaming=_streaming(data, sized.pipeline_stages)).started_on(devices)


def _with_sizes(config: TrainConfig, data: Section) -> TrainConfig:
    """Compute world size and global batch size as MindFormers 1.6 and later do.

    Source:
        BaseTrainer._check_grad_accumulation_steps and _check_global_batch_size_for_auto_parallel: outside
        (semi-)automatic parallelism, accumulation is reset to 1, so only batch size and devices count.
    """
    runner = _section(data, "runner_config")
    batch = _count(runner, "batch_size")
    if _BASE in data:
        return config  # this file only adds to the settings of another
    if not _switch(data, "use_parallel"):
        return replace(config, world_size=1, global_batch_size=batch, pipeline_stages=1)
    if _section(data, "parallel").get("parallel_mode", 1) not in AUTO_PARALLEL:
        return replace(config, pipeline_stages=1, data_parallel=True, device_batch_size=batch)
    parallel = _section(data, "parallel_config")
    dp = _count(parallel, "data_parallel")
    pp = _count(parallel, "pipeline_stage")
    world = _product(dp, pp, _count(parallel, "model_parallel"), _count(parallel, "context_parallel"))
    micro = _count(parallel, "micro_batch_num") if (pp or 1) > 1 else _count(runner, "gradient_accumulation_steps")
    a_replica = _product(batch, _count(data, "micro_batch_interleave_num"), micro)
    total, total_1_3 = _product(a_replica, dp), _product(a_replica, world)
    sliced = _section(data, "parallel").get("full_batch", True) is False
    of_1_3 = total_1_3 if sliced and total_1_3 != total else None
    return replace(config, world_size=world, global_batch_size=total, global_batch_size_1_3=of_1_3, pipeline_stages=pp)


def _streaming(data: Section, stages: int | None) -> StreamingData | None:
    """Return the config's settings for streaming data.

    Source:
        BaseTrainer._train_dataset_preprocess, _get_columns_with_strategy and _set_dataset_broadcast_opt_level.
    """
    loader = _section(_section(data, "train_dataset"), "data_loader")
    if loader.get("type") not in _STREAMING or not loader.get("streaming"):
        return None
    level = _section(data, "context").get("dataset_broadcast_opt_level", _BOTH)
    return StreamingData(
        state_dir=_text(loader.get("dataset_state_dir")),
        broadcast=bool(loader.get("use_broadcast_data", True)),
        level=level if isinstance(level, int) and not isinstance(level, bool) else _BOTH,
        stages=stages,
        slices=_slices(data, loader),
    )


def _slices(data: Section, loader: Section) -> int | None:
    strategy = _section(data, "parallel").get("dataset_strategy")
    if isinstance(strategy, list):
        first = strategy[0][0] if strategy and isinstance(strategy[0], list) and strategy[0] else None
        return _count({"first": first}, "first")
    handlers = loader.get("handler")
    packs = isinstance(handlers, list) and any(
        isinstance(handler, dict) and handler.get("type") == _PACKS for handler in handlers
    )
    if packs or loader.get("create_attention_mask") or loader.get("create_compressed_eod_mask"):
        return _count(_section(data, "parallel_config"), "data_parallel")
    return None


def _switch(data: Section, key: str) -> bool | None:
    """Return a top-level switch that is off by default; None if a different file may set the switch."""
    return bool(data.get(key, False)) if _is_known(data, data, key) else None


def _dataset_samples(data: Section) -> int | None:
    """Return the number of samples in the training data.

    Source:
        BaseTrainer._process_megatron_dataset takes `sizes[0]` // global batch size batches from this data loader.
    """
    loader = _section(_section(data, "train_dataset"), "data_loader")
    sizes = loader.get("sizes")
    if loader.get("type") != "BlendedMegatronDatasetDataLoader" or not isinstance(sizes, list) or not sizes:
        return None
    return sizes[0] if isinstance(sizes[0], int) and not isinstance(sizes[0], bool) and sizes[0] > 0 else None


def _is_known(data: Section, section: Section, key: str) -> bool:
    """Return whether a setting is known.

    If this config lacks the setting, a different file may set it.
    """
    return key in section or _BASE not in data


def _product(*factors: int | None) -> int | None:
    result = 1
    for factor in factors:
        if factor is None:
            return None
        result *= factor
    return result


def _count(section: Section, key: str) -> int | None:
    """Return a positive integer, or 1 if the setting is missing.

    None if the value is invalid, which is reported as a finding.
    """
    value = section.get(key, 1)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _section(data: Section, key: str) -> Section:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _monitor(data: Section) -> Section:
    callbacks = data.get("callbacks")
    entries = callbacks if isinstance(callbacks, list) else []
    monitors = (item for item in entries if isinstance(item, dict) and item.get("type") == "CheckpointMonitor")
    return next(monitors, {})


def _no_save_optim(data: Section) -> bool:
    """Return whether saves lack optimizer state.

    The section of 1.9 decides, or else the callback's argument.
    """
    value = _section(data, "checkpoint").get("no_save_optim")
    return bool(value) if value is not None else not _monitor(data).get("save_optimizer", True)


def _health_check_picks(data: Section) -> bool:
    """Return whether MindFormers sets a health threshold, which its newer layout then uses.

    Source:
        Trainer._convert_health_checkpoint_config: `use_checkpoint_health_monitor` sets a threshold if the config has
        none.
    """
    threshold = _section(_section(data, "monitor_config"), "health_checkpoint").get("embedding_local_norm_threshold")
    return bool(threshold) or bool(data.get("use_checkpoint_health_monitor"))
