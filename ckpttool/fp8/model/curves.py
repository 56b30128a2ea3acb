"""Comparison of two loss curves: their values, the gap between them, and what the gap may mean."""

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
"""Seed of all random numbers, so that the same input gives the same answer."""


class CurveClass(str, Enum):
    """How a candidate departs from its baseline."""

    DIVERGED = "diverged"
    """The loss became NaN or infinite, or rises and stays high."""
    EARLY = "early"
    """Worse from the start."""
    STEP = "step"
    """Worse by a constant amount since a step."""
    DRIFT = "drift"
    """Worse since a step, and growing with each further step."""
    LATE = "late"
    """Worse since a step; whether the gap grows is unknown."""
    TRANSIENT = "transient"
    """Temporarily worse, for longer than the baseline ever was."""
    INCONCLUSIVE = "inconclusive"
    """Unknown."""
    SPIKES = "spikes"
    """The same, except for spikes that end as quickly as the baseline's."""
    MATCH = "match"
    """The same."""


class CurveShape(str, Enum):
    """How a gap develops after it begins."""

    STEP = "step"
    DRIFT = "drift"
    OPEN = "open"
    """Both fit equally well."""


class Effect(str, Enum):
    """Whether the candidate differs, even slightly."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    """No repeat of the baseline on the same data exists."""


class FloorFrom(str, Enum):
    """The source of the random difference between two runs of one kind."""

    REPEAT = "repeat"
    """Further runs of the baseline."""
    SAMPLING = "sampling"
    """Only the variation of the gap itself: runs with other seeds may differ by more."""


class PairedBy(str, Enum):
    """How the values of two runs are paired."""

    STEP = "step"
    SAMPLES = "samples"
    """By the number of samples consumed: for runs with different batch sizes."""


class CurveMetric(str, Enum):
    """The loss to compare."""

    LOSS = "loss"
    """Training loss at each logged step."""
    VALIDATION = "validation"
    """Loss over a fixed set of samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """The difference that counts as equal."""

    value: float
    relative: bool
    """Whether the value is a share of the baseline's loss; otherwise it is in units of the loss."""

    def of(self, loss: float) -> float:
        """Return the tolerance in units of the loss."""
        return self.value * abs(loss) if self.relative else self.value


WITHIN_CHANCE = Tolerance(value=0.0025, relative=True)
"""Source: DeepSeek-V3's report, "within the randomness of training"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The settings of a comparison of two runs."""

    by: PairedBy = PairedBy.STEP
    metric: CurveMetric = CurveMetric.LOSS
    tolerance: Tolerance = WITHIN_CHANCE
    switch_step: Step | None = None
    """The baseline's step at which the candidate's arithmetic changes; None if it differs from the start."""
    seed: int = SEED


_TOLERANCE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(?:e-?\d{1,2})?(%?)")


