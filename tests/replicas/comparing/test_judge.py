"""Whose file is not what its replicas hold, by what is recorded and what other checkpoints show."""

from __future__ import annotations

import pytest

from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.replicas import Proof, RecordedSlices, TensorDigests
from ckpttool.core.domain.units import Rank
from ckpttool.replicas.comparing.findings import replica_findings
from ckpttool.replicas.comparing.judge import judge_replicas
from ckpttool.replicas.comparing.model import Suspicion, SuspicionKind
from ckpttool.replicas.comparing.weight import Evidence, without_cleared
from tests.replicas.comparing.held import NAMES, Slices, changed, held, others

Saved = dict[int, dict[Rank, TensorDigests]]


def saved(ranks: int, steps: int, slices: Slices = lambda rank, name: 0) -> Saved:  # noqa: ARG005
    return {step: held(range(ranks), step, slices) for step in range(steps)}


def doubts(now: int, trees: Saved, *, most: int | None = None) -> tuple[Suspicion, ...]:
    return judge_replicas(trees[now], others(now, trees, most=most)).suspicions


def tensor_parallel(rank: int, name: str) -> int:
    """Two slices of every tensor but the first three."""
    return 0 if name < NAMES[3] else rank % 2


@pytest.mark.parametrize("most", [1, 2, None])
def test_of_three_replicas_the_one_that_differs_is_named_with_its_tensor(most: int | None) -> None:
    trees = saved(3, 4)
    trees[3][Rank(1)] = changed(trees[3][Rank(1)], NAMES[5])
    (doubt,) = doubts(3, trees, most=most)
    assert (doubt.rank, doubt.replicas, doubt.tensors) == (1, (0, 2), (NAMES[5],))
    assert (doubt.kind, doubt.proof) == (SuspicionKind.DIFFERS, Proof.ONCE if most == 1 else Proof.LEARNED)


@pytest.mark.parametrize("most", [1, 2, None])
def test_of_two_replicas_that_differ_both_are_named(most: int | None) -> None:
    trees = saved(4, 4, tensor_parallel)
    trees[3][Rank(1)] = changed(trees[3][Rank(1)], NAMES[5])
    assert [(doubt.rank, doubt.replicas) for doubt in doubts(3, trees, most=most)] == [(1, (3,)), (3, (1,))]


@pytest.mark.parametrize("copied", [(2,), (1, 2)])
@pytest.mark.parametrize(("sliced", "is_doubted"), [(2, False), (3, True)])
def test_a_copy_under_another_rank_s_name_makes_no_replicas_of_two_that_share_nothing_else(
    sliced: int, copied: tuple[int, ...], *, is_doubted: bool
) -> None:
    names = NAMES[:5]
    trees = {
        step: held(range(3), step, lambda rank, name: name in names[:sliced] and rank, names=names)
        for step in (*copied, 3)
    }
    for step in copied:
        trees[step][Rank(2)] = trees[step][Rank(0)]
    if is_doubted:  # they share a slice, and are copies of each other
        trees[3][Rank(2)] = changed(trees[3][Rank(0)], names[0])
    assert bool([doubt for doubt in doubts(3, trees) if doubt.kind is not SuspicionKind.PARTED]) is is_doubted


def test_a_tensor_that_all_ranks_hold_tells_which_of_two_replicas_has_another_file() -> None:
    trees = saved(4, 4, tensor_parallel)
    trees[3][Rank(1)] = changed(trees[3][Rank(1)], *NAMES, by="another run")
    (doubt,) = doubts(3, trees)
    assert (doubt.rank, doubt.kind, len(doubt.tensors)) == (1, SuspicionKind.STALE, len(NAMES))


def test_slices_of_the_same_shape_are_no_replicas() -> None:
    trees = saved(4, 3, lambda rank, name: rank)  # noqa: ARG005
    judged = judge_replicas(trees[2], others(2, trees))
    assert judged.suspicions == ()
    assert judged.agreed == dict.fromkeys(range(4), 1)


