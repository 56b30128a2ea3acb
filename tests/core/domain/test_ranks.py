"""Ranks in ranges, and findings of one kind in a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.finding import Code, Finding, Severity, summary_of
from ckpttool.core.domain.units import Rank, counted, on_all, on_nodes, on_ranks
from ckpttool.core.domain.view import View


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([3], "rank 3"),
        ([0, 2, 3], "ranks 0, 2-3"),
        (list(range(64, 72)), "ranks 64-71"),
        ([0, 1], "ranks 0-1"),
        (list(range(0, 1000, 2)), "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, …"),
    ],
)
def test_ranks_are_named_in_ranges_and_no_more_than_anybody_reads(ranks: list[int], words: str) -> None:
    assert on_ranks(ranks) == words


@given(st.sets(st.integers(min_value=0, max_value=20), min_size=2))
def test_no_rank_is_left_out_and_none_is_added(ranks: set[int]) -> None:
    named = set()
    for part in on_ranks(sorted(ranks)).removeprefix("ranks ").split(", "):
        first, _, last = part.partition("-")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == ranks


def test_one_is_no_number_of_many() -> None:
    assert [on_all(1), on_all(4)] == ["on its only rank", "on all 4 ranks"]
    assert [counted(number, "step") for number in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]
    assert [counted(number, "batch", "batches") for number in (1, 30)] == ["1 batch", "30 batches"]


def gone(*ranks: int) -> Finding:
    return Finding(
        code=Code.SHARD_MISSING, severity=Severity.DAMAGE, message="it is gone.", ranks=tuple(map(Rank, ranks))
    )


def test_several_findings_are_the_first_one_and_all_their_ranks() -> None:
    assert summary_of([gone(0), gone(2), gone(3)], 4) == "it is gone; 3 findings in all, on ranks 0, 2-3 (3 of 4)"
    assert summary_of([gone(1), gone(1)], 4) == "it is gone; 2 findings in all, on rank 1 (1 of 4)"
    assert summary_of([gone(1), gone(2)]) == "it is gone; 2 findings in all, on ranks 1-2"
    assert summary_of([gone(), gone()], 4) == "it is gone; 2 findings in all"


def test_several_findings_in_one_text_name_the_lines_of_the_others() -> None:
    def wrong(line: int | None, path: str = "a.yaml") -> Finding:
        return replace(gone(), message="it is wrong", path=path, line=line)

    assert summary_of([wrong(3), wrong(9), wrong(4), wrong(5)]) == "it is wrong; 4 findings in all, on lines 3-5, 9"
    assert summary_of([wrong(3), wrong(9), wrong(None)]) == "it is wrong; 3 findings in all, on lines 3, 9"
    assert summary_of([wrong(3), wrong(None)]) == "it is wrong; 2 findings in all, on line 3"
    assert summary_of([wrong(3), wrong(4, "b.yaml")]) == "it is wrong; 2 findings in all"


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([3], "on node 0"),
        (list(range(64, 72)), "all of node 8"),
        ([0, 9, 17], "on nodes 0-2"),
        ([*range(8), *range(64, 72)], "all of nodes 0, 8"),
        ([*range(8), 64], "on nodes 0, 8"),
    ],
)
def test_ranks_in_a_row_are_a_node(ranks: list[int], words: str) -> None:
    assert on_nodes(ranks, 8) == words


def test_whoever_wants_all_is_told_every_rank_and_node() -> None:
    even = list(range(0, 100, 2))
    assert "…" in on_ranks(even)
    assert on_ranks(even, everything=True).count(",") == 49
    assert "…" in on_nodes(even, 1)
    assert on_nodes(even, 1, everything=True).count(",") == 49


def test_findings_are_told_by_machines_where_these_are_known() -> None:
    view = View(ranks_per_node=2)
    assert (
        summary_of([gone(0), gone(2), gone(3)], 4, view)
        == "it is gone; 3 findings in all, on ranks 0, 2-3 (3 of 4), on nodes 0-1"
    )
    assert summary_of([gone(2), gone(3)], None, view) == "it is gone; 2 findings in all, on ranks 2-3, all of node 1"
    assert summary_of([gone(1)], 4, view) == "it is gone (on node 0)"
    assert summary_of([gone()], 4, view) == "it is gone."
    assert summary_of([gone(), gone()], 4, view) == "it is gone; 2 findings in all"


def test_one_finding_says_what_it_says() -> None:
    assert summary_of([gone(1)], 4) == "it is gone."
    assert summary_of([replace(gone(0, 1), message="ranks 0-1: stray")], 4) == "ranks 0-1: stray"
