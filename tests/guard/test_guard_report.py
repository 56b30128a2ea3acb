"""What happened in a guarded training: counted by rank, told once, and never more than a page of it."""

from __future__ import annotations

import math
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.guarding import EventValue, GuardEvent, GuardEventKind
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import ExitCode
from ckpttool.guard.answers.report import prometheus, table
from ckpttool.guard.model.report import GuardReport
from ckpttool.guard.rules.report import MOST, GuardTally
from ckpttool.health.model.reading import LogReading
from tests.support.json_schemas import problems_of

K = GuardEventKind
READING = LogReading(sources=("out/guard/events-00000.jsonl",), steps=0, notes=(), problems=(), problem_count=0)
Event = tuple[GuardEventKind, int, dict[str, EventValue]]


def report(*files: list[Event], reading: LogReading = READING) -> GuardReport:
    """Tally the files of ranks 0, 1, …; each begins with its process."""
    tally = GuardTally()
    for rank, events in enumerate(files):
        tally.begin()
        run: Event = (K.RUN, 0, {"rank": rank, "world_size": len(files), "host": f"node{rank}"})
        for kind, step, values in (run, *events):
            tally.add(GuardEvent(kind=kind, step=Step(step), values=values))
    return tally.report(reading)


def steps(*dropped: int, last: int = 5) -> list[Event]:
    return [(K.STEP, step, {"skipped": step in dropped}) for step in range(1, last + 1)]


def code(answer: GuardReport) -> ExitCode:
    return answer.exit_code


def test_updates_are_counted_by_what_became_of_them_and_an_overflow_is_neither() -> None:
    answer = report([*steps(2, 3), (K.STEP, 6, {"skipped": True, "overflow": True}), (K.STEP, 7, {"overflow": False})])
    (rank,) = answer.ranks
    assert (rank.steps, rank.applied, rank.dropped, rank.overflows) == (7, 4, 2, 1)
    assert (answer.steps, answer.applied, answer.dropped, answer.overflows) == (7, 4, 2, 1)
    assert (rank.first_step, rank.last_step, rank.starts, rank.host) == (1, 7, 1, "node0")
    assert (code(answer), answer.next) == (ExitCode.OK, ())


def test_ranks_that_decide_alike_are_not_added_up() -> None:
    answer = report(steps(2), steps(2), steps(2))
    assert (answer.steps, answer.dropped, answer.world_size, len(answer.ranks)) == (5, 1, 3, 3)


def test_no_file_says_nothing_and_is_no_good_answer() -> None:
    tally = GuardTally()
    answer = tally.report(replace(READING, sources=()))
    assert tally.steps == 0
    assert (answer.steps, answer.applied, answer.dropped, answer.overflows) == (0, 0, 0, 0)
    assert (answer.overhead, answer.saves) == (None, 0)
    assert code(answer) is ExitCode.INCOMPLETE


def test_what_could_not_be_read_is_14_unless_something_graver_is_known() -> None:
    cut = replace(READING, unreadable=1)
    assert code(report(steps(), reading=cut)) is ExitCode.INCOMPLETE
    assert code(report([*steps(), (K.SDC_STRIKE, 5, {})], reading=cut)) is ExitCode.DAMAGE


def test_a_stop_is_where_the_training_ended_unless_it_went_on_or_only_watched() -> None:
    stop: Event = (K.STOP, 5, {"stopped": True, "count": 10})
    stopped = report([*steps(), stop], steps())
    assert (stopped.stopped_at, code(stopped)) == (5, ExitCode.DAMAGE)
    assert stopped.next == (("ckpttool", "resolve", "out", "--around-spike", "last"),)
    assert report([*steps(), stop, (K.RUN, 3, {"rank": 0})]).stopped_at is None
    assert report([*steps(), stop, (K.STEP, 6, {})]).stopped_at is None
    watched = report([*steps(), (K.STOP, 5, {"stopped": False})])
    assert (watched.stopped_at, code(watched)) == (None, ExitCode.OK)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (K.SDC_STRIKE, "strikes"),
        (K.CHECKSUM_ABNORMAL, "abnormal_products"),
        (K.REPLICAS_DISAGREE, "disagreements"),
        (K.CAPTURE, "captures"),
    ],
)
def test_each_grave_event_asks_for_a_person_and_the_same_file_without_it_does_not(
    kind: GuardEventKind, name: str
) -> None:
    answer = report([*steps(), (kind, 5, {"path": "x"})])
    assert (code(answer), len(getattr(answer, name))) == (ExitCode.DAMAGE, 1)
    assert getattr(answer.ranks[0], name) == 1
    assert code(report(steps())) is ExitCode.OK


