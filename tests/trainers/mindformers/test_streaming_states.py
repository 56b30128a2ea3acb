"""The states of streaming data are looked for as the loader looks for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckpttool.domain.units import Rank
from ckpttool.trainers.mindformers import streaming
from ckpttool.trainers.mindformers.streaming import read_states

RANKS = [Rank(rank) for rank in range(3)]
GOOD = json.dumps({"examples_iterable": {"shard_idx": 0}, "_train_state": {"cur_iter": 8, "global_step": 2}})


def states(folder: Path, **texts: str) -> Path:
    for rank in RANKS:
        (folder / f"dataset_state_rank{rank}.json").write_text(texts.get(f"rank{rank}", GOOD))
    return folder


def test_states_of_all_ranks_are_good_and_one_more_does_no_harm(tmp_path: Path) -> None:
    states(tmp_path)
    (tmp_path / "dataset_state_rank7.json").touch()
    found = read_states(str(tmp_path), RANKS)
    assert (found.missing, found.broken, found.unread) == ((), (), ())


def test_a_rank_without_a_file_and_a_step_without_a_folder_are_missing(tmp_path: Path) -> None:
    (states(tmp_path) / "dataset_state_rank1.json").unlink()
    assert read_states(str(tmp_path), RANKS).missing == (1,)
    assert read_states(str(tmp_path / "step_9"), RANKS).missing == (0, 1, 2)
    (tmp_path / "file").touch()
    assert read_states(str(tmp_path / "file"), RANKS).missing == (0, 1, 2)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"_train_state": 3}'])
def test_what_the_loader_cannot_load_is_broken(text: str, tmp_path: Path) -> None:
    found = read_states(str(states(tmp_path, rank2=text)), RANKS)
    assert (found.missing, [rank for rank, _ in found.broken], found.unread) == ((), [2], ())


def test_what_cannot_be_looked_at_is_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "STATE_LIMIT", 10)
    found = read_states(str(states(tmp_path)), RANKS)
    assert (found.missing, found.broken, [rank for rank, _ in found.unread]) == ((), (), [0, 1, 2])
