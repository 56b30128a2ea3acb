"""Health by the embedding norm: the threshold decides, NaN is unhealthy, and what was not measured is unknown."""

from __future__ import annotations

import pytest

from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.metrics import LogAttempt, StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.health.model.events import HealthReport, SavedCheckpoint
from ckpttool.health.rules.embedding import judge_health
from ckpttool.trainers.findings import TrainersCode
from tests.support.log_rows import INF, NAN

HEALTHY, UNHEALTHY, UNKNOWN = Health.HEALTHY, Health.UNHEALTHY, Health.UNKNOWN


def save(step: int | None, *, recorded: Health = UNKNOWN) -> SavedCheckpoint:
    return SavedCheckpoint(name=f"{step}", step=None if step is None else Step(step), recorded=recorded)


def judged(
    norm: float | None,
    recorded: Health = UNKNOWN,
    *,
    threshold: float | None = 270.0,
    stages: int | None = None,
    logged: bool = True,
) -> HealthReport:
    row = StepMetrics(step=Step(10), embedding_local_norm=norm)
    attempts = [LogAttempt(rows=[row], begun=False, ended=False)] if logged else ()
    return judge_health([save(10, recorded=recorded)], attempts, threshold=threshold, pipeline_stages=stages)


@pytest.mark.parametrize(
    ("norm", "health"),
    [
        (251.79, HEALTHY),
        (269.999, HEALTHY),
        (270.0, UNHEALTHY),
        (291.36, UNHEALTHY),
        (NAN, UNHEALTHY),
        (INF, UNHEALTHY),
    ],
)
def test_the_log_decides_against_the_threshold(norm: float, health: Health) -> None:
    (judgement,) = judged(norm).judgements
    assert (judgement.health, judgement.source, judgement.note) == (health, "log", None)


def test_the_l2_norm_is_the_root_of_what_the_log_shows() -> None:
    (judgement,) = judged(251.79).judgements
    assert judgement.l2_norm == pytest.approx(15.87, abs=0.005)
    (judgement,) = judged(-1.0).judgements
    assert judgement.l2_norm is None


@pytest.mark.parametrize(
    ("norm", "recorded", "severity"),
    [(300.0, HEALTHY, Severity.SUSPECT), (NAN, HEALTHY, Severity.SUSPECT), (100.0, UNHEALTHY, Severity.NOTE)],
)
def test_where_log_and_record_disagree_it_is_told(norm: float, recorded: Health, severity: Severity) -> None:
    (finding,) = judged(norm, recorded).findings
    assert (finding.code, finding.severity) == (TrainersCode.HEALTH_CONTRADICTORY, severity)


@pytest.mark.parametrize(
    ("norm", "recorded"), [(300.0, UNHEALTHY), (100.0, HEALTHY), (300.0, UNKNOWN), (None, HEALTHY)]
)
def test_where_they_agree_or_one_is_silent_there_is_no_finding(norm: float | None, recorded: Health) -> None:
    assert judged(norm, recorded).findings == ()


@pytest.mark.parametrize("recorded", [HEALTHY, UNHEALTHY, UNKNOWN])
def test_without_a_norm_in_the_log_the_record_stands_and_it_is_said(recorded: Health) -> None:
    for logged in (True, False):
        (judgement,) = judged(None, recorded, logged=logged).judgements
        assert judgement.health is recorded
        assert "could not be applied" in (judgement.note or "")


def test_without_record_and_log_nothing_is_known() -> None:
    report = judged(None, logged=False)
    assert (report.judgements[0].health, report.judgements[0].source) == (UNKNOWN, "none")


def test_without_a_threshold_the_record_stands_without_a_word() -> None:
    (judgement,) = judged(300.0, HEALTHY, threshold=None).judgements
    assert (judgement.health, judgement.note) == (HEALTHY, None)
    assert judgement.l2_norm == pytest.approx(17.32, abs=0.01)


def test_with_one_pipeline_stage_recorded_healthy_means_never_measured() -> None:
    (judgement,) = judged(None, HEALTHY, stages=1).judgements
    assert judgement.health is UNKNOWN
    assert "one pipeline stage" in (judgement.note or "")
    assert judged(None, HEALTHY, stages=2).judgements[0].health is HEALTHY
    assert judged(None, UNHEALTHY, stages=1).judgements[0].health is UNHEALTHY
    assert judged(100.0, HEALTHY, stages=1).judgements[0].health is HEALTHY


def test_a_norm_of_zero_means_that_no_embedding_was_found() -> None:
    (judgement,) = judged(0.0, HEALTHY).judgements
    assert judgement.health is UNKNOWN
    assert "nothing was measured" in (judgement.note or "")
    assert judged(0.0, UNHEALTHY).judgements[0].health is UNHEALTHY


def test_judgements_come_as_the_saves_came() -> None:
    saves = [save(None, recorded=HEALTHY), save(20, recorded=HEALTHY), save(10, recorded=HEALTHY), save(30)]
    report = judge_health(saves, (), threshold=None)
    assert [judgement.name for judgement in report.judgements] == ["None", "20", "10", "30"]


def test_a_step_that_two_starts_did_leaves_the_threshold_unapplied_and_the_record_standing() -> None:
    rows = [StepMetrics(step=Step(10), embedding_local_norm=norm) for norm in (1.0, 500.0)]
    attempts = [LogAttempt(rows=[one], begun=False, ended=False) for one in rows]
    (judgement,) = judge_health([save(10, recorded=HEALTHY)], attempts, threshold=270.0).judgements
    assert (judgement.health, judgement.source, judgement.embedding_local_norm) == (HEALTHY, "record", None)
    assert "possibly from another start" in (judgement.note or "")


def skipping(*rows: tuple[int, float, bool]) -> list[LogAttempt]:
    shown = [StepMetrics(step=Step(step), embedding_local_norm=norm, skipped=skipped) for step, norm, skipped in rows]
    return [LogAttempt(rows=shown, begun=True, ended=False)]


@pytest.mark.parametrize(
    ("rows", "health", "source"),
    [
        (((9, 100.0, False), (10, NAN, True)), HEALTHY, "log"),
        (((8, 300.0, False), (9, 100.0, True), (10, NAN, True)), UNHEALTHY, "log"),
        (((9, 100.0, False), (10, NAN, False)), UNHEALTHY, "log"),
        (((5, 100.0, False), (10, NAN, True)), UNKNOWN, "none"),  # what came between is not shown
        (((10, NAN, True),), UNKNOWN, "none"),
    ],
)
def test_a_step_whose_update_was_dropped_is_judged_by_the_last_applied_one(
    rows: tuple[tuple[int, float, bool], ...], health: Health, source: str
) -> None:
    (judgement,) = judge_health([save(10)], skipping(*rows), threshold=270.0).judgements
    assert (judgement.health, judgement.source) == (health, source)


@pytest.mark.parametrize(("measured", "health"), [(True, HEALTHY), (False, UNKNOWN)])
def test_with_one_pipeline_stage_a_record_counts_if_its_writer_measured(*, measured: bool, health: Health) -> None:
    one = SavedCheckpoint(name="10", step=Step(10), recorded=HEALTHY, records_measured_health=measured)
    (judgement,) = judge_health([one], (), threshold=None, pipeline_stages=1).judgements
    assert judgement.health is health
    rows = [StepMetrics(step=Step(10), embedding_local_norm=0.0)]
    attempts = [LogAttempt(rows=rows, begun=True, ended=False)]
    (judgement,) = judge_health([one], attempts, threshold=270.0).judgements
    assert judgement.health is health, "a norm of 0 is one that was measured"
