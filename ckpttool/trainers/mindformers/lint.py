"""Mistakes in a training config that MindFormers detects late or never: a table of rules, and the checks for them.

A new rule is a function, a row of the table and its finding. The rules come from the code of MindFormers 1.6 to 2.1,
and were tested with these versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from ckpttool.core.decide.lint_engine import Problem, Rule, findings, note, problems, suspect
from ckpttool.core.decide.lint_engine import safe_fixes as fixes
from ckpttool.core.domain.finding import Code, Finding, Severity
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.settings import Nested, SafeFix, Settings, Value
from ckpttool.trainers.findings import TrainersCode
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.train_config import (
    KEPT_CHECKPOINTS,
    KNOWN_KEYS,
    LEGACY_SWITCHES,
    TOP_ONLY,
    WHOLE_DATA_SET,
    ConfigView,
)
from ckpttool.trainers.mindformers.yaml_values import none_as_text, number_as_text, odd_numbers

_SAVES = "CheckpointMonitor"
"""The callback that saves."""

# Valid values of settings ---------------------------------------------------------------------------------------------

_SHOWN = 40  # characters of a wrong value that a message repeats

# Settings that `ckpttool launch` writes itself: a mistake in them in the base config has no effect afterwards.
_REWRITTEN = frozenset({
    "load_checkpoint", "resume_training", "load_ckpt_format", "data_skip_steps", "ignore_data_skip",
    "checkpoint.no_load_optim", *LEGACY_SWITCHES,
})  # fmt: skip

_BOOLS = (
    "use_parallel", "auto_trans_ckpt", "ignore_data_skip", "use_checkpoint_health_monitor", *LEGACY_SWITCHES,
    "remove_redundancy", "resume_by_last_timestamp_ckpt", "only_save_strategy", "use_skip_data_by_global_norm",
    "runner_config.sink_mode", "parallel.full_batch", "checkpoint.no_load_optim", "checkpoint.no_save_optim",
    "monitor_config.monitor_on", "monitor_config.check_for_global_norm", "check_for_nan_in_loss_and_grad",
    "runner_wrapper.use_clip_grad", "runner_wrapper.local_norm",
)  # fmt: skip

_POSITIVE = (
    "micro_batch_interleave_num", "runner_config.batch_size", "runner_config.epochs",
    "runner_config.gradient_accumulation_steps", "parallel_config.data_parallel", "parallel_config.model_parallel",
    "parallel_config.pipeline_stage", "parallel_config.context_parallel", "parallel_config.micro_batch_num",
)  # fmt: skip

_OF_SAVES = ("save_checkpoint_steps", "keep_checkpoint_max")
"""Settings of each callback that saves.

