"""Which way a training took: at other batch sizes, around a tracker, with two runs under one name, after a lost run.

Each tree is one that the real trainer left behind, in names, counters and times.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import ExitCode
from ckpttool.trainers.mindformers.load import planned_skip
from ckpttool.types import DataQuestion, ResumeQuestion
from tests.support.answers import (
    FIXTURES,
    chosen,
    cli,
    coded,
    names,
    notes,
    plan,
    reasons,
    refusal,
    scanned,
    why_not,
    writable_copy,
)
from tests.support.prunable_trees import files
from tests.support.trees import FIRST_SAVE_NS, MINUTE_NS, TreeBuilder


class TestBatchSizes:
    """At a resume with another batch size the step counter is scaled: 100 steps of 8 samples go on as 50 of 16."""

    @pytest.fixture
    def doubled(self, tmp_path: Path) -> TreeBuilder:
        """30, 50 and 100 steps of 8 samples, resumed from the last, then 55 and 60 steps of 16."""
        tree = TreeBuilder(tmp_path).legacy()
        for step in (30, 50, 100):
            tree.save(epoch=step // 2, step=2)
        tree.save(epoch=55, step=1, true_step=55, run=1, global_batch_size=16)
        return tree.save(epoch=60, step=1, true_step=60, run=1, global_batch_size=16)

    def test_a_run_that_went_on_with_larger_batches_was_not_rewound(self, doubled: TreeBuilder) -> None:
        answer = plan(doubled.checkpoint)
        assert (chosen(answer), why_not(answer)) == (("_1-60_1", 60), [])
        assert Code.RUN_REWOUND not in notes(answer)

    def test_the_last_save_of_smaller_batches_is_no_branch_that_was_left(self, doubled: TreeBuilder) -> None:
        for step in (55, 60):
            doubled.remove(doubled.shard(2, step, 1, run=1))
        answer = plan(doubled.checkpoint)
        assert chosen(answer) == ("50_2", 100)
        assert (answer.point.lost_steps, answer.point.lost_samples) == (20, 160)
        assert "20 steps to redo (160 samples)" in cli("resolve", str(doubled.checkpoint)).stdout

    def test_with_one_batch_size_the_same_steps_are_a_rewind_as_ever(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy()
        for step in (30, 50, 100):
            tree.save(epoch=step // 2, step=2)
        tree.save(epoch=60, step=1, true_step=60, run=1).remove(tree.shard(2, 60, 1, run=1))
        answer = plan(tree.checkpoint)
        assert (chosen(answer), answer.point.lost_steps, answer.point.lost_samples) == (("25_2", 50), 10, 80)
        assert Code.RUN_REWOUND in notes(answer)

    def test_a_rewind_with_smaller_batches_is_seen_though_its_steps_are_higher(self, tmp_path: Path) -> None:
        """50 of 16 samples are 100 of 8: the second run is at 1200 samples, behind the first one's 1600."""
        tree = TreeBuilder(tmp_path).legacy()
        for step in (50, 100):
            tree.save(epoch=step // 2, step=2, global_batch_size=16)
        tree.save(epoch=75, step=2, run=1, global_batch_size=8).remove(tree.shard(2, 75, 2, run=1))
        answer = plan(tree.checkpoint)
        assert chosen(answer) == ("25_2", 50)
        (branch,) = reasons(answer, "50_2")
        assert branch.code is Code.ABANDONED_BRANCH
        assert "step 150 (1200 samples), so step 100 (1600 samples)" in branch.message

    def test_what_rounding_gave_up_makes_no_rewind(self, tmp_path: Path) -> None:
        """27 steps of 2 samples go on as 13 of 4, two samples of which are seen again."""
        tree = TreeBuilder(tmp_path).legacy().save(epoch=27, step=1, global_batch_size=2)
        tree.save(epoch=14, step=1, run=1, global_batch_size=4).save(epoch=22, step=1, run=1, global_batch_size=4)
        assert (chosen(plan(tree.checkpoint)), why_not(plan(tree.checkpoint))) == (("_1-22_1", 22), [])
        for step in (14, 22):
            tree.remove(tree.shard(0, step, 1, run=1))
        answer = plan(tree.checkpoint)
        assert (chosen(answer), answer.point.lost_samples) == (("27_1", 27), 34)

    def test_without_a_batch_size_where_others_differ_nothing_is_called_a_rewind(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy().save(epoch=50, step=2, global_batch_size=None)
        tree.save(epoch=40, step=2, run=1, global_batch_size=16).save(epoch=30, step=2, run=2, global_batch_size=32)
        assert why_not(plan(tree.checkpoint)) == []
        assert Code.RUN_REWOUND not in notes(plan(tree.checkpoint))

    def test_without_a_batch_size_where_no_others_differ_steps_are_compared(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy().save(epoch=50, step=2, global_batch_size=None)
        tree.save(epoch=40, step=2, run=1, global_batch_size=16)
        assert why_not(plan(tree.checkpoint)) == [("50_2", {Code.ABANDONED_BRANCH})]

    def test_in_the_newer_layout_too_the_furthest_is_the_newest(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).iteration(step=20, global_batch_size=2).iteration(step=27, global_batch_size=2)
        tree.iteration(step=22, global_batch_size=4)
        assert names(scanned(tree.checkpoint)) == [f"iteration_000000{step}" for step in (20, 27, 22)]
        answer = plan(tree.checkpoint)
        assert (chosen(answer), why_not(answer)) == (("iteration_00000022", 22), [])
        assert Code.TRACKER_DISAGREES not in notes(answer)

    def test_a_trainer_that_counts_samples_is_believed(self, tmp_path: Path) -> None:
        """Its batches grow while it runs, and its steps are never scaled."""
        tree = TreeBuilder(tmp_path)
        for step, batch, samples in ((10, 32, 300), (20, 16, 500), (30, 64, 1900)):
            tree.iteration(step=step, global_batch_size=batch)
            common = tree.checkpoint / f"iteration_{step:08d}/common.json"
            common.write_text(common.read_text().replace('"consumed_samples": null', f'"consumed_samples": {samples}'))
        assert [(save.step, save.samples) for save in scanned(tree.checkpoint).checkpoints] == [
            (10, 300),
            (20, 500),
            (30, 1900),
        ]

    def test_the_table_shows_samples_only_where_steps_are_not_enough(self, doubled: TreeBuilder) -> None:
        assert "SAMPLES" in cli("scan", str(doubled.checkpoint)).stdout
        assert "SAMPLES" not in cli("scan", str(FIXTURES / "sink2_ckpt" / "output")).stdout

    def test_each_batch_size_has_multiples_of_its_own_to_keep(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy()
        for step in (10, 20, 30):
            tree.save(epoch=step, step=1)
        for step in (16, 20, 25, 30):
            tree.save(epoch=step, step=1, run=1, global_batch_size=16)
        cli("prune", str(tree.checkpoint), "--keep-last", "1", "--keep-every", "10", "--apply", "--grace", "0")
        kept = {path.rpartition("-")[2] for path in files(tree) if "rank_0/" in path and path.endswith(".ckpt")}
        assert names(scanned(tree.checkpoint)) == ["10_1", "20_1", "30_1", "_1-16_1", "_1-20_1", "_1-30_1"], kept


class TestThePastOfTheData:
    """What the shards record is not asked for again, and a step of another batch size is another place."""

    @pytest.fixture
    def doubled(self, tmp_path: Path) -> TreeBuilder:
        """6 steps of 2 samples, gone on as 3 of 4, up to step 21: 84 samples."""
        tree = TreeBuilder(tmp_path).legacy().save(epoch=6, step=1, global_batch_size=2)
        return tree.save(epoch=21, step=1, run=1, global_batch_size=4)

    def test_a_segment_that_the_shards_know_better_is_refused(self, doubled: TreeBuilder) -> None:
        said = cli("resolve", str(doubled.checkpoint), "--segment", "6:2")
        assert said.exit_code == ExitCode.USAGE
        assert "so 84 samples were read" in " ".join(said.stderr.split())
        assert planned_skip(plan(doubled.checkpoint)).batches == 21
        told = ["--new-gbs", "4", "--segment", "6:2", "--segment", "15:4"]
        assert cli("scale-skip", str(doubled.checkpoint), *told).exit_code == ExitCode.USAGE
        assert cli("scale-skip", *told).exit_code == ExitCode.OK  # told in full, no tree is asked

    def test_what_was_saved_without_a_batch_size_may_be_told(self, tmp_path: Path) -> None:
        """MindFormers goes on from such a step as it is."""
        tree = TreeBuilder(tmp_path).legacy().save(epoch=6, step=1, global_batch_size=None)
        tree.save(epoch=21, step=1, run=1, global_batch_size=4)
        data = cli("resolve", str(tree.checkpoint), "--segment", "6:2", "--format", "json").stdout
        assert '"samples": 72' in data
        assert cli("resolve", str(tree.checkpoint), "--segment", "7:2").exit_code == ExitCode.USAGE

    def test_a_change_of_data_tells_in_whose_batches_it_is_counted(self, doubled: TreeBuilder) -> None:
        asked = cli("resolve", str(doubled.checkpoint), "--dataset-changed-at", "6")
        assert asked.exit_code == ExitCode.USAGE
        assert "pass --dataset-changed-at 6:2 or --dataset-changed-at 6:4" in " ".join(asked.stderr.split())
        told = cli("resolve", str(doubled.checkpoint), "--dataset-changed-at", "6:2", "--format", "json").stdout
        assert '"data_skip_steps": 18' in told

    @pytest.mark.parametrize(("changed_at", "again"), [(25, "8 samples seen twice"), (20, None)])
    def test_what_is_launched_says_which_samples_come_twice_as_the_answer_before_it(
        self, tmp_path: Path, changed_at: int, again: str | None
    ) -> None:
        """35 batches since then are 17 sinks of 2 and a half: one batch of 8 is read again; 40 are 20 sinks."""
        tree, new = str(FIXTURES / "sink2_ckpt" / "output"), tmp_path / "new.yaml"
        asked = (
            tree,
            "--config",
            str(FIXTURES / "configs/pretrain_sink2.yaml"),
            "--dataset-changed-at",
            str(changed_at),
        )
        for said in (cli("resolve", *asked), cli("preflight", *asked), cli("launch", *asked, "--output", str(new))):
            told = " ".join(said.output.lower().split())
            assert ("samples seen twice" in told) is (again is not None)
            assert again is None or again in told
        assert new.exists()

    @pytest.mark.parametrize("text", ["6:0", "6:2:1"])
    def test_what_is_no_step_is_refused(self, text: str) -> None:
        tree = str(FIXTURES / "sink2_ckpt" / "output")
        assert cli("resolve", tree, f"--dataset-changed-at={text}").exit_code == ExitCode.USAGE

    def test_a_branch_that_was_left_has_no_say(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy().save(epoch=10, step=1, global_batch_size=4)
        tree.save(epoch=30, step=1, run=1, global_batch_size=2).save(epoch=12, step=1, run=2, global_batch_size=4)
        assert planned_skip(plan(tree.checkpoint, data=DataQuestion(dataset_changed_at=Step(4)))).batches == 8


class TestLostRuns:
    @pytest.fixture
    def lost(self, tmp_path: Path) -> TreeBuilder:
        """Run 0 saved 20, 30 and 40 steps; run 1 went on from 20, did the others again, and lost a shard of each."""
        tree = TreeBuilder(tmp_path).legacy()
        for epoch in (10, 15, 20):
            tree.save(epoch=epoch, step=2)
        for epoch in (15, 20, 25):
            tree.save(epoch=epoch, step=2, run=1).remove(tree.shard(3, epoch, 2, run=1))
        return tree

    def test_the_course_that_was_left_is_no_fallback_while_one_on_the_last_course_is_whole(
        self, lost: TreeBuilder
    ) -> None:
        answer = plan(lost.checkpoint)
        assert (chosen(answer), answer.point.lost_steps) == (("10_2", 20), 30)
        assert [name for name, _ in why_not(answer)] == ["_1-25_2", "_1-20_2", "_1-15_2", "20_2", "15_2"]
        (branch,) = reasons(answer, "20_2")
        assert branch.code is Code.ABANDONED_BRANCH
        assert "run 1 repeated the steps from 30" in branch.message

    def test_it_is_the_fallback_where_nothing_else_is_whole_and_a_note_says_so(self, lost: TreeBuilder) -> None:
        lost.remove(lost.shard(0, 10, 2))
        answer = plan(lost.checkpoint)
        assert chosen(answer) == ("20_2", 40)
        assert Code.RUN_REWOUND in notes(answer)

    def test_it_is_the_choice_of_whoever_names_it(self, lost: TreeBuilder) -> None:
        assert chosen(plan(lost.checkpoint, choice=ResumeQuestion(name="20_2"))) == ("20_2", 40)

    def test_of_one_that_was_named_it_is_not_said_that_nothing_else_can_be_loaded(self, lost: TreeBuilder) -> None:
        """10_2 lies on the last course, and can."""
        (note,) = coded(plan(lost.checkpoint, choice=ResumeQuestion(name="20_2")).point.findings, Code.RUN_REWOUND)
        assert note.message == "run 1 repeated the steps from 30: 20_2 is on run 0's own branch"
        lost.remove(lost.shard(0, 10, 2))
        (note,) = coded(plan(lost.checkpoint).point.findings, Code.RUN_REWOUND)
        assert "none of its checkpoints can be loaded: 20_2" in note.message

    def test_of_one_that_is_damaged_too_it_is_not_said_that_it_can_be_named(self, tmp_path: Path) -> None:
        """A left branch is 20_2 and 30_2; 30_2 has lost a shard."""
        tree = TreeBuilder(tmp_path).legacy().save(epoch=10, step=2).save(epoch=20, step=2).save(epoch=30, step=2)
        tree.save(epoch=15, step=2, run=1).remove(tree.shard(1, 30, 2))
        answer = plan(tree.checkpoint)
        assert chosen(answer) == ("_1-15_2", 30)
        (branch,) = coded(reasons(answer, "30_2"), Code.ABANDONED_BRANCH)
        assert branch.remedy is None
        (whole,) = reasons(answer, "20_2")
        assert whole.remedy == "pass --checkpoint 20_2 to choose it anyway"

    def test_a_run_that_only_went_on_makes_no_fallback_worse(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).legacy()
        for epoch in (10, 15, 20):
            tree.save(epoch=epoch, step=2)
        tree.save(epoch=25, step=2, run=1).remove(tree.shard(3, 25, 2, run=1))
        assert chosen(plan(tree.checkpoint)) == ("20_2", 40)

    def test_prune_keeps_what_resolve_would_fall_back_on(self, lost: TreeBuilder) -> None:
        cli("prune", str(lost.checkpoint), "--keep-last", "1", "--apply", "--grace", "0")
        assert chosen(plan(lost.checkpoint)) == ("10_2", 20)


class TestTrackerTimes:
    """The tracker is written at the end of every save: what is older than it was not cut off by its own save."""

    def test_after_a_rewind_and_one_save_the_one_that_is_left_over_is_not_taken(self, tmp_path: Path) -> None:
        """MindFormers goes by the tracker and is right: the training went back from 40 to 20, and saved 30 anew."""
        tree = TreeBuilder(tmp_path)
        for step in (10, 20, 30, 40, 30):
            tree.iteration(step=step)
        answer = plan(tree.checkpoint)
        assert (chosen(answer), answer.point.lost_steps) == (("iteration_00000030", 30), 0)
        assert why_not(answer) == [("iteration_00000040", {Code.ABANDONED_BRANCH})]
        assert Code.RUN_REWOUND in notes(answer)

    def test_a_save_that_was_cut_before_the_tracker_is_taken(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).iteration(step=10).iteration(step=20).iteration(step=30, tracker=False)
        answer = plan(tree.checkpoint)
        assert (chosen(answer), why_not(answer)) == (("iteration_00000030", 30), [])
        assert Code.TRACKER_DISAGREES in notes(answer)

    def test_the_next_launch_being_cut_in_its_save_does_not_take_back_the_last_choice(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).iteration(step=10).iteration(step=20, tracker=False)
        assert chosen(plan(tree.checkpoint)) == ("iteration_00000020", 20)
        tree.iteration(step=30, tracker=False, ranks=[0, 1])
        answer = plan(tree.checkpoint)
        assert chosen(answer) == ("iteration_00000020", 20)
        assert why_not(answer) == [("iteration_00000030", {Code.SHARD_MISSING})]
        (note,) = coded(answer.point.findings, Code.TRACKER_DISAGREES)
        assert note.message.endswith("2 iterations beyond it were saved, but the tracker was not written after them")

    def test_where_times_do_not_tell_a_torn_save_proves_no_rewind(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).iteration(step=10).iteration(step=20, tracker=False)
        tree.iteration(step=30, tracker=False, ranks=[0, 1])
        at_once(tree.checkpoint)
        assert chosen(plan(tree.checkpoint)) == ("iteration_00000020", 20)

    def test_two_saves_in_a_row_without_a_tracker_are_two_saves(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).iteration(step=10)
        for step in (20, 30):
            tree.iteration(step=step, tracker=False)
        answer = plan(tree.checkpoint)
        assert (chosen(answer), why_not(answer)) == (("iteration_00000030", 30), [])

    def test_in_a_copy_that_kept_no_times_the_number_decides_as_ever(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).iteration(step=10).iteration(step=20, tracker=False)
        at_once(tree.checkpoint)
        assert chosen(plan(tree.checkpoint)) == ("iteration_00000020", 20)
        tree.iteration(step=30, tracker=False)
        at_once(tree.checkpoint)
        assert chosen(plan(tree.checkpoint)) == ("iteration_00000010", 10)

    def test_a_save_that_was_cut_while_it_wrote_over_a_branch_that_was_left_is_not_taken(self, tmp_path: Path) -> None:
        """Half of its files are of the one, half of the other, and no header gives that away."""
        tree = TreeBuilder(tmp_path)
        for step in (10, 20, 30, 40, 30):
            tree.iteration(step=step)
        for rank in (0, 1):
            for part in ("model", "opt"):
                path = f"checkpoint/iteration_00000040/llama2_7b-{part}-{rank:07d}-0000004.safetensors"
                tree.touch(path, tree.now_ns)
        answer = plan(tree.checkpoint)
        assert chosen(answer) == ("iteration_00000030", 30)
        assert "some of its files are older" in reasons(answer, "iteration_00000040")[0].message

    def test_of_two_that_are_as_far_the_one_that_the_tracker_names_is_the_last(self, tmp_path: Path) -> None:
        """8 steps of 8 samples and 4 of 16 are one place; in a copy that kept no times only the tracker tells."""
        tree = TreeBuilder(tmp_path).iteration(step=8, global_batch_size=8).iteration(step=4, global_batch_size=16)
        assert chosen(plan(tree.checkpoint)) == ("iteration_00000004", 4)
        at_once(tree.checkpoint)
        assert chosen(plan(tree.checkpoint)) == ("iteration_00000004", 4)
        assert chosen(plan(tree.tracker("8").checkpoint)) == ("iteration_00000008", 8)

    def test_between_saves_of_two_batch_sizes_the_step_of_one_that_is_gone_is_no_place(self, tmp_path: Path) -> None:
        """6 steps of 16 samples are 96, and that is not further than step 10."""
        tree = TreeBuilder(tmp_path).iteration(step=8, global_batch_size=8).iteration(step=6, global_batch_size=16)
        assert chosen(plan(tree.tracker("10").checkpoint)) == ("iteration_00000006", 6)

    def test_a_tracker_that_cannot_be_looked_at_leaves_the_number(self, tmp_path: Path) -> None:
        tree = TreeBuilder(tmp_path).iteration(step=10).iteration(step=20).tracker("5")
        answer = refusal(tree.checkpoint)
        assert {code for _, found in why_not(answer) for code in found} == {Code.ABANDONED_BRANCH}


def at_once(folder: Path) -> None:
    """Give all files one time, as a copy does that keeps none."""
    for path in folder.rglob("*"):
        os.utime(path, ns=(FIRST_SAVE_NS, FIRST_SAVE_NS))


class TestTwoRunsUnderOneName:
    """Rank 1 was cut off in the first save of a run, and so counts the next one as its first."""

    @pytest.fixture
    def mixed(self, tmp_path: Path) -> TreeBuilder:
        return self.mix(TreeBuilder(tmp_path).legacy())

    @staticmethod
    def mix(tree: TreeBuilder) -> TreeBuilder:
        """Run 0 saves 10_2 on ranks 0, 2 and 3 alone; run 1's is 10_2 on rank 1 and `_1-10_2` on the others."""
        tree.save(epoch=10, step=2, ranks=[0, 2, 3])
        before = tree.now_ns
        tree.save(epoch=10, step=2, run=1, ranks=[0, 2, 3])
        tree.now_ns = before
        return tree.save(epoch=10, step=2, ranks=[1])

    def test_files_that_are_as_old_as_another_runs_make_a_doubt(self, mixed: TreeBuilder) -> None:
        answer = refusal(mixed.checkpoint)
        (doubt,) = reasons(answer, "10_2")
        assert (doubt.code, doubt.path, doubt.ranks) == (
            Code.TIMES_DISAGREE,
            "rank_1/llama2_7b_rank_1-10_2.ckpt",
            (1,),
        )

    def test_a_rank_that_counts_one_run_less_makes_a_doubt_of_each_of_its_names(self, tmp_path: Path) -> None:
        """Rank 1's 10_2 is of run 1 and its `_1-10_2` of run 2; the others' `_2-10_2` has no file of it."""
        tree = TreeBuilder(tmp_path).legacy().save(epoch=10, step=2, ranks=[0, 2, 3])
        for run in (1, 2):
            now = tree.now_ns
            tree.save(epoch=10, step=2, run=run, ranks=[0, 2, 3])
            tree.now_ns = now
            tree.save(epoch=10, step=2, run=run - 1, ranks=[1])
        assert why_not(refusal(tree.checkpoint)) == [
            ("_2-10_2", {Code.SHARD_MISSING}),
            ("_1-10_2", {Code.TIMES_DISAGREE}),
            ("10_2", {Code.TIMES_DISAGREE}),
        ]

    def test_an_older_one_without_a_doubt_is_taken_instead(self, tmp_path: Path) -> None:
        tree = self.mix(TreeBuilder(tmp_path).legacy().save(epoch=5, step=2))
        assert chosen(plan(tree.checkpoint)) == ("5_2", 10)
        assert why_not(plan(tree.checkpoint))[1] == ("10_2", {Code.ABANDONED_BRANCH, Code.TIMES_DISAGREE})

    def test_the_same_names_with_times_of_one_save_are_one_save(self, tmp_path: Path) -> None:
        """Run 0 saved 10_2 on all ranks, and rank 1 was cut off in run 1's."""
        tree = TreeBuilder(tmp_path).legacy().save(epoch=10, step=2)
        tree.save(epoch=10, step=2, run=1, ranks=[0, 2, 3])
        answer = plan(tree.checkpoint)
        assert (chosen(answer), answer.point.checkpoint.run) == (("10_2", 20), 0)

    def test_where_all_times_are_the_same_there_is_no_doubt(self, mixed: TreeBuilder) -> None:
        at_once(mixed.checkpoint)
        assert chosen(plan(mixed.checkpoint)) == ("10_2", 20)

    def test_a_folder_that_was_copied_later_makes_no_doubt_of_other_names(self, tmp_path: Path) -> None:
        output = writable_copy("sink2_ckpt", tmp_path / "tree")
        shutil.copytree(output / "checkpoint/rank_1", tmp_path / "rank_1", copy_function=shutil.copyfile)
        shutil.rmtree(output / "checkpoint/rank_1")
        (tmp_path / "rank_1").rename(output / "checkpoint/rank_1")
        assert chosen(plan(output)) == ("_1-30_2", 60)

    def test_prune_lets_nothing_go_because_of_it_and_leaves_it(self, mixed: TreeBuilder) -> None:
        mixed.now_ns += 100 * MINUTE_NS
        mixed.save(epoch=5, step=2, run=0)
        cli("prune", str(mixed.checkpoint), "--keep-last", "1", "--apply", "--grace", "0")
        assert "10_2" in names(scanned(mixed.checkpoint))
        assert "5_2" in names(scanned(mixed.checkpoint))

    def test_names_of_two_runs_that_are_hours_apart_are_no_replaced_node(self, tmp_path: Path) -> None:
        """Rank 0 lost run 1's 20_2 and alone wrote run 2's; a node that was replaced writes when the others do."""
        tree = TreeBuilder(tmp_path).legacy().save(epoch=10, step=2).save(epoch=20, step=2, run=1, ranks=[1, 2, 3])
        tree.now_ns += 120 * MINUTE_NS
        tree.save(epoch=20, step=2, run=2, ranks=[0])
        choice = ResumeQuestion(allow_renames=True)
        answer = plan(tree.checkpoint, choice=choice)
        assert (chosen(answer), why_not(answer)) == (("10_2", 20), [("_1-20_2", {Code.TIMES_DISAGREE})])
        at_once(tree.checkpoint)
        assert chosen(plan(tree.checkpoint, choice=choice)) == ("_1-20_2", 40)

    @pytest.mark.parametrize(("hours", "is_said"), [(2, True), (0, False)])
    def test_an_hour_alone_is_a_note(self, tmp_path: Path, hours: int, *, is_said: bool) -> None:
        """Both runs' first save was cut off, each on the ranks that have the other's: no name tells."""
        tree = TreeBuilder(tmp_path).legacy().save(epoch=10, step=2, ranks=[0, 1, 2])
        tree.now_ns += hours * 60 * MINUTE_NS
        tree.save(epoch=10, step=2, ranks=[3])
        answer = plan(tree.checkpoint)
        assert chosen(answer) == ("10_2", 20)
        assert (Code.TIMES_DISAGREE in notes(answer)) is is_said
        if is_said:
            (note,) = coded(answer.point.findings, Code.TIMES_DISAGREE)
            assert note.path == "rank_3/llama2_7b_rank_3-10_2.ckpt"
            tree.save(epoch=10, step=2, ranks=[1, 2])
            (note,) = coded(plan(tree.checkpoint).point.findings, Code.TIMES_DISAGREE)
            assert (note.path, "before the other files" in note.message) == ("rank_0/llama2_7b_rank_0-10_2.ckpt", True)
