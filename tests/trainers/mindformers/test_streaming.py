"""Streaming data go on from state files alone: on which ranks, and what cannot be asked of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ckpttool.core.domain.advice import Spike
from ckpttool.core.domain.data_position import BatchSegment, DataQuestion
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.units import Rank, Step
from ckpttool.health.rules.detour import advise_spike
from ckpttool.trainers.mindformers import streaming
from ckpttool.trainers.mindformers.streaming import not_movable, read_states, state_folder, unusable_states, writers
from ckpttool.trainers.mindformers.train_config import StreamingData
from tests.support.plans import SCALARS, resume_plan
from tests.trainers.mindformers.test_launch_check import FITS

EACH = StreamingData(state_dir="states", broadcast=False, level=3, stages=2, slices=2)
SENT = replace(EACH, broadcast=True)


@pytest.mark.parametrize(
    ("stream", "world", "expected"),
    [
        (EACH, 8, range(8)),
        (EACH, None, None),
        (SENT, None, None),
        (SENT, 1, [0]),
        (SENT, 8, [0, 2, 4, 6]),
        (replace(SENT, stages=1, slices=4), 4, [0, 1, 2, 3]),
        (replace(SENT, stages=4), 16, [0, 2, 12, 14]),
        (replace(SENT, stages=4, level=1), 16, [0, 1, 2, 3, 12, 13, 14, 15]),
        (replace(SENT, stages=4, level=2), 16, range(0, 16, 2)),
        (replace(SENT, stages=4, level=0), 16, range(16)),
        (replace(SENT, slices=None), 8, None),
        (replace(SENT, stages=None), 8, None),
        (replace(SENT, slices=3), 8, None),
    ],
)
def test_ranks_that_read_data(stream: StreamingData, world: int | None, expected: list[int] | range | None) -> None:
    found = writers(stream, world)
    assert (None if found is None else list(found)) == (None if expected is None else list(expected))


def refused(plan: ResumePlan, **asked: object) -> list[str]:
    found = not_movable(FITS, plan, DataQuestion(**asked))  # type: ignore[arg-type]  # fields differ in type
    return [finding.message.partition(" would move")[0] for finding in found]


def test_what_moves_the_position_is_refused_and_what_leaves_it_is_not() -> None:
    plan = resume_plan()
    assert refused(plan) == []
    assert refused(plan, new_dataset=True) == ["--new-dataset"]
    assert refused(plan, dataset_changed_at=Step(10)) == ["--dataset-changed-at"]
    assert refused(plan, dataset_changed_at=Step(0)) == []
    assert refused(plan, segments=(BatchSegment(steps=10, global_batch_size=4),)) == ["--segment"]
    assert refused(plan, segments=(BatchSegment(steps=10, global_batch_size=8),)) == []
    assert refused(resume_plan(global_batch_size=16)) == ["batches of 16 samples"]
    unknown = replace(SCALARS, global_batch_size=None)
    assert refused(resume_plan(global_batch_size=16, scalars=unknown)) == []
    assert refused(resume_plan(global_batch_size=None)) == []


def test_a_way_around_a_spike_is_refused_and_waiting_is_not() -> None:
    good = [Step(30)]
    for end, expected in ((None, ["--around-spike"]), (Step(205), [])):
        advice = advise_spike(Spike(onset=Step(200), end=end), good, newest=Step(400))
        assert refused(replace(resume_plan(), advice=advice)) == expected
    nowhere = advise_spike(Spike(onset=Step(200), end=None), [], newest=Step(400))
    assert refused(replace(resume_plan(), advice=nowhere)) == []


def test_a_training_that_begins_reads_no_state() -> None:
    plan = resume_plan()
    assert state_folder(EACH, plan) == "states/step_30"
    assert state_folder(EACH, replace(plan, next_step=Step(1))) is None
    assert state_folder(replace(EACH, state_dir=None), plan) is None


def test_many_ranks_are_counted_and_each_kind_of_trouble_is_said() -> None:
    ranks = [Rank(rank) for rank in range(10)]
    missing, broken = unusable_states("states/step_3", ranks, [(Rank(11), "torn")])
    assert "of rank 0, 1, 2, 3, 4, 5, 6, 7 and 2 more as dataset_state_rank0.json" in missing.message
    assert missing.ranks == tuple(ranks)
    assert (broken.message, broken.ranks) == ("the data loader's state of rank 11 cannot be loaded: torn", (11,))
    assert list(unusable_states("states/step_3", [], [])) == []


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
