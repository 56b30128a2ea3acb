"""What drifted is held against the saves of its run from there on, and against no other."""

from __future__ import annotations

import pytest

from ckpttool.core.decide.drift import Drift, with_drift
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.units import Step
from tests.support.inventories import checkpoint, tree


def save(step: int | None, *, run: int = 0, saved: int | None = None) -> Checkpoint:
    """One save of two ranks, written at some time."""
    made = checkpoint("10_2" if step is None else f"{step // 2}_2", run=run, step=step)
    stamp = None if saved is None else FileStamp.on_disk(size=1, mtime_ns=saved, inode=1)
    return replace(made, shards=tuple(replace(shard, stamp=stamp) for shard in made.shards))


def doubted(*saves: Checkpoint, found: Checkpoint, since: int) -> list[int | None]:
    drift = Drift(checkpoint=found, shard=found.shards[1], since=Step(since))
    held = with_drift(tree(*saves), [drift, drift])  # a second one says nothing new
    told = [(each.step, finding) for each in held.checkpoints for finding in each.findings]
    assert all((one.code, one.severity, one.ranks) == (Code.REPLICA_DRIFTED, Severity.SUSPECT, (1,)) for _, one in told)
    return [step for step, _ in told]


def test_a_drift_is_held_against_each_save_from_the_first_that_differs_on() -> None:
    saves = [save(step) for step in (10, 20, 30, 40, 50)]
    assert doubted(*saves, found=saves[3], since=30) == [30, 40, 50]


def test_what_another_run_saved_has_no_part_in_it() -> None:
    found = save(40)
    assert doubted(save(30), found, save(50, run=1), save(None), found=found, since=40) == [40]


@pytest.mark.parametrize(("again", "expected"), [(9, []), (5, [30, 50]), (None, [30, 50])])
def test_what_was_saved_after_the_training_went_back_behind_it_is_not_doubted(
    again: int | None, expected: list[int]
) -> None:
    found = save(40, saved=7)
    others = save(30, saved=again), save(50, saved=10)
    assert [step for step in doubted(others[0], found, others[1], found=found, since=30) if step != 40] == expected


def test_a_save_without_that_rank_s_file_cannot_have_it() -> None:
    found, bare = save(40), replace(save(50), shards=())
    assert doubted(found, bare, found=found, since=40) == [40]


def test_a_file_that_all_ranks_share_names_none() -> None:
    found = save(40)
    shared = replace(found, shards=(replace(found.shards[0], rank=None),))
    later = replace(save(50), shards=(replace(save(50).shards[0], rank=None),))
    drift = Drift(checkpoint=shared, shard=shared.shards[0], since=Step(40))
    held = with_drift(tree(shared, later), [drift])
    assert [each.ranks for save in held.checkpoints for each in save.findings] == [(), ()]
