"""A running PyNative trainer must find the saves that it removes; others may be pruned."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ckpttool.core.errors import ExitCode
from tests.support.answers import cli, document
from tests.support.trainer_trees import edit_json
from tests.trainers.mindformers.pynative.support import changed, tree_of


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run killed at step 34 of 40, an hour ago."""
    monkeypatch.chdir(tmp_path)
    tree = tree_of("one_rank_killed_34", tmp_path)
    before = time.time() - 3600
    for path in (*tree.rglob("*"), tree):
        os.utime(path, (before, before))
    return tree


def saves(tree: Path) -> list[str]:
    return sorted(path.name.removeprefix("iteration_000000") for path in tree.glob("iteration_*"))


def pruned(tree: Path, *options: str) -> list[str]:
    said = cli("prune", str(tree), "--keep-last", "1", "--grace", "0", "--apply", *options)
    assert said.exit_code == ExitCode.OK, said.output
    return saves(tree)


def test_no_save_of_a_run_that_may_still_save_is_removed(tree: Path) -> None:
    assert pruned(tree) == ["10", "20", "30"]
    said = " ".join(cli("prune", str(tree), "--keep-last", "1").output.split())
    assert "may be removed by a running PyNative trainer" in said
    assert "--config gives save_max" in said


@pytest.mark.parametrize(("kept", "left"), [(-2, ["30"]), (1, ["20", "30"]), (2, ["10", "20", "30"])])
def test_saves_beyond_those_that_the_trainer_keeps_are_free(kept: int, left: list[str], tree: Path) -> None:
    Path("base.yaml").write_text(changed(save_max=kept))
    assert pruned(tree, "--config", "base.yaml") == left


def test_a_run_without_planned_steps_may_still_save(tree: Path) -> None:
    for common in tree.glob("iteration_*/common.json"):
        edit_json(common, step_num=None)
    assert pruned(tree) == ["10", "20", "30"]


def test_all_are_free_after_the_last_step(tree: Path) -> None:
    for common in tree.glob("iteration_*/common.json"):
        edit_json(common, step_num=30)
    assert pruned(tree) == ["30"]


def test_a_run_that_went_back_owns_the_saves_that_it_wrote_last(tree: Path) -> None:
    edit_json(tree / "iteration_00000030" / "common.json", step_num=30)  # a run that had ended
    now = time.time()
    for path in (tree / "iteration_00000020").iterdir():  # written by the run that was resumed from 10
        os.utime(path, (now, now))
    Path("base.yaml").write_text(changed(save_max=0))
    assert pruned(tree, "--config", "base.yaml") == ["20", "30"]


def test_the_newest_is_the_one_with_the_most_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tree = tree_of("one_rank_batch_8_to_16", tmp_path)  # 640 samples at step 40, 240 at step 30, 400 at step 25
    edit_json(tree / "iteration_00000040" / "common.json", step_num=41)
    Path("base.yaml").write_text(changed(save_max=2, global_batch_size=16))
    assert pruned(tree, "--config", "base.yaml") == ["25", "35", "40"]


@pytest.mark.parametrize("tracker", ["20", "", "40", "release", None])
def test_the_tracker_is_moved_to_the_newest_save(tracker: str | None, tmp_path: Path) -> None:
    tree = tree_of("one_rank_async_tracker_behind", tmp_path)
    record = tree / "latest_checkpointed_iteration.txt"
    if tracker is None:
        record.unlink()
    elif tracker != "20":
        record.write_text(tracker)
    assert cli("repair", "pointer", str(tree), "--grace", "0").exit_code == ExitCode.OK
    assert (record.read_text() if record.exists() else None) == tracker
    assert document("repair", "pointer", str(tree), "--grace", "0", "--apply")["schema"].startswith("ckpttool/")
    assert record.read_bytes() == b"30"  # as the trainer writes it
