"""The ways around BLOOM's spike, and on after a stop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.advice import Choice, Spike
from ckpttool.core.domain.metrics import LogNote, LogProblem, NoteKind, StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import IncompleteError, UsageError
from ckpttool.health.model.events import EventKind, HealthEvent, HealthTimeline
from ckpttool.health.model.reading import LogReading
from ckpttool.health.policies.base import Coverage, judge
from ckpttool.health.policies.robust_z import RobustZPolicy
from ckpttool.health.policies.skip import SkipPolicy
from ckpttool.health.rules.detour import (
    RewindRecipe,
    SampleClock,
    Stop,
    advise_after_stop,
    advise_spike,
    ended_in_skips,
    find_spike,
    finite_losses,
    sample_clock,
    skipped_at_end,
    spike_to_pass,
)
from ckpttool.health.rules.timeline import timeline
from tests.support.log_rows import bloom

BLOOM = Spike(onset=Step(31216), end=Step(31250))
EVERY_100 = [Step(step) for step in range(30000, 31300, 100)]
CLOCK = SampleClock(step=Step(31215), samples=47_770_544, global_batch_size=2048)


def test_blooms_rewind_comes_out_as_published() -> None:
    advice = advise_spike(BLOOM, EVERY_100, newest=Step(31251), clock=CLOCK)
    assert advice.detour is not None
    assert (advice.detour.checkpoint_step, advice.detour.skip_batches) == (31100, 200)
    assert (advice.detour.first_skipped, advice.detour.last_skipped) == (31101, 31300)
    assert (advice.detour.samples_before, advice.detour.samples_after) == (47_535_024, 47_944_624)


def test_bloom_recovered_by_itself_so_waiting_is_cheaper() -> None:
    advice = advise_spike(BLOOM, EVERY_100, newest=Step(31251))
    assert advice.choice is Choice.WAIT
    assert (advice.wait_cost, advice.rewind_cost) == (34, 151)
    assert advice.detour is not None
    assert advice.detour.samples_before is None


def test_a_spike_that_does_not_recover_is_rewound() -> None:
    for end in (None, Step(31400)):
        advice = advise_spike(Spike(onset=Step(31216), end=end), EVERY_100, newest=Step(31450))
        assert advice.choice is Choice.REWIND
        assert advice.detour is not None
    assert advise_spike(Spike(onset=Step(31216), end=None), EVERY_100, newest=Step(31450)).wait_cost is None


def test_the_skip_passes_the_end_of_a_long_spike_and_says_where_that_is_too_much() -> None:
    advice = advise_spike(Spike(onset=Step(31216), end=Step(31700)), EVERY_100, newest=Step(31800))
    assert advice.detour is not None
    assert advice.detour.last_skipped == 31700
    assert any("more than the recipe's 500" in note for note in advice.notes)
    short = advise_spike(Spike(onset=Step(31216), end=Step(31500)), EVERY_100, newest=Step(31800))
    assert not any("more than" in note for note in short.notes)


def test_without_a_checkpoint_far_enough_back_there_is_no_detour() -> None:
    near = [Step(31117), Step(31200)]
    assert advise_spike(Spike(onset=Step(31216), end=None), near, newest=Step(31450)).choice is Choice.NONE
    late = advise_spike(Spike(onset=Step(31216), end=Step(31400)), near, newest=Step(31450))
    assert (late.choice, late.detour, late.notes) == (Choice.WAIT, None, ())
    exact = advise_spike(Spike(onset=Step(31216), end=None), [Step(31116)], newest=Step(31450))
    assert exact.choice is Choice.REWIND


@given(
    st.integers(min_value=1, max_value=2000),
    st.integers(min_value=0, max_value=400),
    st.lists(st.integers(min_value=1, max_value=3000), max_size=10),
)
def test_a_detour_always_passes_the_spike_and_starts_the_margin_before_it(
    onset: int, length: int, good: list[int]
) -> None:
    spike = Spike(onset=Step(onset), end=Step(onset + length))
    recipe = RewindRecipe()
    advice = advise_spike(spike, [Step(step) for step in good], newest=Step(onset + length + 10), recipe=recipe)
    candidates = [step for step in good if step <= onset - recipe.margin]
    assert (advice.detour is None) == (not candidates)
    if advice.detour is not None:
        assert advice.detour.checkpoint_step == max(candidates)
        assert advice.detour.skip_batches >= recipe.min_skip
        assert advice.detour.last_skipped >= onset + length


def test_after_a_stop_the_checkpoint_of_the_stop_is_good_and_the_data_move_on() -> None:
    advice = advise_after_stop(Step(120), [Step(100), Step(120), Step(140)], count=10)
    assert advice.detour is not None
    assert (advice.detour.checkpoint_step, advice.detour.last_skipped) == (120, 120)
    assert advice.good_batches_lost == 0
    assert "is already past" in advice.notes[0]


def test_after_a_stop_an_older_checkpoint_loses_the_good_batches_between() -> None:
    advice = advise_after_stop(Step(120), [Step(100)], count=10, clock=CLOCK)
    assert advice.detour is not None
    assert (advice.detour.checkpoint_step, advice.detour.last_skipped) == (100, 120)
    assert (advice.detour.first_skipped, advice.detour.last_skipped) == (101, 120)
    assert advice.good_batches_lost == 10
    assert "10 good batches" in advice.notes[0]


def test_a_checkpoint_among_the_bad_steps_loses_no_good_batch() -> None:
    advice = advise_after_stop(Step(120), [Step(115)], count=10)
    assert (advice.good_batches_lost, advice.notes) == (0, ())


def test_without_a_checkpoint_before_the_stop_there_is_nothing_to_load() -> None:
    assert advise_after_stop(Step(120), [Step(140)], count=10).detour is None


def test_blooms_log_tells_its_samples() -> None:
    rows = [
        StepMetrics(step=Step(31200)),
        StepMetrics(step=Step(31214), consumed_samples=47_768_496),
        StepMetrics(step=Step(31215), consumed_samples=47_770_544),
    ]
    assert sample_clock(rows) == CLOCK
    assert sample_clock(rows[:2]) is None
    gap = [StepMetrics(step=Step(step), consumed_samples=step * 8) for step in (1, 5, 9)]
    assert sample_clock(gap) is None
    still = [StepMetrics(step=Step(step), consumed_samples=8) for step in (1, 2)]
    assert sample_clock(still) is None


@pytest.mark.parametrize(("around", "onset"), [(None, 500), (Step(110), 100), (Step(400), 500), (Step(1), 100)])
def test_the_spike_meant_is_the_last_one_or_the_nearest(around: Step | None, onset: int) -> None:
    events = [HealthEvent(kind=EventKind.SPIKE, message="m", step=Step(step)) for step in (100, 500)]
    events.append(HealthEvent(kind=EventKind.SDC_STRIKE, message="s", step=Step(900)))
    spike = find_spike(timeline(events, [Step(101)]), around)
    assert spike is not None
    assert spike.onset == onset


def test_a_quiet_timeline_has_no_spike() -> None:
    assert find_spike(HealthTimeline(intervals=())) is None
    assert find_spike(HealthTimeline(intervals=()), Step(5)) is None


def test_bloom_from_its_log_to_the_advice() -> None:
    rows = bloom()
    spike = find_spike(timeline(judge(SkipPolicy(threshold=1.0), rows), [row.step for row in rows]))
    assert spike == BLOOM


def told(kind: NoteKind, step: int | None, *, count: int | None = None) -> LogNote:
    return LogNote(kind=kind, source="log", line=1, step=None if step is None else Step(step), count=count)


def test_a_training_ended_in_skips_where_its_log_says_so_and_shows_no_later_step() -> None:
    notes = [told(NoteKind.COUNT_STOP, 30, count=5), told(NoteKind.COUNT_STOP, 40, count=3)]
    skipped = "the training skipped steps 38 to 40, whose updates changed no weight"
    assert ended_in_skips(notes, Step(40)) == Stop(step=Step(40), count=3, skipped=skipped)
    assert ended_in_skips([*notes, told(NoteKind.COUNT_STOP, None)], Step(40)) == Stop(
        step=Step(40), count=3, skipped=skipped
    )
    one = ended_in_skips([told(NoteKind.COUNT_STOP, 40)], Step(40), 1)
    skipped = "the training skipped step 40, whose update changed no weight"
    assert one == Stop(step=Step(40), count=1, skipped=skipped)


def test_a_log_that_ends_in_skipped_steps_tells_of_the_stop_without_its_line() -> None:
    stop = ended_in_skips([], Step(96), 6)
    assert stop is not None
    assert (stop.step, stop.count) == (96, 6)
    assert "skipped steps 91 to 96, whose updates changed no weight; the log ends there" in str(stop.skipped)
    assert ended_in_skips([], Step(96), 1) is None
    assert ended_in_skips([], None, 6) is None


def test_steps_that_an_overflow_dropped_are_no_stop() -> None:
    def rows(*skipped: tuple[bool, bool]) -> list[StepMetrics]:
        return [
            StepMetrics(step=Step(step), skipped=is_skipped, overflow=overflows)
            for step, (is_skipped, overflows) in enumerate(skipped, 1)
        ]

    assert skipped_at_end(rows((True, False), (False, False), (True, False), (True, False))) == 2
    assert skipped_at_end(rows((True, False), (True, True))) == 0
    assert skipped_at_end(rows((True, False), (True, False), (False, False))) == 0
    assert skipped_at_end([]) == 0


@pytest.mark.parametrize("threshold", [None, 3.0])
def test_where_only_skipped_steps_stand_out_they_are_told(threshold: float | None) -> None:
    line = HealthTimeline(intervals=())
    with pytest.raises(UsageError, match="skipped 2 steps, 91 to 92, whose updates changed no weight"):
        spike_to_pass(line, None, reading(500), threshold, [Step(91), Step(92)])


def test_a_training_that_went_on_since_or_ended_otherwise_did_not_end_in_skips() -> None:
    stop = told(NoteKind.COUNT_STOP, 40, count=3)
    assert ended_in_skips([stop], Step(41)) is None
    assert ended_in_skips([stop], None) is None
    assert ended_in_skips([told(NoteKind.NAN_STOP, 40)], Step(40)) is None
    assert ended_in_skips([], Step(40)) is None


@pytest.mark.parametrize(
    ("norms", "threshold", "words"), [(20, None, "and the log has 20; --threshold X"), (0, 3.0, "no step")]
)
def test_whether_there_was_a_spike_is_unknown_if_no_step_could_be_judged(
    norms: int, threshold: float | None, words: str
) -> None:
    policy = RobustZPolicy()
    coverage = Coverage(policy)
    rows = [StepMetrics(step=Step(step), global_norm=0.3 if step <= norms else None) for step in range(1, 65)]
    assert list(judge(policy, rows, coverage)) == []
    line = HealthTimeline(intervals=(), judged=coverage.steps())
    with pytest.raises(IncompleteError, match=words):
        spike_to_pass(line, None, reading(64), threshold)


def reading(steps: int, *problems: LogProblem) -> LogReading:
    return LogReading(
        sources=("a.log",), steps=steps, notes=(), problems=problems, problem_count=1, unreadable=len(problems)
    )


@pytest.mark.parametrize(
    ("read", "threshold", "error", "words"),
    [
        (reading(500), None, UsageError, "the log shows no spike; --threshold X"),
        (reading(500), 3.0, UsageError, "no step of the log has a global norm of 3 or more"),
        (reading(0), 3.0, IncompleteError, "a.log: no training step was found; whether there was"),
        (
            reading(500, LogProblem(source="a.log", line=0, reason="cut short", text="")),
            3.0,
            IncompleteError,
            "a.log: cut short; whether there was a spike is unknown",
        ),
    ],
)
def test_where_there_is_no_spike_to_pass_it_is_said_whether_that_is_known(
    read: LogReading, threshold: float | None, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        spike_to_pass(HealthTimeline(intervals=()), None, read, threshold)


def test_losses_that_are_missing_or_no_numbers_are_left_out() -> None:
    losses = (1.0, None, float("nan"), 2.0)
    shown = [StepMetrics(step=Step(step), loss=loss) for step, loss in enumerate(losses)]
    assert list(finite_losses(shown)) == [(0, 1.0), (3, 2.0)]
