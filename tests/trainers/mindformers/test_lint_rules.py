"""Each rule finds the config that breaks it, on the line to mend, and leaves its healthy neighbour alone."""

from __future__ import annotations

import pytest

from ckpttool.domain.finding import Code, Finding, Severity
from ckpttool.formats.safe_yaml import parse_document, settings_of
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
CHECKS = SKIPS.replace("global_norm: True", "global_norm: False").replace(
    "{monitor", "{check_for_global_norm: True, monitor"
)
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
    (Code.ONLY_SAVES_STRATEGY, STARTS, ("strategy: False", "strategy: True"), 2),
    (Code.NOT_A_TRAINING, STARTS, ("run_mode: train", "run_mode: predict"), 1),
    (Code.NOT_A_TRAINING, STARTS, ("run_mode: train", "run_mode: [train]"), 1),
    (Code.MICRO_BATCHES_FEW, STARTS, ("micro_batch_num: 4", "micro_batch_num: 3"), 5),
    (Code.MICRO_BATCHES_FEW, STARTS, (", micro_batch_num: 4", ""), 5),
    (Code.DATA_STRATEGY_MISSING, STARTS, (", dataset_strategy: [[2, 1]]", ""), 4),
    (Code.DATA_STRATEGY_MISSING, STARTS, ("[[2, 1]]", "full_batch"), 4),
    (Code.EXCLUSIVE_SWITCHES, SKIPS, ("monitor_on: True", "monitor_on: True, check_for_global_norm: True"), 4),
    (
        Code.EXCLUSIVE_SWITCHES,
        SKIPS,
        ("monitor_on: True", "monitor_on: True, health_checkpoint: {global_norm_spike_threshold: 3.0}"),
        4,
    ),
    (
        Code.EXCLUSIVE_SWITCHES,
        SKIPS,
        ("monitor_on: True", "monitor_on: True, health_checkpoint: {embedding_local_norm_threshold: 270.0}"),
        4,
    ),
    (Code.SKIP_NEEDS_CLIP_GRAD, SKIPS, ("use_clip_grad: True, ", ""), 3),
    (Code.SKIP_NEEDS_CLIP_GRAD, SKIPS, ("use_clip_grad: True", "use_clip_grad: False"), 3),
    (Code.LOCAL_NORM_MISSING, SKIPS, (", local_norm: True", ""), 1),
    (Code.LOCAL_NORM_MISSING, MONITORS, ("local_norm: True", "local_norm: False"), 5),
    (Code.LOCAL_NORM_MISSING, MONITORS, ("runner_wrapper: {local_norm: True}", ""), 1),
    (Code.SKIP_UNWATCHED, SKIPS, ("monitor_on: True", "monitor_on: False"), 4),
    (Code.SKIP_UNWATCHED, SKIPS.replace("check_for_nan_in_loss_and_grad: True", ""), ("monitor_on: True, ", ""), 4),
    (
        Code.NORM_CHECK_OFF,
        SKIPS.replace("global_norm: True", "global_norm: False"),
        ("monitor_on: True", "check_for_global_norm: True"),
        4,
    ),
    (
        Code.NORM_CHECK_OFF,
        SKIPS.replace("global_norm: True", "global_norm: False"),
        ("monitor_on: True", "health_checkpoint: {global_norm_spike_threshold: 3.0}"),
        4,
    ),
    (Code.THRESHOLD_NOT_FLOAT, SKIPS, ("threshold: 3.0", "threshold: 3"), 4),
    (Code.THRESHOLD_NOT_FLOAT, SKIPS, ("threshold: 3.0", "threshold: '3.0'"), 4),
    (Code.THRESHOLD_NOT_FLOAT, SKIPS, ("threshold: 3.0", "threshold: True"), 4),
    (Code.THRESHOLD_NOT_FLOAT, SAVES, ("keep_", "embedding_local_norm_threshold: 270\n    keep_"), 5),
    (Code.THRESHOLD_TOO_LOW, SKIPS, ("threshold: 3.0", "threshold: 0.0"), 4),
    (Code.THRESHOLD_TOO_LOW, SKIPS, ("threshold: 3.0", "threshold: -1.0"), 4),
    (Code.THRESHOLD_TOO_LOW, SKIPS, ("threshold: 3.0", "threshold: 0"), 4),
    (
        Code.THRESHOLD_TOO_LOW,
        SKIPS.replace("global_norm: True", "global_norm: False").replace(
            "on: True,", "on: True, check_for_global_norm: True,"
        ),
        ("threshold: 3.0", "threshold: 0.0"),
        4,
    ),
    (
        Code.THRESHOLD_TOO_LOW,
        "monitor_config: {monitor_on: True, health_checkpoint: {global_norm_spike_threshold: 3.0}}",
        ("threshold: 3.0", "threshold: 0.0"),
        1,
    ),
    (
        Code.THRESHOLD_TOO_LOW,
        "monitor_config: {health_checkpoint: {embedding_local_norm_threshold: 270.0}}",
        ("threshold: 270.0", "threshold: -1.0"),
        1,
    ),
    (Code.THRESHOLD_TOO_LOW, MEASURED, ("threshold: 270.0", "threshold: 0.0"), 10),
    (Code.SPIKE_COUNT_INVALID, SKIPS, ("count_threshold: 10", "count_threshold: 0"), 4),
    (Code.SPIKE_COUNT_INVALID, SKIPS, ("count_threshold: 10", "count_threshold: 2.5"), 4),
    (Code.SPIKE_COUNT_INVALID, SKIPS, ("count_threshold: 10", "count_threshold: True"), 4),
    (Code.SKIP_NAN_HOLE, SKIPS, ("check_for_nan_in_loss_and_grad: True", ""), 1),
    (Code.SKIP_SEES_SOME_STEPS, SKIPS, ("sink_size: 1", "sink_size: 2"), 5),
    (Code.HEALTH_NEEDS_STAGES, MONITORS, ("pipeline_stage: 2", "pipeline_stage: 1"), 4),
    (Code.HEALTH_NEEDS_STAGES, MONITORS, ("use_parallel: True", "use_parallel: False"), 4),
    (Code.HEALTH_NEEDS_STAGES, MONITORS, (", pipeline_stage: 2", ""), 1),
    (Code.HEALTH_NEEDS_SLICES, MONITORS, ("full_batch: False", "full_batch: True"), 3),
    (Code.HEALTH_NEEDS_SLICES, MONITORS, ("full_batch: False, ", ""), 1),
    (Code.HEALTH_NEEDS_MODEL_SIZE, MONITORS, ("hidden_size: 64, ", ""), 6),
    (Code.HEALTH_NEEDS_MODEL_SIZE, MONITORS, ("vocab_size: 100", "vocab_size:"), 6),
    (Code.KEEPS_ONE_CHECKPOINT, SAVES, ("keep_checkpoint_max: 2", "keep_checkpoint_max: 1"), 5),
    (Code.SAVE_FORMAT_DIFFERS, SAVES, ("load_ckpt_format: safetensors", "load_ckpt_format: ckpt"), 6),
    (Code.SAVE_FORMAT_DIFFERS, SAVES, ("load_ckpt_format: safetensors", ""), 6),
    (Code.REDUNDANCY_NEEDS_SAFETENSORS, SAVES, ("checkpoint_format: safetensors", "checkpoint_format: ckpt"), 7),
    (Code.REDUNDANCY_NEEDS_SAFETENSORS, SAVES, ("checkpoint_format: safetensors", "x: 1"), 7),
    (Code.ASYNC_SAVE_LAGS, SAVES, ("async_save: False", "async_save: True"), 8),
    (Code.RESUME_BY_MTIME, STARTS, ("timestamp_ckpt: False", "timestamp_ckpt: True"), 6),
    (Code.YAML_ODD_NUMBER, SPELLS, ("seed: 10", "seed: 010"), 1),
    (Code.YAML_ODD_NUMBER, SPELLS, ("'010'", "12:30:00"), 2),
    (Code.YAML_NONE_IS_TEXT, SPELLS, ("null", "None"), 3),
    (Code.UNKNOWN_KEY, SPELLS, ("monitor_on", "monitor_onn"), 4),
    (Code.UNKNOWN_KEY, SPELLS, ("expert_num", "zzz"), 5),
]