def test_a_strike_says_whose_and_since_when_and_what_to_pass_over() -> None:
    strike: Event = (K.SDC_STRIKE, 40, {"rank": 7, "since_step": 12, "message": "a strike"})
    answer = report([strike], [strike])
    (fault,) = answer.strikes  # told on both, and one
    assert (fault.step, fault.rank, fault.since_step, fault.message) == (40, 7, 12, "a strike")
    assert answer.next == (("ckpttool", "resolve", "out", "--spikes-from", "out/guard"),)
    elsewhere = report([strike], reading=replace(READING, sources=("a.jsonl", "b.jsonl")))
    assert elsewhere.next == (("ckpttool", "resolve", "--spikes-from", "a.jsonl", "--spikes-from", "b.jsonl"),)
    here = report([strike], reading=replace(READING, sources=("/guard/events-00000.jsonl",)))
    assert here.next[0][2] == "."


def test_a_wrong_product_is_the_rank_s_that_told_it_and_says_where() -> None:
    wrong: Event = (
        K.CHECKSUM_ABNORMAL,
        4,
        {"op": "mm", "module": "layers.1", "row": 3, "phase": None, "fault": "transient", "healed": True},
    )
    faults = report([], [wrong]).abnormal_products
    assert [(fault.rank, fault.message) for fault in faults] == [
        (1, "op mm, module layers.1, row 3, fault transient, healed")
    ]


def test_replicas_that_disagree_are_one_disagreement_whoever_says_so() -> None:
    differ: Event = (K.REPLICAS_DISAGREE, 4, {"message": "the norm differs from rank to rank"})
    answer = report([differ], [differ])
    assert [(fault.step, fault.rank) for fault in answer.disagreements] == [(4, None)]


def test_a_drop_is_told_once_by_the_rank_that_knows_why() -> None:
    other: Event = (K.NONFINITE, 4, {"message": "another rank has numbers that are not finite", "dropped": True})
    own: Event = (K.NONFINITE, 4, {"message": "the norm is nan", "value": "nan", "dropped": True})
    with_ranks: Event = (other[0], 4, {**other[2], "ranks": [1, "x", True, -1]})
    for files in ([with_ranks], [own]), ([own], [other]), ([with_ranks], [own], [other]):
        (update,) = report(*files).drops
        assert (update.step, update.kind, update.message) == (4, "nonfinite", "the norm is nan")
        assert update.norm is not None
        assert math.isnan(update.norm)
    assert report([with_ranks], [own]).drops[0].ranks == (1,)
    (unknown,) = report([other]).drops
    assert (unknown.norm, unknown.ranks) == (None, ())
    assert not report([own]).is_watching


def test_what_would_have_been_dropped_was_only_watched() -> None:
    assert report([(K.SPIKE, 4, {"dropped": False})]).is_watching


def captured(*at: int, watching: bool = False) -> GuardReport:
    events: list[Event] = []
    for step in at:
        events.append((K.CAPTURE, step, {"path": f"out/captures/{step}", "culprit": True}))
        events.append((K.NONFINITE, step, {"dropped": not watching, "message": "the norm is nan"}))
    return report(events)


def test_captures_of_one_broken_weight_are_one_row_and_its_first_is_inspected() -> None:
    answer = captured(4, *range(21, 31))
    (row,) = answer.in_a_row
    assert (row.first, row.last, row.count, row.path) == (21, 30, 10, "out/captures/21")
    assert [words[-1] for words in answer.next] == ["out/captures/4", "out/captures/21"]
    with StringIO() as file:
        Console(file=file, width=120).print(table(answer))
        told = file.getvalue()
    assert "step 21  out/captures/21 (rank 0); 10 in a row on the same weights, to step 30" in told
    assert "out/captures/22" not in told
    assert "11 captures in" in told


