"""Settings of an FP8 training, and the arithmetic in its logs."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.metrics import LogProblem
from ckpttool.core.domain.settings import Settings
from ckpttool.fp8.model.fp8 import Gemm, Operand


class Fp8Input(str, Enum):
    """Place of FP8 settings."""

    DUMP = "dump"
    """A trainer printed all settings, including defaults: others do not exist."""
    ARGUMENTS = "arguments"
    """Of a trainer, in a script or a file of their own."""
    CONFIG = "config"
    DEBUG = "debug"
    """A config of debug features, which change single products of single layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Settings:
    """The FP8 settings of a file of any form."""

    kind: Fp8Input
    settings: Settings
    """Of arguments by their names, with underscores; an unknown variable is text with a dollar in it."""
    text: str
    """The complete file, for the comments in it; empty for a log."""


class Computed(str, Enum):
    """The conversion of an operand before the multiplication."""

    HIGH = "high"
    """It was kept in high precision."""
    QUANTIZED = "quantized"
    """It was cast to FP8 as the recipe has it."""
    FAKE = "fake"
    """A debug feature rounded it to FP8 with a current scale, and it was multiplied in high precision."""
    CURRENT = "current"
    """A debug feature cast it with a current scale in a recipe that delays it."""
    MODIFIED = "modified"
    """A debug feature changed it; the log does not say which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandSeen:
    """A log's entry on one operand of one matrix product in one layer."""

    layer: str
    """As the framework calls it."""
    gemm: Gemm
    operand: Operand
    computed: tuple[Computed, ...]
    """In the order of their first appearance; more than one if it changed during the run, or between ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArithmetic:
    """The arithmetic that a run actually used, according to its logs."""

    sources: tuple[str, ...]
    """The logs that were read, as the user gave them."""
    arguments: tuple[tuple[str, str], ...] | None
    """Every setting as the trainer printed it when it last started, defaults too, by name; None: no such print."""
    operands: tuple[OperandSeen, ...]
    """By layer, product and operand; none: the logs do not tell."""
    config_missing: str | None
    """A config of debug features that was not found: the run continued without it and its changes."""
    recipe: str | None
    """In a framework that says which recipe is active, in its own word."""
    converted: bool
    """Whether such a framework also says that it exchanged its layers for those of FP8."""
    problems: tuple[LogProblem, ...]
    """Logs that could not be read, or not to their end."""

    def argument(self, name: str) -> str | None:
        """Return a setting as printed; None if it was not printed."""
        return None if self.arguments is None else dict(self.arguments).get(name)

    def computed(self, gemm: Gemm, operand: Operand, layers: Iterable[str] | None = None) -> frozenset[Computed]:
        """Return all logged conversions of an operand, in some layers or in all; empty without any."""
        selected = None if layers is None else frozenset(layers)
        return frozenset(
            computed
            for operand_seen in self.operands
            if operand_seen.gemm is gemm
            and operand_seen.operand is operand
            and (selected is None or operand_seen.layer in selected)
            for computed in operand_seen.computed
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorStatistic:
    """One number that a debug feature measured of a tensor again and again."""

    layer: str
    tensor: str
    """`activation`, `weight`, `gradient`, or a product's own result: `output`, `dgrad`, `wgrad`."""
    name: str
    """The measurement, without the recipe: `underflows%`, `mse`, `scale_inv_max`, `dynamic_range`."""
    recipe: str | None
    """The recipe that it was measured for, as the log names it; None: the one of the run, or none at all."""
    columnwise: bool
    """Whether it was measured on the transposed tensor."""
    count: int
    """Values that are numbers."""
    mean: float
    """Of these; NaN if there is none."""
    largest: float
    nonfinite: int
    """Values that are NaN or infinite."""
    first_step: int
    last_step: int
