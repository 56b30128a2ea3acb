"""The value test, as the real function answered."""

from __future__ import annotations

import pytest

from ckpttool.core.domain.metrics import LocalTime, StepMetrics, parse_local_time
from ckpttool.core.domain.units import Rank, Step
from ckpttool.health.asd.features import FeaturePolicy, ValueTest
from ckpttool.health.model.asd import AsdConfig, AsdEvent, AsdKind, FeatureValue
from ckpttool.health.model.events import EventKind, HealthEvent
from ckpttool.health.policies.base import PolicySettings, judge
from ckpttool.health.policies.registry import POLICIES, policy_of
from tests.support.log_rows import INF, NAN, rows

CONFIG = AsdConfig(enable=True)
TEN_ONES = [1.0] * 10


def verdicts(values: list[float]) -> list[bool]:
    test = ValueTest(config=CONFIG)
    return [test.abnormal(value) for value in values]


def after_ten_ones(values: list[float]) -> list[bool]:
    return verdicts(TEN_ONES + values)[10:]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1e12], [True]),
        ([1e6], [False]),  # strictly above a million times the mean
        ([1.000001e6], [False]),  # the jump from 1.0 is not above it
        ([1.1e6], [True]),
        ([1e9, 1e9], [True, False]),
        ([1e9, 1.0, 1e9], [True, False, True]),
        ([INF, 1e9], [True, True]),
        ([NAN, 1e9], [True, False]),
        ([0.0, 1e9], [False, True]),
    ],
)
def test_after_ten_ones_a_value_is_abnormal_as_the_real_function_says(
    values: list[float], expected: list[bool]
) -> None:
    assert after_ten_ones(values) == expected


def test_the_tenth_value_is_never_abnormal_but_a_nan_is_from_the_first_on() -> None:
    assert verdicts([1.0] * 9 + [1e12])[-1] is False
    assert verdicts([NAN]) == [True]


def test_the_mean_after_ten_ones_is_the_known_one() -> None:
    test = ValueTest(config=CONFIG)
    for value in TEN_ONES:
        test.abnormal(value)
    assert test.mean == pytest.approx(0.095618, abs=1e-6)


def test_a_value_between_the_thresholds_freezes_the_mean_for_good() -> None:
    test = ValueTest(config=CONFIG)
    for value in TEN_ONES:
        test.abnormal(value)
    mean = test.mean
    assert not any(test.abnormal(150.0) for _ in range(1000))
    assert (test.mean, test.accepted) == (mean, 10)


def test_a_wild_value_in_the_warm_up_poisons_the_mean() -> None:
    assert verdicts([1.0, 1.0, 1.0, 1e12, *TEN_ONES, 1e9])[-1] is False


def test_zeros_alone_never_warm_up() -> None:
    assert verdicts([0.0] * 50 + [1e12]) == [False] * 51


def taken(values: list[FeatureValue]) -> list[HealthEvent]:
    watch = FeaturePolicy(config=CONFIG).begin()
    return [event for value in values for event in watch.take(value)]


def test_each_parameter_on_each_rank_has_its_own_mean() -> None:
    values = [
        FeatureValue(value=scale, name=name, step=Step(step))
        for step in range(1, 11)
        for name, scale in (("small", 1.0), ("large", 1e9))
    ]
    assert taken([*values, FeatureValue(value=1e9, name="large")]) == []
    (event,) = taken([*values, FeatureValue(value=1e9, name="small")])
    assert event.kind is EventKind.SDC_EVENT


def test_values_with_times_are_counted_up_to_a_strike() -> None:
    values = [FeatureValue(value=1.0, time=LocalTime(second)) for second in range(10)]
    for minute in (10, 20, 30):
        values += [
            FeatureValue(value=1e12, time=LocalTime(minute * 60)),
            FeatureValue(value=1.0, time=LocalTime(minute * 60 + 1)),
        ]
    kinds = [event.kind for event in taken(values)]
    assert kinds == [EventKind.SDC_EVENT] * 3 + [EventKind.SDC_STRIKE]


def test_a_training_log_stands_in_with_the_square_of_its_norm() -> None:
    policy = FeaturePolicy(config=CONFIG)
    (event,) = judge(policy, rows([*TEN_ONES, None, 2e3]))
    assert (event.kind, event.step, event.value) == (EventKind.SDC_EVENT, 12, 4e6)
    assert list(judge(policy, rows([*TEN_ONES, 900.0]))) == []
    assert policy.name == "features"


def test_a_training_log_with_times_strikes_and_one_with_unreadable_times_does_not() -> None:
    calm = [StepMetrics(step=Step(step), global_norm=1.0, time=f"2024-05-01 12:00:{step:02d}") for step in range(1, 11)]
    wild = [StepMetrics(step=Step(20 + hour), global_norm=NAN, time=f"2024-05-01 1{hour}:00:00") for hour in (3, 4, 5)]
    found = list(judge(FeaturePolicy(config=CONFIG), [*calm, *wild]))
    assert [event.kind for event in found][-1] is EventKind.SDC_STRIKE
    nameless = [StepMetrics(step=row.step, global_norm=row.global_norm, time="noon") for row in wild]
    found = list(judge(FeaturePolicy(config=CONFIG), nameless))
    assert [event.kind for event in found] == [EventKind.SDC_EVENT] * 3


def test_every_policy_by_name_judges_an_empty_log() -> None:
    for name in POLICIES:
        policy = policy_of(name, PolicySettings())
        assert policy.name == name
        assert list(judge(policy, [])) == []


def logged_strike(*, since_step: int | None = None, since: str | None = None, rank: int = 3) -> AsdEvent:
    return AsdEvent(
        kind=AsdKind.STRIKE,
        time=parse_local_time("2025-03-01 12:00:00"),
        rank=Rank(rank),
        group_since=None if since is None else parse_local_time(since),
        group_since_step=None if since_step is None else Step(since_step),
    )


def group_of(strike: AsdEvent, *events: tuple[str, int | None]) -> HealthEvent:
    """The strike as the policy passes it on, with single events of other times and ranks before it."""
    known = [
        AsdEvent(
            kind=AsdKind.EVENT, time=parse_local_time(f"2025-03-01 {time}"), rank=None if rank is None else Rank(rank)
        )
        for time, rank in events
    ]
    noticed = FeaturePolicy(config=CONFIG).judge_events([*known, strike])
    return next(event for event in noticed if event.kind is EventKind.SDC_STRIKE)


def test_a_logged_strike_whose_group_is_not_listed_begins_with_the_first_event_in_its_window() -> None:
    found = group_of(logged_strike(), ("03:00:00", 3), ("09:00:00", 4), ("10:00:00", 3), ("11:00:00", None))
    assert found.since_time == parse_local_time("2025-03-01 10:00:00")


def test_a_logged_strike_without_any_event_stands_alone() -> None:
    assert group_of(logged_strike()).since_time is None


def test_a_group_that_is_listed_is_taken_as_it_is_listed() -> None:
    by_time = group_of(logged_strike(since="2025-03-01 08:30:00"), ("10:00:00", 3))
    assert by_time.since_time == parse_local_time("2025-03-01 08:30:00")
    by_step = group_of(logged_strike(since_step=100), ("10:00:00", 3))
    assert (by_step.since_step, by_step.since_time) == (100, None)
