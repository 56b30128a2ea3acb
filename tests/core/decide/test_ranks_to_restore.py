"""Which ranks alone keep a tree from being resumed from: said only where it is so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpttool.core.decide.resume import ranks_to_restore
from ckpttool.core.domain.checkpoint import Topology
from ckpttool.core.domain.finding import Code, Finding, Severity
from ckpttool.core.domain.plan import Rejection
from ckpttool.core.domain.units import Rank
from ckpttool.nodes.findings import NodesCode
from tests.support.inventories import checkpoint


def against(name: str, *reasons: Finding, world: int | None = 4) -> Rejection:
    one = replace(checkpoint(name), topology=Topology(world_size=world))
    return Rejection(checkpoint=one, reasons=reasons)


def lost(*ranks: int, severity: Severity = Severity.DAMAGE) -> Finding:
    return Finding(
        code=Code.SHARD_MISSING, severity=severity, message="it is gone", ranks=tuple(Rank(rank) for rank in ranks)
    )


def said(*rejected: Rejection, opened: bool = True) -> list[str]:
    return [f"{one.message}: {one.remedy}" for one in ranks_to_restore(rejected, opened=opened)]


def test_one_rank_that_every_checkpoint_fails_on_is_named_with_what_it_would_give_back() -> None:
    assert said(against("20_2", lost(1)), against("10_2", lost(1))) == [
        "all 2 checkpoints fail only on rank 1: restore intact shards of rank 1, and 20_2 is intact"
    ]


def test_a_rank_that_could_not_be_read_is_not_to_be_restored() -> None:
    hidden = lost(2, severity=Severity.UNKNOWN)
    (only,) = said(against("20_2", hidden))
    assert only == "step 40 (20_2) fails only on rank 2: make the files of rank 2 readable, and run again"
    assert "restore intact shards of ranks 1-2" in said(against("20_2", hidden, lost(1)))[0]


def test_where_older_ones_fail_elsewhere_only_the_newest_is_spoken_of() -> None:
    (only,) = said(against("20_2", lost(1), lost(2)), against("10_2", lost(3)))
    assert only == "step 40 (20_2) fails only on ranks 1-2: restore intact shards of ranks 1-2, and 20_2 is intact"


def test_what_was_not_opened_is_not_called_whole() -> None:
    (only,) = said(against("20_2", lost(1)), opened=False)
    assert only.endswith("and 20_2 is complete; the other ranks' shards were not opened")


def test_where_only_the_ranks_seen_here_tell_how_many_there_are_no_more_is_promised() -> None:
    """With the last rank gone as well, nothing says that it is missing."""
    unsure = against("20_2", lost(1), world=3)
    unsure = replace(unsure, checkpoint=replace(unsure.checkpoint, topology=Topology(world_size=3, confirmed=False)))
    (only,) = said(unsure)
    assert only.endswith("restore intact shards of rank 1, and 20_2 is intact, as far as visible here (3 ranks)")
    assert said(against("20_2", lost(1), world=3))[0].endswith("and 20_2 is intact")


def test_a_shard_that_lies_in_another_ranks_folder_is_not_to_be_brought_back() -> None:
    (only,) = said(against("20_2", replace(lost(3), code=Code.SHARD_ELSEWHERE), lost(4), world=5))
    assert "the files saved by rank 3 are in another rank's folder: move them back first" in only
    assert "restore intact" not in only


@pytest.mark.parametrize(
    "rejection",
    [
        against("20_2", lost(0, 1, 2, 3)),
        against("20_2", lost(1), world=None),
        against("20_2", lost(1), lost()),
        against("20_2", lost(1), lost(1, severity=Severity.SUSPECT)),
        against("20_2"),
    ],
    ids=["every rank", "nobody knows how many", "a reason of no rank", "unhealthy, say", "no reason"],
)
def test_nothing_is_said_where_it_is_not_some_ranks_alone(rejection: Rejection) -> None:
    assert said(rejection) == []
    assert said() == []


def test_a_note_on_another_rank_does_not_count() -> None:
    assert said(against("20_2", lost(1), lost(2, severity=Severity.NOTE))) != []


def test_what_nobody_looked_at_is_not_to_be_brought_back() -> None:
    """It may be whole."""
    unseen = replace(lost(1, severity=Severity.UNKNOWN), code=NodesCode.NOT_LOOKED_AT)
    assert said(against("20_2", unseen, lost(2))) == []
    assert said(against("20_2", replace(unseen, severity=Severity.NOTE), lost(2))) != []


def test_shards_of_which_nobody_knows_whether_they_are_wrong_are_not_to_be_brought_back() -> None:
    tie = replace(lost(1, severity=Severity.UNKNOWN), code=Code.SCHEMA_DIFFERS)
    assert said(against("20_2", tie), against("10_2", tie)) == []
    assert said(against("20_2", replace(tie, severity=Severity.DAMAGE)), against("10_2", tie))