@pytest.mark.parametrize("answer", [captured(4, 6, 9), captured(4, 5, 6, watching=True), captured(4)])
def test_captures_with_updates_in_between_are_no_row(answer: GuardReport) -> None:
    assert answer.in_a_row == ()
    assert [words[1:3] for words in answer.next] == [("guard", "inspect")] * len(answer.captures)


def test_a_capture_is_one_folder_with_the_ranks_that_caused_it() -> None:
    def told(*, culprit: EventValue, verdict: EventValue = None) -> list[Event]:
        return [(K.CAPTURE, 22, {"path": "out/captures/a b", "culprit": culprit, "verdict": verdict})]

    answer = report(told(culprit=False), told(culprit=True), told(culprit=True, verdict="transient"))
    (capture,) = answer.captures
    assert (capture.step, capture.culprits, capture.verdict) == (22, (1, 2), "transient")
    assert answer.next == (("ckpttool", "guard", "inspect", "out/captures/a b"),)
    assert report(told(culprit=1, verdict="rm -rf")).captures[0] == replace(capture, culprits=(), verdict=None)


def test_a_folder_whose_name_looks_like_an_option_is_still_a_folder() -> None:
    answer = report([(K.CAPTURE, 1, {"path": "--entry=evil:run"})])
    assert answer.next == (("ckpttool", "guard", "inspect", "./--entry=evil:run"),)


scalars: st.SearchStrategy[EventValue] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["nan", "-inf", "\x1b[2J"]),
)
anything: st.SearchStrategy[EventValue] = st.one_of(scalars, st.lists(scalars, max_size=3))
KEYS = ("rank", "world_size", "host", "rotated", "skipped", "overflow", "overhead", "lost", "dropped", "value", "ranks")
MORE = ("message", "path", "verdict", "culprit", "since_step", "part", "error", "stopped", "op", "row")


@settings(max_examples=settings().max_examples // 3)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(K)),
            st.integers(min_value=0),
            st.dictionaries(st.sampled_from(KEYS + MORE), anything, max_size=6),
        ),
        max_size=20,
    )
)
def test_whatever_a_file_holds_it_is_reported_in_a_document_that_keeps_to_its_schema(events: list[Event]) -> None:
    answer = report(events, events)
    assert problems_of(answer.to_dict()) == []
    prometheus(answer)
    shown = Console(file=StringIO(), width=80)
    shown.print(table(answer))
    assert "\x1b" not in shown.file.getvalue()  # type: ignore[attr-defined]


def test_saves_are_those_of_the_slowest_rank_that_told_of_any() -> None:
    save: Event = (K.SAVED, 5, {})
    assert report([save, save], [save], []).saves == 1


@pytest.mark.parametrize("goes_on", [False, True])
def test_saves_that_failed_are_in_the_headline_with_the_error_and_10_only_where_the_last_did(*, goes_on: bool) -> None:
    failed: list[Event] = [(K.SAVE_FAILED, step, {"message": f"OSError: no room for {step}"}) for step in (2, 3, 4)]
    saved: list[Event] = [(K.SAVED, 5, {})] if goes_on else []
    answer = report([*steps(), *failed, *saved], [*steps(), (K.SAVED, 4, {})])
    shown = Console(file=StringIO(), width=200)
    shown.print(table(answer))
    headline, second = shown.file.getvalue().splitlines()[:2]  # type: ignore[attr-defined]
    if goes_on:
        assert code(answer) is ExitCode.OK
        assert headline == "5 updates, none dropped"
        assert second == "3 of 4 saves failed, the last at step 4: OSError: no room for 4; a later one was written"
    else:
        assert code(answer) is ExitCode.DAMAGE
        assert headline == "Needs attention: 3 failed saves in 5 updates"
        assert second == "3 of 3 saves failed, the last at step 4: OSError: no room for 4"
    assert (answer.failed_saves, answer.last_save_failed) == (3, not goes_on)


