"""Each rule about a config finds the one that breaks it, on its line, and leaves its neighbour alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckpttool.core.domain.finding import Code, Finding, Row, Severity
from ckpttool.core.errors import ConfigError, ForeignConfigError
from ckpttool.core.verbs import configs
from ckpttool.trainers import registry
from ckpttool.trainers.deepspeed.findings import DeepSpeedCode
from ckpttool.trainers.findings import TrainersCode
from tests.support.commands import ask
from tests.support.trainer_trees import healthy

HF = """\
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
save_strategy: steps
save_total_limit: 2
save_only_model: false
resume_from_checkpoint: outputs/checkpoint-8
ignore_data_skip: false
"""
TITAN = """\
# torchtitan 0.2
[job]
dump_folder = "./outputs"

[checkpoint]
enable = true
keep_latest_k = 2
last_save_model_only = false
exclude_from_loading = []
"""
OLD_TITAN = """\
[checkpoint]
enable_checkpoint = true
last_save_model_weights_only = false
"""
LIGHTNING = """\
seed_everything: 1
trainer:
  enable_checkpointing: true
  callbacks:
    - class_path: lightning.pytorch.callbacks.LearningRateMonitor
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args:
        every_n_epochs: 1
        save_top_k: 1
        save_last: true
        save_weights_only: false
ckpt_path: checkpoints/epoch=1.ckpt
"""
OF_SEVERAL = """\
fit:
  ckpt_path: null
  trainer:
    callbacks:
      class_path: pytorch_lightning.callbacks.ModelCheckpoint
      init_args: {save_last: link}
