"""Each rule finds the config that breaks it, on the line to mend, and leaves its healthy neighbour alone."""

from __future__ import annotations

import pytest

from ckpttool.core.domain.finding import Code, Finding, Row, Severity
from ckpttool.core.formats.safe_yaml import parse_document, settings_of
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.lint import BEFORE_A_START, lint
from tests.conftest import FIXTURES, TESTS

# Those of when a config is read are broken one by one where its reading is tested.

SKIPS = """\
use_skip_data_by_global_norm: True
check_for_nan_in_loss_and_grad: True
runner_wrapper: {type: MFTrainOneStepCell, use_clip_grad: True, local_norm: True}
monitor_config: {monitor_on: True, global_norm_spike_threshold: 3.0, global_norm_spike_count_threshold: 10}
runner_config: {sink_mode: True, sink_size: 1}
"""
MONITORS = """\
use_checkpoint_health_monitor: True
use_parallel: True
parallel: {full_batch: False, dataset_strategy: [[2, 1]]}
parallel_config: {data_parallel: 2, pipeline_stage: 2, micro_batch_num: 2}
runner_wrapper: {local_norm: True}
model: {model_config: {hidden_size: 64, vocab_size: 100}}
"""
MEASURED = f"""\
{MONITORS}\
callbacks:
  - type: MFLossMonitor
  - type: CheckpointMonitor
    embedding_local_norm_threshold: 270.0
"""
SAVES = """\
load_ckpt_format: safetensors
callbacks:
  - type: MFLossMonitor
  - type: CheckpointMonitor
    keep_checkpoint_max: 2
    checkpoint_format: safetensors
    remove_redundancy: True
    async_save: False
"""
STARTS = """\
run_mode: train
only_save_strategy: False
use_parallel: True
parallel: {full_batch: False, dataset_strategy: [[2, 1]]}
parallel_config: {data_parallel: 2, pipeline_stage: 4, micro_batch_num: 4}
resume_by_last_timestamp_ckpt: False
"""
SPELLS = """\
seed: 10
started: '010'
model: {head: null}
monitor_config: {monitor_on: False}
moe_config: {expert_num: 8}
"""
HEALTHY = {
    "skips": SKIPS,
    "monitors": MONITORS,
    "measured": MEASURED,
    "saves": SAVES,
    "starts": STARTS,
    "spells": SPELLS,
}

