"""Whose file lies under another rank's name, by digests of every tensor; and trees that only look so."""

from __future__ import annotations

import pytest

from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.replicas import TensorDigests
from ckpttool.core.domain.units import Rank
from ckpttool.replicas.comparing.findings import replica_findings
from ckpttool.replicas.comparing.judge import judge_replicas
from ckpttool.replicas.comparing.model import SuspicionKind
from ckpttool.replicas.comparing.weight import Evidence, without_cleared
from tests.replicas.comparing.held import NAMES, changed, held, others

Saved = dict[int, dict[Rank, TensorDigests]]


def own_slices(ranks: int = 4, steps: int = 4) -> Saved:
    return {step: held(range(ranks), step, lambda rank, name: rank) for step in range(1, steps + 1)}  # noqa: ARG005


def said(now: int, trees: Saved, *, most: int | None = None) -> list[tuple[Rank, Severity]]:
    """Who is said to be a copy, and how surely."""
    doubts = judge_replicas(trees[now], others(now, trees, most=most)).suspicions
    found = [doubt for doubt in doubts if doubt.kind is SuspicionKind.COPIED]
    findings = replica_findings(found, dict.fromkeys(trees[now], "a"))
    return [(doubt.rank, finding.severity) for doubt, finding in zip(found, findings, strict=True)]


def with_copy(trees: Saved, now: int, one: int = 1, other: int = 2) -> Saved:
    return {**trees, now: {**trees[now], Rank(other): trees[now][Rank(one)]}}


BOTH = [(1, Severity.SUSPECT), (2, Severity.SUSPECT)]


@pytest.mark.parametrize("most", [1, 2, None])
@pytest.mark.parametrize("now", [1, 2, 4])
def test_of_slices_without_any_copy_a_file_under_another_rank_s_name_is_found(now: int, most: int | None) -> None:
    trees = own_slices()
    assert said(now, trees, most=most) == []
    assert said(now, with_copy(trees, now), most=most) == BOTH


@pytest.mark.parametrize("now", [1, 2, 4])
def test_of_two_ranks_a_second_checkpoint_tells_a_copy_from_another_one_that_is_wrong(now: int) -> None:
    trees = with_copy(own_slices(2), now, 0, 1)
    certain = [(0, Severity.SUSPECT), (1, Severity.SUSPECT)]
    weak = [(0, Severity.NOTE), (1, Severity.NOTE)]
    # Later ones alone do not tell: what nobody has trained yet is equal, and parts later.
    assert said(now, trees) == ([] if now == 1 else certain)
    assert said(now, trees, most=1) == ([] if now == 1 else weak)


def test_an_older_checkpoint_that_lacks_one_of_the_two_files_proves_no_copy() -> None:
    trees = with_copy(own_slices(2), 2, 0, 1)
    assert said(2, trees) != []
    del trees[1][Rank(1)]
    assert said(2, trees) == []


def test_of_three_equal_files_the_one_that_older_checkpoints_have_proves_the_copy() -> None:
    trees = with_copy(with_copy(own_slices(), 3, 1, 2), 3, 1, 3)
    del trees[1][Rank(2)], trees[2][Rank(2)]
    assert said(3, trees) == [(1, Severity.SUSPECT), (3, Severity.SUSPECT)]


def test_a_later_checkpoint_at_which_other_ranks_were_equal_proves_no_copy() -> None:
    """Two replicas of which one drifted since would look so."""
    trees = {2: own_slices()[2], 3: held(range(4), 3, lambda rank, name: min(rank, 2))}  # noqa: ARG005
    assert said(2, with_copy(trees, 2, 0, 1)) == []


def test_a_copy_of_a_rank_that_has_replicas_is_named_alone() -> None:
    def slices(rank: int, name: str) -> int:  # noqa: ARG001
        return 0 if rank < 3 else rank

    trees = {step: held(range(6), step, slices) for step in range(1, 5)}
    assert said(3, with_copy(trees, 3, 0, 4)) == [(4, Severity.SUSPECT)]


