"""Comparison of two loss curves: their values, the gap between them, and its possible meaning."""

from __future__ import annotations

import re
from enum import Enum
from typing import Annotated, Final

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.option import Option
from ckpttool.core.domain.question import COLUMNS
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import ExitCode, UsageError
from ckpttool.health.model.reading import LogReading

SEED = 1
"""Seed of all random numbers, so that the same input gives the same result."""


class CurveClass(str, Enum):
    """The way in which a candidate differs from its baseline."""

    DIVERGED = "diverged"
    """The loss became NaN or infinite, or rises and stays high."""
    EARLY = "early"
    """The candidate is worse from the start."""
    STEP = "step"
    """The candidate is worse by a constant amount from some step on."""
    DRIFT = "drift"
    """The candidate is worse from some step on, by a growing amount."""
    LATE = "late"
    """The candidate is worse from some step on. Whether the gap grows is unknown."""
    TRANSIENT = "transient"
    """The candidate was temporarily worse, for longer than the baseline ever was."""
    INCONCLUSIVE = "inconclusive"
    """The relation is unknown."""
    SPIKES = "spikes"
    """The curves are the same, except for spikes that end as quickly as the baseline's."""
    MATCH = "match"
    """The curves are the same."""


class CurveShape(str, Enum):
    """The development of a gap after it begins."""

    STEP = "step"
    DRIFT = "drift"
    OPEN = "open"
    """A step and a ramp fit equally well."""


class Effect(str, Enum):
    """The answer to whether the candidate differs from the baseline, even slightly."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    """There is no repeat of the baseline with the same data."""


class FloorFrom(str, Enum):
    """The source of the random difference between two runs with equal settings."""

    REPEAT = "repeat"
    """Further runs of the baseline."""
    SAMPLING = "sampling"
    """The variation of the gap itself. Runs with other seeds may differ by more."""


class PairedBy(str, Enum):
    """The method of pairing the values of two runs."""

    STEP = "step"
    SAMPLES = "samples"
    """Pairs have equal numbers of consumed samples. Use this for runs with different batch sizes."""


class CurveMetric(str, Enum):
    """The loss to compare."""

    LOSS = "loss"
    """Training loss at each logged step."""
    VALIDATION = "validation"
    """Loss over a fixed set of samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """The difference up to which two losses count as equal."""

    value: float
    relative: bool
    """Whether the value is a share of the baseline's loss. Otherwise it is in units of the loss."""

    def of(self, loss: float) -> float:
        """Return the tolerance in units of the loss."""
        return self.value * abs(loss) if self.relative else self.value


WITHIN_CHANCE = Tolerance(value=0.0025, relative=True)
"""Tolerance for random differences. Source: DeepSeek-V3's report, "within the randomness of training"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The settings of a comparison of two runs."""

    by: PairedBy = PairedBy.STEP
    metric: CurveMetric = CurveMetric.LOSS
    tolerance: Tolerance = WITHIN_CHANCE
    switch_step: Step | None = None
    """The baseline's step at which the candidate's arithmetic changes, or None if it differs from the start."""
    seed: int = SEED


_TOLERANCE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(?:e-?\d{1,2})?(%?)")


def tolerance(text: str) -> Tolerance:
    """Parse a tolerance: `0.25%` is a share of the loss, and `0.01` is in units of the loss.

    Raises:
        UsageError: The text has neither form.
    """
    match = _TOLERANCE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--tolerance takes a share such as 0.25% or a loss such as 0.01, not {text!r}")
    number = float(text.strip().removesuffix("%"))
    return Tolerance(value=number / 100 if match[2] else number, relative=bool(match[2]))