# Code, the healthy config, what is changed in it, and the line on which it is found.
BREAKS = [
    (MindFormersCode.ONLY_SAVES_STRATEGY, STARTS, ("strategy: False", "strategy: True"), 2),
    (Code.NOT_A_TRAINING, STARTS, ("run_mode: train", "run_mode: predict"), 1),
    (Code.NOT_A_TRAINING, STARTS, ("run_mode: train", "run_mode: [train]"), 1),
    (MindFormersCode.MICRO_BATCHES_FEW, STARTS, ("micro_batch_num: 4", "micro_batch_num: 3"), 5),
    (MindFormersCode.MICRO_BATCHES_FEW, STARTS, (", micro_batch_num: 4", ""), 5),
    (MindFormersCode.DATA_STRATEGY_MISSING, STARTS, (", dataset_strategy: [[2, 1]]", ""), 4),
    (MindFormersCode.DATA_STRATEGY_MISSING, STARTS, ("[[2, 1]]", "full_batch"), 4),
    (
        MindFormersCode.EXCLUSIVE_SWITCHES,
        SKIPS,
        ("monitor_on: True", "monitor_on: True, check_for_global_norm: True"),
        4,
    ),
    (
        MindFormersCode.EXCLUSIVE_SWITCHES,
        SKIPS,
        ("monitor_on: True", "monitor_on: True, health_checkpoint: {global_norm_spike_threshold: 3.0}"),
        4,
    ),
    (
        MindFormersCode.EXCLUSIVE_SWITCHES,
        SKIPS,
        ("monitor_on: True", "monitor_on: True, health_checkpoint: {embedding_local_norm_threshold: 270.0}"),
        4,
    ),
    (MindFormersCode.SKIP_NEEDS_CLIP_GRAD, SKIPS, ("use_clip_grad: True, ", ""), 3),
    (MindFormersCode.SKIP_NEEDS_CLIP_GRAD, SKIPS, ("use_clip_grad: True", "use_clip_grad: False"), 3),
    (MindFormersCode.LOCAL_NORM_MISSING, SKIPS, (", local_norm: True", ""), 1),
    (MindFormersCode.LOCAL_NORM_MISSING, MONITORS, ("local_norm: True", "local_norm: False"), 5),
    (MindFormersCode.LOCAL_NORM_MISSING, MONITORS, ("runner_wrapper: {local_norm: True}", ""), 1),
    (MindFormersCode.SKIP_UNWATCHED, SKIPS, ("monitor_on: True", "monitor_on: False"), 4),
    (
        MindFormersCode.SKIP_UNWATCHED,
        SKIPS.replace("check_for_nan_in_loss_and_grad: True", ""),
        ("monitor_on: True, ", ""),
        4,
    ),
    (
        MindFormersCode.NORM_CHECK_OFF,
        SKIPS.replace("global_norm: True", "global_norm: False"),
        ("monitor_on: True", "check_for_global_norm: True"),
        4,
    ),
    (
        MindFormersCode.NORM_CHECK_OFF,
        SKIPS.replace("global_norm: True", "global_norm: False"),
        ("monitor_on: True", "health_checkpoint: {global_norm_spike_threshold: 3.0}"),
        4,
    ),
    (MindFormersCode.THRESHOLD_NOT_FLOAT, SKIPS, ("threshold: 3.0", "threshold: 3"), 4),
    (MindFormersCode.THRESHOLD_NOT_FLOAT, SKIPS, ("threshold: 3.0", "threshold: '3.0'"), 4),
    (MindFormersCode.THRESHOLD_NOT_FLOAT, SKIPS, ("threshold: 3.0", "threshold: True"), 4),
    (MindFormersCode.THRESHOLD_NOT_FLOAT, SAVES, ("keep_", "embedding_local_norm_threshold: 270\n    keep_"), 5),
    (MindFormersCode.THRESHOLD_TOO_LOW, SKIPS, ("threshold: 3.0", "threshold: 0.0"), 4),
    (MindFormersCode.THRESHOLD_TOO_LOW, SKIPS, ("threshold: 3.0", "threshold: -1.0"), 4),
    (MindFormersCode.THRESHOLD_TOO_LOW, SKIPS, ("threshold: 3.0", "threshold: 0"), 4),
    (
        MindFormersCode.THRESHOLD_TOO_LOW,
        SKIPS.replace("global_norm: True", "global_norm: False").replace(
            "on: True,", "on: True, check_for_global_norm: True,"
        ),
        ("threshold: 3.0", "threshold: 0.0"),
        4,
    ),
    (
        MindFormersCode.THRESHOLD_TOO_LOW,
        "monitor_config: {monitor_on: True, health_checkpoint: {global_norm_spike_threshold: 3.0}}",
        ("threshold: 3.0", "threshold: 0.0"),
        1,
    ),
    (
        MindFormersCode.THRESHOLD_TOO_LOW,
        "monitor_config: {health_checkpoint: {embedding_local_norm_threshold: 270.0}}",
        ("threshold: 270.0", "threshold: -1.0"),
        1,
    ),
    (MindFormersCode.THRESHOLD_TOO_LOW, MEASURED, ("threshold: 270.0", "threshold: 0.0"), 10),
    (MindFormersCode.SPIKE_COUNT_INVALID, SKIPS, ("count_threshold: 10", "count_threshold: 0"), 4),
    (MindFormersCode.SPIKE_COUNT_INVALID, SKIPS, ("count_threshold: 10", "count_threshold: 2.5"), 4),
    (MindFormersCode.SPIKE_COUNT_INVALID, SKIPS, ("count_threshold: 10", "count_threshold: True"), 4),
    (MindFormersCode.SKIP_NAN_HOLE, SKIPS, ("check_for_nan_in_loss_and_grad: True", ""), 1),
    (MindFormersCode.SKIP_SEES_SOME_STEPS, SKIPS, ("sink_size: 1", "sink_size: 2"), 5),
    (MindFormersCode.HEALTH_NEEDS_STAGES, MONITORS, ("pipeline_stage: 2", "pipeline_stage: 1"), 4),
    (MindFormersCode.HEALTH_NEEDS_STAGES, MONITORS, ("use_parallel: True", "use_parallel: False"), 4),
    (MindFormersCode.HEALTH_NEEDS_STAGES, MONITORS, (", pipeline_stage: 2", ""), 1),
    (MindFormersCode.HEALTH_NEEDS_SLICES, MONITORS, ("full_batch: False", "full_batch: True"), 3),
    (MindFormersCode.HEALTH_NEEDS_SLICES, MONITORS, ("full_batch: False, ", ""), 1),
    (MindFormersCode.HEALTH_NEEDS_MODEL_SIZE, MONITORS, ("hidden_size: 64, ", ""), 6),
    (MindFormersCode.HEALTH_NEEDS_MODEL_SIZE, MONITORS, ("vocab_size: 100", "vocab_size:"), 6),
    (Code.KEEPS_ONE_CHECKPOINT, SAVES, ("keep_checkpoint_max: 2", "keep_checkpoint_max: 1"), 5),
    (MindFormersCode.SAVE_FORMAT_DIFFERS, SAVES, ("load_ckpt_format: safetensors", "load_ckpt_format: ckpt"), 6),
    (MindFormersCode.SAVE_FORMAT_DIFFERS, SAVES, ("load_ckpt_format: safetensors", ""), 6),
    (
        MindFormersCode.REDUNDANCY_NEEDS_SAFETENSORS,
        SAVES,
        ("checkpoint_format: safetensors", "checkpoint_format: ckpt"),
        7,
    ),
    (MindFormersCode.REDUNDANCY_NEEDS_SAFETENSORS, SAVES, ("checkpoint_format: safetensors", "x: 1"), 7),
    (MindFormersCode.ASYNC_SAVE_LAGS, SAVES, ("async_save: False", "async_save: True"), 8),
    (MindFormersCode.RESUME_BY_MTIME, STARTS, ("timestamp_ckpt: False", "timestamp_ckpt: True"), 6),
    (MindFormersCode.YAML_ODD_NUMBER, SPELLS, ("seed: 10", "seed: 010"), 1),
    (MindFormersCode.YAML_ODD_NUMBER, SPELLS, ("'010'", "12:30:00"), 2),
    (MindFormersCode.YAML_NONE_IS_TEXT, SPELLS, ("null", "None"), 3),
    (MindFormersCode.UNKNOWN_KEY, SPELLS, ("monitor_on", "monitor_onn"), 4),
    (MindFormersCode.UNKNOWN_KEY, SPELLS, ("expert_num", "zzz"), 5),
]

