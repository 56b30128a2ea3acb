"""The health of a tree's checkpoints by the evidence in the shards, and the health of the newest checkpoint."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ckpttool.core.decide.lineage import Lineage
from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey, Inventory
from ckpttool.core.domain.finding import Code, Finding, Severity
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.metrics import StepMetrics, TrainingLog
from ckpttool.core.domain.progress import newest_first
from ckpttool.core.domain.units import Rank, Step, on_ranks
from ckpttool.core.domain.verdict import TensorStat, Verdict
from ckpttool.core.errors import IncompleteError
from ckpttool.health.model.answers import WeightNumbers
from ckpttool.health.model.events import HealthJudgement, HealthReport
from ckpttool.health.rules.evidence import log_findings

_FIRST_MOMENT = "adam_m."
_NO_WEIGHT = ("adam_", "accu_grads", "fi_parameter", "position")
"""Parts of tensor names to exclude: optimizer state, accumulated gradients, counters, the other kind of embedding."""


def weigh(verdict: Verdict) -> WeightNumbers:
    """Return the statistics of one checkpoint, from a verdict at level NUMERICS.

    A checkpoint is flagged if the norm is too high on *any* rank of the first stage, so the rank with the largest
    number decides. Copies on data-parallel ranks are therefore not added up.
    """
    weights: dict[Rank | None, list[TensorStat]] = defaultdict(list)
    moments: dict[Rank | None, list[TensorStat]] = defaultdict(list)
    nonfinite = 0
    for report in verdict.reports:
        for stat in report.stats:
            nonfinite += stat.nans + stat.infinities
            if "embedding" not in stat.name.lower():
                continue
            if _FIRST_MOMENT in stat.name:
                moments[report.rank].append(stat)
            elif not any(reason in stat.name for reason in _NO_WEIGHT):
                weights[report.rank].append(stat)
    squares = _largest(weights.values())
    return WeightNumbers(
        name=verdict.name,
        step=verdict.step,
        nonfinite=nonfinite,
        embedding_l2=None if squares is None else math.sqrt(squares),
        embedding_moment=_largest(moments.values()),
        read_all=not unread(verdict),
    )


def unread(verdict: Verdict) -> tuple[Finding, ...]:
    """Return the reason why some elements of a checkpoint could not be read."""
    return tuple(finding for finding in verdict.findings if finding.severity > Severity.SUSPECT)


def _largest(ranks: Iterable[list[TensorStat]]) -> float | None:
    """Return the largest sum of squares of any rank."""
    return max((math.fsum(stat.norm * stat.norm for stat in stats) for stats in ranks), default=None)


def with_weights(
    report: HealthReport, weights: Mapping[CheckpointKey, WeightNumbers], inventory: Inventory
) -> HealthReport:
    """Mark checkpoints with NaN or infinity as unhealthy, regardless of measurements at the time of the save."""
    pairs = zip(report.judgements, inventory.checkpoints, strict=True)
    judgements = (_weighed(judgement, weights.get(checkpoint.key)) for judgement, checkpoint in pairs)
    return replace(report, judgements=tuple(judgements))


def _weighed(judgement: HealthJudgement, numbers: WeightNumbers | None) -> HealthJudgement:
    if numbers is None or not numbers.nonfinite:
        return judgement
    note = f"its shards have {numbers.nonfinite} NaN or infinite values"
    return replace(judgement, health=Health.UNHEALTHY, source="weights", note=note)


def with_drift(report: HealthReport, inventory: Inventory) -> HealthReport:
    """Mark a checkpoint as unhealthy if a rank's copy of the weights has drifted from its replicas."""
    pairs = zip(report.judgements, inventory.checkpoints, strict=True)
    return replace(report, judgements=tuple(_drifted(*pair) for pair in pairs))


def _drifted(judgement: HealthJudgement, checkpoint: Checkpoint) -> HealthJudgement:
    drifted = [finding for finding in checkpoint.findings if finding.code is Code.REPLICA_DRIFTED]
    if not drifted or judgement.health is Health.UNHEALTHY:
        return judgement
    ranks = tuple(sorted({rank for finding in drifted for rank in finding.ranks}))
    note = f"its weights of {on_ranks(ranks)} drifted from their replicas: ckpttool verify shows from which step on"
    return replace(judgement, health=Health.UNHEALTHY, source="replicas", note=note)


def _pairs(report: HealthReport, inventory: Inventory) -> list[tuple[Checkpoint, HealthJudgement]]:
    """Return the checkpoints on the run's current lineage, each with its judgement, newest first."""
    keys = (checkpoint.key for checkpoint in inventory.checkpoints)
    judgements = dict(zip(keys, report.judgements, strict=True))
    lineage = Lineage(inventory)
    best_first = lineage.best_first(newest_first(inventory.checkpoints))
    return [(checkpoint, judgements[checkpoint.key]) for checkpoint in best_first if not lineage.abandoned(checkpoint)]


def with_newest(report: HealthReport, inventory: Inventory) -> HealthReport:
    """Add the name of the newest healthy checkpoint, in the order of `resolve`: a later run before a higher step."""
    healthy = (
        checkpoint.name for checkpoint, judgement in _pairs(report, inventory) if judgement.health is Health.HEALTHY
    )
    return replace(report, newest_healthy=next(healthy, None))


def newest(report: HealthReport, inventory: Inventory) -> HealthJudgement | None:
    """Return the judgement of the newest checkpoint on the run's current lineage."""
    return next((judgement for _, judgement in _pairs(report, inventory)), None)


def other_findings(inventory: Inventory, log: TrainingLog | None, verdicts: Sequence[Verdict]) -> tuple[Finding, ...]:
    """Return why checkpoints could not be judged: unreadable records, log lines and shards."""
    findings = [finding for finding in inventory.findings if finding.code.value.startswith("health-")]
    if log is not None:
        findings += log_findings(log.problems, log.problem_count)
    for verdict in verdicts:
        findings += unread(verdict)
    return tuple(findings)


def embedding_norms(metrics: Iterable[StepMetrics]) -> tuple[tuple[Step, float], ...]:
    """Return the embedding local norm of each step that has one."""
    return tuple((row.step, row.embedding_local_norm) for row in metrics if row.embedding_local_norm is not None)


def assert_read_to_its_end(log: TrainingLog) -> None:
    """Refuse to record anything from part of a log: a later attempt at a step may be worse.

    Raises:
        IncompleteError: The log could not be read to the end.
    """
    for problem in log.problems:
        if problem.ends_the_log:
            raise IncompleteError(
                f"{problem.source}: {problem.reason}; nothing from the part that was read was recorded"
            )
