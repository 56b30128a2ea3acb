"""Folders of any name beside the saves of a training: no number in a name becomes a step, and nothing is lost to it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.question import ResumeQuestion, TreeQuestion
from ckpttool.core.domain.retention import PruneOrder, Pruning, RetentionPolicy, Why
from tests.support.answers import chosen, codes, going, plan, reasons, refusal, scanned, why_not
from tests.support.trainer_trees import healthy

NAMES = (
    "llama-70b-init", "llama-3-8b", "llama3", "gpt2", "opt-125m", "bert-base-12", "qwen2.5-72b",
    "pythia-160m-step143000", "mixtral-8x7b", "phi_4", "base_model_7", "init_0", "pretrained-1000",
    "backup_2026", "backup-20260101", "backup_1767225600", "2026-01-01", "20260101", "checkpoint_20260101",
    "step_20260101", "ckpt_1767225600", "step_1767225600000", "old_99", "copy_99", "archive.99", "save_99",
    "snapshot99",
    "ckpt-20B", "ckpt-20b-tokens", "checkpoint-5k", "step_1e5", "tokens_300", "samples-4096", "300B",
    "latest-rank0", "rank_0", "rank7", "node3", "host-12", "dp_4", "tp8", "pp2", "world_8",
    "step100-loss2.31", "loss-2.31", "acc_97", "val_loss=0.31", "best_100", "top-3", "ema_999", "avg_10", "swa-5",
    "final", "last", "latest", "best",
    "epoch_2", "epoch-100", "ep3", "epoch=99", "epoch3_step900",
    "run_2", "exp-42", "trial_7", "seed_1234", "job_987654", "stage2", "phase_3", "v100", "version_8",
    "step_99_backup", "step_99.old", "step_", "iter_99", "checkpoint-99", "99",
)  # fmt: skip


def prune(root: Path, *, apply: bool = False) -> Pruning:
    order = PruneOrder(apply=apply, grace=0.0)
    return ckpttool.prune(TreeQuestion(path=str(root)), RetentionPolicy(keep_last=1), order)


def beside(root: Path, name: str, tmp_path: Path) -> Path:
    """Lay weights without a counter into a tree."""
    weights = healthy("titan_last_model_only", tmp_path / "weights") / "checkpoint" / "step-7"
    shutil.copytree(weights, root / name)
    return root


def step_of(root: Path, name: str) -> int | None:
    return next(save.step for save in scanned(root).checkpoints if save.name == name)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NAMES)
def test_no_number_in_a_folders_name_becomes_a_step_beside_saves_that_hold_theirs(name: str, tmp_path: Path) -> None:
    root = beside(healthy("dcp_fsdp2_4ranks", tmp_path), name, tmp_path)
    assert step_of(root, name) is None
    assert chosen(plan(root)) == ("step_000015", 15)
    assert going(root) == {"step_000005", "step_000010"}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NAMES)
def test_no_number_in_a_name_becomes_a_step_beside_named_saves(name: str, tmp_path: Path) -> None:
    root = beside(tmp_path / "run", "step_50", tmp_path)
    shutil.copytree(root / "step_50", root / "step_100")
    shutil.copytree(root / "step_50", root / name)
    assert step_of(root, name) is None
    assert chosen(plan(root)) == ("step_100", 100)
    assert going(root) == set()


def test_a_base_model_beside_the_training_costs_no_save(tmp_path: Path) -> None:
    root = beside(tmp_path / "run", "llama-70b-init", tmp_path)
    shutil.copytree(root / "llama-70b-init", root / "step_50")
    found = plan(root)
    assert chosen(found) == ("step_50", 50)
    assert why_not(found) == [("llama-70b-init", {Code.STEP_UNKNOWN})]
    assert Code.STEP_UNKNOWN in codes(found.point.findings)
    fates = {fate.checkpoint.name: fate.why for fate in prune(root, apply=True).plan.fates}
    assert fates == {"llama-70b-init": (Why.STEP_UNKNOWN,), "step_50": (Why.STEP_UNKNOWN,)}
    assert (root / "step_50" / ".metadata").exists()


def test_what_only_a_name_tells_in_a_mixed_tree_is_not_sealed(tmp_path: Path) -> None:
    root = beside(tmp_path / "run", "step_50", tmp_path)
    assert not next(iter(ckpttool.seal(str(root), "step_50"))).findings
    shutil.rmtree(root / ".ckpttool")
    (root / "step_50" / "ckpttool.json").unlink(missing_ok=True)
    shutil.copytree(root / "step_50", root / "base-7b")
    (sealing,) = ckpttool.seal(str(root), "step_50")
    assert codes(sealing.findings) == {Code.STEP_UNKNOWN}
    assert not sealing.written


def test_one_folder_whose_name_and_counter_are_far_apart_is_not_chosen(tmp_path: Path) -> None:
    root = healthy("dcp_fsdp2_4ranks", tmp_path)
    for name in ("step_000005", "step_000010"):
        shutil.rmtree(root / name)
    (root / "step_000015").rename(root / "step_000012")
    assert why_not(refusal(root)) == [("step_000012", {Code.STEP_DISAGREES})]
    assert chosen(plan(root, choice=ResumeQuestion(name="step_000012"))) == ("step_000012", 15)
    (root / "step_000012").rename(root / "step_000016")  # a loop may count its first step as 0
    assert chosen(plan(root)) == ("step_000016", 15)
    assert codes(plan(root).point.findings) == {Code.STEP_DISAGREES}


def test_a_counter_that_stays_the_same_in_all_saves_is_no_step(tmp_path: Path) -> None:
    root = healthy("dcp_fsdp2_4ranks", tmp_path)
    for name in ("step_000010", "step_000015"):
        shutil.rmtree(root / name)
        shutil.copytree(root / "step_000005", root / name)
    (root / "step_000005").rename(root / "step_000020")
    assert {save.step for save in scanned(root).checkpoints} == {None}
    assert {code for _, found in why_not(refusal(root)) for code in found} == {Code.STEP_UNKNOWN}
    assert going(root) == set()


def test_a_copy_of_an_orbax_step_that_is_gone_is_told_by_its_times(tmp_path: Path) -> None:
    root = healthy("orbax_standard", tmp_path)
    shutil.move(root / "10", root / "99")
    assert codes(reasons(plan(root), "99")) == {Code.TIMES_DISAGREE}
    assert prune(root).plan.good[0].name == "30"
