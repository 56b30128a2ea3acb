"""Trees of MindFormers' PyNative trainer, which writes how many steps a run was to make as `step_num`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckpttool.core.domain.data_position import GoesOn
from ckpttool.core.domain.finding import Code, blocking
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.errors import ExitCode
from ckpttool.core.verbs.resolving import resolve
from ckpttool.trainers.common import TRACKER
from tests.support.answers import FIXTURES, cli, codes, document, named, scanned
from tests.support.trainer_trees import edit_json
from tests.trainers.mindformers.pynative.support import changed, config_of, tree_of

TREES = {
    "one_rank_killed_34": [(10, 80), (20, 160), (30, 240)],
    "one_rank_async_tracker_behind": [(10, 80), (20, 160), (30, 240)],
    "one_rank_batch_8_to_16": [(20, 160), (30, 240), (25, 400), (35, 560), (40, 640)],
    "two_ranks_copies": [(5, 40), (10, 80)],
    "two_ranks_sharded": [(5, 40), (10, 80)],
    "one_rank_1.9.0": [(20, 160), (30, 240)],
    "one_rank_async_finished": [(10, 80), (20, 160), (30, 240), (40, 320)],
    "one_rank_27_steps_of_8_to_16": [(9, 72), (27, 216), (18, 296)],
    "one_rank_ramp_up": [(5, 20), (10, 48), (15, 100), (20, 180)],
    "two_ranks_redundancy_removed": [(5, 40), (10, 80)],
}
"""Steps and samples of the saves, in the order in which they were made."""


@pytest.fixture
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Copy a tree that the trainer wrote."""
    name = getattr(request, "param", "one_rank_killed_34")
    return Path(shutil.copytree(FIXTURES / "pynative" / name / "checkpoint", tmp_path / "checkpoint"))


@pytest.mark.parametrize(("tree", "saves"), TREES.items(), indirect=["tree"])
class TestARealTree:
    def test_is_read_in_the_order_of_its_samples_and_is_whole(self, tree: Path, saves: list[tuple[int, int]]) -> None:
        found = scanned(tree)
        assert [(save.step, save.samples) for save in found.checkpoints] == saves
        assert [blocking(save.findings) for save in found.checkpoints] == [()] * len(saves)
        said = cli("verify", str(tree), "--checkpoint", "all", "--level", "numerics")
        assert said.exit_code == ExitCode.OK
        assert "damage" not in said.output

    def test_is_resumed_from_the_save_with_the_most_samples(self, tree: Path, saves: list[tuple[int, int]]) -> None:
        step, samples = saves[-1]
        answer = document("resolve", str(tree))
        assert (answer["resume"]["step"], answer["position"]["samples"]) == (step, samples)
        assert answer["load"]["path"] == str(tree / f"iteration_{step:08d}")


@pytest.mark.parametrize(
    ("tree", "values", "next_step", "samples"),
    [
        ("one_rank_27_steps_of_8_to_16", {"global_batch_size": 16}, 19, 296),
        ("one_rank_27_steps_of_8_to_16", {"global_batch_size": 8}, 37, 296),
        ("one_rank_ramp_up", {"global_batch_size": "16\n  rampup_batch_size: [4, 4, 96]"}, 21, 180),
        ("one_rank_ramp_up", {"global_batch_size": 32}, 11, 180),
        ("one_rank_async_finished", {"steps": 60}, 41, 320),
        ("two_ranks_copies", {"steps": 16}, 11, 80),
        ("two_ranks_redundancy_removed", {"steps": 16, "global_batch_size": 16}, 6, 80),
    ],
    indirect=["tree"],
)
def test_the_next_step_and_sample_are_those_of_the_trainer(
    tree: Path, values: dict[str, object], next_step: int, samples: int
) -> None:
    found = resolve(TreeQuestion(path=str(tree), config=config_of(changed(**values)))).decision
    assert isinstance(found, ResumePlan)
    assert isinstance(found.data, GoesOn)
    assert (found.next_step, found.data.samples) == (next_step, samples)


def test_a_finished_run_with_async_save_is_resumed_from_the_save_that_its_tracker_never_names(tmp_path: Path) -> None:
    tree = tree_of("one_rank_async_finished", tmp_path)
    assert (tree / TRACKER).read_text() == "30"
    answer = document("resolve", str(tree))
    assert answer["resume"]["name"] == "iteration_00000040"
    assert Code.TRACKER_DISAGREES in {finding["code"] for finding in answer["findings"]}


def test_a_save_whose_own_step_is_not_its_folders_is_damaged(tree: Path) -> None:
    (tree / "iteration_00000020").rename(tree / "iteration_00000025")
    assert Code.STEP_DISAGREES in codes(named(scanned(tree), "iteration_00000025").findings)
    edit_json(tree / "iteration_00000030/common.json", global_step=None)
    assert Code.SCALARS_MISSING in codes(named(scanned(tree), "iteration_00000030").findings)


@pytest.mark.parametrize("tree", ["one_rank_1.9.0"], indirect=True)
def test_the_last_save_of_a_run_says_its_own_step_and_makes_no_other_wrong(tree: Path) -> None:
    shutil.copytree(tree / "iteration_00000030", tree / "iteration_00000040")
    edit_json(tree / "iteration_00000040/common.json", global_step=40)
    assert [blocking(save.findings) for save in scanned(tree).checkpoints] == [(), (), ()]
    shutil.rmtree(tree / "iteration_00000020")
    assert [blocking(save.findings) for save in scanned(tree).checkpoints] == [(), ()]
    assert cli("resolve", str(tree)).exit_code == ExitCode.OK


class TestOfTheStaticTrainer:
    @pytest.fixture
    def static(self, tmp_path: Path) -> Path:
        """Three saves, each of which says its own step."""
        return Path(shutil.copytree(FIXTURES / "newfmt_1rank" / "output" / "checkpoint", tmp_path / "checkpoint"))

    def test_one_wrong_step_makes_no_tree_of_the_pynative_trainer(self, static: Path) -> None:
        edit_json(static / "iteration_00000030/common.json", step_num=31)
        assert codes(named(scanned(static), "iteration_00000030").findings) == {Code.STEP_DISAGREES}
        assert document("resolve", str(static))["resume"]["name"] == "iteration_00000020"
