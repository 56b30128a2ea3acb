"""Cooldown and strikes in three dialects: the outputs of the real implementations."""

from __future__ import annotations

import pytest

from ckpttool.core.domain.asd import MINDSPORE, AsdDialect
from ckpttool.core.domain.asd import TORCH_NPU as TORCH
from ckpttool.core.domain.metrics import LocalTime
from ckpttool.core.domain.units import Rank, Step
from ckpttool.health.asd.features import FeaturePolicy
from ckpttool.health.model.asd import AsdConfig, AsdEvent, AsdKind
from ckpttool.health.model.events import EventKind, HealthEvent
from ckpttool.trainers.mindformers.silent_errors import MONITOR as MINDFORMERS

DEFAULT = AsdConfig(enable=True)


def at(minutes: float, *, rank: int = 0, step: int | None = None, kind: AsdKind = AsdKind.EVENT) -> AsdEvent:
    return AsdEvent(
        kind=kind,
        time=LocalTime(minutes * 60),
        rank=Rank(rank),
        step=None if step is None else Step(step),
        name="layer_backward",
        value=1e12,
    )


def replayed(minutes: list[float], config: AsdConfig = DEFAULT, dialect: AsdDialect = TORCH) -> list[HealthEvent]:
    return list(FeaturePolicy(config=config, dialect=dialect).judge_events([at(minute) for minute in minutes]))


def moments(events: list[HealthEvent], kind: EventKind) -> list[float]:
    return [round((event.time or 0.0) / 60, 4) for event in events if event.kind is kind]


@pytest.mark.parametrize(
    ("minutes", "counted", "strikes"),
    [
        ([0, 4.99, 5, 9.99, 10], [0, 5, 10], [10]),
        ([0, 3, 4.9, 5.0], [0, 5], []),
        ([0, 100, 480], [0, 100, 480], [480]),
        ([0, 100, 480.01], [0, 100, 480.01], []),
        ([0, 400, 600, 700], [0, 400, 600, 700], [700]),
        (list(range(0, 81, 10)), list(range(0, 81, 10)), [20, 50, 80]),
    ],
)
def test_torch_npu_counts_and_strikes_as_the_real_code_did(
    minutes: list[float], counted: list[float], strikes: list[float]
) -> None:
    events = replayed(minutes)
    assert moments(events, EventKind.SDC_EVENT) == counted
    assert moments(events, EventKind.SDC_STRIKE) == strikes


def test_with_one_strike_every_counted_event_strikes() -> None:
    events = replayed([0, 4, 5, 10], AsdConfig(strikes_num=1))
    assert moments(events, EventKind.SDC_STRIKE) == [0, 5, 10]


def test_with_two_strikes_torch_npu_lets_a_struck_event_strike_again() -> None:
    events = replayed([10, 20, 30, 40], AsdConfig(strikes_num=2))
    assert moments(events, EventKind.SDC_STRIKE) == [20, 30, 40]


def test_with_two_strikes_the_window_is_measured_to_an_event_that_has_struck_before() -> None:
    config = AsdConfig(strikes_num=2, strikes_window=450)
    assert moments(replayed([0, 500, 900, 1300], config), EventKind.SDC_STRIKE) == [900]
    assert moments(replayed([0, 500, 900, 950], config), EventKind.SDC_STRIKE) == [900, 950]


def test_a_cooldown_longer_than_the_window_loses_the_event_log_of_one_that_counts() -> None:
    events = replayed([0, 500, 700], AsdConfig(cooldown=600))
    assert moments(events, EventKind.SDC_EVENT) == [0]
    assert moments(events, EventKind.SDC_ECHO) == [500]
    again = replayed([0, 500, 700, 1150, 1300], AsdConfig(cooldown=600))
    assert moments(again, EventKind.SDC_EVENT) == [0, 1300]


def test_a_window_shorter_than_strikes_and_cooldown_never_strikes() -> None:
    assert moments(replayed(list(range(0, 200, 5)), AsdConfig(strikes_window=9)), EventKind.SDC_STRIKE) == []


def test_a_strike_tells_the_first_event_of_its_group() -> None:
    (strike,) = [event for event in replayed([0, 400, 600, 700]) if event.kind is EventKind.SDC_STRIKE]
    assert strike.since_time == 400.0 * 60
    assert strike.count == 3


def test_ranks_do_not_share_their_history() -> None:
    events = [at(0, rank=0), at(10, rank=1), at(20, rank=2)]
    found = list(FeaturePolicy(config=DEFAULT).judge_events(events))
    assert [event.kind for event in found] == [EventKind.SDC_EVENT] * 3


def test_mindspore_needs_more_than_the_cooldown_and_does_not_hold_the_window_at_the_limit() -> None:
    events = replayed([0, 5, 5.01, 300, 700], dialect=MINDSPORE)
    assert moments(events, EventKind.SDC_ECHO) == [5]
    assert moments(events, EventKind.SDC_STRIKE) == [300, 700]
    assert moments(replayed([0, 300, 700], dialect=MINDSPORE), EventKind.SDC_STRIKE) == [700]
    assert moments(replayed([0, 300, 700], dialect=TORCH), EventKind.SDC_STRIKE) == []


