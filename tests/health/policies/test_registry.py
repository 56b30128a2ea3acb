"""A policy is found by its name, and takes its own settings alone."""

from __future__ import annotations

import pytest

from ckpttool.core.errors import UsageError
from ckpttool.health.policies.base import PolicySettings
from ckpttool.health.policies.registry import POLICIES, policy_of, policy_type
from ckpttool.health.policies.skip import SkipPolicy


def test_every_name_is_that_of_its_policy() -> None:
    assert {name: policy_type(name).name for name in POLICIES} == {name: name for name in POLICIES}


def test_a_name_of_none_is_told_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match=r"unknown policy 'none'; known policies: .*skip"):
        policy_of("none", PolicySettings())


@pytest.mark.parametrize("threshold", [0.0, -1.0, float("inf"), float("nan")])
def test_a_threshold_that_nothing_can_reach_or_miss_is_refused(threshold: float) -> None:
    with pytest.raises(UsageError, match="must be above 0 and finite"):
        policy_of("skip", PolicySettings(threshold=threshold))
    policy = policy_of("skip", PolicySettings(threshold=3.0))
    assert isinstance(policy, SkipPolicy)
    assert policy.threshold == 3.0


def test_a_setting_of_another_policy_is_refused_with_the_policy_s_own() -> None:
    with pytest.raises(UsageError, match=r"--dialect is not a setting of skip, which has .*--threshold"):
        policy_of("skip", PolicySettings(threshold=3.0, dialect="mindspore"))
