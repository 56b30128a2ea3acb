"""Rules about skipping by the global norm, and about the health monitor, which cannot say that it measures nothing.

Read in, and tried on, MindFormers 1.6 to 2.1.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpttool.core.decide.lint_engine import Problem, Rule, note, suspect
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.settings import Value
from ckpttool.trainers.mindformers.train_config import ConfigView

_SKIP = "use_skip_data_by_global_norm"
_HEALTH = "use_checkpoint_health_monitor"
_CHECK = "monitor_config.check_for_global_norm"
_MONITOR = "monitor_config.monitor_on"
_NEWER_THRESHOLD = "monitor_config.health_checkpoint.global_norm_spike_threshold"
_NEWER_EMBEDDING = "monitor_config.health_checkpoint.embedding_local_norm_threshold"

_MODEL = "model.model_config"


def _is_watched(view: ConfigView) -> bool:
    """Tell whether somebody counts, logs and stops: MindFormers adds the callback only with `monitor_on: True`."""
    return view.is_on(_MONITOR) or bool(view.callbacks("TrainingStateMonitor"))


def _exclusive(view: ConfigView) -> Iterator[Problem]:
    if not view.is_on(_SKIP):
        return
    if view.is_on(_CHECK):
        yield suspect(
            _CHECK,
            f"`check_for_global_norm` and `{_SKIP}` cannot both be on: MindFormers stops with a ValueError, "
            "at the end of the first step",
            f"set one of them to False: `{_SKIP}` passes over a spike, `check_for_global_norm` stops at it",
        )
    elif view.get(_NEWER_THRESHOLD):
        yield suspect(
            _NEWER_THRESHOLD,
            f"a `global_norm_spike_threshold` under `health_checkpoint:` switches `check_for_global_norm` on in "
            f"MindFormers 1.9 and later, which cannot be on together with `{_SKIP}`: ValueError at the first step",
            "move the threshold up into `monitor_config:`",
        )
    elif _is_watched(view) and (view.is_on(_HEALTH) or view.is_section("monitor_config.health_checkpoint")):
        key = _HEALTH if view.is_on(_HEALTH) else "monitor_config.health_checkpoint"
        yield suspect(
            key,
            f"with `{key.rpartition('.')[2]}` MindFormers 1.9 and later forget the threshold that `{_SKIP}` compares "
            "with: TypeError at the end of the first step (1.6 to 1.8 can do both)",
            f"switch off `{_SKIP}` or the health monitor",
        )


def _clip(view: ConfigView) -> Iterator[Problem]:
    # A missing section gets MindFormers' defaults, and there clipping is on; a section of one's own gets none of them.
    if view.is_on(_SKIP) and view.is_section("runner_wrapper") and not view.is_on("runner_wrapper.use_clip_grad"):
        yield suspect(
            "runner_wrapper.use_clip_grad",
            f"`{_SKIP}` compares the global norm, which is computed only while gradients are clipped: without "
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
            "(which speaks of skipping data)",
            "write `local_norm: True` under `runner_wrapper:`",
        )
    elif view.is_on(_SKIP):
        yield note(
            _SKIP,
            f"the documentation asks for `local_norm: True` with `{_SKIP}`; the code of 1.6 to 2.1 does without",
            "write `local_norm: True` under `runner_wrapper:` to be on the safe side",
        )


def _unwatched(view: ConfigView) -> Iterator[Problem]:
    if not view.is_on(_SKIP) or _is_watched(view):
        return
    if view.is_on("check_for_nan_in_loss_and_grad"):
        yield suspect(
            view.at(_MONITOR, _SKIP),
            f"`{_SKIP}` without `monitor_on: True`, but with `check_for_nan_in_loss_and_grad`: the monitor is added "
            "without a threshold, and the first step fails with a TypeError",
            "write `monitor_on: True` under `monitor_config:`",
        )
    else:
        yield suspect(
            view.at(_MONITOR, _SKIP),
            f"`{_SKIP}` without `monitor_on: True` skips in silence: updates are left out, but nothing counts them, "
            "logs them or stops the run",
            "write `monitor_on: True` under `monitor_config:`",
        )


def _unchecked(view: ConfigView) -> Iterator[Problem]:
    key = _CHECK if view.is_on(_CHECK) else _NEWER_THRESHOLD
    if (view.is_on(_CHECK) or view.get(_NEWER_THRESHOLD)) and not _is_watched(view):
        yield suspect(
            key,
            f"`{key.rpartition('.')[2]}` has no effect while `monitor_on` is not True: no spike stops the run",
            "write `monitor_on: True` under `monitor_config:`",
        )


def _floats(view: ConfigView) -> Iterator[Problem]:
    keys = ["monitor_config.global_norm_spike_threshold", _NEWER_THRESHOLD, _NEWER_EMBEDDING]
    keys += [f"{key}.embedding_local_norm_threshold" for key in view.callbacks("CheckpointMonitor")]
    for key in keys:
        setting = view.setting(key)
        if setting is None or setting.value is None or isinstance(setting.value, float):
            continue
        if isinstance(setting.value, str) and setting.spelt is not None and "e" in setting.spelt.lower():
            continue  # `3e0`: that YAML takes it for text is found, with its cure, wherever it stands
        is_whole = isinstance(setting.value, int) and not isinstance(setting.value, bool)
        problem = suspect(
            key,
            f"`{key.rpartition('.')[2]}` must be a float, but {_value_text(setting.value)} is none: MindFormers stops "
            "with a TypeError",
            f"write {setting.value}.0" if is_whole else "write a number with a point, as 3.0",
        )
        yield replace(problem, fix=f"{setting.value}.0") if is_whole else problem


def _too_low(view: ConfigView) -> Iterator[Problem]:
    key = "monitor_config.global_norm_spike_threshold"
    if view.is_on(_SKIP) and _is_zero_or_less(view.get(key)):
        yield _reached(key, view, "every norm reaches it, so that every update is dropped", "as 3.0")
    elif view.is_on(_CHECK) and _is_zero_or_less(view.get(key)):
        yield _reached(key, view, _STOPS, "as 3.0")
    if _is_zero_or_less(view.get(_NEWER_THRESHOLD)):
        yield _reached(_NEWER_THRESHOLD, view, _STOPS, "as 3.0")
    if _is_zero_or_less(view.get(_NEWER_EMBEDDING)):
        yield _reached(_NEWER_EMBEDDING, view, _ALL_UNHEALTHY, _MEASURED)
    for callback in view.callbacks("CheckpointMonitor") if view.is_on(_HEALTH) else ():
        key = f"{callback}.embedding_local_norm_threshold"
        if _is_zero_or_less(view.get(key)):
            yield _reached(key, view, _ALL_UNHEALTHY, _MEASURED)
        elif view.get(key) is None and view.get(_NEWER_EMBEDDING) is None:
            yield note(
                _HEALTH,
                f"`{_HEALTH}` without an `embedding_local_norm_threshold` compares with 1.0, low and in squares "
                "of the norm: healthy saves may be recorded as unhealthy, and none is left to resume from",
                f"write `embedding_local_norm_threshold` under `CheckpointMonitor`, {_MEASURED}",
            )


_STOPS = "every norm reaches it, so that the run stops at its first step"
_ALL_UNHEALTHY = "every norm reaches it, so that every save is recorded as unhealthy"
_MEASURED = "as this run's log shows it: ckpttool calibrate LOG"


def _is_zero_or_less(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value <= 0


def _reached(key: str, view: ConfigView, effect: str, instead: str) -> Problem:
    return suspect(
        key, f"`{key.rpartition('.')[2]}` is {view.get(key)}: {effect}", f"write a number above 0, {instead}"
    )


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
            "write how many spikes in a row shall stop the run; 10 is the default",
        )


def _nan_hole(view: ConfigView) -> Iterator[Problem]:
    if view.is_on(_SKIP) and not view.is_on("check_for_nan_in_loss_and_grad"):
        yield note(
            _SKIP,
            "a global norm of NaN is skipped on the device but resets the count and is not logged: a run with NaN "
            "norms goes on for ever without an update",
            "write `check_for_nan_in_loss_and_grad: True` at the top level",
        )


def _some_steps(view: ConfigView) -> Iterator[Problem]:
    size = view.count("runner_config.sink_size")
    if view.is_on(_SKIP) and view.get("runner_config.sink_mode") is not False and size > 1:
        yield note(
            "runner_config.sink_size",
            f"with sinks of {size} batches the spikes are counted at the last batch of a sink alone: "
            "the others are skipped uncounted",
            "set `sink_size: 1` where the count shall mean steps",
        )


def _health_switch(view: ConfigView) -> str | None:
    """Return the setting that switches the monitor on; None where it is off."""
    if view.is_on(_HEALTH):
        return _HEALTH
    return _NEWER_EMBEDDING if view.is_newer_layout and view.get(_NEWER_EMBEDDING) else None


def _health_stages(view: ConfigView) -> Iterator[Problem]:
    switch = _health_switch(view)
    if switch is not None and view.stages == 1:
        yield suspect(
            "parallel_config.pipeline_stage" if view.setting("parallel_config.pipeline_stage") else switch,
            "the health monitor measures nothing without pipeline stages: every checkpoint is recorded as healthy",
            "set `pipeline_stage` to 2 or more, or judge by the training log: ckpttool health --threshold X --log LOG",
        )


def _health_slices(view: ConfigView) -> Iterator[Problem]:
    switch = _health_switch(view)
    if switch is not None and view.get("parallel.full_batch") is not False:
        yield suspect(
            "parallel.full_batch" if view.setting("parallel.full_batch") else switch,
            "the health monitor is documented for `full_batch: False` alone",
            "write `full_batch: False` and a `dataset_strategy` under `parallel:`",
        )


def _health_model_size(view: ConfigView) -> Iterator[Problem]:
    """The embedding is found by its number of elements, so both sizes must be known before the model is built."""
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


MONITORS = (
    Rule(code=Code.EXCLUSIVE_SWITCHES, check=_exclusive),
    Rule(code=Code.SKIP_NEEDS_CLIP_GRAD, check=_clip),
    Rule(code=Code.LOCAL_NORM_MISSING, check=_local_norm),
    Rule(code=Code.SKIP_UNWATCHED, check=_unwatched),
    Rule(code=Code.NORM_CHECK_OFF, check=_unchecked),
    Rule(code=Code.THRESHOLD_NOT_FLOAT, check=_floats, needs_all=False),
    Rule(code=Code.THRESHOLD_TOO_LOW, check=_too_low),
    Rule(code=Code.SPIKE_COUNT_INVALID, check=_spike_count, needs_all=False),
    Rule(code=Code.SKIP_NAN_HOLE, check=_nan_hole),
    Rule(code=Code.SKIP_SEES_SOME_STEPS, check=_some_steps, needs_all=False),
    Rule(code=Code.HEALTH_NEEDS_STAGES, check=_health_stages),
    Rule(code=Code.HEALTH_NEEDS_SLICES, check=_health_slices),
    Rule(code=Code.HEALTH_NEEDS_MODEL_SIZE, check=_health_model_size),
)
