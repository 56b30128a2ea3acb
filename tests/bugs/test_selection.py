"""B1 to B15: trees in which MindFormers resumes from the wrong checkpoint, or from none though there is one.

Each was reproduced with the real trainer; what it does is said in the docstrings. `B…` are the rows of that list.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ckpttool import api
from ckpttool.domain.finding import Code
from ckpttool.domain.health import Health
from ckpttool.errors import ExitCode, UsageError
from ckpttool.trainers.mindformers.load import load_keys
from tests.support.answers import (
    FIXTURES,
    chosen,
    cli,
    coded,
    named,
    names,
    notes,
    plan,
    reasons,
    refusal,
    scanned,
    why_not,
    without_runs,
    writable_copy,
)
from tests.support.trees import TreeBuilder, training_scalars

CopyTree = Callable[[str], Path]


@pytest.fixture
def sink2(tmp_path: Path) -> Path:
    """The output folder of a real run: 10_2 15_2 20_2, then a resume that wrote _1-25_2 and _1-30_2."""
    return writable_copy("sink2_ckpt", tmp_path / "sink2")


def rank_file(output: Path, rank: int, name: str, *, run: int = 0, suffix: str = "ckpt") -> Path:
    own = f"_{run}" if run else ""
    return output / "checkpoint" / f"rank_{rank}" / f"llama2_7b_rank_{rank}{own}-{name}.{suffix}"


class TestB1UnhealthyCheckpoints:
    def test_the_newest_one_that_was_recorded_unhealthy_is_passed_over(self) -> None:
        """MindFormers' filter is inverted: every version that has it resumes from the unhealthy 15_2."""
        answer = plan(FIXTURES / "health_pp2" / "output")
        assert chosen(answer) == ("10_2", 20)
        assert answer.point.checkpoint.health is Health.HEALTHY
        assert why_not(answer) == [("15_2", {Code.MARKED_UNHEALTHY})]
        assert answer.point.lost_steps == 10

    def test_it_is_taken_when_health_is_to_be_ignored(self) -> None:
        answer = plan(FIXTURES / "health_pp2" / "output", choice=api.ResumeQuestion(ignore_health=True))
        assert chosen(answer) == ("15_2", 30)
        assert why_not(answer) == []

    def test_a_healthy_entry_for_a_file_that_is_gone_helps_nobody(self, tmp_path: Path) -> None:
        """MindFormers asks only whether any entry is healthy, and goes on with the unhealthy file that is there."""
        tree = TreeBuilder(tmp_path).legacy().save(epoch=10, step=2)
        tree.health([("llama2_7b_rank_0-5_2.ckpt", 0), ("llama2_7b_rank_0-10_2.ckpt", 1)])
        answer = refusal(tree.checkpoint)
        assert why_not(answer) == [("10_2", {Code.MARKED_UNHEALTHY})]
        assert Code.HEALTH_NAMES_NOTHING in notes(answer)
        assert cli("resolve", str(tree.checkpoint)).exit_code == ExitCode.NOTHING_TO_RESUME


