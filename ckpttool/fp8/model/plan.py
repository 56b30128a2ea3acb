"""Experiments that find the cause of a gap in FP8, their results, and the conclusions."""

from __future__ import annotations

from enum import Enum

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import ExitCode
from ckpttool.fp8.model.curves import CurveClass, CurvesQuestion, FloorFrom, Gap, Onset
from ckpttool.fp8.model.fp8 import Arithmetic, Gemm, Operand, Recipe

REFERENCE = "B"
REGROUPED = "E0"
UNCHANGED = "C"
FRESH_HISTORY = "F"
FAKE = "E3"
LAST = "E2"
EXTRAS = "E1"
REPEATED = "C2"
"""Fixed name of an experiment. Names of experiments on products, layers or operands are composed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """The arithmetic of each matrix product."""

    fprop: Arithmetic
    dgrad: Arithmetic
    wgrad: Arithmetic

    def of(self, gemm: Gemm) -> Arithmetic:
        """Return the arithmetic of one product."""
        return {Gemm.FPROP: self.fprop, Gemm.DGRAD: self.dgrad, Gemm.WGRAD: self.wgrad}[gemm]

    @classmethod
    def all(cls, arithmetic: Arithmetic) -> Products:
        """Return products that all have the same arithmetic."""
        return cls(fprop=arithmetic, dgrad=arithmetic, wgrad=arithmetic)

    @classmethod
    def fp8_but(cls, arithmetic: Arithmetic, gemms: frozenset[Gemm]) -> Products:
        """Return products in FP8, except some with a different arithmetic."""
        fprop, dgrad, wgrad = (arithmetic if gemm in gemms else Arithmetic.FP8 for gemm in Gemm)
        return cls(fprop=fprop, dgrad=dgrad, wgrad=wgrad)

    @property
    def changed(self) -> frozenset[Gemm]:
        """The products whose arithmetic differs from the candidate's."""
        return frozenset(gemm for gemm in Gemm if self.of(gemm) is not Arithmetic.FP8)

    @property
    def kinds(self) -> frozenset[Arithmetic]:
        """All kinds of arithmetic that these products use."""
        return frozenset((self.fprop, self.dgrad, self.wgrad))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The change that an experiment makes to the candidate, independent of the framework."""

    id: str
    """Name of the experiment and of its folder."""
    round: int
    """Number of the round, from 1. Each round needs the results of earlier rounds."""
    title: str
    products: Products
    if_guilty: str
    """The conclusion if the loss returns to that of BF16, or if the answer to the title's question is yes."""
    if_innocent: str
    """The conclusion in all other cases."""
    layers: str | None = None
    """A regular expression to search for in layer names, or None for all layers. Other layers stay unchanged."""
    operand: Operand | None = None
    """The only operand of the products to change, or None for both."""
    recipe: Recipe | None = None
    """The recipe for all FP8 products, or None for the candidate's."""
    is_regrouped: bool = False
    """Whether each step's samples are split into smaller micro-batches, which changes only the order of summation."""
    drops_history: bool = False
    """Whether to start without the history of largest magnitudes that a delayed recipe stores in the checkpoint."""
    without: tuple[str, ...] = ()
    """Optional features of FP8 and parallelism to switch off, under the framework's names."""
    from_last: bool = False
    """Whether to start from the candidate's last checkpoint instead of the plan's."""

    @property
    def cell(self) -> frozenset[Gemm] | None:
        """The products in BF16, or None if anything else is changed."""
        changes = (self.layers, self.operand, self.recipe, self.without, self.is_regrouped, self.drops_history)
        if any(changes) or self.from_last or self.id in {EXTRAS, REPEATED}:
            return None
        return self.products.changed if self.products.kinds <= {Arithmetic.FP8, Arithmetic.BF16} else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The changes to the candidate's launch for an experiment, in a framework's terms."""

    remove: tuple[str, ...] = ()
    set: tuple[tuple[str, str], ...] = ()
    """Pairs of name and value, in the order to write. The value is empty for a switch without one."""
    env: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    """Pairs of file name and content, in the experiment's folder."""
    notes: tuple[str, ...] = ()
    """Manual steps and notes."""


