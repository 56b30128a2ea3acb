"""Numbers of a checkpoint from the numbers of its tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpttool.core.domain.checkpoint import Inventory
from ckpttool.core.domain.finding import Code, Finding, Severity
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.metrics import LogProblem, StepMetrics, TrainingLog
from ckpttool.core.domain.shard import FormatName, ShardRole
from ckpttool.core.domain.units import ByteCount, Rank, Step
from ckpttool.core.domain.verdict import Level, ShardReport, TensorStat, Verdict
from ckpttool.core.errors import IncompleteError
from ckpttool.health.model.events import HealthJudgement, HealthReport
from ckpttool.health.rules.checkpoints import (
    assert_read_to_its_end,
    embedding_norms,
    newest,
    other_findings,
    unread,
    weigh,
    with_drift,
    with_newest,
    with_weights,
)
from ckpttool.trainers.mindformers.layouts.names import RANK_LAYOUT
from tests.support.inventories import checkpoint


def stat(name: str, norm: float, *, nans: int = 0, infinities: int = 0) -> TensorStat:
    return TensorStat(
        name=name,
        dtype="F32",
        elements=8,
        nans=nans,
        infinities=infinities,
        absmax=1.0,
        norm=norm,
        denormal_only=False,
    )


def verdict(*ranks: list[TensorStat], findings: tuple[Finding, ...] = ()) -> Verdict:
    reports = tuple(
        ShardReport(
            path=f"rank_{rank}/x",
            rank=Rank(rank),
            role=ShardRole.FULL,
            level=Level.NUMERICS,
            format=None,
            stamp=None,
            scalars=(),
            schema_hash=None,
            tensors=None,
            checksum_matched=False,
            bytes_read=ByteCount(0),
            findings=(),
            stats=tuple(stats),
        )
        for rank, stats in enumerate(ranks)
    )
    key = ("", "10_2", FormatName.MINDSPORE_CKPT)
    return Verdict(key=key, name="10_2", step=Step(20), level=Level.NUMERICS, reports=reports, findings=findings)


def test_the_rank_where_it_is_largest_speaks_and_copies_are_not_added_up() -> None:
    numbers = weigh(verdict([stat("model.tok_embeddings.embedding_weight", 3.0)] * 1, [stat("word_Embedding.w", 4.0)]))
    assert numbers.embedding_l2 == 4.0


def test_parts_of_one_rank_are_added_up() -> None:
    numbers = weigh(verdict([stat("embedding.a", 3.0), stat("embedding.b", 4.0), stat("adam_m.embedding.a", 2.0)]))
    assert (numbers.embedding_l2, numbers.embedding_moment) == (5.0, 4.0)


@pytest.mark.parametrize(
    "name", ["adam_v.embedding.w", "accu_grads.embedding.w", "position_embeddings.w", "dense.weight", "adam_m.dense"]
)
def test_what_is_no_embedding_is_left_out(name: str) -> None:
    numbers = weigh(verdict([stat(name, 3.0)]))
    assert (numbers.embedding_l2, numbers.embedding_moment) == (None, None)


def test_nan_and_infinity_count_wherever_they_are() -> None:
    numbers = weigh(verdict([stat("dense", 1.0, nans=2)], [stat("adam_v.dense", 1.0, infinities=3)]))
    assert numbers.nonfinite == 5


@pytest.mark.parametrize(
    ("severity", "read_all"), [(Severity.NOTE, True), (Severity.SUSPECT, True), (Severity.UNKNOWN, False)]
)
def test_only_what_kept_us_from_reading_makes_it_incomplete(severity: Severity, read_all: bool) -> None:
    finding = Finding(code=Code.UNREADABLE, severity=severity, message="m")
    one = verdict([stat("dense", 1.0)], findings=(finding,))
    assert weigh(one).read_all is read_all
    assert unread(one) == (() if read_all else (finding,))


def test_from_part_of_a_log_nothing_is_recorded_and_a_line_that_is_torn_hinders_nobody() -> None:
    def log(line: int) -> TrainingLog:
        problem = LogProblem(source="a.log", line=line, reason="cut short", text="")
        return TrainingLog(sources=("a.log",), metrics=(), attempts=(), notes=(), problems=(problem,), problem_count=1)

    assert_read_to_its_end(log(7))
    with pytest.raises(IncompleteError, match=r"a\.log: cut short; nothing from the part"):
        assert_read_to_its_end(log(0))


def judged(name: str, step: int, health: Health) -> HealthJudgement:
    return HealthJudgement(
        name=name,
        step=Step(step),
        recorded=Health.UNKNOWN,
        embedding_local_norm=None,
        l2_norm=None,
        health=health,
        source="log",
    )


def test_what_holds_nan_is_unhealthy_whatever_the_log_says_and_the_newest_healthy_one_is_before_it() -> None:
    older, newer = (checkpoint(label) for label in ("10_1", "20_1"))
    inventory = Inventory(root="output", layout=RANK_LAYOUT, checkpoints=(older, newer), runs=(), findings=())
    judgements = tuple(judged(each.name, each.step or 0, Health.HEALTHY) for each in (older, newer))
    report = HealthReport(threshold=1.0, judgements=judgements, findings=())
    sick = weigh(replace(verdict([stat("w", 1.0, nans=1)]), key=newer.key))
    weighed = with_newest(with_weights(report, {newer.key: sick}, inventory), inventory)
    assert [(each.health, each.source) for each in weighed.judgements] == [
        (Health.HEALTHY, "log"),
        (Health.UNHEALTHY, "weights"),
    ]
    assert weighed.newest_healthy == older.name
    assert newest(weighed, inventory) == weighed.judgements[1]
    none = HealthReport(threshold=1.0, judgements=(), findings=())
    assert newest(none, replace(inventory, checkpoints=())) is None


def test_what_drifted_from_its_copies_is_unhealthy_and_says_which_ranks() -> None:
    drifted = Finding(code=Code.REPLICA_DRIFTED, severity=Severity.SUSPECT, message="", ranks=(Rank(3), Rank(1)))
    inventory = Inventory(
        root="x",
        layout=RANK_LAYOUT,
        checkpoints=(replace(checkpoint("10_2"), findings=(drifted,)), checkpoint("20_2")),
        runs=(),
        findings=(),
    )
    healthy = HealthJudgement(
        name="10_2",
        step=Step(20),
        health=Health.HEALTHY,
        source="log",
        recorded=Health.UNKNOWN,
        embedding_local_norm=None,
        l2_norm=None,
    )
    report = HealthReport(judgements=(healthy, replace(healthy, name="20_2")), findings=(), threshold=None)
    one, other = with_drift(report, inventory).judgements
    assert (one.health, one.source) == (Health.UNHEALTHY, "replicas")
    assert "of ranks 1, 3 drifted from their replicas" in (one.note or "")
    assert other == report.judgements[1]
    unhealthy = replace(report, judgements=(replace(healthy, health=Health.UNHEALTHY), healthy))
    assert with_drift(unhealthy, inventory).judgements[0].source == "log"


def test_what_hinders_the_judgement_is_told_and_nothing_else_of_the_tree() -> None:
    doubts = [
        Finding(code=code, severity=Severity.UNKNOWN, message="") for code in (Code.HEALTH_UNREADABLE, Code.RUN_MIXED)
    ]
    inventory = Inventory(root="x", layout=RANK_LAYOUT, checkpoints=(), runs=(), findings=tuple(doubts))
    assert [each.code for each in other_findings(inventory, None, [])] == [Code.HEALTH_UNREADABLE]
    lost = Finding(code=Code.UNREADABLE, severity=Severity.UNKNOWN, message="", path="rank_0/x")
    found = other_findings(inventory, None, [verdict([], findings=(lost,))])
    assert [each.code for each in found][:1] == [Code.HEALTH_UNREADABLE]
    assert len(found) == 1 + len(unread(verdict([], findings=(lost,))))


def test_the_norms_of_an_embedding_are_those_of_steps_that_show_one() -> None:
    rows = [StepMetrics(step=Step(1), embedding_local_norm=2.5), StepMetrics(step=Step(2))]
    assert embedding_norms(rows) == ((1, 2.5),)
