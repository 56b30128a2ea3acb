"""The detector inside a training says what the replay says, whatever its clock does and however often it restarts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.asd import MINDSPORE, TORCH_NPU
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.guarding import GuardEvent, GuardEventKind
from ckpttool.core.domain.metrics import LocalTime
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.errors import UsageError
from ckpttool.core.formats.strict_json import ParseError
from ckpttool.guard.rules.detector import FeatureValueDetector
from ckpttool.health.model.asd import AsdEvent, AsdKind, FeatureValue
from ckpttool.health.model.events import EventKind, HealthEvent
from ckpttool.trainers.findings import TrainersCode
from ckpttool.trainers.mindformers.silent_errors import MONITOR
from tests.support.log_rows import INF, NAN

DIALECTS = (TORCH_NPU, MINDSPORE, MONITOR)
ON = "enable:true"
CHECKED = "enable:true,with_checksum:true,cooldown:5,strikes_num:2,strikes_window:60,checksum_cooldown:20"
QUICK = "enable:true,cooldown:2,strikes_num:3,strikes_window:30,upper_thresh1:1000,upper_thresh2:10"

Row = tuple[float, list[FeatureValue]]
"""A time in minutes, and the values of a step."""

values_of_a_step = st.lists(
    st.tuples(st.sampled_from([1.0, 1.0, 1.0, 2.0, 0.0, 1e7, 1e12, NAN, INF]), st.sampled_from(["w", "v"])), max_size=3
)
steps = st.lists(st.tuples(st.sampled_from([-3.0, 0.0, 0.5, 1.9, 2.0, 5.0, 25.0]), values_of_a_step), max_size=60)


def rows(drawn: Sequence[tuple[float, list[tuple[float, str]]]]) -> list[Row]:
    """Ten calm steps, that something can be unusual, and then what was drawn."""
    calm = [(0.1, [(1.0, "w"), (1.0, "v")])] * 10
    plan = [*calm, *drawn]
    times = accumulate(gap for gap, _ in plan)
    return [
        (minute, [FeatureValue(value=value, name=name, step=Step(step), rank=Rank(1)) for value, name in values])
        for step, (minute, (_, values)) in enumerate(zip(times, plan, strict=True), start=1)
    ]


def at(minutes: float) -> LocalTime:
    return LocalTime(minutes * 60)


def on_line(detector: FeatureValueDetector, plan: Sequence[Row], restarts: frozenset[int]) -> list[GuardEvent]:
    events: list[GuardEvent] = []
    for step, (minute, values) in enumerate(plan, start=1):
        if step in restarts:
            saved = json.loads(json.dumps(detector.saved(), allow_nan=False))
            detector = FeatureValueDetector(watch=detector.watch.policy.begin())
            detector.restore(saved, rank=Rank(1))
        events += detector.take(values, at=at(minute), step=Step(step))
        events += detector.agree(wanted=detector.wants_checksum, step=Step(step))
    return events


def off_line(detector: FeatureValueDetector, plan: Sequence[Row]) -> list[HealthEvent]:
    times = accumulate((minute for minute, _ in plan), max)
    return [
        event
        for minute, (_, values) in zip(times, plan, strict=True)
        for value in values
        for event in detector.watch.take(replace(value, time=at(minute)))
    ]


@given(drawn=steps, restarts=st.frozensets(st.integers(1, 70), max_size=3))
def test_it_says_what_a_replay_of_the_same_values_says_over_restarts_and_clocks_put_back(
    drawn: list[tuple[float, list[tuple[float, str]]]], restarts: frozenset[int]
) -> None:
    plan = rows(drawn)
    for dialect, settings in product(DIALECTS, (ON, CHECKED, QUICK)):
        told = on_line(FeatureValueDetector.of(settings, dialect), plan, restarts)
        replayed = off_line(FeatureValueDetector.of(settings, dialect), plan)
        known = [(event.kind.value, event.values.get("clock"), event.values["message"]) for event in told]
        expected = [(event.kind.value, event.time, event.message) for event in replayed]
        # A run that ends by the clock is told at once on line, and off line by the next abnormal value: or never.
        assert known[: len(expected)] == expected, (dialect.name, settings)
        assert {kind for kind, _, _ in known[len(expected) :]} <= {"checksum-off", "checksum-on"}


@given(drawn=steps)
def test_its_events_counted_anew_from_a_file_give_the_same_strikes(
    drawn: list[tuple[float, list[tuple[float, str]]]],
) -> None:
    for dialect in DIALECTS:
        detector = FeatureValueDetector.of(QUICK, dialect)
        told = on_line(detector, rows(drawn), frozenset())
        logged = [
            AsdEvent(
                kind=AsdKind.EVENT,
                time=LocalTime(float(str(event.values["clock"]))),
                rank=Rank(1),
                name=str(event.values["name"]),
                step=event.step,
            )
            for event in told
            if event.kind in {GuardEventKind.SDC_EVENT, GuardEventKind.SDC_ECHO}
        ]
        again = [event for event in detector.watch.policy.judge_events(logged) if event.kind is EventKind.SDC_STRIKE]
        strikes = [event for event in told if event.kind is GuardEventKind.SDC_STRIKE]
        if dialect is TORCH_NPU:  # it tells nothing of a value that counts where only suppressed ones are in its window
            assert len(again) <= len(strikes)
        else:
            assert [(event.time, event.step) for event in again] == [
                (event.values["clock"], event.step) for event in strikes
            ], dialect.name


def struck(rank: int = 1, settings: str = CHECKED) -> tuple[FeatureValueDetector, list[GuardEvent]]:
    detector = FeatureValueDetector.of(settings)
    plan = [(0.0, [FeatureValue(value=1.0, name="w", step=Step(step), rank=Rank(rank))]) for step in range(1, 11)]
    plan += [
        (minute, [FeatureValue(value=NAN, name="w", step=Step(step), rank=Rank(rank))])
        for step, minute in ((11, 10.0), (12, 20.0))
    ]
    return detector, [
        event
        for step, (minute, values) in enumerate(plan, start=2)  # a value is read a step after its own
        for event in detector.take(values, at=at(minute), step=Step(step))
    ]


def test_a_strike_names_its_parameter_and_rank_at_the_step_of_its_value_and_asks_for_the_checksum() -> None:
    detector, events = struck()
    assert [event.kind.value for event in events] == ["sdc-event", "sdc-event", "sdc-strike", "checksum-on"]
    strike = events[2]
    assert (strike.step, strike.values["name"], strike.values["rank"], strike.values["count"]) == (12, "w", 1, 2)
    assert strike.values["since_step"] == 11
    assert strike.values["since_clock"] == at(10)
    assert "name" not in events[3].values
    assert events[3].step == 13  # a checksum is no value's: it is told at the step that it starts in
    assert detector.wants_checksum
    assert not detector.checking


def test_all_ranks_start_the_checksum_that_one_asks_for_and_each_says_so_once() -> None:
    culprit, _ = struck()
    innocent = FeatureValueDetector.of(CHECKED)
    innocent.take([], at=at(20), step=Step(13))
    assert not innocent.wants_checksum
    assert culprit.agree(wanted=culprit.wants_checksum, step=Step(13)) == ()
    (event,) = innocent.agree(wanted=True, step=Step(13))
    assert (event.kind, event.values["clock"]) == (GuardEventKind.CHECKSUM_ON, at(20))
    assert (culprit.checking, innocent.checking) == (True, True)
    assert innocent.agree(wanted=True, step=Step(14)) == ()
    for detector in (culprit, innocent):
        assert [event.kind.value for event in detector.take([], at=at(24.9), step=Step(15))] == []
        (ended,) = detector.take([], at=at(25), step=Step(16))
        assert (ended.kind, ended.step) == (GuardEventKind.CHECKSUM_OFF, 16)
        assert not detector.checking
        assert not detector.wants_checksum


def test_nobody_starts_a_checksum_that_nobody_asks_for() -> None:
    calm = FeatureValueDetector.of(CHECKED)
    calm.take([FeatureValue(value=1.0)], at=at(0), step=Step(1))
    assert calm.agree(wanted=calm.wants_checksum, step=Step(1)) == ()
    assert not calm.checking


def test_a_checksum_that_ran_at_a_restart_is_agreed_on_anew() -> None:
    detector, _ = struck()
    detector.agree(wanted=True, step=Step(13))
    again = FeatureValueDetector.of(CHECKED)
    again.restore(json.loads(json.dumps(detector.saved())), rank=Rank(1))
    assert (again.checking, again.wants_checksum) == (False, True)
    assert again.agree(wanted=True, step=Step(14)) == ()
    assert again.checking


def test_a_rank_that_gets_the_memory_of_another_knows_what_is_usual_and_has_none_of_its_strikes() -> None:
    first, _ = struck(rank=0)
    second = FeatureValueDetector.of(CHECKED)
    second.restore(first.saved(), rank=Rank(1))
    wild = FeatureValue(value=1e12, name="w", step=Step(14), rank=Rank(1))
    usual = FeatureValue(value=1.0, name="w", step=Step(13), rank=Rank(1))
    assert second.take([usual], at=at(21), step=Step(14)) == ()
    assert [event.kind.value for event in second.take([wild], at=at(22), step=Step(15))] == ["sdc-event"]
    own = FeatureValueDetector.of(CHECKED)
    own.restore(first.saved(), rank=Rank(0))
    own.take([replace(usual, rank=Rank(0))], at=at(25), step=Step(14))  # behind a NaN nothing is wild
    events = own.take([replace(wild, rank=Rank(0))], at=at(26), step=Step(15))
    assert "sdc-strike" in [event.kind.value for event in events]


def test_a_clock_that_is_put_back_stands_still() -> None:
    detector, _ = struck()
    detector.agree(wanted=True, step=Step(13))
    assert detector.take([], at=at(-1000), step=Step(14)) == ()
    assert (detector.last, detector.checking) == (at(20), True)


def test_settings_that_stop_the_real_parser_are_an_error_and_odd_ones_are_told() -> None:
    with pytest.raises(UsageError, match="enable must be exactly true or false"):
        FeatureValueDetector.of("enable: true")
    odd = FeatureValueDetector.of("enable:true,colour:red")
    assert [finding.code for finding in odd.findings if "colour" in finding.message] == [
        TrainersCode.CONFIG_KEY_IGNORED
    ]
    assert FeatureValueDetector.of("enable:true,colour:red", MINDSPORE).sample_interval == 10
    assert FeatureValueDetector.of().sample_interval == 3


def test_settings_that_do_not_switch_it_on_let_it_notice_nothing() -> None:
    off = FeatureValueDetector.of("with_checksum:true")
    assert not off.is_on
    assert off.take([FeatureValue(value=NAN)], at=at(0), step=Step(1)) == ()
    default = FeatureValueDetector.of()
    assert default.is_on
    assert len(default.take([FeatureValue(value=NAN)], at=at(0), step=Step(1))) == 1


def test_what_it_did_not_save_it_does_not_restore() -> None:
    with pytest.raises(ParseError):
        FeatureValueDetector.of().restore({"watch": []}, rank=None)


@pytest.mark.parametrize("settings", ["with_checksum:true", "enabled:true", "enable=true", "cooldown:5"])
def test_settings_that_leave_detection_off_unasked_are_odd(settings: str) -> None:
    detector = FeatureValueDetector.of(settings)
    assert not detector.is_on
    assert any("nothing is detected" in finding.message for finding in detector.findings)


@pytest.mark.parametrize("settings", ["enable:true", "enable:false", "cooldown:5,enable:false", "", " "])
def test_settings_that_say_on_or_off_are_not(settings: str) -> None:
    detector = FeatureValueDetector.of(settings)
    assert detector.is_on is (settings == "enable:true")
    assert not any("nothing is detected" in finding.message for finding in detector.findings)


@pytest.mark.parametrize(("settings", "is_on"), [("enable=true", True), ("enable=false", False)])
def test_an_equals_sign_switches_detection_on_or_off_in_the_dialect_that_takes_it(
    settings: str, *, is_on: bool
) -> None:
    detector = FeatureValueDetector.of(settings, MINDSPORE)
    assert detector.is_on is is_on
    assert not any("nothing is detected" in finding.message for finding in detector.findings)