def tolerance(text: str) -> Tolerance:
    """Parse `0.25%` as a share and `0.01` as a loss.

    Raises:
        UsageError: The text is neither of these.
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
    """None: by step, or by samples if both logs count them and the batch sizes differ."""
    tolerance: Annotated[Tolerance, TOLERANCE] = WITHIN_CHANCE
    switch_step: Annotated[Step | None, SWITCH_STEP] = None
    evals: Annotated[
        tuple[str, str] | None,
        Option("--evals", "JSON results of lm-evaluation-harness for both runs.", "FP8", metavar="BASE CAND"),
    ] = None
    """JSON files with the results of downstream tasks, for the baseline and for the candidate."""
    columns: Annotated[str | None, COLUMNS] = None
    """`step=iter,loss=train/loss`: names of fields in logs with named columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The losses of one run, ascending by place; all sequences have the same length."""

    places: tuple[int, ...]
    """The places by which values are paired: steps, or samples consumed."""
    steps: tuple[Step, ...]
    losses: tuple[float, ...]
    """May be NaN or infinite."""
    norms: tuple[float | None, ...]
    """L2 norm of the gradients, if logged."""
    rates: tuple[float | None, ...]
    """Learning rate, if logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The values of two runs at the same places, ascending; equally long sequences, all losses finite."""

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
    """Whether the spike is in the candidate's loss; otherwise it is in the baseline's."""
    first: Step
    last: Step
    values: int
    """Number of logged steps from the first to the last."""
    height: float | None
    """Height above the previous median; None if the loss was not a number."""
    shared: bool
    """Whether the other run has a spike within ten steps: then the data caused it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """The gap between a run and its baseline, pair by pair and without the spikes of either; equally long."""

    steps: tuple[Step, ...]
    """Steps of the baseline; the first one that each value represents."""
    ends: tuple[Step, ...]
    """Steps of the baseline; the last one that each value represents."""
    baseline: tuple[float, ...]
    differences: tuple[float, ...]
    """Differences of the run from the baseline."""
    spikes: tuple[Spike, ...]
    """Spikes of both runs, ascending; those of this run count as the candidate's."""
    pairing: float | None
    """Correlation of the changes of both curves from step to step; None if unknown."""
    together: int
    """Neighbouring pairs per value; 1 except for very long logs."""
    pairs: int
    """Number of all pairs that the values represent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The mean of a series of differences, with its confidence."""

    mean: float
    low: float
    """Together with `high`, the bounds of the mean in 95 of 100 stretches like this one."""
    high: float
    half: float
    """Half the width of this interval after the linear trend of the stretch is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The random difference between two runs of one kind."""

    value: float
    """In units of the loss."""
    source: FloorFrom
    paired: float | None
    """The same, from repeats with the same data in the same order only; None if there is no such repeat."""


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
    """First step of the pairs; None if there are no pairs."""
    last: Step | None
    pairing: float | None
    """Correlation of the changes of both curves from step to step; None if unknown."""
    spikes: tuple[Spike, ...]
    notes: tuple[str, ...]
    findings: tuple[Finding, ...]
    shape: CurveShape | None = None
    """None if no gap counts."""
    effect: Effect = Effect.UNKNOWN
    matters: bool | None = None
    """Whether the gap exceeds the limit; None if unknown."""
    gap: Gap | None = None
    """Gap at the end of the curves; None if there are too few pairs."""
    relative_gap: float | None = None
    """Ratio of that gap to the baseline's loss there."""
    floor: Floor | None = None
    tolerance: float | None = None
    """The tolerance, in units of the loss."""
    limit: float | None = None
    """The smallest gap that counts and can be detected, from floor, tolerance and noise."""
    onset: Onset | None = None
    """None if no gap counts."""
    norm_gap: Gap | None = None
    """Difference of the logarithms of the gradient norms at the end; None if norms are not logged."""
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
    """From 0 to 1; higher is better."""
    error: float | None
    """Standard error; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChange:
    """The scores of two models in one task."""

    task: str
    metric: str
    baseline: float
    candidate: float
    error: float | None
    """Standard error of the difference; None if unknown."""

    @property
    def change(self) -> float:
        """Improvement of the candidate, to nine digits; from 0.70 to 0.67 is a loss of three points."""
        return round(self.candidate - self.baseline, 9)

    @property
    def z(self) -> float | None:
        """The change, in standard errors; None if these are unknown."""
        return self.change / self.error if self.error else None


class Downstream(str, Enum):
    """The effect on downstream tasks if the losses match; the cases of the published triage."""

    ALL = "3a"
    """All tasks changed: the export or the evaluation is the cause."""
    SOME = "3b"
    """Some tasks dropped: the recipe is the cause."""
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evals:
    """Results of two models on the same downstream tasks."""

    tasks: tuple[TaskChange, ...]
    """Tasks with results of both models, by name."""
    changed: tuple[str, ...]
    """Names of the tasks that changed by more than a point and by more than random variation."""
    dropped: tuple[str, ...]
    """Names of the tasks that are clearly worse."""
    verdict: Downstream | None
    """None if the losses do not match, because tasks then add no information."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvesAnswer(Answered):
    """The comparison of a candidate's logs with its baseline's."""

    NOUN = "fp8-compare"

    comparison: Comparison
    baseline: LogReading
    candidate: LogReading
    repeats: tuple[LogReading, ...]
    evals: Evals | None
    """None if not requested."""

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
