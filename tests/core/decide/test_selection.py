"""Trees in which MindFormers resumes from the wrong checkpoint, or from none though there is one.

Each was reproduced with the real trainer; what it does is said in the docstrings.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ckpttool.core.domain.finding import Code, Row
from ckpttool.core.domain.health import Health
from ckpttool.core.errors import ExitCode, UnknownLayoutError, UsageError
from ckpttool.trainers.mindformers.findings import MindFormersCode
from ckpttool.trainers.mindformers.launch_check import check
from ckpttool.trainers.mindformers.load import load_keys, planned_skip
from ckpttool.types import ResumeQuestion
from tests.support.answers import (
    FIXTURES,
    chosen,
    cli,
    coded,
    codes,
    document,
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
from tests.support.training_configs import read_train_config
from tests.support.trees import TreeBuilder, floats, safetensors_bytes, training_scalars


@pytest.fixture
def sink2(tmp_path: Path) -> Path:
    """The output folder of a real run: 10_2 15_2 20_2, then a resume that wrote _1-25_2 and _1-30_2."""
    return writable_copy("sink2_ckpt", tmp_path / "sink2")


@pytest.fixture
def first_run(sink2: Path) -> Path:
    """The first run alone: 10_2 15_2 20_2, at the steps 20, 30, 40."""
    return without_runs(sink2, 1)


def rank_file(output: Path, rank: int, name: str, *, run: int = 0, suffix: str = "ckpt") -> Path:
    own = f"_{run}" if run else ""
    return output / "checkpoint" / f"rank_{rank}" / f"llama2_7b_rank_{rank}{own}-{name}.{suffix}"


class TestUnhealthyCheckpoints:
    def test_the_newest_one_that_was_recorded_unhealthy_is_passed_over(self) -> None:
        """MindFormers' filter is inverted: every version that has it resumes from the unhealthy 15_2."""
        answer = plan(FIXTURES / "health_pp2" / "output")
        assert chosen(answer) == ("10_2", 20)
        assert answer.point.checkpoint.health is Health.HEALTHY
        assert why_not(answer) == [("15_2", {Code.MARKED_UNHEALTHY})]
        assert answer.point.lost_steps == 10
        ignored = plan(FIXTURES / "health_pp2" / "output", choice=ResumeQuestion(ignore_health=True))
        assert (chosen(ignored), why_not(ignored)) == (("15_2", 30), [])

    def test_a_healthy_entry_for_a_file_that_is_gone_helps_nobody(self, tmp_path: Path) -> None:
        """MindFormers asks only whether any entry is healthy, and goes on with the unhealthy file that is there."""
        tree = TreeBuilder(tmp_path).legacy().save(epoch=10, step=2)
        tree.health([("llama2_7b_rank_0-5_2.ckpt", 0), ("llama2_7b_rank_0-10_2.ckpt", 1)])
        answer = refusal(tree.checkpoint)
        assert why_not(answer) == [("10_2", {Code.MARKED_UNHEALTHY})]
        assert Code.HEALTH_NAMES_NOTHING in notes(answer)
        assert cli("resolve", str(tree.checkpoint)).exit_code == ExitCode.NOTHING_TO_RESUME


