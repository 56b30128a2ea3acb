"""Saves of Accelerate with DeepSpeed, whose model and optimizer are in a tag."""

from __future__ import annotations

from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.checkpoint import Checkpoint, Content
from ckpttool.core.domain.finding import blocking
from tests.support.trees import FIXTURES, writable

REAL = FIXTURES / "export" / "accelerate_zero3_2ranks" / "tree"
TAG = "checkpoints/checkpoint_0/pytorch_model"


def only(tree: Path) -> Checkpoint:
    (save,) = ckpttool.scan(str(tree)).inventory.checkpoints
    return save


def test_the_model_is_in_the_tag() -> None:
    save = only(REAL)
    assert not blocking(save.findings)
    assert (save.step, save.content, save.topology.world_size) == (2, Content.FULL, 2)
    assert sum(shard.path.startswith(f"{TAG}/") for shard in save.shards) == 4


@pytest.mark.parametrize("kind", ["model", "optim"])
def test_a_missing_file_of_a_rank_is_damage(tmp_path: Path, kind: str) -> None:
    tree = writable(REAL, tmp_path / "tree")
    lost = f"{TAG}/zero_pp_rank_1_mp_rank_00_{kind}_states.pt"
    (tree / lost).unlink()
    assert [finding.path for finding in blocking(only(tree).findings)] == [lost]


def test_a_folder_that_is_no_tag_has_no_weights(tmp_path: Path) -> None:
    tree = writable(REAL, tmp_path / "tree")
    for path in (tree / TAG).iterdir():
        path.rename(path.with_suffix(".bak"))
    assert any("no weights" in finding.message for finding in only(tree).findings)
