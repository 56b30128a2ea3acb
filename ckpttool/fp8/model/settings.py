"""Settings of an FP8 training run, and the arithmetic in its logs."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.metrics import LogProblem
from ckpttool.core.domain.settings import Settings
from ckpttool.fp8.model.fp8 import Gemm, Operand


class Fp8Input(str, Enum):
    """The form in which FP8 settings are given."""

    DUMP = "dump"
    """A trainer's printout of all settings, including defaults, so that there are no other settings."""
    ARGUMENTS = "arguments"
    """Arguments of a trainer, in a script or a separate file."""
    CONFIG = "config"
    DEBUG = "debug"
    """A config of debug features, which change single products of single layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Settings:
    """The FP8 settings of a file of any form."""

    kind: Fp8Input
    settings: Settings
    """Arguments by name, with underscores. An unknown variable is a text with a dollar sign."""
    text: str
    """The text of the complete file, which is needed for its comments. Empty for a log."""


class Computed(str, Enum):
    """The conversion of an operand before the multiplication."""

    HIGH = "high"
    """The operand stayed in high precision."""
    QUANTIZED = "quantized"
    """The operand was cast to FP8 by the recipe."""
    FAKE = "fake"
    """A debug feature rounded the operand to FP8 with a current scale. It was multiplied in high precision."""
    CURRENT = "current"
    """A debug feature cast the operand with a current scale, although the recipe uses delayed scales."""
    MODIFIED = "modified"
    """A debug feature changed the operand. The log does not say how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandSeen:
    """The log entries about one operand of one matrix product in one layer."""

    layer: str
    """The framework's name of the layer."""
    gemm: Gemm
    operand: Operand
    computed: tuple[Computed, ...]
    """Conversions in order of first appearance. Several if they changed during the run, or differ between ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArithmetic:
    """The arithmetic that a run actually used, according to its logs."""

    sources: tuple[str, ...]
    """Paths of the logs that were read, as the user passed them."""
    arguments: tuple[tuple[str, str], ...] | None
    """All settings printed by the trainer at its last start, including defaults, by name. None if not printed."""
    operands: tuple[OperandSeen, ...]
    """Operands in order of layer, product and operand. Empty if the logs do not show operands."""
    config_missing: str | None
    """Name of a config of debug features that was not found, so that the run continued without its changes."""
    recipe: str | None
    """The active recipe, under the framework's name, if the framework logs a recipe."""
    converted: bool
    """Whether such a framework also logs that it replaced its layers by FP8 layers."""
    problems: tuple[LogProblem, ...]
    """Problems of logs that could not be read completely."""

    def argument(self, name: str) -> str | None:
        """Return a setting as printed, or None if it was not printed."""
        return None if self.arguments is None else dict(self.arguments).get(name)

    def computed(self, gemm: Gemm, operand: Operand, layers: Iterable[str] | None = None) -> frozenset[Computed]:
        """Return all logged conversions of an operand, in some layers or in all. Empty if none was logged."""
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
    """A statistic of a tensor that a debug feature measured repeatedly."""

    layer: str
    tensor: str
    """`activation`, `weight`, `gradient`, or a product's own result: `output`, `dgrad`, `wgrad`."""
    name: str
    """Name of the measurement without the recipe: `underflows%`, `mse`, `scale_inv_max`, `dynamic_range`."""
    recipe: str | None
    """The recipe for which it was measured, as named in the log. None for the run's own recipe, or for no recipe."""
    columnwise: bool
    """Whether the transposed tensor was measured."""
    count: int
    """Number of finite values."""
    mean: float
    """Mean of the finite values, or NaN without such values."""
    largest: float
    nonfinite: int
    """Number of values that are NaN or infinite."""
    first_step: int
    last_step: int