If a setting is 0, the start fails, or nothing is saved.
"""

_COUNT = re.compile(r"[1-9][0-9]{0,8}")


def _wrong(view: ConfigView, key: str, expected: str, remedy: str = "", *, fix: str | None = None) -> Problem:
    value = view.raw(key)
    kind = ""
    if isinstance(value, str):
        kind = "the text "
    elif isinstance(value, dict):
        kind = "the mapping "
    text = "nothing" if value is None else repr(value)
    actual = kind + (text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
    return Problem(
        severity=Severity.NOTE if key in _REWRITTEN else Severity.SUSPECT,
        key=key,
        message=f"`{key}` must be {expected}, but the config has {actual}",
        remedy="`ckpttool launch` writes this key" if key in _REWRITTEN else remedy,
        expected=expected,
        actual=actual,
        fix=None if key in _REWRITTEN else fix,
    )


def _bools(view: ConfigView) -> Iterator[Problem]:
    for key in _BOOLS:
        value = view.get(key)
        if not isinstance(value, bool | None):
            # Only True or False in quotes has a fix; the intention of any other text is unknown.
            suggestion = value.capitalize() if isinstance(value, str) else None
            fix = suggestion if suggestion in {"True", "False"} else None
            remedy = "write True or False, without quotes; any text counts as True"
            yield _wrong(view, key, "True or False", remedy, fix=fix)


def _counts(view: ConfigView) -> Iterator[Problem]:
    saving = [f"{callback}.{name}" for callback in view.callbacks(_SAVES) for name in _OF_SAVES]
    for key in (*_POSITIVE, *(key for key in saving if view.get(key) is not None)):
        if view.setting(key) is not None and view.count(key, 0) < 1:
            value = view.get(key)
            fix = value if isinstance(value, str) and _COUNT.fullmatch(value) else None
            remedy = "write the number without quotes, point or sign"
            yield _wrong(view, key, "a whole number of at least 1", remedy, fix=fix)
    key = "runner_config.sink_size"
    if view.setting(key) is not None and view.count(key, 0) < 1 and view.count(key, 0) != WHOLE_DATA_SET:
        yield _wrong(view, key, "a whole number of at least 1, or -1", "write the number of batches per data sink")


def _words(view: ConfigView) -> Iterator[Problem]:
    if view.get("load_ckpt_format") not in {None, "ckpt", "safetensors"}:
        yield _wrong(view, "load_ckpt_format", "ckpt or safetensors")
    resume = view.get("resume_training")
    quoted = isinstance(resume, str) and resume.strip().lower() in {"true", "false"}
    if quoted or not isinstance(resume, str | bool | None):
        yield _wrong(view, "resume_training", "True, False or the name of a checkpoint file")
    if view.get("data_skip_steps") is not None and view.count("data_skip_steps", -1) < 0:
        yield _wrong(view, "data_skip_steps", "a whole number of at least 0")


def _unknown_keys(view: ConfigView) -> Iterator[Problem]:
    for section, known_keys in KNOWN_KEYS.items():
        if section == "moe_config" and view.get("use_legacy") is False:
            continue  # not checked then
        names = known_keys.split()
        for entry in view.inside(section):
            name = str(entry.key[-1])
            if name in names or name in TOP_ONLY:  # another rule reports a top-level key in a section
                continue
            close = get_close_matches(name, names, n=1)
            yield suspect(
                f"{section}.{name}",
                f"`{name}` is not a key of `{section}:` in MindFormers 1.6 to 2.1, which stop with a KeyError",
                f"did you mean `{close[0]}`?" if close else "remove it, or move it to the right section",
            )


# Settings that MindFormers never reads, or that others override -------------------------------------------------------

# All arguments of a trainer class; `auto_register` names a user-defined class, which may accept any argument.
_OF_TRAINER = frozenset({"type", "model_name"})
_OWN_CLASS = "auto_register"
_WRITTEN_ONCE = frozenset({"data_skip_steps", "ignore_data_skip"})  # written by earlier versions of `ckpttool launch`

# Settings that are read only in their section. (`batch_size` is omitted: data set sections have their own.)
_HOMES = {
    "sink_mode": "runner_config", "sink_size": "runner_config", "epochs": "runner_config",
    "batch_size": "runner_config", "gradient_accumulation_steps": "runner_config",
    "data_parallel": "parallel_config", "model_parallel": "parallel_config", "pipeline_stage": "parallel_config",
    "context_parallel": "parallel_config", "micro_batch_num": "parallel_config",
}  # fmt: skip


def _no_effect(view: ConfigView) -> Iterator[Problem]:
    if view.count("data_skip_steps") == 0:
        yield note(
            "data_skip_steps",
            "`data_skip_steps: 0` counts as not set in MindFormers, so it skips the steps of the checkpoint",
            "write `ignore_data_skip: True` to start the data from its beginning; `ckpttool launch --new-dataset` "
            "does that",
        )
    if view.get("base_config") is not None:
        yield suspect(
            "base_config",
            "`base_config` reads settings from another file, which ckpttool does not read: world size and global "
            "batch size are unknown",
            "write one config with all settings, or give --world-size and --gbs",
        )
    yield from _batch_sizes(view)


def _batch_sizes(view: ConfigView) -> Iterator[Problem]:
    stages = max(view.count("parallel_config.pipeline_stage"), 1)
    micro, steps = (
        view.count("parallel_config.micro_batch_num"),
        view.count("runner_config.gradient_accumulation_steps"),
    )
    if micro > 1 and stages == 1:
        yield note(
            "parallel_config.micro_batch_num",
            f"`micro_batch_num: {micro}` has no effect without pipeline stages: MindFormers resets it to 1",
            "use gradient_accumulation_steps for a larger global batch size",
        )
    if steps > 1 and (stages > 1 or not view.is_on("use_parallel")):
        why = "with pipeline stages" if stages > 1 else "without use_parallel"
        yield note(
            "runner_config.gradient_accumulation_steps",
            f"`gradient_accumulation_steps: {steps}` has no effect {why}: MindFormers resets it to 1",
            "use micro_batch_num for a larger global batch size" if stages > 1 else "set it to 1",
        )


def _misplaced(view: ConfigView) -> Iterator[Problem]:
    passes_on = view.is_section("trainer") and view.setting(f"trainer.{_OWN_CLASS}") is None
    for section in view.inside(""):
        name = str(section.key[0])
        if section.value is Nested.MAPPING and not (passes_on and name == "trainer"):
            for key in TOP_ONLY:
                if view.setting(f"{name}.{key}") is not None:
                    yield _of_the_top(view, name, key)
    for key, home in _HOMES.items():
        if view.setting(key) is not None:
            yield suspect(key, f"`{key}` is at the top level, where MindFormers ignores it", f"move it into `{home}:`")


def _of_the_top(view: ConfigView, section: str, key: str) -> Problem:
    inner, remedy = f"{section}.{key}", f"move `{key}` to the top level"
    where = f"`{key}` is under `{section}:`, where MindFormers"
    if section in KNOWN_KEYS:
        return suspect(inner, f"{where} 1.6 and later stop with a KeyError and older ones ignore it", remedy)
    message = f"{where} ignores it; it is read only at the top level"
    if view.setting(key) is not None and view.raw(key) == view.raw(inner):
        return note(inner, f"{message}, and it is set there as well", "nothing")
    return suspect(inner, message, remedy)


def _refused(view: ConfigView) -> Iterator[Problem]:
    """Report settings that stop every start while the trainer is built.

    Source:
        build_trainer and MindFormerRegister.get_instance_from_cfg (1.3.2 to 2.1.0) pass each key but `type` as an
        argument to the class; all classes of all these versions have `__init__(self, model_name=None)`.
    """
    if view.setting(f"trainer.{_OWN_CLASS}") is not None:
        return
    for entry in view.inside("trainer") if view.is_section("trainer") else ():
        key = str(entry.key[-1])
        if key in _OF_TRAINER:
            continue
        nested, above = view.raw(f"trainer.{key}"), view.raw(key)
        if view.setting(key) is not None and type(nested) is type(above) and nested == above:
            ours = ", written by an older `ckpttool launch`" if key in _WRITTEN_ONCE else ""
            remedy = f"delete it: the top level has the same value{ours}"
        else:
            remedy = f"move `{key}` to the top level" if key in TOP_ONLY else "delete it"
        yield suspect(
            f"trainer.{key}",
            f"`{key}` is under `trainer:`, which MindFormers passes to the trainer's class; that accepts only `type` "
            "and `model_name`, so every start ends in a TypeError",
            remedy,
        )


def _sinks_all(view: ConfigView) -> Iterator[Problem]:
    key = "runner_config.sink_size"
    if view.count(key) == WHOLE_DATA_SET and view.get("runner_config.sink_mode") is not False:
        yield note(
            key,
            "`sink_size: -1` sinks the whole data set at once, and the config does not show the number of its batches",
            "give --sink-size, the number of batches in the data set, to round the skip as MindSpore does",
        )


def _data_slices(view: ConfigView) -> Iterator[Problem]:
    strategy = view.raw("parallel.dataset_strategy")
    if view.get("parallel.full_batch") is not False or not isinstance(strategy, list) or not strategy:
        return
    slices = strategy[0][0] if isinstance(strategy[0], list) and strategy[0] else None
    parallel = max(view.count("parallel_config.data_parallel"), 1)
    if slices != parallel:
        yield suspect(
            "parallel.dataset_strategy",
            f"`dataset_strategy` slices the data {slices} times, but `data_parallel` is {parallel}: "
            "with `full_batch: False` MindFormers 1.6 and later stop unless they are equal",
            "make the first number of each data set's strategy equal to data_parallel",
        )


def _two_layouts(view: ConfigView) -> Iterator[Problem]:
    if view.raw("checkpoint") and view.raw("use_legacy_format"):
        yield note(
            "use_legacy_format",
            "`use_legacy_format: True` has no effect: a `checkpoint:` section switches to the newer layout",
            "remove the one that is not intended",
        )


def _prefix(view: ConfigView) -> Iterator[Problem]:
    for callback in view.callbacks(_SAVES):
        key = f"{callback}.prefix"
        prefix = view.get(key)
        if not isinstance(prefix, str):
            continue
        problem = None
        if "rank" in prefix:
            problem = "1.7 and later stop at the start, and older versions read it as the rank of a file"
        elif "." in prefix and view.is_on("auto_trans_ckpt"):
            problem = "1.8 and later truncate it at the dot when auto_trans_ckpt looks for the files"
        if problem:
            yield suspect(
                key,
                f"the checkpoint prefix {prefix!r} breaks MindFormers' own resume: {problem}",
                "choose a prefix of letters, digits and underscores without the word rank",
            )


# Whether a run starts, on the ranks and slices that its author intends ------------------------------------------------

_TRAINS = frozenset({"train", "finetune"})

_SLICES_ITSELF = "BlendedMegatronDatasetDataLoader"
"""The data loader for which MindFormers 2.0 and later write the strategy themselves."""


def _only_strategy(view: ConfigView) -> Iterator[Problem]:
    if view.is_on("only_save_strategy"):
        yield suspect(
            "only_save_strategy",
            "`only_save_strategy: True` compiles, writes the strategy files and ends with exit code 0, without "
            "training",
            "write `only_save_strategy: False`",
        )


def _run_mode(view: ConfigView) -> Iterator[Problem]:
    mode = view.get("run_mode")
    if mode is not None and mode not in _TRAINS:
        text = f"`run_mode: {mode}`" if isinstance(mode, str) else "a `run_mode` that is not a word"
        yield suspect(
            "run_mode",
            f"{text} does not train, so nothing is resumed",
            "write `run_mode: train`, or give the config of the training",
        )


def _micro_batches(view: ConfigView) -> Iterator[Problem]:
    micro = view.count("parallel_config.micro_batch_num")
    if 0 < micro < view.stages:
        yield suspect(
            "parallel_config.micro_batch_num",
            f"`micro_batch_num` is {micro}, but there are {view.stages} pipeline stages: MindSpore needs at least as "
            "many micro batches, and fails only while it compiles",
            f"set `micro_batch_num` to {view.stages} or more; the global batch size grows with it",
        )


def _data_strategy(view: ConfigView) -> Iterator[Problem]:
    is_sliced = view.is_auto_parallel and view.get("parallel.full_batch") is False
    if not is_sliced or view.get("parallel.dataset_strategy") is Nested.LIST:
        return
    if view.get("train_dataset.data_loader.type") != _SLICES_ITSELF:
        parts = view.count("parallel_config.data_parallel")
        yield suspect(
            "parallel.full_batch",
            "`full_batch: False` needs a `dataset_strategy` that defines how each input is sliced: without one "
            "MindFormers 1.6 and later stop with a ValueError",
            f"write `dataset_strategy: [[{parts}, 1], …]`, one pair per input, under `parallel:`",
        )


# Files that a run saves -----------------------------------------------------------------------------------------------


def _saved_as(view: ConfigView, callback: str) -> str:
    """Return the format of the saved files.

    Newer models and the newer layout are never saved as ckpt.
    """
    if view.get("use_legacy") is False or view.is_newer_layout:
        return "safetensors"
    return str(view.get(f"{callback}.checkpoint_format") or "ckpt")


def _keeps_one(view: ConfigView) -> Iterator[Problem]:
    if view.is_newer_layout:
        return  # there the oldest is deleted after the new one is written
    for callback in view.callbacks(_SAVES):
        if view.count(f"{callback}.keep_checkpoint_max", KEPT_CHECKPOINTS) == 1:
            yield suspect(
                f"{callback}.keep_checkpoint_max",
                "`keep_checkpoint_max: 1` deletes the only checkpoint before the next one is written: a run that "
                "stops in between leaves no checkpoint",
                "write `keep_checkpoint_max: 2` or more",
            )


def _format(view: ConfigView) -> Iterator[Problem]:
    loads = view.get("load_ckpt_format") or "ckpt"
    for callback in view.callbacks(_SAVES):
        saves = _saved_as(view, callback)
        if saves != loads and not view.is_newer_layout:
            yield note(
                f"{callback}.checkpoint_format",
                f"the run saves {saves} but loads {loads}: with this config MindFormers does not find its own "
                "checkpoints when it resumes",
                f"write `load_ckpt_format: {saves}` for the resume after next; `ckpttool launch` does that",
            )


def _redundancy(view: ConfigView) -> Iterator[Problem]:
    for callback in view.callbacks(_SAVES):
        if view.is_on(f"{callback}.remove_redundancy") and _saved_as(view, callback) == "ckpt":
            yield suspect(
                f"{callback}.remove_redundancy",
                "`remove_redundancy: True` with checkpoints in ckpt format: MindFormers stops with a ValueError "
                "after the model is built",
                "write `checkpoint_format: safetensors` beside it",
            )


def _async_save(view: ConfigView) -> Iterator[Problem]:
    for callback in view.callbacks(_SAVES):
        if view.is_on(f"{callback}.async_save") and not view.is_newer_layout:
            yield note(
                f"{callback}.async_save",
                "with `async_save` the last save of a run never reaches meta.json: on its own, MindFormers resumes "
                "from the previous save",
                "start the next run with `ckpttool launch`, which uses the shards",
            )


def _by_mtime(view: ConfigView) -> Iterator[Problem]:
    key = "resume_by_last_timestamp_ckpt"
    if view.is_on(key):
        yield note(
            key,
            f"`{key}` makes MindFormers load each rank's file with the latest modification time: a copied or touched "
            "file wins, and ranks may differ; a launch config that names its file is not affected",
            f"write `{key}: False`",
        )


# Skipping by the global norm, and the health monitor, which cannot report that it measures nothing --------------------

_SKIP = "use_skip_data_by_global_norm"
_HEALTH = "use_checkpoint_health_monitor"
_CHECK = "monitor_config.check_for_global_norm"
_MONITOR = "monitor_config.monitor_on"
_THRESHOLD = "monitor_config.global_norm_spike_threshold"
_NEWER_THRESHOLD = "monitor_config.health_checkpoint.global_norm_spike_threshold"
_NEWER_EMBEDDING = "monitor_config.health_checkpoint.embedding_local_norm_threshold"

_MODEL = "model.model_config"


def _is_watched(view: ConfigView) -> bool:
    """Return whether the run is monitored: MindFormers adds the callback only with `monitor_on: True`."""
    return view.is_on(_MONITOR) or bool(view.callbacks("TrainingStateMonitor"))


def _exclusive(view: ConfigView) -> Iterator[Problem]:
    if not view.is_on(_SKIP):
        return
    if view.is_on(_CHECK):
        yield suspect(
            _CHECK,
            f"`check_for_global_norm` and `{_SKIP}` cannot both be on: MindFormers stops with a ValueError, "
            "at the end of the first step",
            f"set one of them to False: `{_SKIP}` skips a spike, `check_for_global_norm` stops at it",
        )
    elif view.get(_NEWER_THRESHOLD):
        yield suspect(
            _NEWER_THRESHOLD,
            "a `global_norm_spike_threshold` under `health_checkpoint:` enables `check_for_global_norm` in "
            f"MindFormers 1.9 and later, which cannot be combined with `{_SKIP}`: ValueError at the first step",
            "move the threshold up into `monitor_config:`",
        )
    elif _is_watched(view) and (view.is_on(_HEALTH) or view.is_section("monitor_config.health_checkpoint")):
        key = _HEALTH if view.is_on(_HEALTH) else "monitor_config.health_checkpoint"
        yield suspect(
            key,
            f"with `{key.rpartition('.')[2]}` MindFormers 1.9 and later lose the threshold that `{_SKIP}` compares "
            "with: TypeError at the end of the first step (1.6 to 1.8 support both)",
            f"switch off `{_SKIP}` or the health monitor",
        )


def _clip(view: ConfigView) -> Iterator[Problem]:
    # A missing section gets MindFormers' defaults, in which clipping is on; a section in the config gets no defaults.
    if view.is_on(_SKIP) and view.is_section("runner_wrapper") and not view.is_on("runner_wrapper.use_clip_grad"):
        yield suspect(
            "runner_wrapper.use_clip_grad",
            f"`{_SKIP}` compares the global norm, which is computed only with gradient clipping: without "
            "`use_clip_grad: True` the first step fails (the documentation does not say so)",
            "write `use_clip_grad: True` under `runner_wrapper:`",
        )


def _local_norm(view: ConfigView) -> Iterator[Problem]:
    if view.is_on("runner_wrapper.local_norm"):
        return
    if view.is_on(_HEALTH):
        yield suspect(
            view.at("runner_wrapper.local_norm", _HEALTH),
            f"`{_HEALTH}` needs the local norms: without `local_norm: True` the first save fails with a ValueError "
            "(whose message is about skipping data)",
            "write `local_norm: True` under `runner_wrapper:`",
        )
    elif view.is_on(_SKIP):
        yield note(
            _SKIP,
            f"the documentation requires `local_norm: True` with `{_SKIP}`; the code of 1.6 to 2.1 does not",
            "write `local_norm: True` under `runner_wrapper:` to be on the safe side",
        )


def _unwatched(view: ConfigView) -> Iterator[Problem]:
    if not view.is_on(_SKIP) or _is_watched(view):
        return
    effect = " skips silently: updates are dropped, but not counted or logged, and the run does not stop"
    if view.is_on("check_for_nan_in_loss_and_grad"):
        effect = (
            ", but with `check_for_nan_in_loss_and_grad`: the monitor is added without a threshold, and the first step "
            "fails with a TypeError"
        )
    message = f"`{_SKIP}` without `monitor_on: True`{effect}"
    yield suspect(view.at(_MONITOR, _SKIP), message, "write `monitor_on: True` under `monitor_config:`")


def _unchecked(view: ConfigView) -> Iterator[Problem]:
    key = _CHECK if view.is_on(_CHECK) else _NEWER_THRESHOLD
    if (view.is_on(_CHECK) or view.get(_NEWER_THRESHOLD)) and not _is_watched(view):
        yield suspect(
            key,
            f"`{key.rpartition('.')[2]}` has no effect while `monitor_on` is not True: a spike does not stop the run",
            "write `monitor_on: True` under `monitor_config:`",
        )


def _floats(view: ConfigView) -> Iterator[Problem]:
    keys = [_THRESHOLD, _NEWER_THRESHOLD, _NEWER_EMBEDDING]
    keys += [f"{key}.embedding_local_norm_threshold" for key in view.callbacks(_SAVES)]
    for key in keys:
        setting = view.setting(key)
        if setting is None or setting.value is None or isinstance(setting.value, float):
            continue
        if isinstance(setting.value, str) and setting.spelt is not None and "e" in setting.spelt.lower():
            continue  # `3e0`: another rule reports, for any key, that YAML reads it as text, and gives the fix
        is_whole = isinstance(setting.value, int) and not isinstance(setting.value, bool)
        problem = suspect(
            key,
            f"`{key.rpartition('.')[2]}` must be a float, but {_value_text(setting.value)} is not: MindFormers stops "
            "with a TypeError",
            f"write {setting.value}.0" if is_whole else "write a number with a point, such as 3.0",
        )
        yield replace(problem, fix=f"{setting.value}.0") if is_whole else problem


_STOPS = "the run stops at its first step"
_ALL_UNHEALTHY = "every save is recorded as unhealthy"
_MEASURED = "based on this run's log: ckpttool log calibrate LOG"


def _too_low(view: ConfigView) -> Iterator[Problem]:
    if view.is_on(_SKIP):
        yield from _reached(view, _THRESHOLD, "every update is dropped", "such as 3.0")
    elif view.is_on(_CHECK):
        yield from _reached(view, _THRESHOLD, _STOPS, "such as 3.0")
    yield from _reached(view, _NEWER_THRESHOLD, _STOPS, "such as 3.0")
    yield from _reached(view, _NEWER_EMBEDDING, _ALL_UNHEALTHY, _MEASURED)
    for callback in view.callbacks(_SAVES) if view.is_on(_HEALTH) else ():
        key = f"{callback}.embedding_local_norm_threshold"
        yield from _reached(view, key, _ALL_UNHEALTHY, _MEASURED)
        if view.get(key) is None and view.get(_NEWER_EMBEDDING) is None:
            yield note(
                _HEALTH,
                f"`{_HEALTH}` without an `embedding_local_norm_threshold` compares with 1.0, which is low and "
                "applies to the squared norm: healthy saves may be recorded as unhealthy, and no save is left to "
                "resume from",
                f"write `embedding_local_norm_threshold` under `CheckpointMonitor`, {_MEASURED}",
            )


def _reached(view: ConfigView, key: str, effect: str, instead: str) -> Iterator[Problem]:
    value = view.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
        message = f"`{key.rpartition('.')[2]}` is {value}: every norm reaches it, so {effect}"
        yield suspect(key, message, f"write a number above 0, {instead}")


def _value_text(value: Value) -> str:
    return f"the text {value!r}" if isinstance(value, str) else repr(value)


def _spike_count(view: ConfigView) -> Iterator[Problem]:
    key = "monitor_config.global_norm_spike_count_threshold"
    value = view.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        yield suspect(
            key,
            f"`global_norm_spike_count_threshold` must be a whole number of at least 1, not {_value_text(value)}: "
            "MindFormers stops with a TypeError",
            "write the number of spikes in a row that stops the run; the default is 10",
        )


def _nan_hole(view: ConfigView) -> Iterator[Problem]:
    if view.is_on(_SKIP) and not view.is_on("check_for_nan_in_loss_and_grad"):
        yield note(
            _SKIP,
            "a global norm of NaN is skipped on the device but resets the count and is not logged: a run with NaN "
            "norms continues forever without an update",
            "write `check_for_nan_in_loss_and_grad: True` at the top level",
        )


def _some_steps(view: ConfigView) -> Iterator[Problem]:
    size = view.count("runner_config.sink_size")
    if view.is_on(_SKIP) and view.get("runner_config.sink_mode") is not False and size > 1:
        yield note(
            "runner_config.sink_size",
            f"with sinks of {size} batches spikes are counted only at the last batch of a sink: the others are "
            "skipped without being counted",
            "set `sink_size: 1` if the count should refer to steps",
        )


def _health_switch(view: ConfigView) -> str | None:
    """Return the setting that switches the health monitor on; None if the monitor is off."""
    if view.is_on(_HEALTH):
        return _HEALTH
    return _NEWER_EMBEDDING if view.is_newer_layout and view.get(_NEWER_EMBEDDING) else None


def _health_stages(view: ConfigView) -> Iterator[Problem]:
    switch = _health_switch(view)
    if switch is not None and view.stages == 1:
        yield suspect(
            "parallel_config.pipeline_stage" if view.setting("parallel_config.pipeline_stage") else switch,
            "the health monitor measures nothing without pipeline stages: every checkpoint is recorded as healthy",
            "set `pipeline_stage` to 2 or more, or rate checkpoints by the training log: ckpttool health "
            "--threshold X --log LOG",
        )


def _health_slices(view: ConfigView) -> Iterator[Problem]:
    switch = _health_switch(view)
    if switch is not None and view.get("parallel.full_batch") is not False:
        yield suspect(
            "parallel.full_batch" if view.setting("parallel.full_batch") else switch,
            "the health monitor is documented only for `full_batch: False`",
            "write `full_batch: False` and a `dataset_strategy` under `parallel:`",
        )


def _health_model_size(view: ConfigView) -> Iterator[Problem]:
    """Report a size that the config does not set.

    The monitor identifies the embedding by its element count.
    """
    if not view.is_on(_HEALTH) or not view.is_section(_MODEL) or view.get("pretrained_model_dir"):
        return
    for key in ("hidden_size", "vocab_size"):
        if view.get(f"{_MODEL}.{key}") is None:
            yield suspect(
                f"{_MODEL}.{key}",
                f"`{_HEALTH}` needs the model's `{key}`: without it MindFormers stops with a ValueError "
                "after the model is built",
                f"write `{key}` under `model_config:`",
            )


# The table -----------------------------------------------------------------------------------------------------------

WHEN_READ: tuple[Rule[ConfigView], ...] = (
    Rule(code=TrainersCode.CONFIG_WRONG_TYPE, check=number_as_text, needs_all=False),
    Rule(code=TrainersCode.CONFIG_WRONG_TYPE, check=_bools, needs_all=False),
    Rule(code=TrainersCode.CONFIG_WRONG_TYPE, check=_counts, needs_all=False),
    Rule(code=TrainersCode.CONFIG_WRONG_TYPE, check=_words, needs_all=False),
    Rule(code=TrainersCode.CONFIG_KEY_IGNORED, check=_no_effect, needs_all=False),
    Rule(code=TrainersCode.CONFIG_KEY_IGNORED, check=_misplaced, needs_all=False),
    Rule(code=MindFormersCode.TRAINER_KEY_REFUSED, check=_refused, needs_all=False),
    Rule(code=Code.CONFIG_DISAGREES, check=_sinks_all, needs_all=False),
    Rule(code=Code.CONFIG_DISAGREES, check=_data_slices, needs_all=False),
    Rule(code=Code.CONFIG_DISAGREES, check=_two_layouts, needs_all=False),
    Rule(code=Code.CONFIG_DISAGREES, check=_prefix, needs_all=False),
)
"""Rules that every command with a config applies, because the findings change the config's effect on a resume."""