NOTES = {
    Code.SKIP_NAN_HOLE, Code.SKIP_SEES_SOME_STEPS, Code.SAVE_FORMAT_DIFFERS, Code.ASYNC_SAVE_LAGS, Code.RESUME_BY_MTIME,
    Code.YAML_NONE_IS_TEXT,
}  # fmt: skip


def findings(text: str) -> list[Finding]:
    return list(lint(settings_of(parse_document(text.encode(), what="base.yaml"), path="base.yaml"), BEFORE_A_START))


def codes(text: str) -> set[Code]:
    return {finding.code for finding in findings(text)}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_config_is_left_alone(name: str) -> None:
    assert findings(HEALTHY[name]) == []


@pytest.mark.parametrize(("code", "healthy", "change", "line"), BREAKS)
def test_what_breaks_a_rule_is_found_on_its_line(code: Code, healthy: str, change: tuple[str, str], line: int) -> None:
    broken = healthy.replace(*change, 1)
    assert broken != healthy
    found = [finding for finding in findings(broken) if finding.code is code]
    assert [(finding.line, finding.path) for finding in found] == [(line, "base.yaml")]
    assert found[0].remedy
    if code is not Code.LOCAL_NORM_MISSING:
        assert found[0].severity is (Severity.NOTE if code in NOTES else Severity.SUSPECT)