def test_mindspore_drops_old_events_once_there_are_more_than_it_needs() -> None:
    (_, strike) = [
        event for event in replayed([0, 300, 700, 900], dialect=MINDSPORE) if event.kind is EventKind.SDC_STRIKE
    ]
    assert strike.since_time == 300.0 * 60  # 900 - 300 > 480, but with three left none is dropped any more
    assert strike.count == 3


def test_mindformers_merges_the_errors_of_one_step_and_knows_no_cooldown() -> None:
    events = [at(0, step=10), at(0.1, step=10), at(0.2, step=11), at(0.3, step=12)]
    found = list(FeaturePolicy(config=DEFAULT, dialect=MINDFORMERS).judge_events(events))
    assert [event.kind for event in found] == [
        EventKind.SDC_EVENT,
        EventKind.SDC_ECHO,
        EventKind.SDC_EVENT,
        EventKind.SDC_EVENT,
        EventKind.SDC_STRIKE,
    ]


def test_mindformers_forgets_what_is_older_than_the_window() -> None:
    assert moments(replayed([0, 300, 480], dialect=MINDFORMERS), EventKind.SDC_STRIKE) == [480]
    assert moments(replayed([0, 300, 480.1], dialect=MINDFORMERS), EventKind.SDC_STRIKE) == []


CHECKED = AsdConfig(enable=True, with_checksum=True, strikes_num=1, checksum_cooldown=30)


@pytest.mark.parametrize(
    ("dialect", "minutes", "starts", "dropped"),
    [
        (TORCH, [0, 10, 30, 36], [0, 36], [10, 30]),  # strictly more than the cooldown after the last start
        (MINDSPORE, [0, 10, 30.5], [0, 30], []),  # a strike waits until the cooldown is over
        (MINDFORMERS, [0, 3, 10, 34.9, 35], [0, 35], [3, 10, 34.9]),  # at least the cooldown after the last stop
    ],
)
def test_each_dialect_has_its_own_pause_between_checksums(
    dialect: AsdDialect, minutes: list[float], starts: list[float], dropped: list[float]
) -> None:
    events = replayed(minutes, CHECKED, dialect)
    assert moments(events, EventKind.CHECKSUM_ON) == starts
    assert moments(events, EventKind.CHECKSUM_OFF) == [start + 5 for start in starts]
    assert moments(events, EventKind.CHECKSUM_DROPPED) == dropped


def test_a_strike_while_a_checksum_runs_starts_none() -> None:
    config = AsdConfig(with_checksum=True, strikes_num=1, cooldown=5, checksum_cooldown=1)
    events = [at(0, rank=0), at(2, rank=1)]
    found = list(FeaturePolicy(config=config).judge_events(events))
    assert moments(found, EventKind.CHECKSUM_ON) == [0]
    assert moments(found, EventKind.CHECKSUM_DROPPED) == [2]


def test_mindspore_looks_for_no_strike_while_its_checksum_runs() -> None:
    events = [at(0, rank=0), at(2, rank=1), at(6, rank=1)]
    policy = FeaturePolicy(config=AsdConfig(with_checksum=True, strikes_num=1), dialect=MINDSPORE)
    found = list(policy.judge_events(events))
    assert moments(found, EventKind.SDC_STRIKE) == [0]
    assert moments(found, EventKind.SDC_EVENT) == [0, 2]


def test_mindspore_strikes_again_exactly_when_its_pause_is_over() -> None:
    events = replayed([0, 30], CHECKED, MINDSPORE)
    assert moments(events, EventKind.CHECKSUM_ON) == [0, 30]


def test_without_checksum_nothing_is_started() -> None:
    assert moments(replayed([0, 10, 20]), EventKind.CHECKSUM_ON) == []


def test_a_strike_that_was_logged_is_told_once_and_one_whose_events_are_hidden_is_told_too() -> None:
    seen = [at(0), at(10), at(20), at(20, kind=AsdKind.STRIKE)]
    assert moments(list(FeaturePolicy(config=DEFAULT).judge_events(seen)), EventKind.SDC_STRIKE) == [20]
    hidden = [at(20, kind=AsdKind.STRIKE)]
    assert moments(list(FeaturePolicy(config=DEFAULT).judge_events(hidden)), EventKind.SDC_STRIKE) == [20]


def test_checksums_that_were_logged_take_the_place_of_those_that_would_have_been() -> None:
    events = [
        *(at(minute) for minute in (0, 10, 20)),
        at(20.2, kind=AsdKind.CHECKSUM_ON),
        at(22, kind=AsdKind.CHECKSUM_ABNORMAL, rank=3),
        at(25.2, kind=AsdKind.CHECKSUM_OFF),
    ]
    found = list(FeaturePolicy(config=AsdConfig(with_checksum=True), dialect=MINDSPORE).judge_events(events))
    assert moments(found, EventKind.CHECKSUM_ON) == [20.2]
    (abnormal,) = [event for event in found if event.kind is EventKind.CHECKSUM_ABNORMAL]
    assert abnormal.rank == 3


def test_an_event_without_a_time_is_told_and_not_counted() -> None:
    events = [AsdEvent(kind=AsdKind.EVENT)] * 3
    found = list(FeaturePolicy(config=DEFAULT).judge_events(events))
    assert [event.kind for event in found] == [EventKind.SDC_EVENT] * 3