NOTES = {
    MindFormersCode.SKIP_NAN_HOLE,
    MindFormersCode.SKIP_SEES_SOME_STEPS,
    MindFormersCode.SAVE_FORMAT_DIFFERS,
    MindFormersCode.ASYNC_SAVE_LAGS,
    MindFormersCode.RESUME_BY_MTIME,
    MindFormersCode.YAML_NONE_IS_TEXT,
}


def findings(text: str) -> list[Finding]:
    return list(lint(settings_of(parse_document(text.encode(), where="base.yaml"), path="base.yaml"), BEFORE_A_START))


def codes(text: str) -> set[Row]:
    return {finding.code for finding in findings(text)}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_config_is_left_alone(name: str) -> None:
    assert findings(HEALTHY[name]) == []


@pytest.mark.parametrize(("code", "healthy", "change", "line"), BREAKS)
def test_what_breaks_a_rule_is_found_on_its_line(code: Row, healthy: str, change: tuple[str, str], line: int) -> None:
    broken = healthy.replace(*change, 1)
    assert broken != healthy
    assert code not in codes(healthy)
    found = [finding for finding in findings(broken) if finding.code is code]
    assert [(finding.line, finding.path) for finding in found] == [(line, "base.yaml")]
    assert found[0].remedy
    if code is not MindFormersCode.LOCAL_NORM_MISSING:
        assert found[0].severity is (Severity.NOTE if code in NOTES else Severity.SUSPECT)


