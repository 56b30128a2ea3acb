"""Proves that a start which would load something else than the plan names is found, and its neighbours are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpttool.decide.loaded_instead import CODES, Start, loaded_instead
from ckpttool.domain.checkpoint import LayoutName
from ckpttool.domain.finding import Code, Finding, Severity
from ckpttool.domain.plan import LoadInstruction
from ckpttool.domain.train_config import TrainConfig
from tests.decide.test_launch_check import FITS, FITS_NEWER
from tests.inventories import tree
from tests.plans import LEGACY_LOAD, NEWER_LOAD, resume_plan

SAFETENSORS_LOAD = replace(
    LEGACY_LOAD, load_ckpt_format="safetensors", resume_training="llama2_7b_rank_0-15_2.safetensors"
)
UNIFIED_LOAD = replace(SAFETENSORS_LOAD, resume_training=True)
HERE = "/data/output/checkpoint"
PLAN = resume_plan()
START = Start(plan=PLAN, inventory=tree(PLAN.point.checkpoint), load_path=HERE, config=FITS)


def start(load: LoadInstruction = LEGACY_LOAD, *, layout: LayoutName = LayoutName.MINDFORMERS_RANK) -> Start:
    """The start of a plan that loads so."""
    return replace(START, plan=resume_plan(load=load), inventory=tree(PLAN.point.checkpoint, layout=layout))


def only(found: Start) -> Finding:
    (finding,) = loaded_instead(found)
    assert finding.code in CODES
    assert finding.severity is Severity.SUSPECT
    assert finding.remedy
    return finding


@pytest.mark.parametrize("config", [FITS, FITS_NEWER, replace(FITS, use_parallel=True), None])
@pytest.mark.parametrize("load", [LEGACY_LOAD, SAFETENSORS_LOAD, NEWER_LOAD, UNIFIED_LOAD])
def test_a_start_that_loads_what_the_plan_names_is_left_alone(
    load: LoadInstruction, config: TrainConfig | None
) -> None:
    assert loaded_instead(replace(start(load), config=config)) == ()


class TestPatterns:
    @pytest.mark.parametrize("load", [SAFETENSORS_LOAD, NEWER_LOAD, UNIFIED_LOAD])
    @pytest.mark.parametrize(
        ("path", "signs"),
        [("/data/run[1]/checkpoint", "`[`"), ("/data/run?/checkpoint", "`?`"), ("/[a*/checkpoint", "`*` and `[`")],
    )
    def test_a_sign_of_a_pattern_in_the_path_of_safetensors_is_found(
        self, load: LoadInstruction, path: str, signs: str
    ) -> None:
        finding = only(replace(start(load), load_path=path))
        assert finding.code is Code.PATH_IS_PATTERN
        assert finding.message.startswith(f"{signs} in the path {path} makes")

    @pytest.mark.parametrize("path", ["/data/run]/checkpoint", "/data/{run},!~ 模型 $x/checkpoint", HERE])
    def test_other_odd_signs_are_left_alone(self, path: str) -> None:
        assert loaded_instead(replace(start(SAFETENSORS_LOAD), load_path=path)) == ()

    def test_the_path_of_files_in_the_format_ckpt_is_left_alone(self) -> None:
        assert loaded_instead(replace(start(LEGACY_LOAD), load_path="/data/run[1]/checkpoint")) == ()

    def test_a_sign_in_the_file_name_is_found_too(self) -> None:
        name = "run[1]_rank_0-15_2.safetensors"
        finding = only(start(replace(SAFETENSORS_LOAD, resume_training=name)))
        assert (finding.code, name in finding.message) == (Code.PATH_IS_PATTERN, True)
        assert "rename the files" in str(finding.remedy)


class TestOneDevice:
    ALONE = replace(FITS, world_size=1, use_parallel=False)

    def test_safetensors_in_rank_folders_are_found(self) -> None:
        finding = only(replace(start(SAFETENSORS_LOAD), config=self.ALONE))
        assert (finding.code, finding.path) == (Code.RANK_FOLDER_ON_ONE_DEVICE, "base.yaml")

    def test_what_one_device_can_load_is_left_alone(self) -> None:
        newer, unified = LayoutName.MINDFORMERS_ITERATION, LayoutName.MINDFORMERS_UNIFIED
        assert loaded_instead(replace(start(LEGACY_LOAD), config=self.ALONE)) == ()
        assert loaded_instead(replace(start(NEWER_LOAD, layout=newer), config=self.ALONE)) == ()
        assert loaded_instead(replace(start(UNIFIED_LOAD, layout=unified), config=self.ALONE)) == ()

    def test_a_switch_that_another_file_may_set_is_not_held_against_the_config(self) -> None:
        assert loaded_instead(replace(start(SAFETENSORS_LOAD), config=replace(FITS, use_parallel=None))) == ()
