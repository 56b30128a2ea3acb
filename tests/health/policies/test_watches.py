"""What holds for every policy: it pushes, its memory is plain JSON, and its limit is the very norm."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.core.formats.strict_json import ParseError
from ckpttool.health.asd.features import FeaturePolicy
from ckpttool.health.model.asd import AsdConfig
from ckpttool.health.model.events import MARKS_SPIKE, EventKind, HealthEvent
from ckpttool.health.policies.base import Policy, Watch, judge, least_noticed
from ckpttool.health.policies.olmo import OlmoPolicy
from ckpttool.health.policies.robust_z import RobustZPolicy
from ckpttool.health.policies.skip import SkipPolicy
from ckpttool.health.policies.zclip import ZClipPolicy
from ckpttool.health.verbs.asd import asd_dialects
from tests.support.log_rows import INF, NAN, rows

CHECKED = AsdConfig(
    enable=True, with_checksum=True, cooldown=1, strikes_num=2, strikes_window=3, checksum_cooldown=4, upper_thresh1=3
)
FEATURES = [FeaturePolicy(config=CHECKED, dialect=dialect) for dialect in asd_dialects()]
POLICIES: list[Policy] = [
    SkipPolicy(threshold=3.0, count_threshold=3),
    SkipPolicy(threshold=3.0, count_threshold=2, nan_counts=True),
    RobustZPolicy(window=12, warm_up=4, level_shift=3),
    ZClipPolicy(warm_up=3),
    OlmoPolicy(window=6, sigmas=2.0),
    *FEATURES,
]

numbers = st.one_of(st.floats(min_value=0, max_value=10), st.floats(min_value=0), st.sampled_from((NAN, INF, 0.0, 1e9)))


@st.composite
def logs(draw: st.DrawFn) -> list[StepMetrics]:
    """Steps that mostly go on, with gaps, restarts, and times that may be missing or no times at all."""
    step, minute, found = 1, 0, []
    for _ in range(draw(st.integers(min_value=0, max_value=40))):
        step = max(0, step + draw(st.sampled_from((1, 1, 1, 1, 2, 5, -3, 0))))
        minute += draw(st.integers(min_value=0, max_value=3))
        time = draw(st.sampled_from((f"2024-05-01 {minute // 60:02d}:{minute % 60:02d}:00", None, "noon")))
        found.append(
            StepMetrics(
                step=Step(step),
                loss=draw(st.none() | numbers),
                global_norm=draw(st.none() | numbers),
                overflow=draw(st.sampled_from((None, False, True))),
                time=time,
            )
        )
    return found


def interrupted(policy: Policy, log: Sequence[StepMetrics], at: Sequence[bool]) -> Iterator[HealthEvent]:
    """Judge a log, in a process that dies and goes on with what it saved wherever `at` says so."""
    watch = policy.begin()
    for row, dies in zip(log, at, strict=True):
        if dies:
            watch = told_anew(policy, watch)
        events = watch.observe(row)
        yield from events
        if any(event.kind is EventKind.STOP for event in events):
            return
    yield from told_anew(policy, watch).end()


def told_anew(policy: Policy, watch: Watch) -> Watch:
    """Return a fresh watch with the memory of another, by way of JSON that any parser reads."""
    fresh = policy.begin()
    fresh.restore(json.loads(json.dumps(watch.saved(), allow_nan=False)))
    return fresh


@given(log=logs(), data=st.data())
def test_a_watch_that_is_saved_and_restored_at_any_steps_notices_what_one_does_that_goes_on(
    log: list[StepMetrics], data: st.DataObject
) -> None:
    at = data.draw(st.lists(st.booleans(), min_size=len(log), max_size=len(log)))
    for policy in POLICIES:
        # By their spelling, for a NaN is not equal to itself.
        found = [repr(event) for event in interrupted(policy, log, at)]
        assert found == [repr(event) for event in judge(policy, log)], policy


def is_noticed(policy: Policy, watch: Watch, row: StepMetrics) -> bool:
    events = told_anew(policy, watch).observe(row)
    kinds = MARKS_SPIKE | {EventKind.SDC_EVENT}
    return any(event.kind in kinds and event.step == row.step for event in events)


@given(log=logs(), other=st.floats(min_value=0))
def test_a_norm_at_or_above_the_limit_is_noticed_at_the_next_step_and_one_below_is_not(
    log: list[StepMetrics], other: float
) -> None:
    step = Step(log[-1].step + 1 if log else 1)
    for policy in POLICIES:
        watch = policy.begin()
        for row in log:
            watch.observe(row)
        limit = watch.limit()
        if limit is None:
            continue
        for norm in (limit, math.nextafter(limit, INF), limit * 2, math.nextafter(limit, 0), limit / 2, other):
            if math.isfinite(norm) and norm > 0:
                row = StepMetrics(step=step, global_norm=norm)
                assert is_noticed(policy, watch, row) is (norm >= limit), (policy, norm, limit)


@pytest.mark.parametrize(
    ("policy", "norms", "around"),
    [
        (SkipPolicy(threshold=3.0), [], 3.0),
        (RobustZPolicy(warm_up=4), [1.0] * 16, math.exp(0.07)),
        (ZClipPolicy(warm_up=3), [1.0, 2.0, 3.0], 2.0 + 2.5 * math.sqrt(2 / 3)),
        (OlmoPolicy(window=4, sigmas=2.0), [9.0, 1.0, 2.0, 1.0, 2.0], 1.5 + 2 * math.sqrt(1 / 3)),
        (FeaturePolicy(config=AsdConfig(enable=True)), [1.0] * 10, 1000.0005),  # a million, and the jump to it
    ],
    ids=repr,
)
def test_the_limit_after_a_known_log_is_the_rule_s_own_number(
    policy: Policy, norms: list[float], around: float
) -> None:
    watch = policy.begin()
    for row in rows(norms):
        watch.observe(row)
    assert watch.limit() == pytest.approx(around, rel=1e-5)


@pytest.mark.parametrize(
    ("policy", "norms"),
    [
        (RobustZPolicy(warm_up=4), [1.0] * 3),
        (ZClipPolicy(warm_up=3), [1.0] * 2),
        (ZClipPolicy(warm_up=3), [1.0, 2.0, 3.0, NAN]),  # blind for good
        (OlmoPolicy(window=6), [1.0]),
        (FeaturePolicy(config=AsdConfig(enable=True)), [1.0] * 9),
        (FeaturePolicy(config=AsdConfig(enable=True)), [1.0] * 10 + [1e6]),  # another one as high is not noticed
    ],
    ids=repr,
)
def test_in_the_warm_up_and_where_a_rule_is_blind_there_is_no_limit(policy: Policy, norms: list[float]) -> None:
    watch = policy.begin()
    for row in rows(norms):
        watch.observe(row)
    assert watch.limit() is None


def test_olmo_notices_every_norm_while_a_nan_is_in_its_window() -> None:
    watch = OlmoPolicy(window=6).begin()
    for row in rows([1.0, NAN, 1.0]):
        watch.observe(row)
    assert watch.limit() == 0.0


def test_the_least_number_is_found_to_the_last_bit() -> None:
    assert least_noticed(lambda norm: norm >= 0.1) == 0.1
    assert least_noticed(lambda norm: norm > 0.1) == math.nextafter(0.1, 1)
    assert least_noticed(lambda _: True) == 0.0
    assert least_noticed(lambda _: False) is None


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("saved", [None, [], {}, "nan", {"low": "1"}])
def test_a_memory_that_no_watch_saved_is_refused(policy: Policy, saved: None) -> None:
    with pytest.raises(ParseError):
        policy.begin().restore(saved)


def test_a_stop_is_the_last_thing_that_a_policy_is_asked_about() -> None:
    policy = SkipPolicy(threshold=3.0, count_threshold=2)
    assert [event.kind for event in judge(policy, rows([5.0, 5.0, 5.0]))][-1] is EventKind.STOP
    assert replace(policy, count_threshold=4).begin().end() == ()


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_a_step_is_judged_if_it_has_a_norm_and_enough_came_before_it(policy: Policy) -> None:
    watch = policy.begin()
    for row in rows([1.0] * 20):
        if row.step <= policy.warm_up:
            assert not watch.judges(row)
        watch.observe(row)
    assert watch.judges(StepMetrics(step=Step(21), global_norm=1.0))
    assert not watch.judges(StepMetrics(step=Step(21)))
