"""Which ranks there must be is weighed from all that speaks for it, and every file that is missing is named."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from ckpttool.core.decide.completeness import MOST_NAMED
from ckpttool.core.domain.checkpoint import Checkpoint, Inventory, Topology
from ckpttool.core.domain.expectation import WorldEvidence
from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.domain.units import Rank
from ckpttool.core.errors import UsageError
from ckpttool.trainers.mindformers.layouts.names import ITERATION_LAYOUT, UNIFIED_LAYOUT
from tests.support.inventories import checkpoint, expect_ranks, tree


def declared(world_size: int) -> WorldEvidence:
    return WorldEvidence(world_size=world_size, source="--world-size says so", declared=True)


def hint(world_size: int) -> WorldEvidence:
    return WorldEvidence(
        world_size=world_size, source=f"there are strategy files of {world_size} ranks", declared=False
    )


def worlds(inventory: Inventory) -> list[int | None]:
    return [one.topology.world_size for one in inventory.checkpoints]


def missing(one: Checkpoint) -> list[str | None]:
    return [found.path for found in one.findings if found.severity is Severity.DAMAGE]


class TestRankLayout:
    def test_a_save_on_all_ranks_that_ever_saved_is_complete(self) -> None:
        found = expect_ranks(tree(checkpoint("10_2"), checkpoint("20_2")))
        assert worlds(found) == [4, 4]
        assert [one.findings for one in found.checkpoints] == [(), ()]
        assert found.findings == ()

    def test_a_shard_that_one_rank_lacks_is_named_in_full(self) -> None:
        found = expect_ranks(tree(checkpoint("10_2"), checkpoint("20_2", run=1, ranks=[0, 1, 3])))
        (lacking,) = found.checkpoints[1].findings
        assert (lacking.code, lacking.path) == (Code.SHARD_MISSING, "rank_2/llama_rank_2_1-20_2.ckpt")
        assert found.checkpoints[0].findings == ()

    def test_the_last_ranks_shard_is_missed_because_an_older_save_had_it(self) -> None:
        found = expect_ranks(tree(checkpoint("10_2"), checkpoint("20_2", ranks=[0, 1, 2])))
        assert missing(found.checkpoints[1]) == ["rank_3/llama_rank_3-20_2.ckpt"]
        assert "its highest rank is 3" in found.checkpoints[1].findings[0].message

    def test_the_name_of_a_missing_shard_keeps_a_rank_that_is_part_of_the_prefix(self) -> None:
        found = expect_ranks(tree(checkpoint("10_2", prefix="my_rank_1_model", ranks=[1])), [declared(2)])
        assert missing(found.checkpoints[0]) == ["rank_0/my_rank_1_model_rank_0-10_2.ckpt"]

    def test_a_rank_without_a_folder_is_told_from_one_without_the_shard(self) -> None:
        found = expect_ranks(tree(checkpoint("10_2", ranks=[0, 1]), folders=[0, 1, 2]), [declared(4)])
        assert [one.code for one in found.checkpoints[0].findings] == [Code.SHARD_MISSING, Code.RANK_MISSING]

    def test_what_the_user_declares_is_believed_over_all_hints(self) -> None:
        found = expect_ranks(tree(checkpoint("10_2", ranks=range(4)), folders=range(8)), [hint(16), declared(4)])
        assert worlds(found) == [4]
        assert found.checkpoints[0].findings == ()


class TestHints:
    @pytest.mark.parametrize(
        ("have", "hinted", "expected"),
        [
            (4, 4, 4),
            (4, 8, 4),  # half of it: a training that went on smaller
            (3, 4, 4),  # no part of it: one is lost
            (7, 8, 8),
            (1, 8, 8),  # a single rank is a part of everything, and of nothing in particular
            (8, 4, 8),  # fewer than there are say nothing
        ],
    )
    def test_a_larger_size_counts_unless_the_ranks_are_a_part_of_it(
        self, have: int, hinted: int, expected: int
    ) -> None:
        found = expect_ranks(tree(checkpoint("10_2", ranks=range(have))), [hint(hinted)])
        assert worlds(found) == [expected]
        assert len(missing(found.checkpoints[0])) == expected - have

    def test_a_size_that_was_not_taken_is_noted_with_the_way_to_object(self) -> None:
        (note,) = expect_ranks(tree(checkpoint("10_2", ranks=range(4))), [hint(8)]).findings
        assert (note.code, note.severity) == (Code.WORLD_SIZE_DIFFERS, Severity.NOTE)
        assert note.remedy == "pass --world-size 8 if ranks of the newest run are lost"

    def test_another_run_is_such_a_hint(self) -> None:
        smaller = [checkpoint(label, run=1, ranks=range(4)) for label in ("20_2", "30_2")]
        found = expect_ranks(tree(checkpoint("10_2", ranks=range(8)), *smaller))
        assert worlds(found) == [8, 4, 4]
        assert all(one.findings == () for one in found.checkpoints)
        assert [note.code for note in found.findings] == [Code.WORLD_SIZE_DIFFERS]


class TestAShrinkThatMayBeACrash:
    def shrunken(self, *later: Checkpoint, declare: bool = False) -> Inventory:
        inventory = tree(checkpoint("10_2", ranks=range(8)), checkpoint("20_2", run=1, ranks=range(4)), *later)
        return expect_ranks(inventory, [declared(4)] if declare else ())

    def test_with_a_single_save_is_suspect_and_not_noted_besides(self) -> None:
        found = self.shrunken()
        (doubt,) = found.checkpoints[1].findings
        assert (doubt.code, doubt.severity) == (Code.WORLD_SIZE_DIFFERS, Severity.SUSPECT)
        assert doubt.remedy == "pass --world-size 4 if run 1 was started on 4 ranks"
        assert found.findings == ()
        assert found.checkpoints[0].findings == ()

    @pytest.mark.parametrize("run", [1, 2])
    def test_is_proven_by_a_second_save_of_that_size_in_the_same_run_or_a_later_one(self, run: int) -> None:
        found = self.shrunken(checkpoint("30_2", run=run, ranks=range(4)))
        assert all(one.findings == () for one in found.checkpoints)


class TestTooManyRanks:
    def test_beyond_any_training_are_an_error_and_not_looked_for(self) -> None:
        with pytest.raises(UsageError, match="99999999999 ranks, for --world-size says so: more ranks than any"):
            expect_ranks(tree(checkpoint("10_2")), [declared(99999999999)])

    def test_missing_ones_beyond_some_thousand_are_one_finding(self) -> None:
        (found,) = expect_ranks(tree(checkpoint("10_2")), [declared(1 << 13)]).checkpoints
        assert len(found.findings) == MOST_NAMED + 1
        rest = (1 << 13) - 4 - MOST_NAMED
        assert found.findings[-1].message.startswith(f"{rest} more shards are missing, of ranks 4100 to 8191")


class TestFoldersWithoutCheckpoints:
    def test_a_growth_that_saved_nothing_is_named_with_the_way_out(self) -> None:
        found = expect_ranks(tree(checkpoint("10_2", ranks=range(4)), folders=range(8)))
        (lacking, *_) = found.checkpoints[0].findings
        assert "or the training grew to 8 ranks and has not saved since" in lacking.message
        assert lacking.remedy is not None
        assert lacking.remedy.startswith("pass --world-size 4 if")
        assert worlds(expect_ranks(tree(checkpoint("10_2"), folders=range(8)), [declared(4)])) == [4]

    @pytest.mark.parametrize(("folders", "unreadable"), [(range(7), ()), ([*range(4), 6, 7], ()), (range(8), (5,))])
    def test_a_growth_is_named_only_where_it_can_be_one(
        self, folders: Iterable[int], unreadable: Iterable[int]
    ) -> None:
        found = expect_ranks(tree(checkpoint("10_2"), folders=folders, unreadable=unreadable))
        assert all("grew" not in one.message for one in found.checkpoints[0].findings)

    @pytest.mark.parametrize("have", [range(3), range(2), range(1)])
    def test_a_rank_folder_that_no_run_filled_is_a_rank_that_lost_its_files(self, have: Iterable[int]) -> None:
        """Two of four would pass for a training that went on smaller, were it not for the folders."""
        found = expect_ranks(tree(checkpoint("10_2", ranks=have), folders=range(4)))
        assert worlds(found) == [4]
        assert all(one.code is Code.SHARD_MISSING for one in found.checkpoints[0].findings)
        assert "rank_3, which has no checkpoint of any run" in found.checkpoints[0].findings[0].message

    def test_it_does_not_count_against_a_run_from_before_the_training_grew(self) -> None:
        found = expect_ranks(
            tree(checkpoint("10_2", ranks=range(4)), checkpoint("20_2", run=1, ranks=range(7)), folders=range(8))
        )
        assert worlds(found) == [4, 8]


def iteration(
    step: int,
    *,
    world: int | None,
    model: Iterable[int],
    opt: Iterable[int] = (),
    expected: tuple[str, ...] | None = None,
) -> Checkpoint:
    name = f"iteration_{step:08d}"
    shards = tuple(
        Shard(path=f"{name}/p-{role.value}-{rank}", rank=Rank(rank), role=role, format=FormatName.SAFETENSORS)
        for role, ranks in ((ShardRole.MODEL, model), (ShardRole.OPTIMIZER, opt))
        for rank in ranks
    )
    return replace(
        checkpoint(f"{step}_1"), name=name, shards=shards, topology=Topology(world_size=world), expected=expected
    )


class TestNewerLayout:
    def test_the_record_says_which_files_there_must_be(self) -> None:
        record = ("iteration_00000010/p-model-0", "iteration_00000010/p-model-1")
        whole = iteration(10, world=2, model=[0, 1], expected=record)
        half = iteration(10, world=2, model=[0], expected=record)
        found = expect_ranks(tree(whole, half, layout=ITERATION_LAYOUT))
        assert found.checkpoints[0].findings == ()
        assert missing(found.checkpoints[1]) == ["iteration_00000010/p-model-1"]

    def test_without_a_record_every_rank_must_have_every_role_that_the_tree_has(self) -> None:
        whole = iteration(10, world=2, model=[0, 1], opt=[0, 1])
        half = iteration(20, world=2, model=[0, 1], opt=[1])
        found = expect_ranks(tree(whole, half, layout=ITERATION_LAYOUT))
        assert found.checkpoints[0].findings == ()
        (lacking,) = found.checkpoints[1].findings
        assert lacking.message.startswith("rank 0 has no optimizer shard")

    def test_a_folder_whose_files_tell_no_world_is_not_measured_by_one(self) -> None:
        found = expect_ranks(tree(iteration(10, world=None, model=[]), layout=ITERATION_LAYOUT))
        (nobody_knows,) = found.checkpoints[0].findings
        assert (nobody_knows.code, nobody_knows.severity) == (Code.METADATA_INCOMPLETE, Severity.UNKNOWN)

    def test_another_declared_size_is_noted_and_no_damage_because_it_is_resliced(self) -> None:
        inventory = tree(iteration(10, world=2, model=[0, 1]), layout=ITERATION_LAYOUT)
        (note,) = expect_ranks(inventory, [declared(4)]).checkpoints[0].findings
        assert (note.code, note.severity) == (Code.WORLD_SIZE_DIFFERS, Severity.NOTE)
        for evidence in (declared(2), hint(4)):
            assert expect_ranks(inventory, [evidence]).checkpoints[0].findings == ()


def test_unified_weights_are_compared_with_their_map_and_with_no_world() -> None:
    whole = replace(checkpoint("10_2", ranks=[]), expected=())
    lacking = replace(whole, expected=("part0.safetensors",))
    unmapped = replace(whole, expected=None)
    for one, lost in ((whole, []), (lacking, ["part0.safetensors"]), (unmapped, [])):
        found = expect_ranks(tree(one, layout=UNIFIED_LAYOUT), [declared(8)])
        assert [missing(each) for each in found.checkpoints] == [lost]
        assert worlds(found) == [None]
