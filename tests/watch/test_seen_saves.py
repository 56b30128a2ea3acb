"""What a listing shows of a save that is watched: whether it is the same as at the last look."""

from __future__ import annotations

import pytest

from ckpttool.core.domain.checkpoint import CommitState
from ckpttool.core.domain.finding import Code, Finding, damage, note
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.health import Health
from ckpttool.watch.rules_seen_saves import seen_save
from tests.support.inventories import checkpoint

SAVE = checkpoint("10_2", ranks=range(4))
SAME = seen_save(SAVE, 0.0).fingerprint


@pytest.mark.parametrize(
    ("finding", "is_same"),
    [
        (damage(Code.UNCOMMITTED_SAVE, "no trainer_state.json"), False),
        (damage(Code.HEADER_INVALID, "its record is no pickle", path="a/.metadata"), False),
        (damage(Code.META_UNREADABLE, "is no JSON"), False),
        (damage(Code.METADATA_INCOMPLETE, "its index is not there"), False),
        (damage(Code.RANK_MISSING, "a fifth rank has a folder now"), True),
        (damage(Code.FOUND_DAMAGED, "ckpttool itself found that"), True),
        (note(Code.META_UNREADABLE, "weighs nothing"), True),
    ],
)
def test_a_save_whose_record_is_gone_or_torn_is_not_as_it_was_and_one_of_which_others_tell_more_is(
    finding: Finding, is_same: bool
) -> None:
    assert (seen_save(replace(SAVE, findings=(finding,)), 0.0).fingerprint == SAME) is is_same


@pytest.mark.parametrize("health", Health)
def test_a_save_that_is_recorded_as_unhealthy_after_it_was_saved_is_not_as_it_was(health: Health) -> None:
    marked = seen_save(replace(SAVE, health=health), 0.0)
    assert (marked.fingerprint == SAME) is (health is not Health.UNHEALTHY)


def test_a_save_is_counted_by_its_files_and_its_trainers_word_that_it_is_finished() -> None:
    assert [(seen_save(replace(SAVE, commit=commit), 0.0)).is_committed for commit in CommitState] == [
        commit is CommitState.COMMITTED for commit in CommitState
    ]
    assert seen_save(SAVE, 0.0).files == 4