def test_a_flip_in_a_tensor_that_is_never_trained_is_found_in_files_that_are_equal_otherwise() -> None:
    trees = {step: held(range(3), step, frozen=NAMES[:2]) for step in range(3)}
    trees[2][Rank(0)] = changed(trees[2][Rank(0)], NAMES[0])
    (doubt,) = doubts(2, trees)
    assert (doubt.rank, doubt.tensors, doubt.is_twin) == (0, (NAMES[0],), True)


def test_without_any_other_checkpoint_an_odd_one_is_only_told() -> None:
    trees = saved(3, 1)
    trees[0][Rank(2)] = changed(trees[0][Rank(2)], NAMES[0])
    assert [(doubt.kind, doubt.rank, doubt.proof) for doubt in doubts(0, trees)] == [
        (SuspicionKind.OUTLIER, 2, Proof.MAJORITY)
    ]


@pytest.mark.parametrize("now", range(6))
@pytest.mark.parametrize("first", [1, 3])
def test_a_device_that_drifts_is_named_from_the_first_checkpoint_on_at_which_it_differs(first: int, now: int) -> None:
    trees = saved(4, 6)
    for step in range(first, 6):
        trees[step][Rank(2)] = changed(trees[step][Rank(2)], NAMES[7])
    found = doubts(now, trees)
    if now < first:
        assert found == ()
    else:
        (doubt,) = found
        assert (doubt.kind, doubt.rank) == (SuspicionKind.DRIFTED, 2)
        assert doubt.agreed_at == (f"step-{first - 1}", 10 * first)
        assert doubt.since == (None if now == first else (f"step-{first}", 10 * first + 10))


def test_a_file_of_an_older_step_is_told_as_that_step_s() -> None:
    trees = saved(2, 3)
    trees[2][Rank(1)] = trees[0][Rank(1)]
    (doubt,) = doubts(2, trees)
    assert (doubt.kind, doubt.rank, doubt.as_of) == (SuspicionKind.STALE, 1, "step-0")


def test_what_differed_at_the_other_checkpoints_too_says_nothing() -> None:
    trees = saved(3, 3, lambda rank, name: rank if name == NAMES[4] else 0)
    assert doubts(2, trees) == ()


def test_ranks_that_all_part_are_replicas_no_more() -> None:
    trees = saved(3, 2)
    trees[2] = held(range(3), 2, lambda rank, name: rank)  # noqa: ARG005
    assert {doubt.kind for doubt in doubts(2, trees)} == {SuspicionKind.PARTED}


def test_a_record_proves_replicas_without_another_checkpoint() -> None:
    lies = {name: {Rank(rank): rank % 2 for rank in range(6)} for name in NAMES}
    now = held(range(6), 0, lambda rank, name: rank % 2)  # noqa: ARG005
    now[Rank(4)] = changed(now[Rank(4)], NAMES[0])
    judged = judge_replicas(now, (), RecordedSlices(source="record.json", slices=lies))
    (doubt,) = judged.suspicions
    assert (doubt.kind, doubt.rank, doubt.replicas, doubt.proof) == (SuspicionKind.DIFFERS, 4, (0, 2), Proof.RECORDED)
    assert judged.agreed == {0: 2, 1: 3, 2: 2, 3: 3, 4: 1, 5: 3}


@pytest.mark.parametrize("most", [1, 2, None])
def test_two_of_four_that_are_damaged_in_the_same_tensor_are_both_named(most: int | None) -> None:
    trees = saved(4, 4)
    trees[3][Rank(1)] = changed(trees[3][Rank(1)], NAMES[5], by="one bit")
    trees[3][Rank(2)] = changed(trees[3][Rank(2)], NAMES[5], by="another bit")
    found = doubts(3, trees, most=most)
    assert [(doubt.rank, doubt.kind, doubt.replicas) for doubt in found] == [
        (1, SuspicionKind.DIFFERS, (0, 3)),
        (2, SuspicionKind.DIFFERS, (0, 3)),
    ]


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("most", [1, 2, None])
def test_two_halves_that_differ_in_one_tensor_are_all_doubted_and_nobody_is_blamed(
    ranks: int, most: int | None
) -> None:
    trees = saved(ranks, 4)
    for rank in range(1, ranks, 2):
        trees[3][Rank(rank)] = changed(trees[3][Rank(rank)], NAMES[5], by="one bit in both")
    found = doubts(3, trees, most=most)
    assert [(doubt.rank, doubt.kind, doubt.tensors) for doubt in found] == [
        (rank, SuspicionKind.TIED, (NAMES[5],)) for rank in range(ranks)
    ]
    assert {finding.severity for finding in replica_findings(found, {Rank(rank): "a" for rank in range(ranks)})} == {
        Severity.SUSPECT
    }
    assert doubts(2, trees, most=most) == ()