def test_replicas_that_count_something_for_themselves_are_left_alone_where_that_is_equal_for_once() -> None:
    def slices(rank: int, name: str) -> int:
        return rank if name == NAMES[-1] else 0

    trees = {step: held(range(4), step, slices if step != 3 else (lambda rank, name: 0)) for step in range(1, 5)}  # noqa: ARG005
    assert judge_replicas(trees[3], others(3, trees)).suspicions == ()


def test_slices_that_nobody_has_trained_yet_are_left_alone() -> None:
    trees = own_slices()
    trees[1] = held(range(4), 1)
    assert judge_replicas(trees[1], others(1, trees)).suspicions == ()


@pytest.mark.parametrize("now", [1, 2])
def test_a_device_that_drifted_later_makes_no_copy_of_what_it_saved_before(now: int) -> None:
    trees = {step: held(range(4), step, lambda rank, name: rank % 2) for step in range(1, 5)}  # noqa: ARG005
    for step in (3, 4):
        trees[step][Rank(2)] = changed(trees[step][Rank(2)], *NAMES)
    assert said(now, trees) == []


def test_replicas_that_part_between_saves_and_were_equal_at_another_one_are_no_copies() -> None:
    """As where ranks train alone and average now and then."""
    trees = own_slices(steps=5)
    trees[2], trees[4] = held(range(4), 2), held(range(4), 4)
    assert said(4, trees) == []
    assert said(4, trees, most=2) != []  # the two beside it alone know of no averaging


def test_what_another_start_saved_tells_of_no_copy() -> None:
    trees = with_copy(own_slices(), 2)
    witnesses = [replace(each, same_run=False) for each in others(2, trees)]
    assert [
        doubt for doubt in judge_replicas(trees[2], witnesses).suspicions if doubt.kind is SuspicionKind.COPIED
    ] == []


def test_a_checksum_in_the_file_does_not_know_whose_it_is_and_a_manifest_does() -> None:
    trees = with_copy(own_slices(), 3)
    doubts = judge_replicas(trees[3], others(3, trees)).suspicions
    every = set(trees[3])
    assert len(tuple(without_cleared(doubts, Evidence(sound=every)))) == 2
    assert not tuple(without_cleared(doubts, Evidence(sound=every, sealed=every)))


def test_slices_that_nobody_has_trained_yet_are_left_alone_beside_what_ranks_count_for_themselves() -> None:
    """Two of them may have counted as far as each other."""

    def first(rank: int, name: str) -> int:
        return rank % 7 if name == NAMES[0] else rank % 4 if name in NAMES[1:3] else 0

    trees = {1: held(range(8), 1, first), **{step: own_slices(8)[step] for step in (2, 3)}}
    assert said(1, trees) == []


def in_pairs(now: dict[int, int], names: tuple[str, ...] = ("weight", *"abc")) -> Saved:
    """Ranks 0 and 2 hold one slice of a weight, 1 and 3 the other, but at the last checkpoint as `now` says."""

    def slices(rank: int, name: str) -> int:
        return rank % 2 if name == "weight" else 0

    trees = {step: held(range(4), step, slices, names=names, frozen="abc") for step in range(1, 4)}
    last = held(range(4), 3, lambda rank, name: now[rank] if name == "weight" else 0, names=names, frozen="abc")
    return {**trees, 3: last}


def test_of_two_copies_of_which_one_is_another_rank_s_file_that_one_alone_is_named() -> None:
    """However little such a file holds of its own; the two others tell, for they kept together."""
    assert said(3, in_pairs({0: 0, 1: 1, 2: 0, 3: 1})) == []
    trees = in_pairs({0: 0, 1: 0, 2: 0, 3: 1})
    assert said(3, trees) == [(1, Severity.SUSPECT)]
    assert [doubt.rank for doubt in judge_replicas(trees[3], others(3, trees)).suspicions] == [1]
    assert said(3, trees, most=1) == [(1, Severity.NOTE)]


@pytest.mark.parametrize(
    "now", [{0: 0, 1: 0, 2: 0, 3: 0}, {0: 0, 1: 0, 2: 1, 3: 1}, {0: 0, 1: 0, 2: 2, 3: 1}, {0: 0, 1: 2, 2: 0, 3: 1}]
)
def test_copies_that_move_together_or_part_make_no_file_another_rank_s(now: dict[int, int]) -> None:
    assert said(3, in_pairs(now)) == []
