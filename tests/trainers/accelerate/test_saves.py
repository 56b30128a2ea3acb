"""What Accelerate's saves are, which it would take by itself, and that nothing of ours comes in its way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckpttool.core.domain.data_position import DataEffect
from ckpttool.core.domain.finding import Code, blocking
from ckpttool.core.domain.plan import Outcome
from ckpttool.core.domain.question import AskedSizes
from ckpttool.core.errors import ExitCode
from ckpttool.trainers.accelerate import first_number
from ckpttool.types import DataQuestion, ResumeQuestion
from tests.support.answers import chosen, cli, codes, document, goes_on, named, plan, scanned, simulated, why_not
from tests.support.trainer_trees import healthy


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return healthy("accel_ddp2", tmp_path)


class TestNothingOfOursLiesAmongItsSaves:
    """Of each entry of `checkpoints/` it wants a number: at one without it load_state() stops."""

    @pytest.mark.parametrize("given", ["", "checkpoints"])
    def test_whatever_path_is_given_the_trash_lies_one_folder_up(self, tree: Path, given: str) -> None:
        assert cli("seal", str(tree), "--checkpoint", "all").exit_code == ExitCode.OK
        answer = cli("prune", str(tree / given), "--keep-last", "1", "--grace", "0", "--apply")
        assert answer.exit_code == ExitCode.OK, answer.output
        assert {each.name for each in (tree / "checkpoints").iterdir()} == {"checkpoint_2"}
        assert (tree / ".ckpttool").is_dir()
        assert simulated(tree).outcome is Outcome.LOADS


class TestItsOwnChoice:
    @pytest.mark.parametrize(("name", "number"), [("checkpoint_9.bak", 9), ("old2_10", 2), ("notes.txt", None)])
    def test_the_first_number_in_a_name_is_what_it_orders_by(self, name: str, number: int | None) -> None:
        assert first_number(name) == number

    def test_an_entry_without_a_number_stops_it_and_is_named(self, tree: Path) -> None:
        (tree / "checkpoints/notes.txt").write_text("x")
        assert simulated(tree).outcome is Outcome.STOPS
        assert [each.path for each in scanned(tree).findings if each.code is Code.STRAY_TAKES_OVER] == [
            "checkpoints/notes.txt"
        ]

    def test_a_copy_with_a_lower_number_is_a_stray_and_no_more(self, tree: Path) -> None:
        (tree / "checkpoints/old_0").mkdir()
        assert codes(scanned(tree).findings) == {Code.STRAY_FILE}

    def test_where_it_numbered_anew_the_step_decides(self, tree: Path) -> None:
        saves = tree / "checkpoints"
        (saves / "checkpoint_2").rename(saves / "kept")
        (saves / "checkpoint_1").rename(saves / "checkpoint_2")
        (saves / "kept").rename(saves / "checkpoint_1")
        assert chosen(plan(tree)) == ("checkpoint_1", 12)
        assert Code.RUN_REWOUND in codes(scanned(tree).findings)
        assert simulated(tree).would_resume == "checkpoint_2"

    def test_without_numbered_saves_its_script_names_the_folder(self, tree: Path, tmp_path: Path) -> None:
        root = tmp_path / "named"
        shutil.copytree(tree / "checkpoints/checkpoint_1", root / "epoch-1")
        shutil.copytree(tree / "checkpoints/checkpoint_2", root / "epoch-2")
        answer = document("resolve", str(root))
        assert answer["load"]["path"] == f"{root}/epoch-2"
        assert len(answer["load"]["settings"]) == 1
        assert simulated(root).outcome is Outcome.UNKNOWN
        assert chosen(plan(root / "epoch-1")) == ("epoch-1", 8)


class TestWhatBelongsToASave:
    def test_fewer_ranks_are_believed_where_the_schedule_counted_so_many(self, tree: Path) -> None:
        """With one rank it counts 12 at step 12, with two 24."""
        saves = tree / "checkpoints"
        (saves / "checkpoint_2/random_states_1.pkl").unlink()
        for name in ("custom_checkpoint_0.pkl", "scheduler.bin"):
            (saves / "checkpoint_2" / name).unlink()
        shutil.copyfile(saves / "checkpoint_1/scheduler.bin", saves / "checkpoint_2/scheduler.bin")
        save = named(scanned(tree), "checkpoint_2")
        assert save.step == 16
        assert {each.code for each in blocking(save.findings)} == {Code.SHARD_MISSING}
        assert all("random_states" not in str(each.path) for each in blocking(save.findings))

    def test_the_step_is_what_the_schedule_counted_over_the_ranks_where_nothing_else_tells(self, tree: Path) -> None:
        for name in ("checkpoint_0", "checkpoint_1", "checkpoint_2"):
            (tree / "checkpoints" / name / "custom_checkpoint_0.pkl").unlink()
        assert chosen(plan(tree)) == ("checkpoint_2", 12)

    def test_where_nothing_tells_the_step_none_is_chosen_and_what_would_tell_is_said(self, tree: Path) -> None:
        for name in ("checkpoint_0", "checkpoint_1", "checkpoint_2"):
            for file in ("custom_checkpoint_0.pkl", "scheduler.bin"):
                (tree / "checkpoints" / name / file).unlink()
        answer = cli("resolve", str(tree))
        assert answer.exit_code == ExitCode.INCOMPLETE
        assert "register_for_checkpointing" in answer.output


@pytest.mark.parametrize(
    ("gbs", "old", "ranks", "effect"),
    [
        (None, 4, None, DataEffect.UNKNOWN),
        (4, 4, 2, DataEffect.UNKNOWN),
        (8, 4, None, DataEffect.REORDERS),
        (8, None, None, DataEffect.REORDERS),  # of a size that nobody knows it is never called exact
        (None, 4, 4, DataEffect.UNKNOWN),
    ],
)
def test_a_loader_that_saved_its_state_goes_on_from_it(
    tree: Path, gbs: int | None, old: int | None, ranks: int | None, effect: DataEffect
) -> None:
    for name in ("checkpoint_0", "checkpoint_1", "checkpoint_2"):
        folder = tree / "checkpoints" / name
        shutil.copyfile(folder / "scheduler.bin", folder / "dl_state_dict.bin")
    choice = ResumeQuestion(sizes=AskedSizes(world=ranks))
    told = plan(tree, choice=choice, data=DataQuestion(new_global_batch=gbs, old_global_batch=old))
    assert (goes_on(told).effect, goes_on(told).where) == (effect, "checkpoints/checkpoint_2/dl_state_dict.bin")
    is_as_it_was = (gbs or old, ranks or 2) == (4, 2)
    assert any("first epoch" in condition for condition in goes_on(told).exact_if) == is_as_it_was


class TestFoldersThatAScriptNames:
    """`accelerator.save_state("checkpoint-12")`, as many scripts for images do."""

    @pytest.fixture
    def named_by_step(self, tree: Path, tmp_path: Path) -> Path:
        run = tmp_path / "named"
        for index in (0, 1, 2):
            shutil.copytree(tree / "checkpoints" / f"checkpoint_{index}", run / f"checkpoint-{4 * (index + 1)}")
        return run

    @pytest.mark.parametrize("left", [["model.safetensors", "optimizer.bin"], ["model.safetensors"], []])
    def test_a_newest_that_was_cut_off_is_passed_over(self, named_by_step: Path, left: list[str]) -> None:
        torn = named_by_step / "checkpoint-16"
        torn.mkdir()
        for name in left:
            shutil.copyfile(named_by_step / "checkpoint-12" / name, torn / name)
        answer = plan(named_by_step)
        assert chosen(answer) == ("checkpoint-12", 12)
        assert Code.UNCOMMITTED_SAVE in codes(blocking(named(scanned(named_by_step), "checkpoint-16").findings))
        assert "checkpoint-16" in dict(why_not(answer))

    @pytest.mark.parametrize("name", ["samples-16", "images", "checkpoint-16"])
    def test_a_folder_of_something_else_is_no_save(self, named_by_step: Path, name: str) -> None:
        (named_by_step / name).mkdir()
        (named_by_step / name / "0.png").write_bytes(b"x")
        assert [save.name for save in scanned(named_by_step).checkpoints] == [
            f"checkpoint-{step}" for step in (4, 8, 12)
        ]
