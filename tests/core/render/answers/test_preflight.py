"""Proves that each check's line says what was seen, and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpttool.core.domain.data_position import DataEffect, GoesOn, TrainersSkip, skip_of
from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.plan import NoResumePoint
from ckpttool.core.domain.verdict import Level
from ckpttool.core.render.answers import preflight_summaries as summaries
from tests.core.decide.test_preflight import MISSING, NEED, NOTE
from tests.support.plans import resume_plan
from tests.trainers.mindformers.test_launch_check import FITS

SKIP = TrainersSkip(setting="data_skip_steps", value=30)


def test_the_checkpoint_is_told_with_its_ranks_and_what_is_lost() -> None:
    plan = resume_plan()
    assert summaries.checkpoint_summary(plan) == "step 30 (15_2), intact on all 4 ranks (structure: struct-ok)"
    lossy = replace(plan, point=replace(plan.point, lost_steps=1))
    assert summaries.checkpoint_summary(lossy).endswith("; 1 step to redo")
    assert "step 30 (15_2), intact (" in summaries.checkpoint_summary(resume_plan(ranks=0))


def test_health_is_told_as_recorded_or_as_unknown() -> None:
    checkpoint = resume_plan().point.checkpoint
    assert summaries.health_summary(checkpoint, Health.UNKNOWN) == "unknown: nothing is recorded"
    healthy = replace(checkpoint, health=Health.HEALTHY)
    assert summaries.health_summary(healthy, Health.HEALTHY) == "healthy, as recorded"


def test_health_that_a_log_tells_is_not_called_recorded() -> None:
    checkpoint = replace(resume_plan().point.checkpoint, health=Health.HEALTHY)
    assert summaries.health_summary(checkpoint, Health.UNKNOWN) == "healthy, by the log; nothing is recorded"
    assert summaries.health_summary(checkpoint, Health.UNHEALTHY) == "healthy, by the log; recorded as unhealthy"
    unknown = replace(checkpoint, health=Health.UNKNOWN)
    assert summaries.health_summary(unknown, Health.HEALTHY) == "unknown, by the log; recorded as healthy"


@pytest.mark.parametrize(
    ("findings", "words"),
    [
        ([], "no problems found"),
        ([NOTE], "1 note"),
        ([MISSING, MISSING], "2 problems"),
        ([MISSING, NOTE, NOTE], "1 problem and 2 notes"),
    ],
)
def test_a_config_s_problems_are_counted(findings: list[Finding], words: str) -> None:
    assert summaries.config_summary(findings) == words


def test_a_launch_is_told_in_the_numbers_that_decide_whether_it_fits() -> None:
    assert summaries.launch_summary(resume_plan(), FITS, 1, trainer="Its trainer", trainers_skip=SKIP) == (
        "1 setting to change, 4 ranks, batches of 8 samples, data_skip_steps 30"
    )
    vague = resume_plan(global_batch_size=None, batches=0)
    assert summaries.launch_summary(
        vague, replace(FITS, world_size=None), 2, trainer="Its trainer", trainers_skip=None
    ) == ("2 settings to change, data from the beginning")


def test_a_disk_is_told_with_what_is_needed_and_free() -> None:
    assert summaries.disk_summary(NEED) == "4 saves of 100 bytes in 2 files each; 400 bytes and 8 inodes free"


def test_data_that_the_trainer_counts_are_told_as_its_own() -> None:
    plan = resume_plan()
    skip = skip_of(plan.data)
    assert skip is not None
    left = replace(plan, data=GoesOn(samples=240, effect=DataEffect.UNKNOWN, unchanged=skip))
    assert summaries.launch_summary(left, FITS, 1, trainer="Its trainer", trainers_skip=None).endswith(
        ", data position counted by Its trainer"
    )


def test_a_file_system_without_inodes_is_told_without_them() -> None:
    assert "inodes" not in summaries.disk_summary(replace(NEED, free_files=None))


def test_nothing_to_resume_from_is_said_of_the_folder() -> None:
    nothing = NoResumePoint(root="out", evidence=Level.STRUCTURE, rejected=(), findings=(NOTE,))
    assert summaries.checkpoint_summary(nothing) == "nothing to resume from in out"


def test_a_skip_that_the_trainer_has_no_setting_for_is_told_in_batches() -> None:
    told = summaries.launch_summary(resume_plan(), FITS, 1, trainer="Its trainer", trainers_skip=None)
    assert told.endswith(", 30 batches skipped")
