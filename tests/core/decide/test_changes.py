"""When nobody writes to a tree, and what the trainer's records shall name once it is changed."""

from __future__ import annotations

from collections.abc import Mapping

from ckpttool.core.decide.changes import repairs, signs_of_writing, stale_pointers
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.pointer import Pointer, PointerFix, PointerText
from ckpttool.core.domain.units import Rank
from ckpttool.trainers.mindformers.layouts.pointers import metas_naming
from tests.support.inventories import checkpoint

OLD, MIDDLE, NEW = checkpoint("10_2"), checkpoint("20_2", ranks=range(3)), checkpoint("30_2", ranks=range(2))


def record(rank: int, label: str, *, content: bytes = b"?") -> Pointer:
    file = f"llama_rank_{rank}-{label}.ckpt"
    path = f"rank_{rank}/meta.json"
    return Pointer(path=path, rank=Rank(rank), name=file, target=f"rank_{rank}/{file}", content=content)


def tracker_naming(save: Checkpoint) -> Mapping[str, PointerText]:
    return {"tracker": PointerText(name=save.name, content=save.name.encode())}


def named(fixes: list[PointerFix]) -> dict[str, str]:
    return {fix.path: fix.text.name for fix in fixes}


def test_only_records_of_what_goes_are_mended_each_with_the_best_that_its_rank_has() -> None:
    pointers = [record(0, "10_2"), record(1, "30_2"), record(2, "10_2")]
    assert named(list(stale_pointers(pointers, [OLD], [NEW, MIDDLE], metas_naming))) == {
        "rank_0/meta.json": "llama_rank_0-30_2.ckpt",
        "rank_2/meta.json": "llama_rank_2-20_2.ckpt",
    }


def test_a_rank_on_which_nothing_whole_stays_keeps_its_record() -> None:
    assert list(stale_pointers([record(3, "10_2")], [OLD], [NEW, MIDDLE], metas_naming)) == []


def test_a_record_that_names_nothing_is_no_business_of_a_prune() -> None:
    torn = Pointer(path="rank_0/meta.json", rank=Rank(0), trouble="is truncated or edited")
    assert list(stale_pointers([torn], [OLD], [NEW], metas_naming)) == []
    assert [(fix.trouble, fix.text.name) for fix in repairs([torn], NEW, metas_naming)] == [
        ("is truncated or edited", "llama_rank_0-30_2.ckpt")
    ]


def test_a_record_of_another_rank_s_file_is_no_record_of_what_goes() -> None:
    foreign = Pointer(
        path="rank_0/meta.json", rank=Rank(0), name="llama_rank_1-10_2.ckpt", target="rank_0/llama_rank_1-10_2.ckpt"
    )
    assert list(stale_pointers([foreign], [OLD], [NEW], metas_naming)) == []


def test_a_tracker_names_folders() -> None:
    tracker = Pointer(path="tracker", name="10_2", target="10_2", content=b"10_2")
    assert named(list(stale_pointers([tracker], [OLD], [NEW, MIDDLE], tracker_naming))) == {"tracker": "30_2"}
    assert list(stale_pointers([tracker], [MIDDLE], [NEW], tracker_naming)) == []
    assert named(list(repairs([tracker], NEW, tracker_naming))) == {"tracker": "30_2"}
    assert list(repairs([tracker], OLD, tracker_naming)) == []


def test_the_newest_is_not_spelled_where_no_record_names_what_goes() -> None:
    def never(save: Checkpoint) -> Mapping[str, PointerText]:
        raise AssertionError(save)

    assert list(stale_pointers([record(0, "30_2")], [OLD], [NEW], never)) == []


def test_a_record_that_is_right_is_left_alone() -> None:
    right = metas_naming(NEW)
    pointers = [record(rank, "30_2", content=right[f"rank_{rank}/meta.json"].content) for rank in (0, 1)]
    assert list(repairs(pointers, NEW, metas_naming)) == []
    (fix,) = repairs([record(0, "30_2", content=b'{"last_epoch": 3}')], NEW, metas_naming)
    assert fix.text == right["rank_0/meta.json"]


def test_a_file_younger_than_the_grace_time_is_a_sign_of_writing_and_the_youngest_is_named() -> None:
    written = [("old", 0.0), ("new", 990.0), ("newer", 995.0)]
    (sign,) = signs_of_writing([], written, now=1000.0, grace=300.0)
    assert (sign.path, sign.severity) == ("newer", Severity.UNKNOWN)
    assert (sign.message.partition(":")[0], sign.actual) == ("written 5 s ago", "1970-01-01T00:16:35Z")
    (later,) = signs_of_writing([], written, now=1020.0, grace=300.0)
    assert (later.message.partition(":")[0], later.actual) == ("written 25 s ago", sign.actual)
    assert list(signs_of_writing([], written, now=1000.0, grace=5.0)) == []
    assert list(signs_of_writing([], [], now=1000.0, grace=300.0)) == []


def test_a_time_in_the_future_tells_of_a_wrong_clock_and_not_of_writing() -> None:
    assert list(signs_of_writing([], [("file", 99_000.0)], now=1000.0, grace=300.0)) == []


def test_every_unfinished_file_is_a_sign_however_old() -> None:
    assert [sign.path for sign in signs_of_writing(["b.tmp", "a.tmp"], [], now=0.0, grace=0.0)] == ["a.tmp", "b.tmp"]


def test_a_file_of_a_year_that_no_calendar_has_is_still_written_without_a_moment() -> None:
    """Any program may set any time of a file; within a grace time as long, it is young."""
    (far,) = signs_of_writing((), [("rank_0/a.ckpt", 1e12)], now=0.0, grace=1e13)
    (near,) = signs_of_writing((), [("rank_0/a.ckpt", 1e9)], now=0.0, grace=1e13)
    assert (far.actual, near.actual) == (None, "2001-09-09T01:46:40Z")