RUN = "a file, a folder of logs, a glob, or - for stdin."
TOLERANCE: Final = Option(
    "--tolerance",
    "Tolerated difference, as a share of the loss or in its units.",
    "FP8",
    metavar="X|X%",
    parse=tolerance,
    typed=str,
    default="0.25%",
)
SWITCH_STEP: Final = Option(
    "--switch-step",
    "Step at which the candidate switches to FP8, if not from the beginning.",
    "FP8",
    metavar="STEP",
    least=0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvesQuestion:
    """The runs to compare, and the settings of the comparison."""

    baseline: Annotated[str, Option("BASELINE", f"Log of the trusted run: {RUN}", "Arguments")]
    """A file, a folder, a glob, or `-`."""
    candidate: Annotated[str, Option("CANDIDATE", f"Log of the FP8 run: {RUN}", "Arguments")]
    repeats: Annotated[
        tuple[str, ...],
        Option(
            "--repeat",
            "Another run of the baseline, to measure random variation; repeatable.",
            "FP8",
            metavar="LOG",
        ),
    ] = ()
    """Further runs of the baseline."""
    metric: Annotated[CurveMetric, Option("--metric", "Compare training or validation losses.", "FP8")] = (
        CurveMetric.LOSS
    )
    by: Annotated[
        PairedBy | None,
        Option("--by", "Pair values by step or by samples.  [default: step; samples if batch sizes differ]", "FP8"),
    ] = None
    """How to pair values. If None, by step, or by samples if both logs count them and the batch sizes differ."""
    tolerance: Annotated[Tolerance, TOLERANCE] = WITHIN_CHANCE
    switch_step: Annotated[Step | None, SWITCH_STEP] = None
    evals: Annotated[
        tuple[str, str] | None,
        Option("--evals", "JSON results of lm-evaluation-harness for both runs.", "FP8", metavar="BASE CAND"),
    ] = None
    """JSON files with the results of downstream tasks, for the baseline and for the candidate."""
    columns: Annotated[str | None, COLUMNS] = None
    """Names of fields in logs with named columns, such as `step=iter,loss=train/loss`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The losses of one run in ascending order of place. All sequences have the same length."""

    places: tuple[int, ...]
    """The places by which values are paired: steps, or samples consumed."""
    steps: tuple[Step, ...]
    losses: tuple[float, ...]
    """Losses, which may be NaN or infinite."""
    norms: tuple[float | None, ...]
    """L2 norms of the gradients, if logged."""
    rates: tuple[float | None, ...]
    """Learning rates, if logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The values of two runs at the same places, in ascending order.

    All sequences have the same length, and all losses are finite.
    """

    places: tuple[int, ...]
    """The places by which values are paired: steps, or samples consumed."""
    steps: tuple[Step, ...]
    """Steps of the baseline."""
    baseline: tuple[float, ...]
    candidate: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """A series of steps at which the loss of one run is far above its usual level."""

    candidate: bool
    """Whether the spike is in the candidate's loss. Otherwise it is in the baseline's."""
    first: Step
    last: Step
    values: int
    """Number of logged steps from the first to the last."""
    height: float | None
    """Height above the previous median, or None if the loss was not a number."""
    shared: bool
    """Whether the other run has a spike within ten steps, so that the data caused it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """The gap between a run and its baseline, pair by pair, without the spikes of either run.

    All sequences have the same length.
    """

    steps: tuple[Step, ...]
    """The first step of the baseline that each value represents."""
    ends: tuple[Step, ...]
    """The last step of the baseline that each value represents."""
    baseline: tuple[float, ...]
    differences: tuple[float, ...]
    """Differences of the run from the baseline."""
    spikes: tuple[Spike, ...]
    """Spikes of both runs, in ascending order. Spikes of this run count as the candidate's."""
    pairing: float | None
    """Correlation of the changes of both curves from step to step, or None if unknown."""
    together: int
    """Number of neighbouring pairs per value, which is 1 except for very long logs."""
    pairs: int
    """Total number of pairs that the values represent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The mean of a series of differences, with its confidence."""

    mean: float
    low: float
    """Lower bound of the 95% interval of the mean. `high` is the upper bound."""
    high: float
    half: float
    """Half the width of this interval after the linear trend is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The random difference between two runs with equal settings."""

    value: float
    """The difference in units of the loss."""
    source: FloorFrom
    paired: float | None
    """The same from only the repeats with the same data in the same order. None if there is no such repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Onset:
    """The step at which a candidate departs from its baseline."""

    step: Step
    not_before: Step
    not_after: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class GapWindow:
    """The mean difference over a window of neighbouring pairs."""

    first: Step
    last: Step
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The comparison of two runs' curves. Differences are candidate minus baseline, in units of the loss."""

    by: PairedBy
    metric: CurveMetric
    kind: CurveClass
    pairs: int
    first: Step | None
    """First step of the pairs, or None if there are no pairs."""
    last: Step | None
    pairing: float | None
    """Correlation of the changes of both curves from step to step, or None if unknown."""
    spikes: tuple[Spike, ...]
    notes: tuple[str, ...]
    findings: tuple[Finding, ...]
    shape: CurveShape | None = None
    """Shape of the gap, or None if no gap counts."""
    effect: Effect = Effect.UNKNOWN
    matters: bool | None = None
    """Whether the gap exceeds the limit, or None if unknown."""
    gap: Gap | None = None
    """Gap at the end of the curves, or None if there are too few pairs."""
    relative_gap: float | None = None
    """Ratio of that gap to the baseline's loss there."""
    floor: Floor | None = None
    tolerance: float | None = None
    """The tolerance in units of the loss."""
    limit: float | None = None
    """The smallest gap that counts and can be detected, based on floor, tolerance and noise."""
    onset: Onset | None = None
    """Start of the gap, or None if no gap counts."""
    norm_gap: Gap | None = None
    """Difference of the logarithms of the gradient norms at the end, or None if norms are not logged."""
    windows: tuple[GapWindow, ...] = ()

    @property
    def told(self) -> bool:
        """Whether the class is known."""
        return self.kind is not CurveClass.INCONCLUSIVE

    @property
    def leaves(self) -> bool:
        """Whether the candidate departs from its baseline."""
        return self.told and self.kind not in {CurveClass.MATCH, CurveClass.SPIKES}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """The score of a model on a downstream task."""

    task: str
    metric: str
    value: float
    """The score from 0 to 1. Higher is better."""
    error: float | None
    """Standard error, or None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChange:
    """The scores of two models in one task."""

    task: str
    metric: str
    baseline: float
    candidate: float
    error: float | None
    """Standard error of the difference, or None if unknown."""

    @property
    def change(self) -> float:
        """Improvement of the candidate, rounded to nine digits. From 0.70 to 0.67 it is -0.03."""
        return round(self.candidate - self.baseline, 9)

    @property
    def z(self) -> float | None:
        """The change in standard errors, or None if these are unknown."""
        return self.change / self.error if self.error else None


class Downstream(str, Enum):
    """The effect on downstream tasks if the losses match, by case of the published triage."""

    ALL = "3a"
    """All tasks changed, so the export or the evaluation is the cause."""
    SOME = "3b"
    """Some tasks dropped, so the recipe is the cause."""
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evals:
    """Results of two models on the same downstream tasks."""

    tasks: tuple[TaskChange, ...]
    """Tasks with results of both models, by name."""
    changed: tuple[str, ...]
    """Names of the tasks that changed by more than a point and by more than random variation."""
    dropped: tuple[str, ...]
    """Names of the tasks with significantly lower scores."""
    verdict: Downstream | None
    """The effect, or None if the losses do not match, because tasks then add no information."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvesAnswer(Answered):
    """The comparison of a candidate's logs with its baseline's."""

    NOUN = "fp8-compare"

    comparison: Comparison
    baseline: LogReading
    candidate: LogReading
    repeats: tuple[LogReading, ...]
    evals: Evals | None
    """The scores of downstream tasks, or None if not requested."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code 10 if the candidate departs from its baseline, or 14 if that is unknown or a log was not read."""
        if self.leaves:
            return ExitCode.DAMAGE
        is_compared = self.comparison.told and not any(reading.unreadable for reading in self.readings)
        return ExitCode.OK if is_compared else ExitCode.INCOMPLETE

    @property
    def leaves(self) -> bool:
        """Whether the candidate differs from its baseline in loss or in scores."""
        tasks = Downstream.NONE if self.evals is None else self.evals.verdict
        return self.comparison.leaves or tasks in {Downstream.ALL, Downstream.SOME}

    @property
    def readings(self) -> tuple[LogReading, ...]:
        """The readings of all logs."""
        return (self.baseline, self.candidate, *self.repeats)