@pytest.mark.parametrize(("code", "healthy", "change", "line"), BREAKS)
def test_the_healthy_neighbour_of_what_breaks_a_rule_is_not_accused_by_it(
    code: Code,
    healthy: str,
    change: tuple[str, str],
    line: int,  # noqa: ARG001  the table is the other test's
) -> None:
    assert change[0] in healthy
    assert code not in codes(healthy)


def test_every_rule_is_broken_by_some_config() -> None:
    assert {rule.code for rule in BEFORE_A_START} == {code for code, *_ in BREAKS}


def test_no_two_rules_share_a_code() -> None:
    assert len({rule.code for rule in BEFORE_A_START}) == len(BEFORE_A_START)


class TestWhatTheRulesLeaveAlone:
    """Configs that look like the broken ones and are none, by what the code of MindFormers does."""

    @pytest.mark.parametrize("name", ["llama2_legacy.yaml", "qwen3_safetensors.yaml"])
    def test_real_shapes(self, name: str) -> None:
        assert findings((TESTS / "configs" / name).read_text()) == []

    def test_the_config_of_the_fixtures(self) -> None:
        assert findings((FIXTURES / "configs" / "pretrain_sink2.yaml").read_text()) == []

    def test_a_missing_wrapper_section_because_its_defaults_clip(self) -> None:
        without = SKIPS.replace("runner_wrapper: {type: MFTrainOneStepCell, use_clip_grad: True, local_norm: True}", "")
        assert Code.SKIP_NEEDS_CLIP_GRAD not in codes(without)

    def test_the_local_norm_is_a_note_where_only_the_documentation_asks_for_it(self) -> None:
        found = [each for each in findings(SKIPS.replace(", local_norm: True", "")) if each.code]
        assert [(each.code, each.severity) for each in found] == [(Code.LOCAL_NORM_MISSING, Severity.NOTE)]
        assert findings(MONITORS.replace("local_norm: True", "x: 1"))[0].severity is Severity.SUSPECT

    def test_a_monitor_that_stands_among_the_callbacks(self) -> None:
        text = SKIPS.replace("monitor_on: True, ", "") + "callbacks: [{type: TrainingStateMonitor}]\n"
        assert findings(text) == []

    def test_both_monitors_where_nothing_watches_because_nothing_compares(self) -> None:
        text = SKIPS.replace("monitor_on: True", "health_checkpoint: {embedding_local_norm_threshold: 270.0}")
        assert Code.EXCLUSIVE_SWITCHES not in codes(text)

    def test_spikes_of_a_run_without_sinks_are_counted_by_step(self) -> None:
        assert findings(SKIPS.replace("sink_mode: True, sink_size: 1", "sink_mode: False, sink_size: 4")) == []

    def test_micro_batches_without_automatic_parallelism_count_for_nothing(self) -> None:
        for change in (("use_parallel: True", ""), ("{full_batch", "{parallel_mode: 0, full_batch")):
            assert findings(STARTS.replace(*change).replace("micro_batch_num: 4", "micro_batch_num: 1")) == []

    def test_a_size_that_is_no_number_is_another_finding_s_business(self) -> None:
        assert findings(STARTS.replace("micro_batch_num: 4", "micro_batch_num: 0")) == []

    def test_a_data_loader_that_slices_itself(self) -> None:
        text = STARTS.replace(", dataset_strategy: [[2, 1]]", "")
        assert findings(text + "train_dataset: {data_loader: {type: BlendedMegatronDatasetDataLoader}}\n") == []

    def test_model_sizes_that_come_with_a_pretrained_folder(self) -> None:
        assert findings(MONITORS.replace("hidden_size: 64, ", "") + "pretrained_model_dir: /models/x\n") == []
        assert findings(MONITORS.replace("model: {model_config: {hidden_size: 64, vocab_size: 100}}", "")) == []

    def test_the_newer_layout_keeps_one_until_the_next_is_written(self) -> None:
        text = SAVES.replace("keep_checkpoint_max: 2", "keep_checkpoint_max: 1")
        assert findings(text + "use_legacy_format: False\n") == []
        assert findings(text + "checkpoint: {save_max: 1}\n") == []

    def test_models_of_the_newer_kind_are_never_saved_as_ckpt(self) -> None:
        assert (
            findings(SAVES.replace("checkpoint_format: safetensors", "checkpoint_format: ckpt") + "use_legacy: False\n")
            == []
        )

    def test_an_asynchronous_save_in_the_newer_layout(self) -> None:
        text = SAVES.replace("async_save: False", "async_save: True").replace("load_ckpt_format: safetensors", "")
        assert findings(text + "checkpoint: {save_max: 3}\n") == []

    def test_a_number_as_text_is_found_once_and_not_by_this_rule(self) -> None:
        assert findings(SKIPS.replace("threshold: 3.0", "threshold: 3e0")) == []

    def test_a_threshold_of_0_that_nothing_compares_with(self) -> None:
        off = SKIPS.replace("global_norm: True", "global_norm: False")
        assert findings(off.replace("threshold: 3.0", "threshold: 0.0")) == []
        off = MEASURED.replace("health_monitor: True", "health_monitor: False")
        assert findings(off.replace("threshold: 270.0", "threshold: 0.0")) == []

    def test_a_threshold_of_health_that_is_not_set_is_a_note(self) -> None:
        (found,) = findings(MEASURED.replace("embedding_local_norm_threshold: 270.0", "keep_checkpoint_max: 3"))
        assert (found.code, found.severity, found.line) == (Code.THRESHOLD_TOO_LOW, Severity.NOTE, 1)
        assert "calibrate" in str(found.remedy)

    def test_an_unset_threshold(self) -> None:
        assert findings(SKIPS.replace("threshold: 3.0", "threshold:")) == []

    @pytest.mark.parametrize("number", ["0", "-1", "0.5", "0x10", "1_000", "08", "'1:30'", "2024-01-05", "1e5"])
    def test_numbers_that_are_what_they_look_like(self, number: str) -> None:
        assert findings(f"seed: {number}") == []

    @pytest.mark.parametrize("word", ["'None'", "none", "null", "~", "", "NoneType"])
    def test_words_that_are_not_exactly_pythons_none(self, word: str) -> None:
        assert findings(f"a: {word}") == []

    def test_a_top_level_key_in_a_strict_section_because_it_is_found_where_the_config_is_read(self) -> None:
        assert findings("runner_config: {resume_training: True}") == []

    def test_experts_where_nobody_reads_their_section(self) -> None:
        assert findings("use_legacy: False\nmoe_config: {anything: 1}") == []

    def test_unknown_keys_elsewhere(self) -> None:
        assert findings("model: {anything: 1}\nanything: 2\nrunner_wrapper: {anything: 3}") == []


