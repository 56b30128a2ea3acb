"""What a log holds against checkpoints, and what it leaves alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ckpttool.core.decide.resume import choose
from ckpttool.core.domain.advice import Choice, SpikeAdvice
from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.finding import Code, Row, Severity
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.metrics import LogProblem, StepMetrics, TrainingLog
from ckpttool.core.domain.plan import ResumePoint
from ckpttool.core.domain.question import EvidenceQuestion, ResumeQuestion, SpikeQuestion
from ckpttool.core.domain.units import Step
from ckpttool.health.findings import HealthCode
from ckpttool.health.model.events import (
    CheckpointMark,
    HealthJudgement,
    HealthTimeline,
    MarkState,
    SuspectInterval,
    SuspectKind,
)
from ckpttool.health.rules.detour import only_up_to, without_spikes
from ckpttool.health.rules.evidence import (
    Evidence,
    large_spikes,
    log_findings,
    saved,
    with_judgements,
    with_marks,
)
from ckpttool.health.rules.timeline import LineageTimelines
from ckpttool.trainers.mindformers.layouts.names import RANK_LAYOUT
from tests.support import inventories
from tests.support.inventories import checkpoint
from tests.support.log_rows import INF, rows


def tree(*checkpoints: Checkpoint) -> Inventory:
    return Inventory(root="output", layout=RANK_LAYOUT, checkpoints=checkpoints, runs=(), findings=())


def judgement(health: Health, source: str, norm: float | None = None) -> HealthJudgement:
    return HealthJudgement(
        name="10_2",
        step=Step(20),
        recorded=Health.UNKNOWN,
        embedding_local_norm=norm,
        l2_norm=None,
        health=health,
        source=source,
    )


def judged(one: HealthJudgement, *, ignore: bool = False, recorded: Health = Health.HEALTHY) -> Checkpoint:
    inventory = tree(checkpoint(health=recorded))
    (found,) = with_judgements(inventory, [one], threshold=270.0, ignore=ignore).checkpoints
    return found


def codes(one: Checkpoint) -> list[Row]:
    return [finding.code for finding in one.findings]


def test_what_the_log_shows_to_be_unhealthy_has_a_reason_against_it() -> None:
    found = judged(judgement(Health.UNHEALTHY, "log", 300.0))
    assert codes(found) == [HealthCode.NORM_ABOVE_THRESHOLD]
    assert "300" in found.findings[0].message


def test_where_health_is_ignored_it_is_only_told() -> None:
    found = judged(judgement(Health.UNHEALTHY, "log", 300.0), ignore=True)
    assert (codes(found), found.health) == ([], Health.UNHEALTHY)


def test_what_the_log_shows_to_be_healthy_overrules_the_record() -> None:
    found = judged(judgement(Health.HEALTHY, "log", 1.0), recorded=Health.UNHEALTHY)
    assert (codes(found), found.health) == ([], Health.HEALTHY)


def test_without_a_norm_in_the_log_the_judgement_of_the_record_stands() -> None:
    found = judged(judgement(Health.UNKNOWN, "record"))
    assert (codes(found), found.health) == ([], Health.UNKNOWN)


def test_only_what_is_suspect_on_the_timeline_has_a_reason_against_it() -> None:
    names = ("5_2", "10_2", "15_2")
    states = (MarkState.CLEAR, MarkState.SUSPECT, MarkState.UNKNOWN)
    marks = [
        CheckpointMark(name=name, step=None, state=state, reason="because")
        for name, state in zip(names, states, strict=True)
    ]
    found = with_marks(tree(*map(checkpoint, names)), marks, HealthCode.SAVED_IN_SPIKE).checkpoints
    assert [codes(one) for one in found] == [[], [HealthCode.SAVED_IN_SPIKE], []]


def test_what_lies_beyond_the_step_to_go_back_to_has_a_reason_against_it() -> None:
    steps = (19, 20, 21, None)
    inventory = tree(*(checkpoint(f"{index}_1", step=step) for index, step in enumerate(steps, 1)))
    found = only_up_to(inventory, Step(20), "before the spike").checkpoints
    assert [codes(one) for one in found] == [[], [], [Code.REWOUND_PAST], []]


def test_a_save_has_the_record_and_the_run_where_the_layout_tells_one() -> None:
    one = checkpoint(health=Health.HEALTHY, run=2)
    found = saved(one)
    assert (found.step, found.recorded, found.prefix, found.run) == (20, Health.HEALTHY, one.prefix, 2)
    assert saved(replace(one, label=None)).run is None


CALM = [1.0 + 0.01 * math.sin(step) for step in range(100)]


def spikes(norms: list[float]) -> list[int | None]:
    return [event.step for event in large_spikes(rows([*CALM, *norms]))]


def test_a_spike_ends_where_the_norm_comes_back_however_long_that_takes() -> None:
    assert spikes([9.0] * 80 + [1.0]) == list(range(101, 181))


def test_what_leaves_its_band_by_less_than_a_factor_of_two_is_held_against_nobody() -> None:
    assert spikes([1.5] * 80) == []
    assert spikes([2.5]) == [101]


def test_what_is_not_finite_is_always_a_spike() -> None:
    assert spikes([INF, math.nan]) == [101, 102]


def problem(line: int) -> LogProblem:
    return LogProblem(source="a.log", line=line, reason="cut short", text="")


def test_a_line_is_a_note_and_a_whole_log_is_unknown() -> None:
    line, whole = log_findings([problem(7), problem(0)], 2)
    assert (line.severity, line.line) == (Severity.NOTE, 7)
    assert (whole.severity, whole.line) == (Severity.UNKNOWN, None)


def test_what_is_not_shown_is_counted() -> None:
    assert log_findings([], 0) == ()
    *_, more = log_findings([problem(7)], 9)
    assert more.message.startswith("8 more lines")


def test_after_a_stop_a_spike_is_held_against_nobody_and_a_strike_still_is() -> None:
    calm, spiky, struck = (checkpoint(name) for name in ("10_1", "20_1", "30_1"))
    marks = [
        CheckpointMark(name=one.name, step=one.step, state=state, reason="why")
        for one, state in ((calm, MarkState.CLEAR), (spiky, MarkState.SUSPECT), (struck, MarkState.CLEAR))
    ]
    strikes = [*marks[:1], *(replace(mark, state=MarkState.SUSPECT) for mark in marks[1:])]
    against = with_marks(tree(calm, spiky, struck), strikes, HealthCode.SAVED_AFTER_STRIKE)
    both = with_marks(against, marks, HealthCode.SAVED_IN_SPIKE)
    assert both != against
    assert without_spikes(both) == against


@pytest.mark.parametrize(("last", "lost"), [(None, 150), (1000, 850)])
def test_where_only_a_saved_replay_knows_of_a_spike_the_way_back_is_counted_from_there(
    last: int | None, lost: int
) -> None:
    shown = [] if last is None else [StepMetrics(step=Step(last), global_norm=1.0)]
    spike = SuspectInterval(kind=SuspectKind.SPIKE, reason="it rose", first_step=Step(300), recovered_step=Step(900))
    line = HealthTimeline(intervals=(spike,))
    evidence = Evidence(
        question=EvidenceQuestion(spike=SpikeQuestion()),
        inventory=inventories.tree(checkpoint("75_2"), checkpoint("200_2")),
        log=TrainingLog(sources=("a.log",), metrics=shown, attempts=(), notes=(), problems=(), problem_count=0),
        courses=LineageTimelines(line, (), lambda _: line, on_any=line),
        marks=(),
        report=None,
        without_answer=(),
    )
    point, advice = evidence.choose(lambda tree: choose(tree, ResumeQuestion(), inventories.verdicts()))
    assert isinstance(point, ResumePoint)
    assert isinstance(advice, SpikeAdvice)
    assert (point.checkpoint.name, advice.choice, advice.rewind_cost) == ("75_2", Choice.REWIND, lost)
