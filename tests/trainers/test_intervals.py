"""How often a run logs and saves, by its config or by its records."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ckpttool.core.domain.settings import StepIntervals
from ckpttool.core.verbs.configs import parse_config
from ckpttool.core.verbs.scanning import scan
from ckpttool.trainers.registry import trainer_named
from ckpttool.types import TreeQuestion
from tests.conftest import FIXTURES

CopyTree = Callable[[str], Path]

HF = "per_device_train_batch_size: 8\n"
LIGHTNING = (FIXTURES / "configs" / "lightning_cli.yaml").read_text(encoding="utf-8").replace("  logger: false\n", "")
TITAN = "[job]\ndump_folder = 'out'\n[checkpoint]\nenable = true\n"
MINDFORMERS = (FIXTURES / "configs" / "pretrain_sink2.yaml").read_text(encoding="utf-8")
MONITOR = MINDFORMERS.replace("callbacks:\n", "callbacks:\n  - type: MFLossMonitor\n")
ONE_BY_ONE = MONITOR.replace("sink_mode: True", "sink_mode: False")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("hf.yaml", HF, (500, 500)),
        ("hf.yaml", f"{HF}logging_steps: 10\nsave_steps: 200\n", (10, 200)),
        ("hf.yaml", f"{HF}logging_steps: 0.1\n", None),
        ("hf.yaml", f"{HF}logging_steps: 0.01\nsave_steps: 0.1\nmax_steps: 1000\n", (10, 100)),
        ("hf.yaml", f"{HF}logging_steps: 0.0011\nmax_steps: 1000\n", (2, 500)),
        ("hf.yaml", f"{HF}logging_steps: '10'\nsave_steps: '200'\n", (10, 200)),
        ("hf.yaml", f"{HF}logging_steps: '0.1'\nmax_steps: '50'\n", (5, 500)),
        ("hf.yaml", f"{HF}logging_steps: many\n", None),
        ("hf.yaml", f"{HF}logging_steps: 2.5\n", None),
        ("hf.yaml", f"{HF}logging_strategy: epoch\n", (None, 500)),
        ("hf.yaml", f"{HF}logging_strategy: epoch\nsave_strategy: epoch\n", (None, None)),
        ("hf.yaml", f"{HF}save_strategy: epoch\n", (500, None)),
        ("hf.yaml", f"{HF}save_strategy: 'no'\n", None),
        ("lightning.yaml", LIGHTNING, None),
        ("lightning.yaml", LIGHTNING.replace("every_n_train_steps: null", "every_n_train_steps: 100"), (50, 100)),
        ("titan.toml", TITAN, (10, 500)),
        ("titan.toml", f"{TITAN}interval = 50\n[metrics]\nlog_freq = 5\n", (5, 50)),
        ("titan.toml", TITAN.replace("true", "false"), None),
        ("mindformers.yaml", MINDFORMERS, None),
        ("mindformers.yaml", MONITOR, (2, 10)),
        ("mindformers.yaml", MONITOR.replace("Monitor\n", "Monitor\n    per_print_times: 5\n"), (6, 10)),
        ("mindformers.yaml", ONE_BY_ONE, (1, 10)),
        ("mindformers.yaml", ONE_BY_ONE.replace("save_checkpoint_steps: 10", "save_checkpoint_seconds: 60"), None),
        ("mindformers.yaml", MONITOR.replace("sink_size: 2", "sink_size: -1"), None),
    ],
)
def test_a_config_sets_the_intervals_or_the_trainer_s_defaults_apply(
    name: str, text: str, expected: tuple[int | None, int | None] | None, copy_tree: CopyTree
) -> None:
    config = parse_config(text.encode(), path=name)
    tree = scan(TreeQuestion(path=str(copy_tree("layouts/hf_single"))))  # the config counts, not the tree
    found = trainer_named(config.trainer).intervals(config, tree.storage, tree.inventory.checkpoints[0])
    assert found == (expected and StepIntervals(logged=expected[0], saved=expected[1], path=name))


def test_a_run_that_logs_no_loss_is_known(copy_tree: CopyTree) -> None:
    config = parse_config(f"{HF}logging_strategy: 'no'\n".encode(), path="hf.yaml")
    tree = scan(TreeQuestion(path=str(copy_tree("layouts/hf_single"))))
    found = trainer_named(config.trainer).intervals(config, tree.storage, tree.inventory.checkpoints[0])
    assert found == StepIntervals(logged=None, saved=None, path="hf.yaml", logs=False)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (1, 4)),
        ({"logging_steps": 4}, None),  # it logged every step
        ({"logging_steps": 4, "log_history": []}, (4, 4)),
        ({"save_steps": 5}, None),  # it saved at step 8 or 12
        ({"logging_steps": 0.1}, None),
        ({"save_steps": None}, None),
    ],
)
def test_without_a_config_the_record_of_the_checkpoint_counts_if_its_own_steps_agree(
    changes: dict[str, object], expected: tuple[int, int] | None, copy_tree: CopyTree
) -> None:
    root = copy_tree("layouts/hf_single")
    for file in root.glob("checkpoint-*/trainer_state.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | changes, indent=2, sort_keys=True) + "\n")
    tree = scan(TreeQuestion(path=str(root)))
    (newest,) = (checkpoint for checkpoint in tree.inventory.checkpoints if checkpoint.name == "checkpoint-12")
    assert tree.trainer is not None
    found = tree.trainer.intervals(None, tree.storage, newest)
    path = "checkpoint-12/trainer_state.json"
    assert found == (expected and StepIntervals(logged=expected[0], saved=expected[1], path=path))


@pytest.mark.parametrize("tree_name", ["layouts/light_single", "layouts/titan_4ranks", "sink2_ckpt", "orbax_v1"])
def test_other_checkpoints_do_not_show_the_intervals(tree_name: str, copy_tree: CopyTree) -> None:
    tree = scan(TreeQuestion(path=str(copy_tree(tree_name))))
    assert tree.trainer is not None
    assert tree.trainer.intervals(None, tree.storage, tree.inventory.checkpoints[0]) is None