def test_the_health_monitor_of_the_newer_layout_is_switched_on_by_its_threshold() -> None:
    text = "monitor_config: {health_checkpoint: {embedding_local_norm_threshold: 270.0}}\n"
    assert codes(text + "use_legacy_format: False\n") == {Code.HEALTH_NEEDS_STAGES, Code.HEALTH_NEEDS_SLICES}
    assert codes(text) == set()


def test_a_misspelt_key_is_recognised() -> None:
    assert findings("runner_config: {sink_sise: 2}")[0].remedy == "did you mean `sink_size`?"
    assert "remove it" in str(findings("runner_config: {zzz: 2}")[0].remedy)


def test_what_is_missing_is_not_held_against_a_config_that_takes_settings_from_another_file() -> None:
    missing = SKIPS.replace("monitor_on: True, ", "")
    assert Code.SKIP_UNWATCHED in codes(missing)
    assert codes(f"base_config: other.yaml\n{missing}".replace("threshold: 3.0", "threshold: 3")) == {
        Code.THRESHOLD_NOT_FLOAT
    }


def test_findings_come_in_the_order_of_the_file() -> None:
    text = STARTS.replace("run_mode: train", "run_mode: eval").replace("micro_batch_num: 4", "micro_batch_num: 1")
    assert [finding.line for finding in findings(f"{text}extra: 010\n")] == [1, 5, 7]


def test_a_value_that_an_alias_brings_in_is_found_where_the_alias_stands() -> None:
    text = "shared: &shared\n  monitor_on: True\n  global_norm_spike_threshold: 3\nmonitor_config: *shared\n"
    found = findings(text)
    assert [(finding.code, finding.line) for finding in found] == [(Code.THRESHOLD_NOT_FLOAT, 4)]


def nested(path: str, value: str) -> str:
    """Spell one setting, however deep, as a config of a line."""
    top, *rest = path.split(".")
    for part in reversed(rest):
        value = f"[{value}]" if part.isdigit() else f"{{{part}: {value}}}"
    return f"{top}: {value}\n"


def paths_of(text: str) -> set[str]:
    entries = settings_of(parse_document(text.encode(), what="base.yaml"), path="base.yaml").entries
    return {".".join(map(str, entry.key)) for entry in entries}


@pytest.mark.parametrize("path", sorted(set().union(*map(paths_of, HEALTHY.values()))))
def test_no_rule_fails_on_a_setting_of_another_shape(path: str) -> None:
    for value in ("null", "[]", "{}", "[[1]]", "'x'", "-1", "1.5", "True", "{a: {b: 1}}"):
        text = nested(path, value)
        switches = [f"{key}: True\n" for key in ("use_skip_data_by_global_norm", "use_checkpoint_health_monitor")]
        assert all(found.line for found in findings(text + "".join(each for each in switches if each[:9] not in text)))