_WINDOW = 3
"""Number of equal parts of an experiment. Only the last part is judged."""


def window(start: Step, steps: int) -> tuple[Step, Step]:
    """Return the first and the last step of the last third, by which an experiment is judged."""
    return Step(start + steps - steps // _WINDOW), Step(start + steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A trial expressed in the settings of a framework."""

    trial: Trial
    change: Change | None
    """The changes, or None if the framework does not support the experiment."""
    reason: str | None
    """Why the framework does not support the experiment, or None if it does."""
    first_step: Step
    """The step of the weights that the experiment starts with."""
    last_step: Step
    device_hours: float | None
    """Device hours, or None if the duration of a step or the number of devices is unknown."""
    logs: tuple[str, ...] = ()
    """Paths of the existing logs."""

    @property
    def steps(self) -> int:
        """Number of steps to train."""
        return self.last_step - self.first_step

    @property
    def window(self) -> tuple[Step, Step]:
        """The first and the last step by which the experiment is judged."""
        return window(self.first_step, self.steps)


class Evidence(str, Enum):
    """The evidence for the chosen checkpoint."""

    RESOLVED = "resolved"
    """The checkpoint was chosen as `resolve` chooses."""
    TRUSTED = "trusted"
    """The user specified the step."""
    SCRATCH = "scratch"
    """There is no checkpoint, and the experiments start as the candidate did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPoint:
    """The checkpoint from which the experiments start."""

    name: str | None
    """Name of the checkpoint, or None if training starts from scratch or only the step is known."""
    step: Step
    path: str | None
    """Path of the folder that contains the checkpoint."""
    evidence: Evidence
    has_history: bool | None
    """Whether the checkpoint has the scale history of a delayed recipe, or None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """The part of a comparison that a verdict depends on, in units of the loss."""

    kind: CurveClass
    gap: float | None
    relative_gap: float | None
    limit: float | None
    """The smallest gap that counted."""
    tolerance: float | None
    """The tolerance within which two runs are equal."""
    floor_from: FloorFrom | None
    onset: Onset | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Plan(Answered):
    """The experiments to run next."""

    NOUN = "fp8-plan"

    round: int
    """The last planned round."""
    framework: str
    framework_version: str | None
    engine_version: str | None
    """Version of the FP8 library that the framework uses."""
    recipe: Recipe | None
    """The candidate's recipe, or None if unknown."""
    suspicion: Suspicion
    start: StartPoint
    horizon: int
    """Number of steps that each experiment trains."""
    window: tuple[Step, Step]
    """The first and the last step of an experiment's last third, by which it is judged."""
    limit: float
    baseline: tuple[str, ...]
    """Paths of the baseline's logs."""
    candidate: tuple[str, ...]
    columns: str | None
    """Names of fields in logs with named columns."""
    experiments: tuple[Experiment, ...]
    """Experiments in order of round, then of cost."""
    extras: tuple[str, ...]
    """Active features besides plain FP8, under the framework's names."""
    layers: tuple[int, ...]
    """Layer numbers, as in the layers' names, the most suspicious first. Empty if unknown."""
    layers_in: str = "layers"
    """The text before a layer's number in its name."""
    output: str
    """Path of the folder with a subfolder for each experiment."""
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """Exit code 0, because experiments are planned."""
        return ExitCode.OK

    @property
    def steps_in_all(self) -> int:
        """Total number of steps of all supported experiments without a log."""
        return sum(
            experiment.steps for experiment in self.experiments if experiment.change is not None and not experiment.logs
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """The experiments to plan."""

    curves: CurvesQuestion | None
    """The runs to compare, or None in a later round, because the plan names them."""
    framework: str
    output: str
    """The folder of the plan."""
    tree: str | None = None
    """Folder of the candidate's checkpoints, or None to find the folder as `resolve` does."""
    checkpoint_step: Step | None = None
    """The step to start at, as specified by the user and not checked."""
    horizon: int | None = None
    """Number of steps that each experiment trains, or None for as many as the gap needs."""
    framework_version: str | None = None
    engine_version: str | None = None
    recipe: Recipe | None = None
    """The candidate's recipe, or None for the recipe printed in its log."""
    round: int = 1
    stats: tuple[str, ...] = ()
    """Logs with statistics from debug features, which show the most suspicious layers."""
    devices: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlan(Answered):
    """The reason why no experiment would help."""

    NOUN = "fp8-plan"

    reason: str
    suspicion: Suspicion

    @property
    def exit_code(self) -> ExitCode:
        """Exit code 14, because no experiment can help."""
        return ExitCode.INCOMPLETE


class AsPlanned(str, Enum):
    """The answer to whether a run was computed as the experiment requires."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    """The logs do not show it."""


class Outcome(str, Enum):
    """The effect of an experiment on the gap."""

    RESTORES = "restores"
    """The remaining gap is too small to count."""
    PART = "part"
    WORSE = "worse"
    NO = "no"
    RECOVERED = "recovered"
    RECOVERING = "recovering"
    STUCK = "stuck"
    """This and the two before it only apply to a start from the candidate's last checkpoint."""
    REFERENCE = "reference"
    """The reference for other experiments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The decision on whether a run counts, with the reason."""

    is_valid: bool
    as_planned: AsPlanned
    reason: str | None
    """Why the run does not count, or why it is unknown whether it ran as planned. None if neither applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The result of an experiment."""

    id: str
    gate: Gate
    gap: Gap | None = None
    """Distance from the reference in the window, or None if the run does not count or is the reference."""
    recovered: float | None = None
    """Closed share of the candidate's gap. A value of 1 is the complete gap."""
    recovered_low: float | None = None
    recovered_high: float | None = None
    outcome: Outcome | None = None
    note: str | None = None


class VerdictKind(str, Enum):
    """The conclusion from the experiments."""

    CULPRIT = "culprit"
    SOFTWARE = "software"
    STALE_SCALE = "stale-scale"
    FORMAT = "format"
    NOT_REPRODUCED = "not-reproduced"
    WEAK = "weak"
    DAMAGED_START = "damaged-start"
    UNDECIDED = "undecided"
    INNOCENT = "innocent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cure:
    """The change that removes the gap."""

    id: str
    """Name of the experiment with this change."""
    restores: bool | None
    """Whether a run proved the fix, or None if the experiment was not run."""
    keeps_fp8: bool
    """Whether all products stay in FP8."""
    change: Change | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRound:
    """The experiments that a verdict needs, or that would refine the verdict."""

    round: int
    ids: tuple[str, ...]
    steps: int
    """Total number of steps of these experiments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Verdict(Answered):
    """The cause of the gap and the change that closes it, or the next round of experiments."""

    NOUN = "fp8-verdict"

    round: int
    kind: VerdictKind
    because: str
    """The reason in one sentence."""
    culprits: tuple[Gemm, ...]
    operands: tuple[Operand, ...]
    """The operands at fault in these products, if experiments distinguished operands."""
    layers: str | None
    """A regular expression for the names of the layers at fault, if experiments distinguished layers."""
    explains: float | None
    """Share of the gap that is closed with the culprits in BF16, or None for all three, which would prove nothing."""
    cure: Cure | None
    experiments: tuple[Shown, ...]
    shares: tuple[tuple[Gemm, float], ...] | None
    """Each product's share of the gap, in units of the loss (Shapley), or None unless all eight sets were run."""
    floor: float | None
    """Difference between two paired runs with equal settings, in units of the loss."""
    limit: float | None
    next: NextRound | None
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> ExitCode:
        """Exit code 10 if part of FP8 causes the gap and no fix keeps FP8, or 14 if the cause is undecided."""
        if self.kind is VerdictKind.INNOCENT:
            return ExitCode.OK
        if self.kind not in {VerdictKind.CULPRIT, VerdictKind.SOFTWARE, VerdictKind.STALE_SCALE, VerdictKind.FORMAT}:
            return ExitCode.INCOMPLETE
        cured = self.cure is not None and self.cure.keeps_fp8 and self.cure.restores
        return ExitCode.OK if cured else ExitCode.DAMAGE