BEFORE_A_START: tuple[Rule[ConfigView], ...] = (
    Rule(code=MindFormersCode.ONLY_SAVES_STRATEGY, check=_only_strategy, needs_all=False),
    Rule(code=Code.NOT_A_TRAINING, check=_run_mode, needs_all=False),
    Rule(code=MindFormersCode.MICRO_BATCHES_FEW, check=_micro_batches),
    Rule(code=MindFormersCode.DATA_STRATEGY_MISSING, check=_data_strategy),
    Rule(code=MindFormersCode.EXCLUSIVE_SWITCHES, check=_exclusive),
    Rule(code=MindFormersCode.SKIP_NEEDS_CLIP_GRAD, check=_clip),
    Rule(code=MindFormersCode.LOCAL_NORM_MISSING, check=_local_norm),
    Rule(code=MindFormersCode.SKIP_UNWATCHED, check=_unwatched),
    Rule(code=MindFormersCode.NORM_CHECK_OFF, check=_unchecked),
    Rule(code=MindFormersCode.THRESHOLD_NOT_FLOAT, check=_floats, needs_all=False),
    Rule(code=MindFormersCode.THRESHOLD_TOO_LOW, check=_too_low),
    Rule(code=MindFormersCode.SPIKE_COUNT_INVALID, check=_spike_count, needs_all=False),
    Rule(code=MindFormersCode.SKIP_NAN_HOLE, check=_nan_hole),
    Rule(code=MindFormersCode.SKIP_SEES_SOME_STEPS, check=_some_steps, needs_all=False),
    Rule(code=MindFormersCode.HEALTH_NEEDS_STAGES, check=_health_stages),
    Rule(code=MindFormersCode.HEALTH_NEEDS_SLICES, check=_health_slices),
    Rule(code=MindFormersCode.HEALTH_NEEDS_MODEL_SIZE, check=_health_model_size),
    Rule(code=Code.KEEPS_ONE_CHECKPOINT, check=_keeps_one, needs_all=False),
    Rule(code=MindFormersCode.SAVE_FORMAT_DIFFERS, check=_format),
    Rule(code=MindFormersCode.REDUNDANCY_NEEDS_SAFETENSORS, check=_redundancy),
    Rule(code=MindFormersCode.ASYNC_SAVE_LAGS, check=_async_save, needs_all=False),
    Rule(code=MindFormersCode.RESUME_BY_MTIME, check=_by_mtime, needs_all=False),
    Rule(code=MindFormersCode.YAML_ODD_NUMBER, check=odd_numbers, needs_all=False),
    Rule(code=MindFormersCode.YAML_NONE_IS_TEXT, check=none_as_text, needs_all=False),
    Rule(code=MindFormersCode.UNKNOWN_KEY, check=_unknown_keys, needs_all=False),
)
"""All other rules, in the order in which a start would encounter the mistakes."""


def lint(settings: Settings, rules: Iterable[Rule[ConfigView]]) -> tuple[Finding, ...]:
    """Return the findings of the rules, in the order of the config's lines, and then sorted by text."""
    view = ConfigView(settings)
    return findings(view, _problems(view, rules), path=settings.path)


def safe_fixes(settings: Settings) -> tuple[SafeFix, ...]:
    """Return fixes for mistakes with one correct value, in the file's order, excluding values from an alias."""
    view = ConfigView(settings)
    return fixes(view, _problems(view, (*WHEN_READ, *BEFORE_A_START)))


def _problems(view: ConfigView, rules: Iterable[Rule[ConfigView]]) -> Iterator[tuple[Rule[ConfigView], Problem]]:
    return problems(view, rules, is_part=view.get("base_config") is not None)
