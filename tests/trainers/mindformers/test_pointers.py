"""What the trainer's records shall name."""

from __future__ import annotations

from ckpttool.domain.retention import RecordFix, SavedLast
from ckpttool.domain.units import EpochStep, Rank
from ckpttool.trainers.mindformers.pointers import left_behind, repairs
from tests.inventories import checkpoint

OLD, MIDDLE, NEW = checkpoint("10_2"), checkpoint("20_2", ranks=range(3)), checkpoint("30_2", ranks=range(2))


def record(rank: int, label: str) -> SavedLast:
    epoch, step = map(int, label.split("_"))
    file = f"llama_rank_{rank}-{label}.ckpt"
    return SavedLast(
        path=f"rank_{rank}/meta.json", rank=Rank(rank), file=file, position=EpochStep(epoch=epoch, step=step)
    )


def named(fixes: list[RecordFix]) -> dict[str, str]:
    return {fix.path: fix.file for fix in fixes}


def test_only_records_of_what_goes_are_mended_each_with_the_best_that_its_rank_has() -> None:
    records = [record(0, "10_2"), record(1, "30_2"), record(2, "10_2")]
    assert named(list(left_behind(records, [OLD], [NEW, MIDDLE]))) == {
        "rank_0/meta.json": "llama_rank_0-30_2.ckpt",
        "rank_2/meta.json": "llama_rank_2-20_2.ckpt",
    }


def test_a_rank_on_which_nothing_whole_stays_keeps_its_record() -> None:
    assert list(left_behind([record(3, "10_2")], [OLD], [NEW, MIDDLE])) == []


def test_a_record_that_names_nothing_is_no_business_of_a_prune() -> None:
    torn = SavedLast(path="rank_0/meta.json", rank=Rank(0), trouble="is torn or edited")
    assert list(left_behind([torn], [OLD], [NEW])) == []
    assert [(fix.trouble, fix.file) for fix in repairs([torn], NEW)] == [
        ("is torn or edited", "llama_rank_0-30_2.ckpt")
    ]


def test_a_record_of_another_rank_s_file_is_no_record_of_what_goes() -> None:
    foreign = SavedLast(path="rank_0/meta.json", rank=Rank(0), file="llama_rank_1-10_2.ckpt")
    assert list(left_behind([foreign], [OLD], [NEW])) == []


def test_a_tracker_names_folders() -> None:
    tracker = SavedLast(path="tracker", rank=None, file="10_2")
    assert named(list(left_behind([tracker], [OLD], [NEW, MIDDLE]))) == {"tracker": "30_2"}
    assert list(left_behind([tracker], [MIDDLE], [NEW])) == []
    assert named(list(repairs([tracker], NEW))) == {"tracker": "30_2"}
    assert list(repairs([tracker], OLD)) == []


def test_a_record_that_is_right_is_left_alone() -> None:
    assert list(repairs([record(0, "30_2"), record(1, "30_2")], NEW)) == []
    wrong = SavedLast(
        path="rank_0/meta.json", rank=Rank(0), file="llama_rank_0-30_2.ckpt", position=EpochStep(epoch=3, step=2)
    )
    assert [fix.position for fix in repairs([wrong], NEW)] == [EpochStep(epoch=30, step=2)]
