"""Comparison of two training runs by their logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.question import STDIN
from ckpttool.core.errors import UsageError
from ckpttool.fp8.model.curves import Curve, CurvesAnswer, CurvesQuestion, PairedBy, Terms
from ckpttool.fp8.rules.align import batch_size, curve_of
from ckpttool.fp8.rules.compare import compare
from ckpttool.health.model.reading import LogReading
from ckpttool.trainers.registry import log_reader

if TYPE_CHECKING:
    from ckpttool.core.domain.metrics import TrainingLog

FIELDS = ("loss", "global_norm", "time", "consumed_samples", "learning_rate", "validation_loss")
"""The fields to compare. If there are several logs, the norm and the time also show which log is later."""

_OTHER_BATCH = 0.01
"""Minimum share by which batch sizes must differ, because an incomplete last batch explains a smaller difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsRead:
    """The logs of the compared runs: the baseline's, then the candidate's."""

    logs: tuple[TrainingLog, ...]
    curves: tuple[Curve, ...]
    terms: Terms


def read_runs(question: CurvesQuestion) -> RunsRead:
    """Read the runs to compare.

    Raises:
        UsageError: A log does not exist or is of an unknown kind, or the logs do not count samples.
    """
    names = (question.baseline, question.candidate, *question.repeats)
    if names.count(STDIN) > 1:
        raise UsageError("standard input can be one of the logs, not two")
    reader = log_reader(question.columns, curves=True)
    logs = [log for name in names if (log := reader.merged([name], keep=FIELDS)) is not None]
    by = _by(question.by, logs)
    terms = Terms(by=by, metric=question.metric, tolerance=question.tolerance, switch_step=question.switch_step)
    curves = tuple(curve_of(log.metrics, metric=terms.metric, by=by) for log in logs)
    return RunsRead(logs=tuple(logs), curves=curves, terms=terms)


def fp8_compare(question: CurvesQuestion) -> CurvesAnswer:
    """Compare the loss of a candidate with its baseline: whether, and from which step, they differ by more than noise.

    Raises:
        UsageError: A log or scores file does not exist or is of an unknown kind, or the logs do not count samples.
    """
    runs = read_runs(question)
    baseline, candidate, *repeats = runs.curves
    comparison = compare(baseline, candidate, repeats, terms=runs.terms)
    readings = [LogReading.of(log) for log in runs.logs]
    evals = None
    if question.evals is not None:
        from ckpttool.fp8.read.evals import compare_tasks, read_evals

        baseline_evals, candidate_evals = map(read_evals, question.evals)
        evals = compare_tasks(baseline_evals, candidate_evals, comparison.kind)
    return CurvesAnswer(
        comparison=comparison,
        baseline=readings[0],
        candidate=readings[1],
        repeats=tuple(readings[2:]),
        evals=evals,
    )


def _by(requested: PairedBy | None, logs: list[TrainingLog]) -> PairedBy:
    """Return how to pair the values of two runs: by samples if their batch sizes differ."""
    if requested is PairedBy.STEP:
        return requested
    sizes = [batch_size(log.metrics) for log in logs[:2]]
    baseline, candidate = sizes
    if baseline is None or candidate is None:
        if requested is PairedBy.SAMPLES:
            raise UsageError("--by samples: one of the logs does not count the consumed samples")
        return PairedBy.STEP
    differ = abs(baseline - candidate) > _OTHER_BATCH * max(baseline, candidate)
    return PairedBy.SAMPLES if differ or requested else PairedBy.STEP
