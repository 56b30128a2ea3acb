"""A restart forgets nothing: a training that was interrupted anywhere goes on as the one that was not."""

from __future__ import annotations

import json
from functools import partial

import pytest
from torch import Tensor, optim

from ckpttool.core.formats.strict_json import Json
from ckpttool.guard import GuardStop
from ckpttool.health.policies.base import Policy
from ckpttool.health.policies.olmo import OlmoPolicy
from ckpttool.health.policies.robust_z import RobustZPolicy
from ckpttool.health.policies.skip import SkipPolicy
from ckpttool.health.policies.zclip import ZClipPolicy
from tests.guard.loop import INFINITE, NOT_A_NUMBER, Training, batches

adamw = partial(optim.AdamW, lr=0.01)

BAD = {5: INFINITE, 30: 1e3, 41: 1e4, 42: INFINITE, 43: NOT_A_NUMBER, 44: 1e5, 45: INFINITE}
POLICIES: tuple[Policy | None, ...] = (
    None,
    SkipPolicy(threshold=100.0),
    RobustZPolicy(warm_up=16, window=32),
    ZClipPolicy(),
    OlmoPolicy(),
)
Line = tuple[str, int, dict[str, str]]


def ran(policy: Policy | None, interrupted: set[int]) -> tuple[list[Line], object, str]:
    """Train, and begin anew in another process, as it were, behind the steps that are named."""
    training = fresh(policy, 0)
    lines: list[Line] = []
    stopped = ""
    for number, batch in enumerate(batches(50, bad=BAD), 1):
        stopped = stepped(training, batch)
        if stopped:
            break
        if number in interrupted:
            lines += told(training)
            saved = json.loads(json.dumps(training.the_guard.saved(), allow_nan=False))
            following = fresh(policy, number)
            following.model.load_state_dict(training.model.state_dict())
            following.optimizer.load_state_dict(training.optimizer.state_dict())
            following.the_guard.restore(saved)
            training = following
    return lines + told(training), training.everything(), stopped


def fresh(policy: Policy | None, step: int) -> Training:
    return Training(adamw, policy=policy, count_threshold=5, features="enable:true", step=step)


def stepped(training: Training, batch: Tensor) -> str:
    try:
        training.step(batch)
    except GuardStop as stop:
        return str(stop)
    return ""


def told(training: Training) -> list[Line]:
    """Return the events without what is measured."""
    own = {"overhead", "clock", "since_clock"}
    return [
        (kind.value, step, {key: repr(value) for key, value in values.items() if key not in own})
        for kind, step, values in training.told.events
    ]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: "none" if policy is None else policy.name)
def test_a_training_that_was_interrupted_anywhere_decides_as_the_one_that_was_not(policy: Policy | None) -> None:
    lines, everything, stopped = ran(policy, set())
    again = ran(policy, {1, 17, 29, 30, 41, 43})
    assert again[1:] == (everything, stopped)
    plain = [line for line in lines if not line[0].startswith("sdc")]
    assert [line for line in again[0] if not line[0].startswith("sdc")] == plain
    assert {kind for kind, _, _ in plain} >= {"step", "nonfinite"}


def test_a_resume_without_anything_remembered_says_for_how_long_it_is_blind() -> None:
    training = Training(adamw, policy=RobustZPolicy(warm_up=16), step=40)
    training.the_guard.restore(None)
    assert [(kind, step, values["steps"]) for kind, step, values in told(training)] == [("blind", 40, "16")]
    assert training.the_guard.step == 40


def test_what_another_policy_remembered_is_told_and_not_used() -> None:
    saved = Training(adamw, policy=RobustZPolicy(warm_up=16)).run(batches(3)).the_guard.saved()
    training = Training(adamw, policy=RobustZPolicy(warm_up=17))
    training.the_guard.restore(saved)
    assert training.told.kinds() == ["guard-reset"]
    assert training.the_guard.step == 3


@pytest.mark.parametrize("features", [{"settings": []}, {"settings": None}, "features", 7])
def test_feature_values_of_other_settings_are_told_and_not_used(features: object) -> None:
    saved = Training(adamw, features="enable:true").run(batches(3)).the_guard.saved()
    training = Training(adamw, features="enable:true")
    training.the_guard.restore({**saved, "features": features})  # type: ignore[dict-item]  # that is the test
    assert training.told.kinds() == ["guard-reset"]


def test_a_record_that_is_none_is_told_and_ends_nothing() -> None:
    records: list[Json] = [[], "text", {"schema": "another", "step": 3}, {"step": "three"}]
    for saved in records:
        training = Training(adamw)
        training.the_guard.restore(saved)
        assert training.told.kinds() == ["guard-reset"]
        training.run(batches(1))
