"""Rules about skipping data by the global norm. Read in, and tried on, MindFormers 1.6 to 2.1."""

from __future__ import annotations

from collections.abc import Iterator

from ckpttool.decide.lint_engine import Problem, Rule, note, suspect
from ckpttool.domain.finding import Code
from ckpttool.domain.settings import Value
from ckpttool.trainers.mindformers.lint.view import ConfigView

SKIP = "use_skip_data_by_global_norm"
HEALTH = "use_checkpoint_health_monitor"
CHECK = "monitor_config.check_for_global_norm"
MONITOR = "monitor_config.monitor_on"
NEWER_THRESHOLD = "monitor_config.health_checkpoint.global_norm_spike_threshold"
NEWER_EMBEDDING = "monitor_config.health_checkpoint.embedding_local_norm_threshold"


def _is_watched(view: ConfigView) -> bool:
    """Tell whether somebody counts, logs and stops: MindFormers adds the callback only with `monitor_on: True`."""
    return view.is_on(MONITOR) or bool(view.callbacks("TrainingStateMonitor"))


def _exclusive(view: ConfigView) -> Iterator[Problem]:
    if not view.is_on(SKIP):
        return
    if view.is_on(CHECK):
        yield suspect(
            CHECK,
            f"`check_for_global_norm` and `{SKIP}` cannot both be on: MindFormers stops with a ValueError, "
            "at the end of the first step",
            f"set one of them to False: `{SKIP}` passes over a spike, `check_for_global_norm` stops at it",
        )
    elif view.get(NEWER_THRESHOLD):
        yield suspect(
            NEWER_THRESHOLD,
            f"a `global_norm_spike_threshold` under `health_checkpoint:` switches `check_for_global_norm` on in "
            f"MindFormers 1.9 and later, which cannot be on together with `{SKIP}`: ValueError at the first step",
            "move the threshold up into `monitor_config:`",
        )
    elif _is_watched(view) and (view.is_on(HEALTH) or view.is_section("monitor_config.health_checkpoint")):
        key = HEALTH if view.is_on(HEALTH) else "monitor_config.health_checkpoint"
        yield suspect(
            key,
            f"with `{key.rpartition('.')[2]}` MindFormers 1.9 and later forget the threshold that `{SKIP}` compares "
            "with: TypeError at the end of the first step (1.6 to 1.8 can do both)",
            f"switch off `{SKIP}` or the health monitor",
        )


def _clip(view: ConfigView) -> Iterator[Problem]:
    # A missing section gets MindFormers' defaults, and there clipping is on; a section of one's own gets none of them.
    if view.is_on(SKIP) and view.is_section("runner_wrapper") and not view.is_on("runner_wrapper.use_clip_grad"):
        yield suspect(
            "runner_wrapper.use_clip_grad",
            f"`{SKIP}` compares the global norm, which is computed only while gradients are clipped: without "
            "`use_clip_grad: True` the first step fails (the documentation does not say so)",
            "write `use_clip_grad: True` under `runner_wrapper:`",
        )


def _local_norm(view: ConfigView) -> Iterator[Problem]:
    if view.is_on("runner_wrapper.local_norm"):
        return
    if view.is_on(HEALTH):
        yield suspect(
            view.at("runner_wrapper.local_norm", HEALTH),
            f"`{HEALTH}` needs the local norms: without `local_norm: True` the first save fails with a ValueError "
            "(which speaks of skipping data)",
            "write `local_norm: True` under `runner_wrapper:`",
        )
    elif view.is_on(SKIP):
        yield note(
            SKIP,
            f"the documentation asks for `local_norm: True` with `{SKIP}`; the code of 1.6 to 2.1 does without",
            "write `local_norm: True` under `runner_wrapper:` to be on the safe side",
        )