def test_every_rule_is_broken_by_some_config() -> None:
    assert {rule.code for rule in BEFORE_A_START} == {code for code, *_ in BREAKS}


WITHOUT_MONITOR = SKIPS.replace("monitor_on: True, ", "")
WITHOUT_STRATEGY = STARTS.replace(", dataset_strategy: [[2, 1]]", "")
ONE_KEPT = SAVES.replace("keep_checkpoint_max: 2", "keep_checkpoint_max: 1")
LAGS = SAVES.replace("async_save: False", "async_save: True").replace("load_ckpt_format: safetensors", "")
NO_NORM = SKIPS.replace("global_norm: True", "global_norm: False").replace("threshold: 3.0", "threshold: 0.0")
NO_HEALTH = MEASURED.replace("health_monitor: True", "health_monitor: False").replace(
    "threshold: 270.0", "threshold: 0.0"
)
ONE_BATCH = STARTS.replace("micro_batch_num: 4", "micro_batch_num: 1")
WITHOUT_SIZES = MONITORS.replace("model: {model_config: {hidden_size: 64, vocab_size: 100}}", "")
AS_CKPT = SAVES.replace("checkpoint_format: safetensors", "checkpoint_format: ckpt")
LEFT_ALONE = {
    "a real shape of the legacy layout": (TESTS / "configs" / "llama2_legacy.yaml").read_text(),
    "a real shape of safetensors": (TESTS / "configs" / "qwen3_safetensors.yaml").read_text(),
    "the config of the fixtures": (FIXTURES / "configs" / "pretrain_sink2.yaml").read_text(),
    "a monitor that stands among the callbacks": f"{WITHOUT_MONITOR}callbacks: [{{type: TrainingStateMonitor}}]\n",
    "spikes of a run without sinks": SKIPS.replace("sink_mode: True, sink_size: 1", "sink_mode: False, sink_size: 4"),
    "micro batches of one device": ONE_BATCH.replace("use_parallel: True", ""),
    "micro batches without automatic parallelism": ONE_BATCH.replace("{full_batch", "{parallel_mode: 0, full_batch"),
    "a size that is not a number, another's business": STARTS.replace("micro_batch_num: 4", "micro_batch_num: 0"),
    "a data loader that slices itself": (
        f"{WITHOUT_STRATEGY}train_dataset: {{data_loader: {{type: BlendedMegatronDatasetDataLoader}}}}\n"
    ),
    "sizes of a pretrained folder": MONITORS.replace("hidden_size: 64, ", "") + "pretrained_model_dir: /models/x\n",
    "no sizes of a model at all": WITHOUT_SIZES,
    "one save of the newer layout, kept until the next is written": f"{ONE_KEPT}use_legacy_format: False\n",
    "one save by the section of the newer layout": f"{ONE_KEPT}checkpoint: {{save_max: 1}}\n",
    "a model of the newer kind, never saved as ckpt": f"{AS_CKPT}use_legacy: False\n",
    "an asynchronous save in the newer layout": f"{LAGS}checkpoint: {{save_max: 3}}\n",
    "a number as text, found elsewhere": SKIPS.replace("threshold: 3.0", "threshold: 3e0"),
    "a threshold of 0 that no norm is compared with": NO_NORM,
    "a threshold of 0 that no health is compared with": NO_HEALTH,
    "an unset threshold": SKIPS.replace("threshold: 3.0", "threshold:"),
    "a top-level key in a strict section, found where the config is read": "runner_config: {resume_training: True}",
    "experts where nobody reads their section": "use_legacy: False\nmoe_config: {anything: 1}",
    "unknown keys elsewhere": "model: {anything: 1}\nanything: 2\nrunner_wrapper: {anything: 3}",
    **{
        f"{number}, which is what it looks like": f"seed: {number}"
        for number in ("0", "-1", "0.5", "0x10", "1_000", "08", "'1:30'", "2024-01-05", "1e5")
    },
    **{f"{word}, not Python's None": f"a: {word}" for word in ("'None'", "none", "null", "~", "", "NoneType")},
}
"""Configs that look like the broken ones and are none, by what the code of MindFormers does."""


