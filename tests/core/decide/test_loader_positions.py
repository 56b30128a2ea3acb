"""Positions of data loaders are compared only if they must have moved, and each warning has a healthy neighbour."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ckpttool.core.decide.loader_positions import compared, of_one_save
from ckpttool.core.domain.finding import Code, Finding, Severity
from ckpttool.core.domain.loader_state import LoaderState, SavedLoader
from ckpttool.core.domain.units import Rank, Step
from tests.support.inventories import checkpoint

EARLIER, LATER = (replace(checkpoint(f"{step}_1"), name=f"save-{step}", step=Step(step)) for step in (10, 20))


def state(epoch: int, batches: int, **values: Any) -> LoaderState:  # noqa: ANN401  fields of a state
    fields = {"epoch": epoch, "batches": batches, "order": (epoch, batches), "is_strict": True, **values}
    return LoaderState(kind="a loader", **fields)


def loader(position: LoaderState | None, rank: int | None = None, key: str = "", **values: Any) -> SavedLoader:  # noqa: ANN401  fields
    path = f"save/loader_{rank}.pt"
    return SavedLoader(path=path, key=key, rank=None if rank is None else Rank(rank), state=position, **values)


def since(now: LoaderState, before: LoaderState) -> list[Finding]:
    return compared(LATER, [loader(now)], EARLIER, [loader(before)])


def alone(*loaders: SavedLoader, is_newest: bool = True) -> list[Finding]:
    return list(of_one_save(loaders, is_newest=is_newest))


class TestBack:
    def test_an_earlier_batch_of_the_same_epoch_went_back(self) -> None:
        (found,) = since(state(1, 3), state(1, 5))
        assert (found.code, found.severity) == (Code.DATA_POSITION_BACK, Severity.SUSPECT)
        assert found.message == (
            "the data position went back: epoch 1, 3 batches, but epoch 1, 5 batches in the earlier save save-10"
        )

    def test_an_earlier_epoch_went_back_wherever_it_is(self) -> None:
        assert [found.code for found in since(state(0, 9), state(1, 1))] == [Code.DATA_POSITION_BACK]

    @pytest.mark.parametrize("now", [state(1, 6), state(2, 0), state(2, 1)])
    def test_a_later_batch_or_a_new_epoch_did_not(self, now: LoaderState) -> None:
        assert since(now, state(1, 5)) == []

    @pytest.mark.parametrize("other", [{"identity": ("seed=2",)}, {"kind": "another"}, {"order": ()}, {"order": (3,)}])
    def test_another_data_set_or_an_unknown_position_is_not_compared(self, other: dict[str, Any]) -> None:
        assert since(replace(state(1, 3, identity=("seed=1",)), **other), state(1, 5, identity=("seed=1",))) == []

    def test_the_same_rank_and_name_are_compared_and_several_ranks_are_one_finding(self) -> None:
        now = [loader(state(0, count), rank) for rank, count in enumerate((5, 1, 1))]
        before = [loader(state(0, 4), rank) for rank in (0, 1, 2)]
        (found,) = compared(LATER, now, EARLIER, before)
        assert compared(LATER, now, EARLIER, before[:2]) == []
        assert compared(LATER, now, EARLIER, [loader(state(0, 9), 0), *before[1:]])[0].ranks == (0, 1, 2)
        assert (found.path, found.ranks) == ("save/loader_1.pt", (1, 2))
        assert compared(LATER, [loader(state(0, 1), key="a")], EARLIER, [loader(state(0, 4), key="b")]) == []
        added = [loader(state(0, 1), key="a"), loader(state(0, 1), key="b")]
        assert [found.code for found in compared(LATER, added, EARLIER, [loader(state(0, 4), key="a")])] == [
            Code.DATA_POSITION_BACK
        ]
        assert compared(LATER, [loader(None)], EARLIER, [loader(state(0, 4))]) == []

    @pytest.mark.parametrize("key", ["data.eval", "val_dataloader", "app.test_loader", "validation", "eval.data"])
    def test_a_loader_for_evaluation_may_begin_again_or_stay(self, key: str) -> None:
        before = [loader(state(0, 4), key=key)]
        assert compared(LATER, [loader(state(0, 1), key=key)], EARLIER, before) == []
        assert compared(LATER, before, EARLIER, before) == []
        train = [loader(state(0, 4), key="data.retrieval_train")]
        assert [found.code for found in compared(LATER, train, EARLIER, train)] == [Code.DATA_POSITION_STILL]


class TestStill:
    def test_the_same_batch_after_more_steps_did_not_change(self) -> None:
        (found,) = since(state(1, 5), state(1, 5))
        assert (found.code, found.severity) == (Code.DATA_POSITION_STILL, Severity.SUSPECT)
        where = "as in the save save-10, 10 steps earlier"
        assert found.message == f"the data position did not change: epoch 1, 5 batches, {where}"

    def test_a_position_that_need_not_grow_with_each_batch_may_be_the_same(self) -> None:
        assert since(state(1, 5, is_strict=False), state(1, 5, is_strict=False)) == []
        assert since(state(1, 5, order=()), state(1, 5, order=())) == []

    def test_a_data_set_alone_that_never_moved_is_reported_only_from_the_second_save_on(self) -> None:
        still = LoaderState(kind="datasets", never_moved=True)
        assert alone(loader(still)) == []
        assert [found.code for found in since(still, still)] == [Code.DATA_POSITION_STILL]
        assert since(replace(still, never_moved=False), still) == []
        assert since(replace(still, epoch=1), replace(still, epoch=0)) == []  # both at the start of their epochs

    def test_a_data_set_that_never_moved_although_its_loader_did_is_reported_at_once(self) -> None:
        now = state(0, 5, never_moved=True, order=())
        (found,) = alone(loader(now))
        assert (found.code, "had yielded 5 batches" in found.message) == (Code.DATA_POSITION_STILL, True)
        assert since(now, state(0, 4, never_moved=True, order=())) == []  # it is reported once
        assert alone(loader(state(0, 5))) == []
        assert alone(loader(state(0, 0, never_moved=True))) == []


class TestDiffers:
    def test_ranks_at_other_batches_than_most_are_named(self) -> None:
        positions = [loader(state(0, count, is_lockstep=True), rank) for rank, count in enumerate((7, 7, 5, 7, 6))]
        (found,) = alone(*positions)
        assert (found.code, found.severity) == (Code.DATA_POSITION_DIFFERS, Severity.SUSPECT)
        assert (found.ranks, found.path) == ((2, 4), "save/loader_4.pt")
        assert found.message == "the data loaders of the ranks are apart: 6 batches on rank 4, but 7 on rank 0"

    def test_equal_ranks_do_not_differ_and_neither_do_loaders_that_need_not_agree(self) -> None:
        assert alone(*(loader(state(0, 7, is_lockstep=True), rank) for rank in range(4))) == []
        assert alone(*(loader(state(0, rank), rank) for rank in range(4))) == []
        assert alone(*(loader(state(0, count, is_lockstep=True)) for count in (1, 2))) == []  # two loaders of all ranks

    def test_two_loaders_of_the_same_ranks_are_not_compared_with_each_other(self) -> None:
        counts = {"train.dp_rank_0": 7, "train.dp_rank_1": 7, "valid.dp_rank_0": 2, "valid.dp_rank_1": 2}
        several = {key: loader(state(0, count, is_lockstep=True), int(key[-1]), key) for key, count in counts.items()}
        assert alone(*several.values()) == []
        several["valid.dp_rank_1"] = loader(state(0, 1, is_lockstep=True), 1, "valid.dp_rank_1")
        assert [found.ranks for found in alone(*several.values())] == [(1,)]


class TestAtTheEnd:
    def test_a_state_that_yields_nothing_is_suspect_in_the_newest_save_and_a_note_in_an_older_one(self) -> None:
        ended = loader(state(0, 5, yields_nothing="the sampler is at its end"), 0, remedy="move it away")
        (found,) = alone(ended)
        assert (found.code, found.severity, found.remedy) == (
            Code.DATA_POSITION_AT_END,
            Severity.SUSPECT,
            "move it away",
        )
        assert found.message == "a resume from this data position yields no batches at first: the sampler is at its end"
        assert [found.severity for found in alone(ended, is_newest=False)] == [Severity.NOTE]

    def test_a_finished_loader_that_begins_its_next_epoch_is_not(self) -> None:
        assert alone(loader(state(0, 5, finished=True))) == []


def test_code_in_a_state_is_unsafe_and_an_unknown_kind_is_no_finding() -> None:
    (found,) = alone(loader(None, key="dataloader", is_unsafe=True, problem="would run code: it names 'os.system'"))
    assert (found.code, found.severity) == (Code.UNSAFE_PICKLE, Severity.UNSAFE)
    assert found.message == "the data loader's state dataloader would run code: it names 'os.system'"
    assert alone(loader(None, problem="unknown kind: keys a")) == []
