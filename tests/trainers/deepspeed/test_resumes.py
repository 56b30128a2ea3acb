"""What DeepSpeed takes by itself, and what it makes of a resume: as the real one did with these trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpttool import api
from ckpttool.domain.data_position import DataEffect, GoesOn
from ckpttool.domain.finding import Code
from ckpttool.domain.plan import NoResumePoint, Outcome, ResumePlan, Simulation
from ckpttool.domain.question import AskedSizes
from tests.support.trainer_trees import damaged, healthy
from tests.trainers.deepspeed.test_tags import model_file

LOADS, STOPS, SCRATCH = Outcome.LOADS, Outcome.STOPS, Outcome.SCRATCH


def itself(root: Path) -> Simulation:
    """What it takes by itself."""
    return api.simulate(api.resolve(str(root)))


def resized(root: Path, **sizes: int) -> ResumePlan | NoResumePoint:
    """The answer for a start of these sizes."""
    return api.resolve(str(root), api.ResumeQuestion(sizes=AskedSizes(**sizes))).decision


@pytest.mark.parametrize("tree", ["ds_zero1_2ranks", "ds_zero3_2ranks"])
class TestWhole:
    def test_it_loads_what_latest_names(self, tree: str, tmp_path: Path) -> None:
        found = itself(healthy(tree, tmp_path))
        assert (found.would_resume, found.outcome) == ("global_step6", LOADS)

    def test_its_counters_go_on_and_where_the_data_do_nobody_knows(self, tree: str, tmp_path: Path) -> None:
        plan = api.resolve(str(healthy(tree, tmp_path))).decision
        assert isinstance(plan, ResumePlan)
        assert isinstance(plan.data, GoesOn)
        samples = {"ds_zero1_2ranks": 24, "ds_zero3_2ranks": 48}[tree]
        assert (plan.data.effect, plan.data.samples, plan.next_step) == (DataEffect.UNKNOWN, samples, 7)

    def test_the_plan_names_folder_and_tag(self, tree: str, tmp_path: Path) -> None:
        root = healthy(tree, tmp_path)
        plan = api.resolve(str(root)).decision
        assert isinstance(plan, ResumePlan)
        assert [(str(each.place), each.value) for each in plan.load.settings] == [
            ("code:load_checkpoint(load_dir)", str(root)),
            ("code:load_checkpoint(..., tag)", "global_step6"),
            ("file:latest", "global_step6"),
        ]

    @pytest.mark.parametrize("sizes", [{"world": 1}, {"data": 4}, {"tensor": 2}])
    def test_other_sizes_are_refused_as_it_refuses_them(self, tree: str, sizes: dict[str, int], tmp_path: Path) -> None:
        root = healthy(tree, tmp_path)
        answer = resized(root, **sizes)
        assert isinstance(answer, NoResumePoint)
        assert all(Code.WORLD_SIZE_REFUSED in {why.code for why in one.reasons} for one in answer.rejected)
        assert isinstance(resized(root, world=2, data=2, tensor=1), ResumePlan)


@pytest.mark.parametrize(
    ("fault", "taken", "outcome", "because"),
    [
        ("ds_zero1_2ranks--latest-missing", None, SCRATCH, "returns (None, None)"),
        ("ds_zero1_2ranks--latest-empty", None, STOPS, "AssertionError"),
        ("ds_zero1_2ranks--latest-ahead", None, STOPS, "names global_step9"),
        ("ds_zero1_2ranks--race", "global_step9", STOPS, "the others load and wait"),
        ("ds_zero1_2ranks--optimizer-shard-missing", "global_step6", STOPS, "optim_states.pt"),
        ("ds_zero1_2ranks--optimizer-shard-cut", "global_step6", STOPS, "optim_states.pt"),
        ("ds_zero1_2ranks--flipped", "global_step6", LOADS, "never falls back"),
        ("ds_zero3_2ranks--model-shard-missing", "global_step6", STOPS, "model_states.pt"),
    ],
)
def test_of_a_damaged_tree_it_takes_what_the_real_one_took(
    fault: str, taken: str | None, outcome: Outcome, because: str, tmp_path: Path
) -> None:
    found = itself(damaged(fault, tmp_path))
    assert (found.would_resume, found.outcome) == (taken, outcome)
    assert because in found.because


class TestWithoutZero:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        root = healthy("ds_zero1_2ranks", tmp_path)
        for file in root.glob("*/*_optim_states.pt"):
            file.unlink()
        model_file(root / "global_step6", optimizer={"state": {}}, ds_config={"train_batch_size": 4})
        return root

    def test_other_ranks_load_it_and_it_is_said(self, root: Path) -> None:
        plan = resized(root, world=4)
        assert isinstance(plan, ResumePlan)
        assert Code.WORLD_SIZE_DIFFERS in {finding.code for finding in plan.findings}

    def test_another_cut_of_the_model_is_refused(self, root: Path) -> None:
        assert isinstance(resized(root, world=4, tensor=2), NoResumePoint)
