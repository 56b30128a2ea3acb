"""Watching a PyNative run: saves in progress, as the trainer's tree was copied while it saved."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from ckpttool.core.domain.finding import Code, blocking
from ckpttool.core.errors import ExitCode
from tests.support.answers import cli, codes, document, named, scanned
from tests.trainers.mindformers.pynative.support import PYNATIVE, tree_of

MODEL, OPTIMIZER = "tiny-model-0000000-0000001.safetensors", "tiny-opt-0000000-0000001.safetensors"
TREES = sorted(path.parent.name for path in PYNATIVE.glob("*/checkpoint"))


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def aged(tree: Path, seconds: float) -> Path:
    """Set all times of a tree, as if the last write was that long ago."""
    before = time.time() - seconds
    for path in (*tree.rglob("*"), tree):
        os.utime(path, (before, before))
    return tree


def saving(folder: Path, *, step: int, under: dict[str, str], lacking: tuple[str, ...] = ()) -> Path:
    """Return a tree whose last save has files under temporary names, and lacks others."""
    tree = tree_of("one_rank_async_tracker_behind", folder)
    save = tree / f"iteration_{step:08d}"
    for name, temporary in under.items():
        (save / name).rename(save / temporary)
    for name in lacking:
        (save / name).unlink()
    return tree


def only(tree: Path, step: int) -> Path:
    """Leave a single save, without a tracker: the first one of a run with `async_save`."""
    (tree / "latest_checkpointed_iteration.txt").unlink()
    for save in tree.glob("iteration_*"):
        if save.name != f"iteration_{step:08d}":
            shutil.rmtree(save)
    return tree


IN_PROGRESS = {
    "model": ({MODEL: ".tmpBVubU7"}, ("common.json", OPTIMIZER)),
    "model, MindSpore's name": ({MODEL: "tiny-model-0000000-0000001.tmp"}, ("common.json", OPTIMIZER)),
    "optimizer": ({OPTIMIZER: ".tmpJwn6PG"}, ("common.json",)),
    "common.json": ({"common.json": "tmp6nidk485"}, ()),
    "asynchronous": ({OPTIMIZER: "tiny-opt-0000000-0000001.tmp"}, ()),
}
"""Temporary names, and files that come later, in the order in which the trainer writes."""


@pytest.mark.parametrize("name", TREES)
def test_all_saves_of_a_real_tree_are_good(name: str, tmp_path: Path) -> None:
    tree = aged(tree_of(name, tmp_path), 3600)
    said = cli("watch", str(tree), "--once")
    assert said.exit_code == ExitCode.OK
    assert said.output.count(" is good ") == len(list(tree.glob("iteration_*")))


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("case", IN_PROGRESS)
def test_a_save_in_progress_is_neither_good_nor_damaged(case: str, is_first: bool, tmp_path: Path) -> None:
    under, lacking = IN_PROGRESS[case]
    tree = aged(saving(tmp_path, step=30, under=under, lacking=lacking), 90)
    if is_first:
        only(tree, 30)
    said = cli("watch", str(tree), "--once")
    assert said.exit_code == ExitCode.INCOMPLETE
    assert "iteration_00000030 was not read: it is not complete yet" in said.output
    assert "iteration_00000030 is good" not in said.output
    assert blocking(named(scanned(tree), "iteration_00000030").findings)


def test_a_save_that_stopped_is_reported(tmp_path: Path) -> None:
    under, lacking = IN_PROGRESS["asynchronous"]
    tree = only(aged(saving(tmp_path, step=30, under=under, lacking=lacking), 1200), 30)
    said = cli("watch", str(tree), "--once")
    assert said.exit_code == ExitCode.DAMAGE
    assert "save-incomplete" in said.output


class TestASaveWithoutAnOptimizer:
    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        """A run with `no_save_optim: True`."""
        tree = tree_of("one_rank_killed_34", tmp_path)
        for path in tree.rglob("*-opt-*"):
            path.unlink()
        return tree

    def test_is_intact_and_not_resumed(self, tree: Path) -> None:
        assert cli("verify", str(tree), "--checkpoint", "all").exit_code == ExitCode.OK
        assert cli("resolve", str(tree)).exit_code == ExitCode.NOTHING_TO_RESUME

    def test_is_loaded_from_the_beginning_on_request(self, tree: Path) -> None:
        answer = document("resolve", str(tree), "--allow-weights-only")
        settings = {setting["place"]: setting["value"] for setting in answer["load"]["settings"]}
        assert settings["config:checkpoint.no_load_optim"] is True
        assert answer["position"]["samples"] == 0

    def test_is_damaged_if_others_have_one(self, tmp_path: Path) -> None:
        tree = saving(tmp_path / "other", step=20, under={}, lacking=(OPTIMIZER,))
        assert codes(named(scanned(tree), "iteration_00000020").findings) == {Code.SHARD_MISSING}
