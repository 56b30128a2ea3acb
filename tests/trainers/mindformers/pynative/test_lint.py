"""Each rule finds the config that breaks it, on the line to change, and accepts its healthy neighbour."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpttool.core.domain.finding import Code, Finding, Row, Severity
from ckpttool.core.errors import ExitCode
from ckpttool.core.formats.config_text import ConfigFile
from ckpttool.trainers.findings import TrainersCode
from ckpttool.trainers.mindformers.config import TrainConfigs
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.pynative.lint import BEFORE_A_START, WHEN_READ
from tests.support.answers import cli, codes
from tests.trainers.mindformers.pynative.support import BASE, changed, config_of

HEALTHY = {"max_norm": "1.0\n  use_skip_step_on_nan: True"}

WRONG_TYPE, IGNORED = TrainersCode.CONFIG_WRONG_TYPE, TrainersCode.CONFIG_KEY_IGNORED
SUSPECT, NOTE = Severity.SUSPECT, Severity.NOTE

BREAKS: list[tuple[Row, Severity, dict[str, object], str]] = [
    (WRONG_TYPE, SUSPECT, {"learning_rate": "1e-2"}, "learning_rate"),
    (WRONG_TYPE, SUSPECT, {"steps": '"40"'}, "steps"),
    (WRONG_TYPE, SUSPECT, {"steps": "4.0e+1"}, "steps"),
    (WRONG_TYPE, SUSPECT, {"steps": 0}, "steps"),
    (WRONG_TYPE, SUSPECT, {"seed": True}, "seed"),
    (WRONG_TYPE, SUSPECT, {"load_path": "null"}, "load_path"),
    (WRONG_TYPE, SUSPECT, {"async_save": "'True'"}, "async_save"),
    (WRONG_TYPE, SUSPECT, {"global_batch_size": 7}, "global_batch_size"),
    (WRONG_TYPE, SUSPECT, {"global_batch_size": 0}, "global_batch_size"),
    (WRONG_TYPE, SUSPECT, {"seed": "42\n  rampup_batch_size: [4, 3, 96]"}, "rampup_batch_size"),
    (WRONG_TYPE, SUSPECT, {"seed": "42\n  rampup_batch_size: [3, 5, 96]"}, "rampup_batch_size"),
    (WRONG_TYPE, SUSPECT, {"save_path": '""'}, "save_path"),
    (WRONG_TYPE, SUSPECT, {"save_interleaved_steps": 0}, "save_interleaved_steps"),
    (WRONG_TYPE, NOTE, {"save_interleaved_steps": -10}, "save_interleaved_steps"),
    (MindFormersCode.UNKNOWN_KEY, SUSPECT, {"prefix": "tiny\n  resume_training: True"}, "resume_training"),
    (WRONG_TYPE, SUSPECT, {"tensor_parallel": 0}, "tensor_parallel"),
    (WRONG_TYPE, SUSPECT, {"context_parallel": -1}, "context_parallel"),
    (WRONG_TYPE, SUSPECT, {"data_parallel_shard": 0}, "data_parallel_shard"),
    (WRONG_TYPE, SUSPECT, {"hidden": "8\nmonitor:"}, "monitor"),
    (WRONG_TYPE, SUSPECT, {"hidden": "8\nmonitor: [1]"}, "monitor"),
    (MindFormersCode.UNKNOWN_KEY, SUSPECT, {"seed": "42\n  epochs: 2"}, "epochs"),
    (MindFormersCode.UNKNOWN_KEY, SUSPECT, {"device_target": "CPU\n  device_id: 0"}, "device_id"),
    (MindFormersCode.UNKNOWN_KEY, SUSPECT, {"tensor_parallel": "1\n  hsdp_shard_size: 1"}, "hsdp_shard_size"),
    (Code.NOT_A_TRAINING, SUSPECT, {"hidden": "8\nrun_mode: finetune"}, "run_mode"),
    (Code.NOT_A_TRAINING, SUSPECT, {"hidden": "8\nrun_mode: predict"}, "run_mode"),
    (Code.CONFIG_DISAGREES, SUSPECT, {"prefix": "tiny\n  save_trainable_only: True"}, "save_trainable_only"),
    (Code.CONFIG_DISAGREES, SUSPECT, {"tensor_parallel": 2}, "tensor_parallel"),
    (Code.CONFIG_DISAGREES, NOTE, {"no_load_optim": True, "load_path": "./output/checkpoint"}, "no_load_optim"),
    (Code.CONFIG_DISAGREES, NOTE, {"prefix": "adopt"}, "prefix"),
    (IGNORED, SUSPECT, {"hidden": "8\nresume_training: True"}, "resume_training"),
    (IGNORED, SUSPECT, {"hidden": "8\nrunner_config: {epochs: 3}"}, "runner_config"),
    (IGNORED, NOTE, {"lr_end": "1.0e-4\n  total_steps: 4000"}, "total_steps"),
    (IGNORED, NOTE, {"hidden": "8\nmonitor: {health_checkpoint: {global_norm_skip_time: 3}}"}, "monitor"),
    (TrainersCode.SAVES_NOTHING, SUSPECT, {"enable_save": False}, "enable_save"),
    (TrainersCode.SAVES_NOTHING, SUSPECT, {"save_max": 0}, "save_max"),
    (TrainersCode.SAVES_NOTHING, SUSPECT, {"save_max": -5}, "save_max"),
    (Code.KEEPS_ONE_CHECKPOINT, NOTE, {"save_max": 1}, "save_max"),
    (Code.KEEPS_ONE_CHECKPOINT, SUSPECT, {"save_max": 1, "async_save": True}, "save_max"),
    (MindFormersCode.ASYNC_SAVE_LAGS, NOTE, {"async_save": True}, "async_save"),
    (TrainersCode.ONLY_MODEL_SAVED, SUSPECT, {"no_save_optim": True}, "no_save_optim"),
    (MindFormersCode.OPTIMIZER_ZEROED, SUSPECT, {"load_balanced": True}, "load_balanced"),
    (MindFormersCode.NAN_APPLIED, NOTE, {"use_skip_step_on_nan": False}, "use_skip_step_on_nan"),
    (MindFormersCode.YAML_ODD_NUMBER, SUSPECT, {"seed": "010"}, "seed"),
    (MindFormersCode.YAML_NONE_IS_TEXT, NOTE, {"model_type": "None"}, "model_type"),
]


def findings(text: str) -> list[Finding]:
    return list(TrainConfigs().lint(config_of(text)))


def broken(change: dict[str, object]) -> str:
    """Return the healthy config with a change, which may be of its own switch."""
    text = changed(**HEALTHY)
    switch = change.get("use_skip_step_on_nan")
    if switch is not None:
        return text.replace("use_skip_step_on_nan: True", f"use_skip_step_on_nan: {switch}")
    return changed(**HEALTHY, **change)


def test_a_healthy_config_is_accepted() -> None:
    assert findings(changed(**HEALTHY)) == []


@pytest.mark.parametrize(("code", "severity", "change", "key"), BREAKS, ids=lambda value: str(value)[:60])
def test_a_broken_rule_is_found_on_its_line(code: Row, severity: Severity, change: dict[str, object], key: str) -> None:
    text = broken(change)
    (found,) = [finding for finding in findings(text) if finding.code is code]
    assert found.severity is severity
    assert found.remedy
    assert found.line is not None
    assert text.splitlines()[found.line - 1].strip().startswith(f"{key}:")


def test_every_rule_is_broken_by_a_config() -> None:
    assert {rule.code for rule in (*WHEN_READ, *BEFORE_A_START)} == {code for code, *_ in BREAKS}


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 41},
        {"learning_rate": 1},
        {"prefix": "null"},
        {"weight_decay": 1},
        {"seed": "42\n  rampup_batch_size: null"},
        {"seed": "42\n  rampup_batch_size: [4, 2, 96]"},
        {"lr_end": "1.0e-4\n  total_steps: -1"},
        {"lr_end": "1.0e-4\n  total_steps: 40"},
        {"tensor_parallel": "2\n  sequence_parallel: True"},
        {"no_load_optim": True},
        {"load_balanced": True, "no_load_optim": True},
        {"save_path": '""', "enable_save": False},
        {"hidden": "8\n  anything: 1"},
        {"shuffle": "False\n    anything: 1"},
    ],
    ids=str,
)
def test_a_legal_value_is_accepted(change: dict[str, object]) -> None:
    allowed = {TrainersCode.SAVES_NOTHING} if change.get("enable_save") is False else set()
    assert codes(findings(broken(change))) <= allowed


def test_a_number_as_text_is_written_right_by_fix(tmp_path: Path) -> None:
    config = tmp_path / "base.yaml"
    config.write_text(changed(**HEALTHY, learning_rate="1e-2"))
    assert cli("lint", str(config), "--fix").exit_code == ExitCode.OK
    assert config.read_text() == changed(**HEALTHY, learning_rate="1.0e-2")


def test_a_static_config_is_not_read_as_one_of_this_trainer() -> None:
    assert cli("lint", "fixtures/configs/pretrain_sink2.yaml").exit_code == ExitCode.OK
    assert "runner_config" not in BASE


def test_a_section_without_settings_is_the_only_problem_of_its_settings() -> None:
    section, rest = BASE.partition("training:")[::2]
    assert "save_path" in section
    (found,) = [finding for finding in findings(f"training:{rest}checkpoint:\n") if finding.code is WRONG_TYPE]
    assert "`checkpoint:` must have settings" in found.message


OF_OTHERS = {
    "torchtitan": "training: {local_batch_size: 8, global_batch_size: 64, steps: 9, seq_len: 2048}\n"
    "parallelism: {data_parallel_shard_degree: -1}\ncheckpoint: {enable: true, folder: c, interval: 5}\n"
    "lr_scheduler: {warmup_steps: 2}\n",
    "common words": "training: {steps: 9, lr: 0.1}\ncheckpoint: {save_path: out}\nmodel: {name: x}\n",
    "a name of a model": "training: {steps: 9, batch: 3}\nmodel: {architectures: [LlamaForCausalLM]}\n",
    "mostly other keys": "training: {global_batch_size: 9, epochs: 3}\n"
    "parallelism: {tensor_parallel: 2, pipeline_parallel: 2, zero: 1}\n",
}


@pytest.mark.parametrize("name", OF_OTHERS)
def test_the_yaml_of_another_program_is_not_taken_for_a_config(name: str) -> None:
    content = OF_OTHERS[name].encode()
    assert TrainConfigs().read(ConfigFile(path="base.yaml", content=content)) is None