def _unwatched(view: ConfigView) -> Iterator[Problem]:
    if not view.is_on(SKIP) or _is_watched(view):
        return
    if view.is_on("check_for_nan_in_loss_and_grad"):
        yield suspect(
            view.at(MONITOR, SKIP),
            f"`{SKIP}` without `monitor_on: True`, but with `check_for_nan_in_loss_and_grad`: the monitor is added "
            "without a threshold, and the first step fails with a TypeError",
            "write `monitor_on: True` under `monitor_config:`",
        )
    else:
        yield suspect(
            view.at(MONITOR, SKIP),
            f"`{SKIP}` without `monitor_on: True` skips in silence: updates are left out, but nothing counts them, "
            "logs them or stops the run",
            "write `monitor_on: True` under `monitor_config:`",
        )


def _unchecked(view: ConfigView) -> Iterator[Problem]:
    key = CHECK if view.is_on(CHECK) else NEWER_THRESHOLD
    if (view.is_on(CHECK) or view.get(NEWER_THRESHOLD)) and not _is_watched(view):
        yield suspect(
            key,
            f"`{key.rpartition('.')[2]}` has no effect while `monitor_on` is not True: no spike stops the run",
            "write `monitor_on: True` under `monitor_config:`",
        )


def _floats(view: ConfigView) -> Iterator[Problem]:
    keys = ["monitor_config.global_norm_spike_threshold", NEWER_THRESHOLD, NEWER_EMBEDDING]
    keys += [f"{key}.embedding_local_norm_threshold" for key in view.callbacks("CheckpointMonitor")]
    for key in keys:
        setting = view.setting(key)
        if setting is None or setting.value is None or isinstance(setting.value, float):
            continue
        if isinstance(setting.value, str) and setting.spelt is not None and "e" in setting.spelt.lower():
            continue  # `3e0`: that YAML takes it for text is found, with its cure, wherever it stands
        yield suspect(
            key,
            f"`{key.rpartition('.')[2]}` must be a float, but {_shown(setting.value)} is none: MindFormers stops "
            "with a TypeError",
            f"write {_as_float(setting.value)}",
        )


def _shown(value: Value) -> str:
    return f"the text {value!r}" if isinstance(value, str) else repr(value)


def _as_float(value: Value) -> str:
    return f"{value}.0" if isinstance(value, int) and not isinstance(value, bool) else "a number with a point, as 3.0"


def _spike_count(view: ConfigView) -> Iterator[Problem]:
    key = "monitor_config.global_norm_spike_count_threshold"
    value = view.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        yield suspect(
            key,
            f"`global_norm_spike_count_threshold` must be a whole number of at least 1, not {_shown(value)}: "
            "MindFormers stops with a TypeError",
            "write how many spikes in a row shall stop the run; 10 is the default",
        )


def _nan_hole(view: ConfigView) -> Iterator[Problem]:
    if view.is_on(SKIP) and not view.is_on("check_for_nan_in_loss_and_grad"):
        yield note(
            SKIP,
            "a global norm of NaN is skipped on the device but resets the count and is not logged: a run with NaN "
            "norms goes on for ever without an update",
            "write `check_for_nan_in_loss_and_grad: True` at the top level",
        )


def _some_steps(view: ConfigView) -> Iterator[Problem]:
    size = view.count("runner_config.sink_size")
    if view.is_on(SKIP) and view.get("runner_config.sink_mode") is not False and size > 1:
        yield note(
            "runner_config.sink_size",
            f"with sinks of {size} batches the spikes are counted at the last batch of a sink alone: "
            "the others are skipped uncounted",
            "set `sink_size: 1` where the count shall mean steps",
        )


SKIPPING = (
    Rule(code=Code.EXCLUSIVE_SWITCHES, check=_exclusive),
    Rule(code=Code.SKIP_NEEDS_CLIP_GRAD, check=_clip),
    Rule(code=Code.LOCAL_NORM_MISSING, check=_local_norm),
    Rule(code=Code.SKIP_UNWATCHED, check=_unwatched),
    Rule(code=Code.NORM_CHECK_OFF, check=_unchecked),
    Rule(code=Code.THRESHOLD_NOT_FLOAT, check=_floats, needs_all=False),
    Rule(code=Code.SPIKE_COUNT_INVALID, check=_spike_count, needs_all=False),
    Rule(code=Code.SKIP_NAN_HOLE, check=_nan_hole),
    Rule(code=Code.SKIP_SEES_SOME_STEPS, check=_some_steps, needs_all=False),
)
