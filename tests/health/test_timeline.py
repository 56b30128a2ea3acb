"""Which checkpoints a spike or a strike makes suspect, and which it leaves alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.metrics import LocalTime, LogAttempt, StepMetrics, parse_local_time, show_local_time
from ckpttool.core.domain.units import Rank, Step
from ckpttool.health.asd.features import FeaturePolicy
from ckpttool.health.model.asd import AsdConfig, AsdEvent, AsdKind
from ckpttool.health.model.events import (
    EventKind,
    HealthEvent,
    HealthTimeline,
    MarkState,
    SavedCheckpoint,
    SuspectInterval,
    SuspectKind,
)
from ckpttool.health.policies.base import judge
from ckpttool.health.policies.skip import SkipPolicy
from ckpttool.health.rules.runs import Home
from ckpttool.health.rules.timeline import LineageTimelines, mark_by_start, mark_checkpoints, timeline, without_skipped
from tests.support.log_rows import NAN, bloom, row


def clock(text: str) -> LocalTime:
    return parse_local_time(f"2024-05-01 {text}:00")


def strikes(*times: str) -> HealthTimeline:
    events = [AsdEvent(kind=AsdKind.EVENT, time=clock(time), rank=Rank(3)) for time in times]
    return timeline(FeaturePolicy(config=AsdConfig(enable=True)).judge_events(events))


HOURLY = [SavedCheckpoint(name=f"{hour:02d}:00", step=None, time=clock(f"{hour:02d}:00")) for hour in range(8, 17)]


def suspects(line: HealthTimeline, saves: list[SavedCheckpoint]) -> list[str]:
    return [mark.name for mark in mark_checkpoints(line, saves) if mark.state is MarkState.SUSPECT]


def test_a_strike_makes_every_checkpoint_suspect_from_its_first_event_on() -> None:
    line = strikes("09:10", "12:20", "15:50")
    assert suspects(line, HOURLY) == [f"{hour:02d}:00" for hour in range(10, 17)]
    clear = [mark.name for mark in mark_checkpoints(line, HOURLY) if mark.state is MarkState.CLEAR]
    assert clear[-1] == "09:00"
    assert line.intervals[0].rank == 3


def test_events_too_far_apart_for_a_strike_leave_every_checkpoint_alone() -> None:
    assert suspects(strikes("07:40", "12:20", "15:50"), HOURLY) == []


def test_a_margin_takes_in_the_checkpoint_before_the_first_event() -> None:
    event = HealthEvent(kind=EventKind.SDC_STRIKE, message="a strike", time=clock("15:50"), since_time=clock("09:10"))
    assert suspects(timeline([event], margin_minutes=10), HOURLY)[0] == "09:00"
    assert suspects(timeline([event], margin_minutes=9), HOURLY)[0] == "10:00"


def test_a_wrong_matrix_product_makes_what_follows_suspect_by_time_or_by_step() -> None:
    by_time = HealthEvent(kind=EventKind.CHECKSUM_ABNORMAL, message="wrong", time=clock("12:30"), rank=Rank(1))
    assert suspects(timeline([by_time]), HOURLY) == ["13:00", "14:00", "15:00", "16:00"]
    by_step = HealthEvent(kind=EventKind.SDC_STRIKE, message="a strike", step=Step(30), since_step=Step(20))
    saves = [SavedCheckpoint(name=str(step), step=Step(step)) for step in (10, 19, 20, 30, 40)]
    assert suspects(timeline([by_step]), saves) == ["20", "30", "40"]


def test_an_event_without_step_and_time_says_nothing_about_any_checkpoint() -> None:
    line = timeline([HealthEvent(kind=EventKind.CHECKSUM_ABNORMAL, message="wrong")])
    assert line.intervals == ()


def spikes(line: HealthTimeline) -> list[tuple[int | None, int | None]]:
    return [(interval.first_step, interval.recovered_step) for interval in line.intervals]


def test_blooms_spike_lasts_until_the_next_step_that_the_log_shows() -> None:
    rows = bloom()
    line = timeline(judge(SkipPolicy(threshold=1.0), rows), [each.step for each in rows])
    assert spikes(line) == [(31216, 31250)]
    assert line.intervals[0].peak == 960.351
    steps = (31215, 31216, 31230, 31249, 31250, 31300)
    saves = [SavedCheckpoint(name=str(step), step=Step(step)) for step in steps]
    assert suspects(line, saves) == ["31216", "31230", "31249"]


def test_a_spike_that_the_log_ends_in_has_no_end() -> None:
    rows = [row(1, 1.0), row(2, NAN)]
    line = timeline(judge(SkipPolicy(), rows), [each.step for each in rows])
    assert spikes(line) == [(2, None)]
    assert line.intervals[0].peak is None
    assert suspects(line, [SavedCheckpoint(name="9", step=Step(9)), SavedCheckpoint(name="1", step=Step(1))]) == ["9"]


def test_events_ten_steps_apart_are_one_spike_and_eleven_apart_are_two() -> None:
    def line(second: int) -> HealthTimeline:
        events = [HealthEvent(kind=EventKind.SPIKE, message="m", step=Step(step)) for step in (100, second)]
        return timeline(events, [Step(step) for step in range(1, 300)])

    assert spikes(line(110)) == [(100, 111)]
    assert spikes(line(111)) == [(100, 101), (111, 112)]


def test_an_overflow_or_a_restart_is_no_spike() -> None:
    quiet = [HealthEvent(kind=kind, message="m", step=Step(5)) for kind in (EventKind.OVERFLOW, EventKind.RESTART)]
    assert timeline(quiet).intervals == ()


@pytest.mark.parametrize(
    ("save", "state"),
    [
        (SavedCheckpoint(name="a", step=None, time=clock("08:00")), MarkState.UNKNOWN),
        (SavedCheckpoint(name="b", step=Step(5)), MarkState.UNKNOWN),
        (SavedCheckpoint(name="c", step=Step(100), time=None), MarkState.SUSPECT),
        (SavedCheckpoint(name="d", step=Step(5), time=clock("08:00")), MarkState.CLEAR),
    ],
)
def test_a_checkpoint_that_cannot_be_compared_is_unknown_and_not_clear(save: SavedCheckpoint, state: MarkState) -> None:
    events = [
        HealthEvent(kind=EventKind.SPIKE, message="m", step=Step(100)),
        HealthEvent(kind=EventKind.SDC_STRIKE, message="s", time=clock("12:00")),
    ]
    line = timeline(events)
    assert {interval.kind for interval in line.intervals} == {SuspectKind.SPIKE, SuspectKind.SDC_STRIKE}
    (mark,) = mark_checkpoints(line, [save])
    assert mark.state is state


@given(st.lists(st.integers(min_value=1, max_value=500), max_size=30), st.integers(min_value=1, max_value=500))
def test_order_of_events_changes_nothing_and_a_checkpoint_at_an_event_is_suspect(steps: list[int], save: int) -> None:
    events = [HealthEvent(kind=EventKind.SPIKE, message="m", step=Step(step)) for step in steps]
    shown = [Step(step) for step in range(1, 501)]
    line = timeline(events, shown)
    assert line == timeline(list(reversed(events)), shown)
    (mark,) = mark_checkpoints(line, [SavedCheckpoint(name="x", step=Step(save))])
    if save in steps:
        assert mark.state is MarkState.SUSPECT
    if not any(step <= save for step in steps):
        assert mark.state is MarkState.CLEAR


def test_local_times_are_read_and_shown_without_a_zone() -> None:
    assert show_local_time(parse_local_time("2024-05-01 12:30:00,123")) == "2024-05-01 12:30:00"
    assert parse_local_time("1970-01-01 00:01:00") == 60.0


def test_a_spike_that_became_the_new_level_has_not_recovered() -> None:
    spikes_only = [HealthEvent(kind=EventKind.SPIKE, message="m", step=Step(step)) for step in range(100, 150)]
    shown = [Step(step) for step in range(1, 300)]
    assert spikes(timeline(spikes_only, shown)) == [(100, 150)]
    shift = HealthEvent(kind=EventKind.LEVEL_SHIFT, message="m", step=Step(149))
    assert spikes(timeline([*spikes_only, shift], shown)) == [(100, None)]
    elsewhere = HealthEvent(kind=EventKind.LEVEL_SHIFT, message="m", step=Step(290))
    assert spikes(timeline([*spikes_only, elsewhere], shown)) == [(100, 150)]


def test_the_step_of_a_group_s_first_event_counts_more_than_the_time_of_its_strike() -> None:
    strike = HealthEvent(kind=EventKind.SDC_STRIKE, message="s", time=clock("12:00"), since_step=Step(100))
    saves = [SavedCheckpoint(name=str(step), step=Step(step), time=clock("08:00")) for step in (99, 100)]
    assert suspects(timeline([strike]), saves) == ["100"]


class TestByTheStartThatSavedIt:
    """A spike from step 20 on, by all logs; on the course of the first start alone there is none."""

    SPIKE = HealthTimeline(intervals=(SuspectInterval(kind=SuspectKind.SPIKE, reason="a spike", first_step=Step(20)),))
    CALM = HealthTimeline(intervals=())
    SAVE = SavedCheckpoint(name="x", step=Step(30))

    def state(self, home: Home, line: HealthTimeline | None = None) -> MarkState:
        courses = {0: self.CALM, 1: self.SPIKE, 2: self.SPIKE, None: self.CALM}
        (mark,) = mark_by_start(line or self.SPIKE, [self.SAVE], [home], courses.__getitem__)
        return mark.state

    def test_its_own_course_decides(self) -> None:
        assert self.state(Home(attempts=(0,), sure=True)) is MarkState.CLEAR
        assert self.state(Home(attempts=(1,), sure=True)) is MarkState.SUSPECT

    def test_where_several_may_have_saved_it_they_must_agree(self) -> None:
        assert self.state(Home(attempts=(1, 2), sure=True)) is MarkState.SUSPECT
        assert self.state(Home(attempts=(0, 1), sure=True)) is MarkState.UNKNOWN
        assert self.state(Home(attempts=tuple(range(9)), sure=True)) is MarkState.UNKNOWN

    def test_where_no_log_shows_its_step_all_logs_together_tell(self) -> None:
        assert self.state(Home(attempts=(), sure=True)) is MarkState.SUSPECT

    def test_where_its_step_may_be_another_start_s_nobody_can_tell_of_spikes(self) -> None:
        assert self.state(Home(attempts=(), sure=False)) is MarkState.UNKNOWN
        assert self.state(Home(attempts=(), sure=False), self.CALM) is MarkState.CLEAR

    def test_what_is_told_by_time_holds_whichever_start_it_was(self) -> None:
        strike = SuspectInterval(kind=SuspectKind.SDC_STRIKE, reason="a strike", first_time=LocalTime(5.0))
        both = HealthTimeline(intervals=(*self.SPIKE.intervals, strike))
        save = SavedCheckpoint(name="x", step=Step(30), time=LocalTime(6.0))
        common = HealthTimeline(intervals=(strike,))
        (mark,) = mark_by_start(both, [save], [Home(attempts=(), sure=False)], lambda _: common)
        assert mark.state is MarkState.SUSPECT


class TestCourses:
    """Three starts: the first is calm, the second has a spike; and a strike is told by its time."""

    SPIKE = SuspectInterval(kind=SuspectKind.SPIKE, reason="a spike", first_step=Step(2))
    STRIKE = SuspectInterval(kind=SuspectKind.SDC_STRIKE, reason="a strike", first_time=LocalTime(5.0))
    ON_ANY = HealthTimeline(intervals=(STRIKE,))
    WHOLE = HealthTimeline(intervals=(SPIKE, STRIKE))

    def courses(self, *norms: float) -> tuple[LineageTimelines, list[int]]:
        asked: list[int] = []

        def judged(rows: Sequence[StepMetrics]) -> HealthTimeline:
            asked.append(len(rows))
            return self.WHOLE if any((row.global_norm or 0) > 3 for row in rows) else self.ON_ANY

        attempts = [
            LogAttempt(rows=[StepMetrics(step=Step(step), global_norm=norm) for step in (1, 2)], begun=True, ended=True)
            for norm in norms
        ]
        return LineageTimelines(self.WHOLE, attempts, judged, on_any=self.ON_ANY), asked

    def test_each_start_is_judged_by_its_own_steps_and_once(self) -> None:
        courses, asked = self.courses(1.0, 9.0)
        assert [courses.of(0), courses.of(1), courses.of(1)] == [self.ON_ANY, self.WHOLE, self.WHOLE]
        assert asked == [2, 2]

    def test_a_single_start_is_all_there_is(self) -> None:
        courses, asked = self.courses(1.0)
        assert (courses.of(0), asked) == (self.WHOLE, [])

    def test_of_no_start_that_is_known_only_what_is_told_by_time_holds(self) -> None:
        courses, asked = self.courses(9.0, 9.0)
        assert courses.of(None) == self.ON_ANY
        assert LineageTimelines(self.WHOLE, None, lambda _: self.WHOLE, on_any=self.ON_ANY).of(0) == self.ON_ANY
        assert asked == []

    def test_marks_are_of_the_kinds_that_count(self) -> None:
        courses, _ = self.courses(9.0)
        save = SavedCheckpoint(name="x", step=Step(2), time=LocalTime(1.0))
        home = Home(attempts=(0,), sure=True)
        (spike,) = courses.marks([save], [home], {SuspectKind.SPIKE})
        (strike,) = courses.marks([save], [home], {SuspectKind.SDC_STRIKE})
        assert (spike.state, strike.state) == (MarkState.SUSPECT, MarkState.CLEAR)
        assert courses.marks([save], [home])[0].state is MarkState.SUSPECT


def test_what_a_trainer_skipped_itself_harmed_no_weight() -> None:
    events = [HealthEvent(kind=EventKind.SPIKE, message="m", step=step) for step in (None, Step(1), Step(2))]
    assert [event.step for event in without_skipped(events, {Step(2)})] == [None, 1]