class TestB2NamesWithoutSubstance:
    """All eight versions choose by name and never look at the file."""

    @pytest.mark.parametrize("fixture", ["sink2_ckpt", "sink2_safetensors"])
    @pytest.mark.parametrize(
        ("damage", "code"),
        [("empty", Code.SHARD_EMPTY), ("zeroed", Code.SHARD_ZEROED), ("cut", Code.SHARD_TRUNCATED)],
    )
    def test_a_shard_that_is_damaged_on_one_rank_sends_all_ranks_one_save_back(
        self, tmp_path: Path, fixture: str, damage: str, code: Code
    ) -> None:
        output = writable_copy(fixture, tmp_path / fixture)
        shard = rank_file(output, 2, "30_2", run=1, suffix=fixture.removeprefix("sink2_"))
        data = shard.read_bytes()
        shard.write_bytes({"empty": b"", "zeroed": bytes(len(data)), "cut": data[: len(data) // 2]}[damage])
        answer = plan(output)
        assert chosen(answer) == ("_1-25_2", 50)
        assert why_not(answer) == [("_1-30_2", {code})]
        assert [reason.path for reason in reasons(answer, "_1-30_2")] == [str(shard.relative_to(output / "checkpoint"))]
        assert answer.point.lost_steps == 10

    def test_a_folder_that_is_named_like_a_shard_is_no_shard(self, sink2: Path) -> None:
        shard = rank_file(sink2, 2, "30_2", run=1)
        shard.unlink()
        shard.mkdir()
        answer = plan(sink2)
        assert chosen(answer) == ("_1-25_2", 50)
        assert why_not(answer) == [("_1-30_2", {Code.SHARD_MISSING})]
        assert Code.NOT_A_REGULAR_FILE in notes(answer)

    def test_a_power_cut_that_emptied_the_newest_save_on_every_rank_is_told_and_not_hidden(self, sink2: Path) -> None:
        """No shard tells the step any more, so only the label says that it was the newest; it must still be listed."""
        for rank in range(4):
            rank_file(sink2, rank, "30_2", run=1).write_bytes(b"")
        answer = plan(sink2)
        assert chosen(answer) == ("_1-25_2", 50)
        assert why_not(answer) == [("_1-30_2", {Code.SHARD_EMPTY})]
        assert Code.STEP_UNKNOWN in notes(answer)
        assert Code.META_BEHIND not in notes(answer)
        assert "Nothing newer" not in cli("resolve", str(sink2)).stdout
        assert cli("resolve", "--strict", str(sink2)).exit_code == ExitCode.DAMAGE


class TestB3And4MissingMeta:
    def test_one_rank_without_meta_json_changes_nothing(self, sink2: Path) -> None:
        """B3: the documentation says that all ranks then go by time; the code uses the other ranks' records."""
        (sink2 / "checkpoint/rank_1/meta.json").unlink()
        answer = plan(sink2)
        assert chosen(answer) == ("_1-30_2", 60)
        (note,) = coded(answer.findings, Code.META_MISSING)
        assert note.path == "rank_1/meta.json"

    def test_no_meta_json_anywhere_changes_nothing_in_safetensors_trees_either(self, tmp_path: Path) -> None:
        """B4: MindFormers stops with a TypeError, because it looks for `.ckpt` names."""
        output = writable_copy("sink2_safetensors", tmp_path / "tree")
        for meta in output.glob("checkpoint/rank_*/meta.json"):
            meta.unlink()
        answer = plan(output)
        assert chosen(answer) == ("_1-30_2", 60)
        assert load_keys(answer.load).resume_training == "llama2_7b_rank_0_1-30_2.safetensors"
        assert load_keys(answer.load).load_ckpt_format == "safetensors"
        assert len(coded(answer.findings, Code.META_MISSING)) == 1


class TestB5To7WorldSizes:
    def test_b5_names_that_only_begin_like_a_rank_folder_are_no_ranks(self, sink2: Path) -> None:
        """1.7 to 2.1 count every entry that starts with `rank_`, and then miss `rank_4`."""
        shutil.copytree(sink2 / "checkpoint/rank_0", sink2 / "checkpoint/rank_0_bak")
        (sink2 / "checkpoint/rank_table.json").write_text("{}")
        answer = plan(sink2)
        assert chosen(answer) == ("_1-30_2", 60)
        assert answer.point.checkpoint.topology.world_size == 4
        assert scanned(sink2).strays == ("rank_0_bak", "rank_table.json")

    def test_b6_leftovers_of_a_larger_run_do_not_pull_a_smaller_one_back(self, tmp_path: Path) -> None:
        """1.7 to 2.1 silently resume from the old run's 2_2, the last save that all eight folders have."""
        tree = TreeBuilder(tmp_path).legacy(ranks=8).save(epoch=1, step=2).save(epoch=2, step=2)
        for epoch in (5, 10, 15):
            tree.save(epoch=epoch, step=2, run=1, ranks=range(4))
        answer = plan(tree.checkpoint)
        assert chosen(answer) == ("_1-15_2", 30)
        assert answer.point.checkpoint.topology.world_size == 4
        (note,) = coded(answer.findings, Code.WORLD_SIZE_DIFFERS)
        assert "--world-size 8" in (note.remedy or "")

    def test_b6_a_lost_rank_of_the_smaller_run_is_noticed_all_the_same(self, tmp_path: Path) -> None:
        """Three of eight is no size a training goes on with: it is four with one lost, and unknown is never good."""
        tree = TreeBuilder(tmp_path).legacy(ranks=8).save(epoch=1, step=2)
        tree.save(epoch=5, step=2, run=1, ranks=range(3))
        assert chosen(plan(tree.checkpoint)) == ("1_2", 2)

    def test_b7_growing_from_four_ranks_to_eight_needs_nothing(self, tmp_path: Path) -> None:
        """Up to 1.6 MindFormers stops: rank_4 has no file of the first run."""
        tree = TreeBuilder(tmp_path).legacy(ranks=8).save(epoch=10, step=2, ranks=range(4))
        tree.save(epoch=15, step=2, run=1)
        answer = plan(tree.checkpoint)
        assert chosen(answer) == ("_1-15_2", 30)
        assert answer.point.checkpoint.ranks == tuple(range(8))

    def test_b7_the_smaller_run_is_what_is_left_when_the_larger_one_lost_a_shard(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy(ranks=8).save(epoch=10, step=2, ranks=range(4))
        tree.save(epoch=15, step=2, run=1).remove(tree.shard(6, 15, 2, run=1))
        answer = plan(tree.checkpoint)
        assert chosen(answer) == ("10_2", 20)
        assert why_not(answer) == [("_1-15_2", {Code.SHARD_MISSING})]


class TestB8And9OtherFiles:
    @pytest.mark.parametrize(
        ("name", "code"),
        [
            ("llama2_7b_rank_1-40_2_breakpoint.ckpt", Code.BREAKPOINT_FILE),
            ("llama2_7b_rank_1-best.ckpt", Code.STRAY_FILE),
            ("llama2_7b_rank_1.ckpt", Code.STRAY_FILE),
        ],
    )
    def test_b8_one_file_of_another_kind_does_not_stop_the_resume(self, sink2: Path, name: str, code: Code) -> None:
        """All versions stop: "Can't match epoch and step"."""
        shutil.copy(rank_file(sink2, 1, "30_2", run=1), sink2 / "checkpoint/rank_1" / name)
        answer = plan(sink2)
        assert chosen(answer) == ("_1-30_2", 60)
        assert [finding.path for finding in coded(answer.findings, code)] == [f"rank_1/{name}"]

    def test_b9_a_breakpoint_file_is_never_resumed_from_because_its_step_is_false(self, tmp_path: Path) -> None:
        """MindSpore stores the step *in the epoch*: 3 where 13 were done. It is on one rank in any case."""
        tree = TreeBuilder(tmp_path).legacy(ranks=2).save(epoch=2, step=5, true_step=10)
        false = training_scalars(epoch=3, true_step=3, optimizer_step=13)
        tree.save(epoch=3, step=3, scalars=false, meta=False)
        for rank in range(2):
            shard = tree.output / tree.shard(rank, 3, 3)
            shard.rename(shard.with_name(f"{shard.stem}_breakpoint.ckpt"))
        assert names(scanned(tree.checkpoint)) == ["2_5"]
        assert chosen(plan(tree.checkpoint)) == ("2_5", 10)
        with pytest.raises(UsageError, match="there is no checkpoint '3_3_breakpoint'"):
            plan(tree.checkpoint, choice=api.ResumeQuestion(name="3_3_breakpoint"))


class TestB10To12Runs:
    def test_b10_a_shard_lost_after_a_restart_sends_us_back_into_the_run_before(self, sink2: Path) -> None:
        """MindFormers looks only at names with the last run's suffix, and says that nothing could be resumed."""
        rank_file(sink2, 3, "30_2", run=1).unlink()
        rank_file(sink2, 3, "25_2", run=1).unlink()
        answer = plan(sink2)
        assert chosen(answer) == ("20_2", 40)
        assert load_keys(answer.load).resume_training == "llama2_7b_rank_0-20_2.ckpt"
        assert why_not(answer) == [("_1-30_2", {Code.SHARD_MISSING}), ("_1-25_2", {Code.SHARD_MISSING})]
        assert answer.point.lost_steps == 20

    def test_b10_the_run_before_is_not_asked_while_the_last_one_has_a_whole_save(self, sink2: Path) -> None:
        rank_file(sink2, 3, "30_2", run=1).unlink()
        assert chosen(plan(sink2)) == ("_1-25_2", 50)

    @staticmethod
    def replace_node(output: Path) -> None:
        """Rank 3 came back with an empty disk, so the names of its second run have no suffix."""
        for path in (output / "checkpoint/rank_3").glob("*-[0-9]*"):
            if "_rank_3_1-" in path.name:
                path.rename(path.with_name(path.name.replace("_rank_3_1-", "_rank_3-")))
            else:
                path.unlink()

    def test_b11_a_replaced_node_belongs_to_the_run_whose_steps_it_saved(self, sink2: Path) -> None:
        """MindFormers: "No checkpoint could be resumed". It loads by one name, and there is none that all ranks have.

        So without leave to rename there is nothing; to say that the files are whole would start a run that fails.
        """
        self.replace_node(sink2)
        answer = refusal(sink2)
        assert why_not(answer)[:2] == [("_1-30_2", {Code.NEEDS_RENAMES}), ("_1-25_2", {Code.NEEDS_RENAMES})]
        assert cli("resolve", str(sink2)).exit_code == ExitCode.NOTHING_TO_RESUME
        allowed = plan(sink2, choice=api.ResumeQuestion(allow_renames=True))
        assert chosen(allowed) == ("_1-30_2", 60)
        (rename,) = allowed.point.checkpoint.renames
        assert rename.source == "rank_3/llama2_7b_rank_3-30_2.ckpt"
        assert rename.target == "rank_3/llama2_7b_rank_3_1-30_2.ckpt"

    def test_b11_once_renamed_as_told_it_is_an_ordinary_checkpoint(self, sink2: Path) -> None:
        self.replace_node(sink2)
        allowed = plan(sink2, choice=api.ResumeQuestion(allow_renames=True))
        for rename in allowed.point.checkpoint.renames:
            (sink2 / "checkpoint" / rename.source).rename(sink2 / "checkpoint" / rename.target)
        answer = plan(sink2)
        assert chosen(answer) == ("_1-30_2", 60)
        assert answer.load.settings == allowed.load.settings
        assert answer.point.checkpoint.renames == ()

    def test_b12_a_rank_that_died_before_its_first_save_leaves_the_run_before(self, tmp_path: Path) -> None:
        """Both runs own the label 10_2; 1.2 to 1.7 pick `_1-10_2`, which rank 3 does not have.

        The first run's 10_2 is at the same step, so it is not *behind* the second run, and nothing is lost. But the
        second run did that step again, so it went on from something older: where that is there, it is the choice.
        """
        tree = TreeBuilder(tmp_path).legacy().save(epoch=10, step=2)
        tree.save(epoch=10, step=2, run=1, ranks=range(3))
        answer = plan(tree.checkpoint)
        assert (chosen(answer), answer.point.checkpoint.run) == (("10_2", 20), 0)
        (missing,) = reasons(answer, "_1-10_2")
        assert missing.path == "rank_3/llama2_7b_rank_3_1-10_2.ckpt"
        assert answer.point.lost_steps == 0
        tree.save(epoch=5, step=2)
        assert (chosen(plan(tree.checkpoint)), plan(tree.checkpoint).point.lost_steps) == (("5_2", 10), 10)


class TestB14And15LabelsAndRecords:
    def test_b14_steps_come_from_inside_the_shards_where_labels_are_not_monotonic(self, tmp_path: Path) -> None:
        """Rank 3 died after `_1-3_3`, which is step 11; MindFormers says that nothing could be resumed.

        By label it is the newest of all, while the other ranks' records say that 3_2 was the last.
        """
        output = without_runs(writable_copy("nosink_ckpt", tmp_path / "tree"), 2)
        for name in ("3_1", "3_2"):
            rank_file(output, 3, name, run=1).unlink()
        answer = plan(output)
        assert chosen(answer) == ("_1-3_3", 11)
        assert why_not(answer) == [("_1-3_2", {Code.SHARD_MISSING}), ("_1-3_1", {Code.SHARD_MISSING})]
        assert answer.point.lost_steps == 15 - 11

    def test_b14_the_whole_tree_is_listed_in_the_order_of_its_true_steps(self) -> None:
        inventory = scanned(FIXTURES / "nosink_ckpt" / "output")
        steps = [(one.name, one.step) for one in inventory.checkpoints if one.run == 1]
        assert steps == [("_1-3_3", 11), ("_1-3_1", 14), ("_1-3_2", 15)]

    def test_b15_what_an_asynchronous_save_finished_last_counts_though_no_record_names_it(self) -> None:
        """meta.json is written one save late; 1.3.2 to 2.1 resume from 10_2 and do ten steps again."""
        answer = plan(FIXTURES / "async_ckpt" / "output")
        assert chosen(answer) == ("15_2", 30)
        assert answer.point.lost_steps == 0
        assert Code.META_BEHIND in notes(answer)
        assert named(scanned(FIXTURES / "async_ckpt" / "output"), "15_2").ranks == (0, 1, 2, 3)
