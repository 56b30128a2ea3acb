"""How many must agree against a file: three, or two if no other copy of it was ever saved."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ckpttool.core.domain.finding import Code, Finding, Severity, damage
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.replicas import TensorDigests
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.domain.verdict import ShardReport
from ckpttool.core.verify.copies import tensors_of
from ckpttool.replicas.comparing.compare import Context, SavedTensors, compare_replicas
from tests.replicas.comparing.held import NAMES, Slices, changed, held
from tests.support.verifying import report

BROKEN = damage(Code.NONFINITE_VALUES, "a NaN")


def one_slice(rank: int, name: str) -> int:  # noqa: ARG001
    return 0


def another_on_rank_3(rank: int, name: str) -> int:  # noqa: ARG001
    return rank // 3


def reports(digests: Mapping[Rank, TensorDigests], *, broken: int | None = None) -> list[ShardReport]:
    """What a check tells of ranks that hold these."""
    return [
        replace(
            report(rank, findings=(BROKEN,) if rank == broken else ()),
            path=f"rank_{rank}",
            stamp=None,
            tensor_digests=tensors,
        )
        for rank, tensors in digests.items()
    ]


def said_of_a_flip(
    *there: int,
    slices: Slices = one_slice,
    witnessed: int = 4,
    first: int | None = None,
    broken: int | None = None,
    ranks: int = 4,
) -> Finding:
    """What is said of rank 1 if a bit of it flipped, of the ranks that are there of so many.

    Two older saves are of `witnessed` ranks, and one of step 0, if there is one, of `first`.
    """
    now = held(there, 3, slices)
    now[Rank(1)] = changed(now[Rank(1)], NAMES[5])
    others = [
        SavedTensors(
            name=f"step-{step}",
            step=Step(step),
            older=True,
            same_run=True,
            shards=tensors_of(reports(held(range(count), step, slices))),
        )
        for step, count in ((2, witnessed), (1, witnessed), (0, first))
        if count is not None
    ]
    known = Context(ranks=[Rank(rank) for rank in range(ranks)])
    (finding,) = compare_replicas(reports(now, broken=broken), others, known).findings
    assert (finding.code, finding.path, finding.tensor) == (Code.REPLICA_DIFFERS, "rank_1", NAMES[5])
    return finding


def test_of_all_three_copies_the_odd_one_is_damaged() -> None:
    assert said_of_a_flip(0, 1, 2, ranks=3).severity is Severity.DAMAGE
    assert said_of_a_flip(0, 1, 2, 3).severity is Severity.DAMAGE


@pytest.mark.parametrize("witnessed", [3, 4])
def test_if_a_fourth_copy_is_lost_or_may_be_it_is_suspect(witnessed: int) -> None:
    finding = said_of_a_flip(0, 1, 2, witnessed=witnessed)
    assert finding.severity is Severity.SUSPECT
    assert finding.message.endswith("and only 2 of them agree: there is no proof that they are right")


def test_a_lost_rank_that_held_another_slice_before_is_no_lost_copy() -> None:
    assert said_of_a_flip(0, 1, 2, slices=another_on_rank_3).severity is Severity.DAMAGE
    assert said_of_a_flip(0, 1, 2, slices=another_on_rank_3, witnessed=3).severity is Severity.SUSPECT
    assert said_of_a_flip(0, 1, 2, 3, slices=another_on_rank_3).severity is Severity.DAMAGE  # it is there


def test_a_save_from_before_the_first_step_does_not_tell_what_a_lost_rank_held() -> None:
    assert said_of_a_flip(0, 1, 2, slices=another_on_rank_3, witnessed=3, first=4).severity is Severity.SUSPECT


@pytest.mark.parametrize("there", [(0, 1, 2), (0, 1, 2, 3)])
def test_one_that_is_damaged_by_itself_does_not_testify(there: tuple[int, ...]) -> None:
    finding = said_of_a_flip(*there, broken=2, ranks=len(there))
    assert finding.severity is Severity.SUSPECT
    intact = "1 of these is intact" if len(there) == 3 else "2 of these are intact"
    assert finding.message.endswith(f"and only {intact}: there is no proof which is right")