class TestNamesWithoutSubstance:
    """All eight versions choose by name and never look at the file."""

    @pytest.mark.sample(3)
    @pytest.mark.parametrize("fixture", ["sink2_ckpt", "sink2_safetensors"])
    @pytest.mark.parametrize(
        ("damage", "code"),
        [("empty", Code.SHARD_EMPTY), ("zeroed", Code.SHARD_ZEROED), ("cut", Code.SHARD_TRUNCATED)],
    )
    def test_a_shard_that_is_damaged_on_one_rank_sends_all_ranks_one_save_back(
        self, tmp_path: Path, fixture: str, damage: str, code: Row
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
        assert MindFormersCode.META_BEHIND not in notes(answer)
        assert "No newer checkpoint" not in cli("resolve", str(sink2)).stdout
        assert cli("resolve", "--strict", str(sink2)).exit_code == ExitCode.DAMAGE


class TestMissingMeta:
    def test_one_rank_without_meta_json_changes_nothing(self, sink2: Path) -> None:
        """The documentation says that all ranks then go by time; the code uses the other ranks' records."""
        (sink2 / "checkpoint/rank_1/meta.json").unlink()
        answer = plan(sink2)
        assert chosen(answer) == ("_1-30_2", 60)
        (note,) = coded(answer.findings, MindFormersCode.META_MISSING)
        assert note.path == "rank_1/meta.json"

    def test_no_meta_json_anywhere_changes_nothing_in_safetensors_trees_either(self, tmp_path: Path) -> None:
        """MindFormers stops with a TypeError, because it looks for `.ckpt` names."""
        output = writable_copy("sink2_safetensors", tmp_path / "tree")
        for meta in output.glob("checkpoint/rank_*/meta.json"):
            meta.unlink()
        answer = plan(output)
        assert chosen(answer) == ("_1-30_2", 60)
        assert load_keys(answer.load).resume_training == "llama2_7b_rank_0_1-30_2.safetensors"
        assert load_keys(answer.load).load_ckpt_format == "safetensors"
        assert len(coded(answer.findings, MindFormersCode.META_MISSING)) == 1


class TestWorldSizes:
    def test_names_that_only_begin_like_a_rank_folder_are_no_ranks(self, sink2: Path) -> None:
        """1.7 to 2.1 count every entry that starts with `rank_`, and then miss `rank_4`."""
        shutil.copytree(sink2 / "checkpoint/rank_0", sink2 / "checkpoint/rank_0_bak")
        (sink2 / "checkpoint/rank_table.json").write_text("{}")
        answer = plan(sink2)
        assert chosen(answer) == ("_1-30_2", 60)
        assert answer.point.checkpoint.topology.world_size == 4
        assert scanned(sink2).strays == ("rank_0_bak", "rank_table.json")

    def test_leftovers_of_a_larger_run_do_not_pull_a_smaller_one_back(self, tmp_path: Path) -> None:
        """1.7 to 2.1 silently resume from the old run's 2_2, the last save that all eight folders have."""
        tree = TreeBuilder(tmp_path).legacy(ranks=8).save(epoch=1, step=2).save(epoch=2, step=2)
        for epoch in (5, 10, 15):
            tree.save(epoch=epoch, step=2, run=1, ranks=range(4))
        answer = plan(tree.checkpoint)
        assert chosen(answer) == ("_1-15_2", 30)
        assert answer.point.checkpoint.topology.world_size == 4
        (note,) = coded(answer.findings, Code.WORLD_SIZE_DIFFERS)
        assert "--world-size 8" in (note.remedy or "")

    def test_a_lost_rank_of_the_smaller_run_is_noticed_all_the_same(self, tmp_path: Path) -> None:
        """Three of eight is no size a training goes on with: it is four with one lost, and unknown is never good."""
        tree = TreeBuilder(tmp_path).legacy(ranks=8).save(epoch=1, step=2)
        tree.save(epoch=5, step=2, run=1, ranks=range(3))
        assert chosen(plan(tree.checkpoint)) == ("1_2", 2)

    def test_growing_from_four_ranks_to_eight_needs_nothing(self, tmp_path: Path) -> None:
        """Up to 1.6 MindFormers stops: rank_4 has no file of the first run."""
        tree = TreeBuilder(tmp_path).legacy(ranks=8).save(epoch=10, step=2, ranks=range(4))
        tree.save(epoch=15, step=2, run=1)
        answer = plan(tree.checkpoint)
        assert chosen(answer) == ("_1-15_2", 30)
        assert answer.point.checkpoint.ranks == tuple(range(8))

    def test_the_smaller_run_is_what_is_left_when_the_larger_one_lost_a_shard(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy(ranks=8).save(epoch=10, step=2, ranks=range(4))
        tree.save(epoch=15, step=2, run=1).remove(tree.shard(6, 15, 2, run=1))
        answer = plan(tree.checkpoint)
        assert chosen(answer) == ("10_2", 20)
        assert why_not(answer) == [("_1-15_2", {Code.SHARD_MISSING})]


class TestOtherFiles:
    @pytest.mark.parametrize(
        ("name", "code"),
        [
            ("llama2_7b_rank_1-40_2_breakpoint.ckpt", MindFormersCode.BREAKPOINT_FILE),
            ("llama2_7b_rank_1-best.ckpt", Code.STRAY_FILE),
            ("llama2_7b_rank_1.ckpt", Code.STRAY_FILE),
        ],
    )
    def test_one_file_of_another_kind_does_not_stop_the_resume(self, sink2: Path, name: str, code: Row) -> None:
        """All versions stop: "Can't match epoch and step"."""
        shutil.copy(rank_file(sink2, 1, "30_2", run=1), sink2 / "checkpoint/rank_1" / name)
        answer = plan(sink2)
        assert chosen(answer) == ("_1-30_2", 60)
        assert [finding.path for finding in coded(answer.findings, code)] == [f"rank_1/{name}"]

    def test_a_breakpoint_file_is_never_resumed_from_because_its_step_is_false(self, tmp_path: Path) -> None:
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
            plan(tree.checkpoint, choice=ResumeQuestion(name="3_3_breakpoint"))


class TestRuns:
    def test_a_shard_lost_after_a_restart_sends_us_back_into_the_run_before(self, sink2: Path) -> None:
        """MindFormers looks only at names with the last run's suffix, and says that nothing could be resumed."""
        rank_file(sink2, 3, "30_2", run=1).unlink()
        assert chosen(plan(sink2)) == ("_1-25_2", 50)  # that run is not asked while the last one has a whole save
        rank_file(sink2, 3, "25_2", run=1).unlink()
        answer = plan(sink2)
        assert chosen(answer) == ("20_2", 40)
        assert load_keys(answer.load).resume_training == "llama2_7b_rank_0-20_2.ckpt"
        assert why_not(answer) == [("_1-30_2", {Code.SHARD_MISSING}), ("_1-25_2", {Code.SHARD_MISSING})]
        assert answer.point.lost_steps == 20

    @staticmethod
    def replace_node(output: Path) -> None:
        """Rank 3 came back with an empty disk, so the names of its second run have no suffix."""
        for path in (output / "checkpoint/rank_3").glob("*-[0-9]*"):
            if "_rank_3_1-" in path.name:
                path.rename(path.with_name(path.name.replace("_rank_3_1-", "_rank_3-")))
            else:
                path.unlink()

    def test_a_replaced_node_belongs_to_the_run_whose_steps_it_saved(self, sink2: Path) -> None:
        """MindFormers: "No checkpoint could be resumed". It loads by one name, and there is none that all ranks have.

        So without leave to rename there is nothing; to say that the files are whole would start a run that fails.
        """
        self.replace_node(sink2)
        answer = refusal(sink2)
        assert why_not(answer)[:2] == [("_1-30_2", {Code.NEEDS_RENAMES}), ("_1-25_2", {Code.NEEDS_RENAMES})]
        assert cli("resolve", str(sink2)).exit_code == ExitCode.NOTHING_TO_RESUME
        allowed = plan(sink2, choice=ResumeQuestion(allow_renames=True))
        assert chosen(allowed) == ("_1-30_2", 60)
        (rename,) = allowed.point.checkpoint.renames
        assert rename.source == "rank_3/llama2_7b_rank_3-30_2.ckpt"
        assert rename.target == "rank_3/llama2_7b_rank_3_1-30_2.ckpt"
        (sink2 / "checkpoint" / rename.source).rename(sink2 / "checkpoint" / rename.target)
        renamed = plan(sink2)
        assert (chosen(renamed), renamed.point.checkpoint.renames) == (("_1-30_2", 60), ())
        assert renamed.load.settings == allowed.load.settings

    def test_a_rank_that_died_before_its_first_save_leaves_the_run_before(self, tmp_path: Path) -> None:
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


class TestLabelsAndRecords:
    def test_steps_come_from_inside_the_shards_where_labels_are_not_monotonic(self, tmp_path: Path) -> None:
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

    def test_the_whole_tree_is_listed_in_the_order_of_its_true_steps(self) -> None:
        inventory = scanned(FIXTURES / "nosink_ckpt" / "output")
        steps = [(one.name, one.step) for one in inventory.checkpoints if one.run == 1]
        assert steps == [("_1-3_3", 11), ("_1-3_1", 14), ("_1-3_2", 15)]

    def test_what_an_asynchronous_save_finished_last_counts_though_no_record_names_it(self) -> None:
        """meta.json is written one save late; 1.3.2 to 2.1 resume from 10_2 and do ten steps again."""
        answer = plan(FIXTURES / "async_ckpt" / "output")
        assert chosen(answer) == ("15_2", 30)
        assert answer.point.lost_steps == 0
        assert MindFormersCode.META_BEHIND in notes(answer)
        assert named(scanned(FIXTURES / "async_ckpt" / "output"), "15_2").ranks == (0, 1, 2, 3)


class TestFilesCutBetweenTwoEntries:
    @staticmethod
    def cut_after_epoch(shard: Path) -> None:
        data = shard.read_bytes()
        step_num = data.index(b"\x0a\x08step_num") - 2  # before the entry's own tag and length
        assert data[step_num : step_num + 1] == b"\x0a"
        shard.write_bytes(data[:step_num])

    @pytest.mark.parametrize("rank", [2, 0])  # on rank 0 the step is read first
    def test_a_file_without_its_step_is_damaged_and_not_at_step_zero(self, first_run: Path, rank: int) -> None:
        """It is a valid file: MindSpore loads it, and training starts over at step 0 of epoch 20, without a word."""
        self.cut_after_epoch(rank_file(first_run, rank, "20_2"))
        answer = plan(first_run)
        assert chosen(answer) == ("15_2", 30)
        (reason,) = coded(reasons(answer, "20_2"), Code.SCALARS_MISSING)
        assert reason.path == f"rank_{rank}/llama2_7b_rank_{rank}-20_2.ckpt"
        assert named(scanned(first_run), "20_2").step == 40


class TestDisksAndTimes:
    def test_a_rank_whose_disk_is_behind_takes_all_ranks_back_by_an_explicit_name(self, first_run: Path) -> None:
        """With separate disks each rank takes its own newest, so ranks go on from 20 and from 40."""
        for name in ("15_2", "20_2"):
            rank_file(first_run, 1, name).unlink()
        answer = plan(first_run)
        assert chosen(answer) == ("10_2", 20)
        assert load_keys(answer.load).resume_training == "llama2_7b_rank_0-10_2.ckpt"
        assert answer.point.lost_steps == 20

    def test_touching_or_copying_an_old_file_does_not_make_it_new(self, first_run: Path) -> None:
        before = document("resolve", str(first_run))
        later_ns = 2_000_000_000 * 10**9
        for shard in first_run.glob("checkpoint/rank_*/*-10_2.ckpt"):
            os.utime(shard, ns=(later_ns, later_ns))
        assert before["resume"]["name"] == "20_2"
        assert document("resolve", str(first_run)) == before


class TestNames:
    @pytest.mark.sample(4)
    @pytest.mark.parametrize(
        ("prefix", "told"),
        [
            *((prefix, set[Row]()) for prefix in ("llama-7b", "llama3.1_8b", "a-1_2", "rank_0")),
            *((prefix, {MindFormersCode.PREFIX_HOLDS_RANK}) for prefix in ("my_rank_7_model", "llama_rank_7")),
        ],
    )
    def test_any_prefix_is_told_from_rank_epoch_and_step(self, tmp_path: Path, prefix: str, told: set[Row]) -> None:
        """A `-` fails up to 1.3.2. B25: a rank in the prefix fails everywhere. B28: a `.` breaks 1.8 to 2.1."""
        tree = TreeBuilder(tmp_path).legacy(ranks=8, prefix=prefix)
        tree.save(epoch=10, step=2).save(epoch=15, step=2).save(epoch=20, step=2, run=1)
        answer = plan(tree.checkpoint)
        assert chosen(answer) == ("_1-20_2", 40)
        assert load_keys(answer.load).resume_training == f"{prefix}_rank_0_1-20_2.ckpt"
        assert answer.point.checkpoint.prefix == prefix
        assert answer.point.checkpoint.ranks == tuple(range(8))
        assert codes(answer.findings) == told
        tree.remove(tree.shard(7, 15, 2)).remove(tree.shard(7, 20, 2, run=1))
        assert chosen(plan(tree.checkpoint)) == ("10_2", 20)
        assert [reason.path for reason in reasons(plan(tree.checkpoint), "15_2")] == [
            f"rank_7/{prefix}_rank_7-15_2.ckpt"
        ]

    def test_name_and_format_are_given_together_so_that_no_suffix_is_appended(self, tmp_path: Path) -> None:
        """`x.safetensors` with `load_ckpt_format: ckpt` makes MindFormers look for `x.safetensors.ckpt`."""
        answer = plan(FIXTURES / "sink2_safetensors" / "output")
        assert load_keys(answer.load).resume_training == "llama2_7b_rank_0_1-30_2.safetensors"
        assert load_keys(answer.load).load_ckpt_format == "safetensors"
        config = tmp_path / "base.yaml"
        config.write_text("resume_training: x.safetensors\nload_ckpt_format: ckpt\n")
        said = " ".join(finding.message for finding in check(read_train_config(str(config)), answer))
        assert "x.safetensors.ckpt" in said
        config.write_text("resume_training: x.safetensors\nload_ckpt_format: safetensors\n")
        said = " ".join(finding.message for finding in check(read_train_config(str(config)), answer))
        assert ".safetensors." not in said

    @pytest.mark.parametrize("name", ["20_2", "llama2_7b_rank_0-20_2.ckpt", "llama2_7b_rank_1-20_2.ckpt"])
    def test_a_named_checkpoint_that_one_rank_lacks_is_refused_before_anything_starts(
        self, first_run: Path, name: str
    ) -> None:
        """MindFormers lets the other ranks load it, and the one rank crashes later."""
        assert chosen(plan(first_run, choice=ResumeQuestion(name=name))) == ("20_2", 40)
        rank_file(first_run, 3, "20_2").unlink()
        answer = refusal(first_run, choice=ResumeQuestion(name=name))
        assert [reason.path for reason in reasons(answer, "20_2")] == ["rank_3/llama2_7b_rank_3-20_2.ckpt"]
        result = cli("resolve", str(first_run), "--checkpoint", name)
        assert result.exit_code == ExitCode.NOTHING_TO_RESUME


class TestOtherWeights:
    def test_network_weights_beside_the_shards_are_not_chosen(self, tmp_path: Path) -> None:
        """MindFormers takes the rank's name and epoch from them and resumes without optimizer state."""
        output = writable_copy("sink2_safetensors", tmp_path / "tree")
        for rank in range(4):
            for source in (output / f"checkpoint_network/rank_{rank}").iterdir():
                shutil.copy(source, output / f"checkpoint/rank_{rank}")
        answer = plan(output)
        assert chosen(answer) == ("_1-30_2", 60)
        assert load_keys(answer.load).resume_training == "llama2_7b_rank_0_1-30_2.safetensors"
        assert Code.STRAY_FILE in notes(answer)

    def test_a_folder_of_network_weights_alone_holds_nothing_to_resume_from(self, tmp_path: Path) -> None:
        output = writable_copy("sink2_safetensors", tmp_path / "tree")
        answer = refusal(output / "checkpoint_network")
        assert answer.rejected == ()
        assert Code.STRAY_FILE in notes(answer)

    @staticmethod
    def unified(folder: Path, *, global_batch_size: int | None) -> Path:
        folder.mkdir()
        scalars = training_scalars(epoch=15, true_step=30, global_batch_size=global_batch_size)
        (folder / "hyper_param.safetensors").write_bytes(safetensors_bytes(scalars, {"format": "ms"}))
        (folder / "part0.safetensors").write_bytes(safetensors_bytes([floats("dense.bias", [8])], {"format": "ms"}))
        (folder / "param_name_map.json").write_text('{"weight_map": {"dense.bias": "part0.safetensors"}}')
        return folder

    def test_unified_weights_without_a_batch_size_are_refused_because_no_version_loads_them(
        self, tmp_path: Path
    ) -> None:
        """1.6 to 2.1 stop with a KeyError, so a plan that names them would be a start that fails."""
        folder = self.unified(tmp_path / "unified_checkpoint", global_batch_size=None)
        answer = refusal(folder)
        assert why_not(answer) == [("unified", {Code.SCALARS_MISSING})]

    def test_with_one_they_are_resumed_from(self, tmp_path: Path) -> None:
        answer = plan(self.unified(tmp_path / "unified_checkpoint", global_batch_size=8))
        assert chosen(answer) == ("unified", 30)
        assert (load_keys(answer.load).resume_training, planned_skip(answer).batches) == (True, 30)


class TestRewinds:
    def test_a_later_run_outranks_a_larger_step_and_the_branch_that_was_left_is_named(self, tmp_path: Path) -> None:
        """MindFormers prefers the later run by an accident of its health mode, the larger step otherwise.

        The later run is right: somebody went back on purpose, and the higher steps are what they went back from.
        """
        tree = TreeBuilder(tmp_path).legacy()
        for epoch in (10, 15, 20):
            tree.save(epoch=epoch, step=2)
        tree.save(epoch=15, step=2, run=1)
        tree.health([(f"llama2_7b_rank_0{own}.ckpt", 0) for own in ("-10_2", "-15_2", "-20_2", "_1-15_2")])
        answer = plan(tree.checkpoint)
        assert chosen(answer) == ("_1-15_2", 30)
        assert Code.RUN_REWOUND in notes(answer)
        assert why_not(answer) == [("20_2", {Code.ABANDONED_BRANCH})]
        assert answer.point.lost_steps == 0


class TestNoFalseAnswers:
    def test_an_empty_folder_is_no_checkpoint_tree_and_never_a_fresh_start(self, tmp_path: Path) -> None:
        """1.7 to 2.1 begin at random weights, with only a warning."""
        with pytest.raises(UnknownLayoutError, match="has no checkpoints"):
            plan(tmp_path)
        result = cli("resolve", str(tmp_path))
        assert (result.exit_code, result.stdout) == (ExitCode.UNKNOWN_LAYOUT, "")

    def test_rank_folders_without_a_file_are_a_tree_with_nothing_to_resume_from(self, tmp_path: Path) -> None:
        for rank in range(4):
            (tmp_path / f"checkpoint/rank_{rank}").mkdir(parents=True)
        assert refusal(tmp_path).rejected == ()
        assert cli("resolve", str(tmp_path)).exit_code == ExitCode.NOTHING_TO_RESUME
        assert document("resolve", str(tmp_path))["resume"] is None