@pytest.mark.parametrize("text", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_what_only_looks_like_a_broken_config_is_left_alone(text: str) -> None:
    assert findings(text) == []


def test_the_local_norm_is_a_note_where_only_the_documentation_asks_for_it() -> None:
    (found,) = findings(SKIPS.replace(", local_norm: True", ""))
    assert (found.code, found.severity) == (MindFormersCode.LOCAL_NORM_MISSING, Severity.NOTE)
    assert findings(MONITORS.replace("local_norm: True", "x: 1"))[0].severity is Severity.SUSPECT


def test_a_threshold_of_health_that_is_not_set_is_a_note() -> None:
    (found,) = findings(MEASURED.replace("embedding_local_norm_threshold: 270.0", "keep_checkpoint_max: 3"))
    assert (found.code, found.severity, found.line) == (MindFormersCode.THRESHOLD_TOO_LOW, Severity.NOTE, 1)
    assert "calibrate" in str(found.remedy)


def test_the_health_monitor_of_the_newer_layout_is_switched_on_by_its_threshold() -> None:
    text = "monitor_config: {health_checkpoint: {embedding_local_norm_threshold: 270.0}}\n"
    assert codes(text + "use_legacy_format: False\n") == {
        MindFormersCode.HEALTH_NEEDS_STAGES,
        MindFormersCode.HEALTH_NEEDS_SLICES,
    }
    assert codes(text) == set()


def test_a_misspelt_key_is_recognised() -> None:
    assert findings("runner_config: {sink_sise: 2}")[0].remedy == "did you mean `sink_size`?"
    assert "remove it" in str(findings("runner_config: {zzz: 2}")[0].remedy)


def test_what_is_missing_is_not_held_against_a_config_that_takes_settings_from_another_file() -> None:
    missing = SKIPS.replace("monitor_on: True, ", "")
    assert MindFormersCode.SKIP_UNWATCHED in codes(missing)
    assert codes(f"base_config: other.yaml\n{missing}".replace("threshold: 3.0", "threshold: 3")) == {
        MindFormersCode.THRESHOLD_NOT_FLOAT
    }


def test_a_value_that_an_alias_brings_in_is_found_where_the_alias_stands() -> None:
    text = "shared: &shared\n  monitor_on: True\n  global_norm_spike_threshold: 3\nmonitor_config: *shared\n"
    found = findings(text)
    assert [(finding.code, finding.line) for finding in found] == [(MindFormersCode.THRESHOLD_NOT_FLOAT, 4)]


def nested(path: str, value: str) -> str:
    """Spell one setting, however deep, as a config of a line."""
    top, *rest = path.split(".")
    for part in reversed(rest):
        value = f"[{value}]" if part.isdigit() else f"{{{part}: {value}}}"
    return f"{top}: {value}\n"


def paths_of(text: str) -> set[str]:
    entries = settings_of(parse_document(text.encode(), where="base.yaml"), path="base.yaml").entries
    return {".".join(map(str, entry.key)) for entry in entries}


@pytest.mark.parametrize("path", sorted(set().union(*map(paths_of, HEALTHY.values()))))
def test_no_rule_fails_on_a_setting_of_another_shape(path: str) -> None:
    for value in ("null", "[]", "{}", "[[1]]", "'x'", "-1", "1.5", "True", "{a: {b: 1}}"):
        text = nested(path, value)
        switches = [f"{key}: True\n" for key in ("use_skip_data_by_global_norm", "use_checkpoint_health_monitor")]
        assert all(found.line for found in findings(text + "".join(each for each in switches if each[:9] not in text)))
