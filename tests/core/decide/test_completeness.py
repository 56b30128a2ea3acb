"""What a layout expects is compared with what is there, whatever layout it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ckpttool.core.decide.completeness import MOST_NAMED, assess, believable, compare, without_effect
from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Topology
from ckpttool.core.domain.expectation import (
    Evidence,
    Expectation,
    Expected,
    ExpectedFiles,
    FilesByPath,
    FilesByRank,
    WorldEvidence,
    WorldSize,
)
from ckpttool.core.domain.finding import Code, Finding, Row, Severity, note, suspect
from ckpttool.core.domain.health import HealthBook
from ckpttool.core.domain.shard import FileStamp, ShardRole
from ckpttool.core.domain.units import Rank
from ckpttool.core.errors import UsageError
from ckpttool.trainers.mindformers.findings import MindFormersCode
from tests.support.inventories import checkpoint, finding, tree


def compared(
    one: Checkpoint,
    files: ExpectedFiles | None,
    *,
    doubts: Sequence[Finding] = (),
    notes: Sequence[Finding] = (),
) -> Checkpoint:
    inventory = tree(one)
    expectation = Expectation(files=files, topology=Topology(), doubts=tuple(doubts), notes=tuple(notes))
    return compare(inventory, Expected(checkpoints=(expectation,), runs=inventory.runs)).checkpoints[0]


def all_of(one: Checkpoint) -> FilesByPath:
    return FilesByPath(paths=tuple(shard.path for shard in one.shards), ranks={})


def by_rank(world: int, *roles: ShardRole) -> FilesByRank:
    size = WorldSize(world=world, why="this test says so", remedy="bring it back")
    return FilesByRank(
        size=size,
        roles=roles or (ShardRole.FULL,),
        absent=lambda rank, role: size.missing(f"{role.value} of {rank}", Code.SHARD_MISSING, f"r{rank}", [rank]),
    )


class TestFilesByPath:
    def test_a_file_that_the_record_names_is_missed_by_its_own_path_and_rank(self) -> None:
        one = checkpoint(ranks=[0])
        files = FilesByPath(paths=(one.shards[0].path, "a/b", "a/c"), ranks={"a/b": Rank(1)})
        found = compared(one, files).findings
        assert [(each.code, each.path, each.ranks) for each in found] == [
            (Code.SHARD_MISSING, "a/b", (1,)),
            (Code.SHARD_MISSING, "a/c", ()),
        ]
        assert all(each.remedy for each in found)

    def test_what_is_missing_beyond_some_thousand_is_one_number(self) -> None:
        paths = tuple(f"a/{number:05}" for number in range(MOST_NAMED + 10))
        *named, rest = compared(checkpoint(), FilesByPath(paths=paths, ranks={})).findings
        assert [each.path for each in named] == list(paths[:MOST_NAMED])
        assert (rest.code, rest.path) == (Code.SHARD_MISSING, "10_2")
        assert rest.message.startswith("10 more files named")

    def test_a_save_with_all_of_them_is_whole(self) -> None:
        one = checkpoint()
        assert compared(one, all_of(one)).findings == ()


class TestFilesByRank:
    def test_each_rank_is_asked_for_each_role_and_missed_in_the_layouts_words(self) -> None:
        found = compared(checkpoint(ranks=[0]), by_rank(2, ShardRole.FULL, ShardRole.MODEL)).findings
        assert [each.message.partition(" (")[0] for each in found] == ["model of 0", "full of 1", "model of 1"]
        assert "expected 2 ranks because this test says so" in found[0].message

    def test_a_save_on_all_ranks_is_whole(self) -> None:
        assert compared(checkpoint(), by_rank(4)).findings == ()

    def test_what_is_missing_beyond_some_thousand_is_one_number(self) -> None:
        *named, rest = compared(checkpoint(ranks=[0]), by_rank(MOST_NAMED + 11)).findings
        assert len(named) == MOST_NAMED
        assert rest.message.startswith(f"10 more shards are missing, of ranks {MOST_NAMED + 1} to {MOST_NAMED + 10}")
        assert (rest.path, rest.remedy, len(rest.ranks)) == ("10_2", "bring it back", 10)


class TestUnknown:
    def test_where_nothing_tells_which_files_there_must_be_a_save_is_not_whole_but_unknown(self) -> None:
        (found,) = compared(checkpoint(), None).findings
        assert (found.code, found.severity) == (Code.METADATA_INCOMPLETE, Severity.UNKNOWN)

    @pytest.mark.parametrize("files", [FilesByPath(paths=(), ranks={}), by_rank(0), replace(by_rank(4), roles=())])
    def test_what_asks_for_no_file_tells_nothing_for_an_empty_folder_meets_it_too(self, files: ExpectedFiles) -> None:
        (found,) = compared(checkpoint(), files).findings
        assert (found.code, found.severity) == (Code.METADATA_INCOMPLETE, Severity.UNKNOWN)

    def test_it_is_not_said_of_what_is_known_to_be_damaged(self) -> None:
        one = checkpoint(findings=[finding()])
        assert compared(one, None).findings == one.findings

    def test_a_note_is_no_reason_not_to_say_it(self) -> None:
        one = checkpoint(findings=[finding(Code.STRAY_FILE, Severity.NOTE)])
        assert len(compared(one, None).findings) == 2


class TestUncommitted:
    @pytest.mark.parametrize(
        ("commit", "said"),
        [
            (CommitState.UNCOMMITTED, [(Code.UNCOMMITTED_SAVE, Severity.DAMAGE)]),
            (CommitState.UNKNOWN, [(Code.UNCOMMITTED_SAVE, Severity.UNKNOWN)]),
            (CommitState.COMMITTED, []),
            (CommitState.UNRECORDED, []),
        ],
    )
    def test_a_save_that_was_not_finished_is_damage_whatever_its_files_look_like(
        self, commit: CommitState, said: list[tuple[Row, Severity]]
    ) -> None:
        one = replace(checkpoint(), commit=commit)
        found = compared(one, all_of(one)).findings
        assert [(each.code, each.severity) for each in found] == said

    def test_it_is_not_said_twice_where_the_scan_named_what_is_lacking(self) -> None:
        one = replace(checkpoint(findings=[finding(Code.METADATA_INCOMPLETE)]), commit=CommitState.UNCOMMITTED)
        assert compared(one, all_of(one)).findings == one.findings

    def test_it_is_said_beside_what_is_missing(self) -> None:
        one = replace(checkpoint(ranks=[0]), commit=CommitState.UNCOMMITTED)
        assert [each.code for each in compared(one, by_rank(2)).findings] == [
            Code.UNCOMMITTED_SAVE,
            Code.SHARD_MISSING,
        ]


class TestEmpty:
    def test_a_shard_without_bytes_is_damage_where_the_listing_took_sizes(self) -> None:
        whole = checkpoint("20_2")
        first, *rest = whole.shards
        empty = replace(first, stamp=FileStamp.on_disk(size=0, mtime_ns=1, inode=1))
        one = replace(whole, shards=(empty, *rest))
        (found,) = compared(one, all_of(one)).findings
        assert (found.code, found.path, found.ranks) == (Code.SHARD_EMPTY, first.path, (0,))
        shared = replace(one, shards=(replace(empty, rank=None),))
        assert compared(shared, all_of(shared)).findings[0].ranks == ()

    def test_a_shard_with_bytes_or_of_unknown_size_is_left_alone(self) -> None:
        whole = checkpoint("20_2")
        first, *rest = whole.shards
        one = replace(whole, shards=(replace(first, stamp=FileStamp.on_disk(size=1, mtime_ns=1, inode=1)), *rest))
        assert compared(one, all_of(one)).findings == ()


def test_doubts_are_told_before_what_is_missing_and_notes_after_it() -> None:
    doubts, notes = [suspect(Code.WORLD_SIZE_DIFFERS, "perhaps")], [note(Code.WORLD_SIZE_DIFFERS, "besides")]
    found = compared(checkpoint(ranks=[0]), by_rank(2), doubts=doubts, notes=notes).findings
    assert [each.message.partition(" (")[0] for each in found] == ["perhaps", "full of 1", "besides"]


def test_what_is_said_of_the_tree_joins_its_findings_in_order() -> None:
    one = checkpoint()
    inventory = tree(one, findings=[finding(Code.UNREADABLE, path="x")])
    expectation = Expectation(files=all_of(one), topology=Topology(world_size=4))
    said = (note(MindFormersCode.BREAKPOINT_FILE, "y"),)
    expected = Expected(checkpoints=(expectation,), runs=inventory.runs, findings=said)
    found = assess(inventory, expected, HealthBook(path=None, records=()), [None] * len(inventory.checkpoints))
    assert [each.code for each in found.findings] == [MindFormersCode.BREAKPOINT_FILE, Code.UNREADABLE]
    assert found.checkpoints[0].topology.world_size == 4


def test_more_ranks_than_any_training_has_are_an_error_and_not_looked_for() -> None:
    fine = Evidence(worlds=(WorldEvidence(world_size=8, source="--world-size says so", declared=True),))
    assert believable(fine) is fine
    with pytest.raises(UsageError, match="99999999999 ranks, for a file: more ranks than any"):
        believable(Evidence(worlds=(WorldEvidence(world_size=99999999999, source="a file", declared=False),)))


@pytest.mark.parametrize(
    ("shared", "why"),
    [(True, "all ranks load the same files"), (False, "does not assign the files of a save to ranks")],
)
def test_a_size_that_changes_nothing_is_said_to_have_no_effect(*, shared: bool, why: str) -> None:
    def of(topology: Topology) -> Expected:
        return Expected(checkpoints=(Expectation(files=None, topology=topology),), runs=())

    (found,) = without_effect(8, of(Topology(shared=shared)))
    assert (found.code, found.severity, why in found.message) == (Code.WORLD_SIZE_DIFFERS, Severity.NOTE, True)
    assert without_effect(None, of(Topology(shared=shared))) == without_effect(8, of(Topology(world_size=8))) == []


def test_a_size_that_the_trainer_has_something_to_say_to_is_not_said_to_have_no_effect() -> None:
    inventory = tree(one := checkpoint())
    expectation = Expectation(files=all_of(one), topology=Topology(shared=True))
    expected = Expected(checkpoints=(expectation,), runs=inventory.runs)

    def found(*objections: Finding) -> list[Row]:
        book = HealthBook(path=None, records=())
        judged = assess(inventory, expected, book, [None], world_size=8, objections=lambda _: objections)
        return [each.code for each in judged.findings]

    assert found() == [Code.WORLD_SIZE_DIFFERS]
    assert found(note(Code.WORLD_SIZE_DIFFERS, "is resharded when it is loaded")) == []