"""
DEEPSPEED = """\
{
\t"train_batch_size": 16,
\t"train_micro_batch_size_per_gpu": 4,
\t"gradient_accumulation_steps": 2,
\t"zero_optimization": {"stage": 1},
\t"checkpoint": {
\t\t"load_universal": false
\t}
}
"""
OLMO = """\
{
  "trainer": {
    "save_folder": "/ckpt/run",
    "load_strategy": "if_available",
    "no_checkpoints": false,
    "load_trainer_state": null,
    "callbacks": {"checkpointer": {
      "enabled": true,
      "max_checkpoints": 3
    }}
  }
}
"""
COMPOSER = """\
global_train_batch_size: 16
save_folder: run/checkpoints
save_num_checkpoints_to_keep: 2
save_weights_only: false
autoresume: false
load_path: run/checkpoints/ep0-ba8-rank0.pt
spin_dataloaders: true
"""
HEALTHY = {
    "args.yaml": ("huggingface", HF),
    "train.toml": ("torchtitan", TITAN),
    "old.toml": ("torchtitan", OLD_TITAN),
    "fit.yaml": ("lightning", LIGHTNING),
    "several.yaml": ("lightning", OF_SEVERAL),
    "ds.json": ("deepspeed", DEEPSPEED),
    "config.json": ("olmo-core", OLMO),
    "pretrain.yaml": ("composer", COMPOSER),
}

NOTE, SUSPECT = Severity.NOTE, Severity.SUSPECT
BREAKS = [
    ("args.yaml", ("limit: 2", "limit: 1"), Code.KEEPS_ONE_CHECKPOINT, NOTE, 4),
    ("args.yaml", ("only_model: false", "only_model: true"), TrainersCode.ONLY_MODEL_SAVED, SUSPECT, 5),
    ("args.yaml", ("checkpoint: outputs/checkpoint-8", "checkpoint: true"), TrainersCode.RESUME_TRUE, NOTE, 6),
    ("args.yaml", ("skip: false", "skip: true"), Code.DATA_RESTARTS, NOTE, 7),
    ("args.yaml", ("strategy: steps", "strategy: 'no'"), TrainersCode.SAVES_NOTHING, SUSPECT, 3),
    ("args.yaml", ("strategy: steps", "strategy: no"), TrainersCode.SAVES_NOTHING, SUSPECT, 3),
    ("args.yaml", ("strategy: steps", "strategy: best"), TrainersCode.KEEPS_BEST_ALONE, NOTE, 3),
    ("train.toml", ("latest_k = 2", "latest_k = 1"), Code.KEEPS_ONE_CHECKPOINT, SUSPECT, 7),
    ("train.toml", ("enable = true", "enable = false"), TrainersCode.SAVES_NOTHING, NOTE, 6),
    ("train.toml", ("enable = true\n", ""), TrainersCode.SAVES_NOTHING, NOTE, 5),
    ("train.toml", ("model_only = false", "model_only = true"), TrainersCode.ONLY_MODEL_SAVED, NOTE, 8),
    ("train.toml", ("last_save_model_only = false\n", ""), TrainersCode.ONLY_MODEL_SAVED, NOTE, 5),
    ("train.toml", ("loading = []", 'loading = ["optimizer", "dataloader"]'), Code.DATA_RESTARTS, NOTE, 9),
    ("train.toml", ("loading = []", 'loading = "lr_scheduler,dataloader"'), Code.DATA_RESTARTS, NOTE, 9),
    ("old.toml", ("weights_only = false", "weights_only = true"), TrainersCode.ONLY_MODEL_SAVED, NOTE, 3),
    ("fit.yaml", ("weights_only: false", "weights_only: true"), TrainersCode.ONLY_MODEL_SAVED, SUSPECT, 11),
    ("fit.yaml", ("every_n_epochs: 1", "monitor: val_loss"), TrainersCode.KEEPS_BEST_ALONE, NOTE, 8),
    ("fit.yaml", ("pointing: true", "pointing: false"), TrainersCode.SAVES_NOTHING, SUSPECT, 3),
    ("fit.yaml", ("checkpoints/epoch=1.ckpt", "last"), TrainersCode.RESUME_TRUE, NOTE, 12),
    ("several.yaml", ("{save_last: link}", "{save_top_k: 0}"), TrainersCode.SAVES_NOTHING, SUSPECT, 6),
    ("several.yaml", ("{save_last: link}", "{save_weights_only: true}"), TrainersCode.ONLY_MODEL_SAVED, SUSPECT, 6),
    ("several.yaml", ("ckpt_path: null", "ckpt_path: last"), TrainersCode.RESUME_TRUE, NOTE, 2),
    ("config.json", ('points": false', 'points": true'), TrainersCode.SAVES_NOTHING, SUSPECT, 5),
    ("config.json", ('enabled": true', 'enabled": false'), TrainersCode.SAVES_NOTHING, SUSPECT, 8),
    ("config.json", ('checkpoints": 3', 'checkpoints": 1'), Code.KEEPS_ONE_CHECKPOINT, NOTE, 9),
    ("config.json", ('state": null', 'state": false'), Code.DATA_RESTARTS, NOTE, 6),
    ("ds.json", ('universal": false', 'universal": true'), DeepSpeedCode.UNIVERSAL_STAYS, NOTE, 7),
    ("pretrain.yaml", ("keep: 2", "keep: 1"), Code.KEEPS_ONE_CHECKPOINT, NOTE, 3),
    ("pretrain.yaml", ("keep: 2", "keep: 0"), TrainersCode.SAVES_NOTHING, SUSPECT, 3),
    ("pretrain.yaml", ("save_folder: run/checkpoints\n", ""), TrainersCode.SAVES_NOTHING, NOTE, 4),
    ("pretrain.yaml", ("weights_only: false", "weights_only: true"), TrainersCode.ONLY_MODEL_SAVED, SUSPECT, 4),
    ("pretrain.yaml", ("autoresume: false", "autoresume: true"), TrainersCode.RESUME_TRUE, NOTE, 5),
    (
        "pretrain.yaml",
        ("autoresume: false", "autoresume: true\nsave_latest_filename: null"),
        TrainersCode.RESUME_TRUE,
        SUSPECT,
        6,
    ),
    ("pretrain.yaml", ("dataloaders: true", "dataloaders: false"), Code.DATA_RESTARTS, NOTE, 7),
]  # fmt: skip


def findings(text: str, path: str) -> tuple[Finding, ...]:
    config = configs.parse_config(text.encode(), path=path)
    reader = registry.trainer_named(config.trainer).configs
    assert reader is not None
    return reader.lint(config)


@pytest.mark.parametrize("path", HEALTHY)
def test_a_healthy_config_is_its_trainer_s_own_and_left_alone(path: str) -> None:
    trainer, text = HEALTHY[path]
    assert configs.parse_config(text.encode(), path=path).trainer == trainer
    assert findings(text, path) == ()


@pytest.mark.parametrize(("path", "change", "code", "severity", "line"), BREAKS)
def test_what_breaks_a_rule(path: str, change: tuple[str, str], code: Row, severity: Severity, line: int) -> None:
    healthy_text = HEALTHY[path][1]
    broken = healthy_text.replace(*change, 1)
    assert broken != healthy_text
    (found,) = findings(broken, path)
    assert (found.code, found.severity, found.line, found.path) == (code, severity, line, path)
    assert found.remedy


def test_a_last_that_nothing_writes_weighs_more_than_one_that_may_be_stale() -> None:
    text = OF_SEVERAL.replace("ckpt_path: null", "ckpt_path: last").replace("save_last: link", "save_top_k: -1")
    (found,) = findings(text, "fit.yaml")
    assert (found.code, found.severity) == (TrainersCode.RESUME_TRUE, Severity.SUSPECT)
    without_callback = "seed_everything: 1\nckpt_path: last\ntrainer: {max_epochs: 1}\n"  # Python may set one
    assert [found.severity for found in findings(without_callback, "fit.yaml")] == [Severity.NOTE]


def test_last_beside_a_metric_is_a_copy_of_the_best_and_no_cure() -> None:
    """With Lightning 2.6 the run ended at step 24, and last.ckpt held step 8."""
    best = LIGHTNING.replace("every_n_epochs: 1", "monitor: val_loss")
    for text in (
        best,
        best.replace("save_last: true", "save_last: link"),
        best.replace("save_last: true", "mode: min"),
    ):
        (found,) = findings(text, "fit.yaml")
        assert found.code is TrainersCode.KEEPS_BEST_ALONE
        assert "add a ModelCheckpoint without `monitor`" in (found.remedy or "")
    assert findings(best.replace("save_top_k: 1", "save_top_k: -1"), "fit.yaml") == ()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("auto_resume_from_checkpoints: true\n", [TrainersCode.RESUME_TRUE]),
        ("auto_resume_from_checkpoints: true\nresume_from_checkpoint: out/checkpoint-8\n", []),
        ("auto_resume_from_checkpoints: false\n", []),
    ],
)
def test_axolotls_automatic_resume_names_no_save(text: str, found: list[Row]) -> None:
    config = f"base_model: x\nmicro_batch_size: 2\n{text}"
    assert [finding.code for finding in findings(config, "axolotl.yaml")] == found


def test_the_same_arguments_are_judged_alike_in_json_and_in_yaml() -> None:
    arguments = {"per_device_train_batch_size": 2, "save_only_model": True, "learning_rate": 1e-05}
    text = json.dumps(arguments, indent="\t")
    in_json, in_yaml = findings(text, "a.json"), findings(text.replace("\t", " "), "a.yaml")
    assert [(found.code, found.line) for found in in_json] == [(TrainersCode.ONLY_MODEL_SAVED, 3)]
    assert [(found.code, found.line) for found in in_yaml] == [(TrainersCode.ONLY_MODEL_SAVED, 3)]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("pyproject.toml", '[project]\nname = "x"\n[tool.job]\ndump_folder = "x"\n'),
        ("package.json", '{"name": "x", "config": {"zero_optimization": {}, "save_total_limit": 1}}'),
        ("nested.yaml", "training: {save_total_limit: 1, zero_optimization: {}}\n"),
        ("trainer.yaml", "seed_everything: 1\ntrainer: Trainer\n"),
        ("class.yaml", "trainer: {max_epochs: 1}\nmodel: {class_path: M}\n"),
        ("nemo.yaml", "trainer: {enable_checkpointing: false}\nexp_manager: {}\nckpt_path: null\n"),
        ("hydra.yaml", "defaults: [data]\nckpt_path: last\ntrainer: {enable_checkpointing: false}\n"),
        ("target.yaml", "ckpt_path: last\ntrainer: {_target_: lightning.Trainer}\n"),
    ],
)
def test_a_word_that_stands_elsewhere_makes_no_config_of_a_trainer_s(path: str, text: str) -> None:
    with pytest.raises(ForeignConfigError, match="is not a training config that ckpttool recognizes"):
        configs.parse_config(text.encode(), path=path)


def test_toml_that_is_broken_or_says_a_thing_twice_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"train\.toml.*line 10"):
        configs.parse_config((TITAN + "enable =\n").encode(), path="train.toml")
    with pytest.raises(ConfigError, match=r"set before, on line 1"):
        configs.parse_config(b'{"steps_per_print": 1,\n "steps_per_print": 2}', path="ds.json")


@pytest.mark.parametrize(
    ("change", "replicas"),
    [
        (("x", "x"), 2),
        (("16", '"auto"'), None),
        (("16", "17"), None),
        (('"gradient_accumulation_steps": 2,', ""), None),
        (('"zero_optimization"', '"sequence_parallel_size": 2, "zero_optimization"'), None),
    ],
)
def test_data_parallel_ranks_are_told_by_deepspeed_s_sizes(change: tuple[str, str], replicas: int | None) -> None:
    config = configs.parse_config(DEEPSPEED.replace(*change).encode(), path="ds.json")
    assert (config.replicas, config.world_size) == (replicas, None)  # whether parts of the model make more of them?


class TestPreflight:
    @pytest.mark.parametrize(("batch", "code"), [(8, 0), (4, 11)])
    def test_deepspeed_s_sizes_must_fit_the_ranks(self, tmp_path: Path, batch: int, code: int) -> None:
        tree, config = healthy("ds_zero1_2ranks", tmp_path), tmp_path / "ds.json"
        sizes = {"train_batch_size": batch, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1}
        config.write_text(json.dumps({**sizes, "zero_optimization": {"stage": 1}}))
        said = ask("preflight", str(tree), "--config", str(config))
        assert said.code == code
        assert ("--dp 1, not 2" in " ".join(said.stdout.split())) == (code != 0)
