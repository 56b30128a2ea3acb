"""What a policy costs over a log, and how far the log can tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from ckpttool.core.domain.advice import SpikeAdvice, StopAdvice
from ckpttool.core.domain.metrics import LogAttempt, StepMetrics
from ckpttool.core.domain.question import SpikeQuestion
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import UsageError
from ckpttool.health.model.answers import ReplayAnswer
from ckpttool.health.model.events import CheckpointMark, MarkState, SkippedSpan
from ckpttool.health.model.reading import LogReading
from ckpttool.health.policies.skip import SkipPolicy
from ckpttool.health.policies.zclip import ZClipPolicy
from ckpttool.health.rules.replay import Trace, advise, courses_of, replay
from ckpttool.health.rules.timeline import timeline
from tests.support.log_rows import INF, NAN, bloom, row, rows


def test_three_skips_in_ten_steps_leave_the_learning_rate_at_seven() -> None:
    result = replay(SkipPolicy(), rows([1, 5, 5, 1, 1, 1, 5, 1, 1, 1]))
    assert (result.last_step, result.updates_lost, result.learning_rate_index) == (10, 3, 7)
    assert result.spans == (
        SkippedSpan(first=Step(2), last=Step(3), updates=2, peak=5),
        SkippedSpan(first=Step(7), last=Step(7), updates=1, peak=5),
    )
    assert (result.steps_seen, result.steps_unseen, result.stopped_at) == (10, 0, None)
    assert "from step 2 on, the log is only an observation" in result.notes[0]


def test_the_nan_hole_loses_updates_without_a_stop_and_the_strict_rule_stops() -> None:
    norms = [5, NAN, 5, NAN]
    assert replay(SkipPolicy(count_threshold=2), rows(norms)).updates_lost == 4
    assert replay(SkipPolicy(count_threshold=2), rows(norms)).stopped_at is None
    strict = replay(SkipPolicy(count_threshold=2, nan_counts=True), rows(norms))
    assert (strict.stopped_at, strict.last_step, strict.updates_lost) == (2, 2, 2)
    assert strict.learning_rate_index == 0


def test_a_span_of_nothing_finite_has_no_peak() -> None:
    (span,) = replay(SkipPolicy(), rows([INF, NAN])).spans
    assert (span.updates, span.peak) == (2, None)
    (span,) = replay(SkipPolicy(), rows([INF, 7.0, 4.0])).spans
    assert span.peak == 7.0


def test_blooms_replay_says_what_it_cannot_know() -> None:
    result = replay(SkipPolicy(threshold=3.0, count_threshold=10), bloom())
    assert result.spans == (SkippedSpan(first=Step(31217), last=Step(31222), updates=6, peak=960.351),)
    assert result.steps_unseen == 27
    text = "\n".join(result.notes)
    assert "is unknown" in text
    assert "starts at step 31214" in text
    assert replay(SkipPolicy(threshold=3.0, count_threshold=2), bloom()).stopped_at == 31218


def test_a_log_written_with_the_policy_on_is_no_mere_observation() -> None:
    result = replay(SkipPolicy(), [row(1, 1.0), row(2, 5.0, skipped=True), row(3, 1.0)])
    assert result.notes == ()


def test_steps_without_a_norm_are_told() -> None:
    result = replay(SkipPolicy(), rows([1.0, None]))
    assert result.notes == ("1 steps have no norm; they are treated as if they were not in the log",)


def test_a_clip_loses_no_update() -> None:
    result = replay(ZClipPolicy(), rows([*[1.0] * 24, 1.5, 9.0]))
    assert (result.updates_lost, result.learning_rate_index, len(result.events)) == (0, 26, 1)


def test_an_empty_log_gives_an_empty_answer() -> None:
    result = replay(SkipPolicy(), [])
    assert (result.first_step, result.last_step, result.learning_rate_index, result.notes) == (None, None, None, ())


def test_a_restart_is_told() -> None:
    result = replay(SkipPolicy(), [row(1, 1.0), row(2, 1.0), row(1, 1.0)])
    assert any("goes back from step 2 to 1" in note for note in result.notes)


def test_the_log_is_read_no_further_than_the_stop() -> None:
    read: list[int] = []

    def endless() -> Iterator[StepMetrics]:
        step = 0
        while True:
            step += 1
            read.append(step)
            yield row(step, 9.0)

    assert replay(SkipPolicy(count_threshold=3), endless()).stopped_at == 3
    assert read == [1, 2, 3]


def test_a_step_that_no_training_reaches_is_replayed_as_the_log_says_it() -> None:
    result = replay(SkipPolicy(), [row(10**30, 1.0), row(10**30 + 1, 5.0), row(7, 1.0)])
    assert (result.first_step, result.last_step, result.steps_seen, result.updates_lost) == (10**30, 7, 3, 1)


def replayed(
    policy: SkipPolicy, norms: list[float], *, marks: tuple[CheckpointMark, ...] | None = None
) -> ReplayAnswer:
    result = replay(policy, rows(norms))
    reading = LogReading(sources=("a.log",), steps=len(norms), notes=(), problems=(), problem_count=0)
    line = timeline(result.events, [Step(step) for step in range(1, len(norms) + 1)])
    return ReplayAnswer(settings=(), result=result, reading=reading, timeline=line, marks=marks, advice=None)


def test_a_way_around_a_spike_needs_to_know_of_checkpoints() -> None:
    policy = SkipPolicy(count_threshold=3)
    answer = replayed(policy, [1.0, 9.0, 1.0])
    trace = Trace()
    replay(policy, rows([1.0, 9.0, 1.0]), trace)
    with pytest.raises(UsageError, match="needs checkpoints"):
        advise(SpikeQuestion(), policy, answer, trace)
    assert isinstance(advise(SpikeQuestion(every=1), policy, answer, trace), SpikeAdvice)


def test_where_the_policy_would_have_stopped_the_way_is_on_behind_the_stop() -> None:
    policy = SkipPolicy(count_threshold=3)
    norms = [1.0] * 10 + [9.0] * 3
    trace = Trace()
    replay(policy, rows(norms), trace)
    mark = CheckpointMark(name="5", step=Step(5), state=MarkState.CLEAR, reason="")
    advice = advise(SpikeQuestion(), policy, replayed(policy, norms, marks=(mark,)), trace)
    assert isinstance(advice, StopAdvice)
    assert (advice.stop, advice.good_batches_lost, advice.detour and advice.detour.checkpoint_step) == (13, 5, 5)


def test_what_a_detector_logged_holds_on_the_course_of_every_start_and_a_norm_on_its_own() -> None:
    whole = replayed(SkipPolicy(), [9.0, 1.0]).timeline
    starts = [LogAttempt(rows=rows([norm, 1.0]), begun=True, ended=True) for norm in (9.0, 1.0)]
    logged = courses_of(None, whole, starts, 0)
    judged = courses_of(SkipPolicy(), whole, starts, 0)
    assert [len(logged.of(start).intervals) for start in (0, 1, None)] == [1, 1, 1]
    assert [len(judged.of(start).intervals) for start in (0, 1, None)] == [1, 0, 0]


def test_a_log_that_counts_samples_tells_the_batch_and_a_spike_that_is_asked_for_is_no_stop() -> None:
    policy, trace = SkipPolicy(count_threshold=9), Trace()
    norms = [1.0, 9.0, 1.0]
    replay(policy, [replace(row, consumed_samples=8 * row.step) for row in rows(norms)], trace)
    assert trace.clock is not None
    advice = advise(SpikeQuestion(every=1, around=Step(2)), policy, replayed(policy, norms), trace)
    assert isinstance(advice, SpikeAdvice)
