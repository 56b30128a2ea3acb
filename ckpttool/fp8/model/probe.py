"""Effect of FP8 on stored tensors: the question, each tensor's statistics, and the loss of information."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.checkpoint import Inventory
from ckpttool.core.domain.finding import Finding, of_findings, safest
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.option import Option
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.errors import ExitCode, UsageError
from ckpttool.fp8.model.fp8 import Fp8Format, Recipe

USUAL_RECIPES = (Recipe.TENSORWISE, Recipe.ROWWISE, Recipe.BLOCKWISE, Recipe.MXFP8)
"""Recipes to show if the user names no recipe. The first determines the result."""


class Risk(str, Enum):
    """The amount of a tensor that is lost, in ascending order."""

    FINE = "fine"
    WEAK = "weak"
    LOST = "lost"


class TensorRole(str, Enum):
    """The role of a tensor, derived from its name and shape."""

    LINEAR = "linear"
    """The weight of a matrix product, which recipes cast to FP8."""
    EMBEDDING = "embedding"
    HEAD = "head"
    ROUTER = "router"
    NORM = "norm"
    FIRST_MOMENT = "first-moment"
    """A smoothed gradient of an optimizer."""
    SECOND_MOMENT = "second-moment"
    OTHER = "other"


def formats(text: str) -> tuple[Fp8Format, ...]:
    """Parse formats such as `weight=e4m3,e5m2`.

    Raises:
        UsageError: The text has a different form, or repeats a format.
    """
    operand, _, fields = text.partition("=")
    formats = {format_.value: format_ for format_ in Fp8Format}
    named = fields.split(",")
    if operand != "weight" or not set(named) <= set(formats) or len(set(named)) < len(named):
        raise UsageError(f"--format-of takes weight=e4m3, weight=e5m2 or weight=e4m3,e5m2, not {text!r}")
    return tuple(formats[word] for word in named)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeQuestion:
    """The settings of a probe, which can be pickled."""

    recipes: Annotated[
        tuple[Recipe, ...],
        Option(
            "--recipe",
            f"Recipe that determines the result: {', '.join(recipe.value for recipe in Recipe)}; repeatable.  "
            "[default: tensorwise]",
            "FP8",
            metavar="R",
            parse=lambda recipes: tuple(dict.fromkeys(recipes)),
            typed=list[Recipe] | None,
        ),
    ] = ()
    """The recipes that determine the result. If empty, the usual recipes are shown, and the first determines it."""
    formats: Annotated[
        tuple[Fp8Format, ...],
        Option(
            "--format-of",
            "Formats to cast weights to: e4m3, e5m2. The first determines the result.",
            "FP8",
            metavar="weight=F,…",
            parse=formats,
            typed=str,
            default="weight=e4m3",
        ),
    ] = (Fp8Format.E4M3,)
    """Formats of weights. The first determines the result."""
    exact: Annotated[bool, Option("--exact", "Cast every element instead of a sample.", "FP8")] = False
    """Whether to cast every element instead of a sample."""
    optimizer: Annotated[bool, Option("--optimizer", "Include the optimizer states.", "FP8")] = False
    """Whether to check the optimizer states as well."""
    swiglu: Annotated[
        bool, Option("--swiglu/--no-swiglu", "Compare the gate and up weights of SwiGLU.", "FP8", shown="yes")
    ] = True
    """Whether to compare gate and up weights if they are found."""
    history: Annotated[
        int | None,
        Option(
            "--history",
            "Steps of history for a delayed scale; the checkpoints within them are used.",
            "FP8",
            metavar="STEPS",
            least=1,
        ),
    ] = None
    """Number of steps in the history of a delayed scale, or None for this checkpoint alone."""
    as_stored: Annotated[bool, Option("--as-stored", "Do not round 32-bit numbers to BF16 first.", "FP8")] = False
    """Whether to cast 32-bit tensors directly, instead of rounding them to BF16 first as trainers do."""

    def assert_consistent(self) -> None:
        """Raise an error if an option lacks the option that it needs.

        Raises:
            UsageError: Such an option was passed.
        """
        if self.history is not None and Recipe.DELAYED not in self.recipes:
            raise UsageError("--history applies to a delayed scale: add --recipe delayed")

    @property
    def shown(self) -> tuple[Recipe, ...]:
        """The recipes whose numbers are shown."""
        return self.recipes or USUAL_RECIPES

    @property
    def judged(self) -> tuple[Recipe, ...]:
        """The recipes that determine the exit code."""
        return self.recipes or USUAL_RECIPES[:1]

    def decides(self, cast: CastNumbers) -> bool:
        """Return whether these statistics decide a tensor's risk instead of only being shown."""
        return cast.recipe in self.judged and cast.format is self.formats[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Numbers of rows and columns, which are the outputs of the forward product and of the backward product."""

    rows: int
    columns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CastNumbers:
    """The effect of one recipe on one tensor in one format. Shares are relative to the finite nonzero elements."""

    recipe: Recipe
    format: Fp8Format
    scale: float | None
    """The factor before the cast, or None if parts of the tensor have their own scales."""
    channel_snr_db: float | None
    """Lower 1st percentile in dB of the signal-to-error ratio of runs of 128 along rows or columns.

    None if all elements are zero.
    """
    gone: Lines | None
    """Lines that become zero although they have nonzero elements in the file. None with separate scales."""
    faint: Lines | None
    """Lines with no element above the smallest normal number, including zero lines. None with separate scales."""
    underflow: float | None
    """Share of elements that become zero."""
    subnormal: float | None
    """Share of elements that become subnormal."""
    saturated: float | None
    """Share of elements above the format's largest number before rounding."""
    lost: float | None
    """Share of elements that change by more than half a step of a normal number."""
    lost_error: float | None
    """Standard error of that share between tiles, or None if every element was cast."""
    snr_db: float | None
    """Ratio over the complete sample. It is never judged, because it looks best if all small elements are lost."""
    cosine: float | None
    """Cosine between the sample before and after the cast. It is never judged either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNumbers:
    """The statistics of one tensor in one file."""

    name: str
    path: str
    """POSIX path of the file, relative to the root."""
    rank: Rank | None
    dtype: str
    shape: tuple[int, ...]
    elements: int
    sampled: int
    """Number of elements that were cast."""
    amax: float | None
    """Largest finite magnitude of all elements, or None if no element is finite."""
    nonfinite: int
    """Number of NaN and infinite elements."""
    amax_over_rms: float | None
    """Ratio of the largest magnitude to the root mean square, or None if all elements are zero."""
    bits: float | None
    """Number of binades between the largest magnitude and the smallest nonzero one of the sample."""
    live: Lines | None
    """Rows and columns that are not all zero in the file, or None if the tensor is not a matrix."""
    recipes: tuple[CastNumbers, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedNumbers:
    """Maximum amplification by the hidden units of a gate and its up weights.

    For two rows g and u it is |g||u|(1 + cos(g, u))/2.
    """

    name: str
    """Name of the gate's weight, or of the combined weight."""
    path: str
    """POSIX path of the file, relative to the root."""
    rank: Rank | None
    units: int
    gain_over_median: float
    """Amplification of the worst unit, relative to the median."""
    unit: int
    """Index of that unit, from 0."""
    alignment: float
    """The largest absolute cosine between the two rows of a unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedTensor:
    """The statistics of a tensor, and the risks that follow."""

    numbers: TensorNumbers
    whole_name: str
    """Name of the complete tensor, if this is a slice."""
    role: TensorRole
    layer: str | None
    """The layer in the tensor's name, or None if the name refers to no layer."""
    risks: tuple[Risk, ...]
    """One risk for each recipe."""
    risk: Risk
    """Risk under the deciding recipe. If there are several, the worst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRisk:
    """The risk of a layer, which is the risk of its worst weight."""

    layer: str
    risk: Risk
    worst: str
    """Name of the worst weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Probe(Answered):
    """The answer of `fp8 probe`."""

    NOUN = "fp8-probe"

    inventory: Inventory
    checkpoint: str
    step: Step | None
    question: ProbeQuestion
    read_all: bool
    """Whether every requested tensor could be read."""
    tensors: tuple[ProbedTensor, ...]
    """Tensors, worst first."""
    layers: tuple[LayerRisk, ...]
    """Layers, worst first."""
    gated: tuple[GatedNumbers, ...]
    """Gates, worst first."""
    history: tuple[Step, ...]
    """Steps of the checkpoints from which a delayed scale was computed, in ascending order."""
    findings: tuple[Finding, ...]
    most_rows: int | None = None
    """Maximum number of rows in a table for people, or None for all."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code 10 if a weight would be lost, otherwise the exit code of the findings."""
        lost = any(tensor.risk is Risk.LOST and tensor.role is TensorRole.LINEAR for tensor in self.tensors)
        return safest([of_findings(self.findings), ExitCode.DAMAGE if lost else ExitCode.OK])
