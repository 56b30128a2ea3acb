"""Of which steps a policy's silence means anything."""

from __future__ import annotations

import pytest

from ckpttool.core.domain.units import Step
from ckpttool.health.model.events import JudgedSteps

JUDGED = JudgedSteps(first=Step(64), last=Step(100), why="it needs 64 steps")


@pytest.mark.parametrize(
    ("step", "objection"),
    [
        (63, "step 64 is the first that can be judged: it needs 64 steps"),
        (64, None),
        (100, None),
        (101, "the log ends before it, at step 100"),
        (None, "its step is unknown"),
    ],
)
def test_a_step_that_no_policy_judged_is_not_called_healthy(step: int | None, objection: str | None) -> None:
    assert JUDGED.objection(None if step is None else Step(step)) == objection


def test_a_log_too_short_to_judge_says_why_of_every_step() -> None:
    assert JudgedSteps(first=None, last=None, why="it needs 64 steps").objection(Step(64)) == "it needs 64 steps"