@pytest.mark.parametrize("outvoted", range(4))
def test_a_file_that_is_outvoted_in_one_tensor_is_named_by_it_though_halves_differ_in_another(outvoted: int) -> None:
    trees = saved(4, 4)
    for rank in (2, 3):
        trees[3][Rank(rank)] = changed(trees[3][Rank(rank)], NAMES[5])
    trees[3][Rank(outvoted)] = changed(trees[3][Rank(outvoted)], NAMES[7])
    assert {doubt.rank: (doubt.kind, doubt.tensors) for doubt in doubts(3, trees)} == {
        **dict.fromkeys(range(4), (SuspicionKind.TIED, (NAMES[5],))),
        outvoted: (SuspicionKind.DIFFERS, (NAMES[7],)),
    }


def test_of_two_replicas_both_are_named_though_one_is_of_halves_that_differ_in_another_tensor() -> None:
    """As of an embedding that the first and the last stage of a pipeline hold."""

    def slices(rank: int, name: str) -> int:
        return rank % 4 if name == NAMES[0] else 0

    first = {step: held(range(4), step, slices) for step in range(4)}
    trees = {step: {**tree, **held([4], step, slices, names=NAMES[:1])} for step, tree in first.items()}
    for rank in (2, 3):
        trees[3][Rank(rank)] = changed(trees[3][Rank(rank)], NAMES[5])
    trees[3][Rank(4)] = changed(trees[3][Rank(4)], NAMES[0])
    assert [doubt.rank for doubt in doubts(3, trees) if doubt.tensors == (NAMES[0],)] == [0, 4]


def test_of_two_halves_that_differ_the_one_with_a_checksum_is_whole() -> None:
    trees = saved(4, 4)
    for rank in (1, 3):
        trees[3][Rank(rank)] = changed(trees[3][Rank(rank)], NAMES[5], by="one bit in both")
    found = tuple(without_cleared(doubts(3, trees), Evidence(sound={Rank(2)})))
    assert [(doubt.rank, doubt.is_decided) for doubt in found] == [(1, True), (3, True)]
    assert {each.severity for each in replica_findings(found, dict.fromkeys(trees[3], "a"))} == {Severity.DAMAGE}


def test_a_record_says_that_two_halves_should_be_equal_however_much_differs() -> None:
    lies = {name: {Rank(rank): 0 for rank in range(4)} for name in NAMES}
    now = held(range(4), 0, lambda rank, name: rank % 2)  # noqa: ARG005
    judged = judge_replicas(now, (), RecordedSlices(source="record.json", slices=lies))
    assert {(doubt.kind, len(doubt.tensors)) for doubt in judged.suspicions} == {(SuspicionKind.TIED, len(NAMES))}


def test_of_two_halves_the_one_that_holds_an_older_step_is_damaged() -> None:
    trees = saved(4, 4)
    for rank in (1, 3):
        trees[3][Rank(rank)] = trees[1][Rank(rank)]
    found = doubts(3, trees)
    assert [(doubt.rank, doubt.kind, doubt.as_of) for doubt in found] == [
        (1, SuspicionKind.STALE, "step-1"),
        (3, SuspicionKind.STALE, "step-1"),
    ]


def test_four_that_now_hold_two_slices_each_are_replicas_no_more() -> None:
    trees = saved(4, 4)
    for rank in (1, 3):
        trees[3][Rank(rank)] = changed(trees[3][Rank(rank)], *NAMES, by="another slice")
    assert {doubt.kind for doubt in doubts(3, trees)} == {SuspicionKind.PARTED}