def test_failures_of_the_guard_are_told_once_a_part_and_counted_all() -> None:
    error: Event = (K.GUARD_ERROR, 3, {"part": "features", "error": "RuntimeError: no"})
    off: Event = (K.GUARD_OFF, 3, {"part": "features"})
    lost: Event = (K.STEP, 4, {"lost": 7, "overhead": 0.25})
    failed: list[Event] = [(K.CAPTURE_FAILED, 4, {}), (K.SAVE_FAILED, 4, {})]
    answer = report([error, error, off, lost, (K.STEP, 5, {"overhead": 0.75}), *failed], [error])
    assert answer.errors == tuple(f"rank {rank}, step 3, features: RuntimeError: no" for rank in range(2))
    assert (answer.guard_errors, answer.overhead) == (3, 0.5)
    (first, second) = answer.ranks
    assert (first.switched_off, first.lost_lines, second.switched_off) == (("features",), 7, ())
    assert (first.capture_failures, first.failed_saves) == (1, 1)
    assert code(report([*steps(), (K.CAPTURE_FAILED, 4, {})])) is ExitCode.OK


CALIBRATE = ("ckpttool", "log", "calibrate", "out/guard")


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("skips-too-often", K.SKIP, [CALIBRATE]),
        ("skips-too-often", K.SPIKE, [CALIBRATE]),
        ("skips-too-often", K.NONFINITE, []),  # of which no threshold is the cause
        ("no-micro-batch", K.SKIP, [("ckpttool", "guide", "guard")]),
        ("guard-too-slow", K.SKIP, [("ckpttool", "guide", "guard")]),
        ("config-key-ignored", K.SKIP, [("ckpttool", "guide", "asd")]),
    ],
)
def test_an_alarm_leads_to_what_helps_against_it(
    name: str, kind: GuardEventKind, expected: list[tuple[str, ...]]
) -> None:
    alarm: Event = (K.ALARM, 3, {"name": name, "message": "too often"})
    answer = report([(kind, 3, {"dropped": True}), alarm, alarm])
    assert (answer.alarms, list(answer.next)) == (("too often",), expected)
    assert code(answer) is ExitCode.OK


def test_what_was_forgotten_at_a_restart_is_told_and_that_there_was_one() -> None:
    blind: Event = (K.BLIND, 40, {"message": "there is no saved state: for 64 steps the policy detects nothing"})
    reset: Event = (K.GUARD_RESET, 90, {"message": "another policy"})
    again: Event = (K.RUN, 40, {"rank": 0})
    answer = report([*steps(), again, blind, again, reset], [*steps(), again, blind])
    assert answer.forgotten == (f"step 40: {blind[2]['message']}", "step 90: another policy")
    assert (answer.starts, answer.next, code(answer)) == (3, (), ExitCode.OK)
    assert (report(steps()).starts, report(steps()).forgotten) == (1, ())


def test_a_file_that_was_put_aside_is_no_start_and_later_lines_stay_that_rank_s() -> None:
    rotated: Event = (K.RUN, 3, {"rank": 0, "rotated": True})
    stop: Event = (K.STOP, 2, {})
    answer = report([stop, rotated, (K.RUN, 4, {"rank": 900, "world_size": "x"})])
    (rank,) = answer.ranks
    assert (rank.rank, rank.starts, answer.world_size) == (0, 2, 1)
    assert report([stop, rotated]).stopped_at == 2


def test_what_is_told_one_by_one_is_bounded_whatever_the_file_holds() -> None:
    many: list[Event] = []
    for step in range(3 * MOST):
        many += [(kind, step, {"dropped": True}) for kind in (K.SKIP, K.SDC_STRIKE)]
        many.append((K.CAPTURE, step, {"path": f"p{step}"}))
        many.append((K.ALARM, step, {"message": f"m{step}"}))
        many.append((K.GUARD_ERROR, step, {"part": f"p{step}", "error": "x" * 9999}))
        many.append((K.BLIND, step, {}))
        many.append((K.GUARD_OFF, step, {"part": f"p{step}"}))
    answer = report(many)
    (rank,) = answer.ranks
    assert (rank.strikes, rank.captures, rank.guard_errors) == (300, 300, 300)
    told = (
        answer.drops,
        answer.strikes,
        answer.captures,
        answer.alarms,
        answer.errors,
        answer.forgotten,
        rank.switched_off,
    )
    assert [len(each) for each in told] == [MOST] * 7
    assert max(map(len, answer.errors)) < 600
    assert len(answer.next) == 3, "of captures in a row the first is inspected"
