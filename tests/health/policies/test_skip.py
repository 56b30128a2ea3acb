"""MindFormers' data skip, step by step as the real code counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.health.model.events import EventKind, HealthEvent
from ckpttool.health.policies.base import judge
from ckpttool.health.policies.skip import SkipPolicy
from tests.support.log_rows import INF, NAN, bloom, row, rows


def steps(events: list[HealthEvent], kind: EventKind) -> list[int]:
    return [event.step for event in events if event.kind is kind and event.step is not None]


def judged(norms: list[float | None], count: int, *, nan_counts: bool = False) -> list[HealthEvent]:
    return list(judge(SkipPolicy(threshold=3.0, count_threshold=count, nan_counts=nan_counts), rows(norms)))


def test_two_norms_over_the_threshold_stop_at_the_second_where_two_are_the_limit() -> None:
    events = judged([44.3, 47.3], 2)
    assert steps(events, EventKind.SKIP) == [1, 2]
    assert steps(events, EventKind.STOP) == [2]


def test_a_norm_equal_to_the_threshold_is_skipped_and_a_normal_step_resets_the_count() -> None:
    events = judged([2.99, 3.0, 2.99], 10)
    assert [(event.kind, event.step, event.count) for event in events] == [(EventKind.SKIP, 2, 1)]


def test_the_count_starts_anew_after_a_normal_step() -> None:
    events = judged([5, 5, 1, 5, 5], 3)
    assert [(event.step, event.count) for event in events] == [(1, 1), (2, 2), (4, 1), (5, 2)]
    assert steps(events, EventKind.STOP) == []


def test_nan_resets_the_count_as_in_mindformers_although_its_update_is_lost() -> None:
    events = judged([5, NAN, 5, NAN], 2)
    assert [event.kind for event in events] == [EventKind.SKIP, EventKind.SKIP_UNCOUNTED] * 2
    assert [event.count for event in events] == [1, 0, 1, 0]
    assert steps(events, EventKind.STOP) == []


def test_nan_counts_where_the_rule_is_strict() -> None:
    assert steps(judged([5, NAN, 5, NAN], 2, nan_counts=True), EventKind.STOP) == [2]


def test_infinity_is_over_every_threshold() -> None:
    assert steps(judged([INF], 1), EventKind.STOP) == [1]


def test_nothing_is_judged_after_the_stop() -> None:
    assert [event.step for event in judged([5, 5, 5, 5], 2)] == [1, 2, 2]


def test_an_overflow_below_the_threshold_is_lost_without_counting() -> None:
    events = list(
        judge(SkipPolicy(count_threshold=2), [row(1, 5.0), row(2, 1.0, overflow=True), row(3, 5.0, overflow=True)])
    )
    assert [(event.kind, event.count) for event in events] == [
        (EventKind.SKIP, 1),
        (EventKind.OVERFLOW, 0),
        (EventKind.SKIP, 1),
    ]


def test_blooms_log_is_undecided_where_it_shows_no_steps() -> None:
    events = list(judge(SkipPolicy(threshold=3.0, count_threshold=10), bloom()))
    assert steps(events, EventKind.SKIP) == [31217, 31218, 31219, 31220, 31221, 31222]
    assert [event.count for event in events if event.kind is EventKind.SKIP] == [1, 2, 3, 4, 5, 6]
    (undecided,) = [event for event in events if event.kind is EventKind.UNDECIDED]
    assert (undecided.since_step, undecided.step) == (31223, 31249)
    assert steps(events, EventKind.STOP) == []


def test_blooms_first_skip_and_stop_move_with_the_threshold_and_the_count() -> None:
    assert steps(list(judge(SkipPolicy(threshold=1.0), bloom())), EventKind.SKIP)[0] == 31216
    assert steps(list(judge(SkipPolicy(threshold=3.0, count_threshold=2), bloom())), EventKind.STOP) == [31218]


def test_a_gap_that_no_skip_touches_is_not_worth_a_word() -> None:
    assert list(judge(SkipPolicy(count_threshold=2), [row(1, 1.0), row(50, 1.0)])) == []


def test_a_gap_too_short_to_hold_the_rest_of_a_row_is_no_doubt() -> None:
    kinds = [event.kind for event in judge(SkipPolicy(count_threshold=5), [row(1, 5.0), row(3, 1.0)])]
    assert kinds == [EventKind.SKIP]


def test_a_skip_after_a_long_gap_may_have_been_the_stop_and_that_is_said_once() -> None:
    events = list(judge(SkipPolicy(count_threshold=4), [row(1, 1.0), row(9, 5.0), row(10, 5.0), row(11, 1.0)]))
    kinds = [event.kind for event in events]
    assert kinds == [EventKind.SKIP, EventKind.UNDECIDED, EventKind.SKIP]


def test_a_step_without_a_norm_is_as_good_as_not_shown() -> None:
    kinds = [event.kind for event in judge(SkipPolicy(count_threshold=2), rows([5.0, None, 5.0]))]
    assert kinds == [EventKind.SKIP, EventKind.UNDECIDED, EventKind.SKIP]


def test_a_restart_forgets_the_count() -> None:
    events = list(judge(SkipPolicy(count_threshold=2), [row(7, 5.0), row(6, 5.0), row(7, 1.0)]))
    assert [event.kind for event in events] == [EventKind.SKIP, EventKind.RESTART, EventKind.SKIP]


def by_the_book(norms: list[float], threshold: float, count_threshold: int) -> tuple[list[int], int | None]:
    """Count as MindFormers does: its whole rule in six lines."""
    count, skipped = 0, []
    for step, norm in enumerate(norms, 1):
        count = count + 1 if norm >= threshold else 0
        if norm >= threshold:
            skipped.append(step)
        if count == count_threshold:
            return skipped, step
    return skipped, None


@given(
    st.lists(st.floats(min_value=0) | st.just(NAN), max_size=60),
    st.floats(min_value=0.001, max_value=100),
    st.integers(min_value=1, max_value=6),
)
def test_over_a_log_without_gaps_skips_and_stop_are_those_of_the_rule(
    norms: list[float], threshold: float, count: int
) -> None:
    events = list(judge(SkipPolicy(threshold=threshold, count_threshold=count), rows(norms)))
    skipped, stop = by_the_book(norms, threshold, count)
    assert steps(events, EventKind.SKIP) == skipped
    assert steps(events, EventKind.STOP) == ([] if stop is None else [stop])
    assert steps(events, EventKind.UNDECIDED) == []


@given(st.lists(st.floats(min_value=0, max_value=10), min_size=1, max_size=40), st.data())
def test_hiding_steps_never_makes_a_stop_that_the_whole_log_does_not_have(
    norms: list[float], data: st.DataObject
) -> None:
    whole: tuple[StepMetrics, ...] = rows(norms)
    kept = [each for each in whole if data.draw(st.booleans())]
    policy = SkipPolicy(threshold=3.0, count_threshold=2)
    real = steps(list(judge(policy, whole)), EventKind.STOP)
    seen = steps(list(judge(policy, kept)), EventKind.STOP)
    assert not seen or (real and real[0] <= seen[0])


@pytest.mark.parametrize("policy", [SkipPolicy()])
def test_no_steps_are_no_events(policy: SkipPolicy) -> None:
    assert list(judge(policy, [])) == []
    assert policy.name == "skip"


def test_who_goes_on_behind_a_stop_is_not_told_of_more_than_all() -> None:
    watch = SkipPolicy(count_threshold=2).begin()
    told = [watch.observe(each)[0].message.rpartition(": ")[2] for each in rows([5.0] * 3)]
    assert told == ["1 of 2 in a row", "2 of 2 in a row", "3 in a row"]
