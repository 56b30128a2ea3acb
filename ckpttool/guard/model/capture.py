"""Captures of non-finite steps, and their replays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import Annotated, ClassVar, Final, TypeAlias

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.finding import Finding, of_findings
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.guarding import EventValue
from ckpttool.core.domain.option import Option
from ckpttool.core.domain.units import ByteCount, Rank, Step
from ckpttool.core.errors import ExitCode

Setting: TypeAlias = "str | int | bool | None"
"""A value of the environment: a version, a switch, or a number of threads."""

_MOST_SQUARES = 3.4028234663852886e38
"""The largest float32. A larger sum of squares makes the norm infinite."""


class CaptureLevel(str, Enum):
    """The amount of data in a capture."""

    FULL = "full"
    LIGHT = "light"
    """Digests instead of weights. A replay takes the weights from a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossBits:
    """A number with its bits. Two NaN are equal only if their bits are."""

    value: float
    dtype: str
    """torch's name of the type, such as `float32`."""
    bits: str
    """The bits in hexadecimal, least significant byte first."""

    @property
    def is_finite(self) -> bool:
        """Whether the number is finite."""
        return math.isfinite(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientFacts:
    """Facts about one parameter's gradient, before clipping."""

    name: str
    shape: tuple[int, ...]
    xxh3_128: str
    """xxh3-128 of the bytes in order, as 32 hexadecimal digits."""
    norm: float
    """L2 norm."""
    nan: int
    positive_inf: int
    negative_inf: int
    first: tuple[int, ...] | None
    """Index of the first non-finite element, or None if all are finite."""

    @property
    def is_finite(self) -> bool:
        """Whether every element is finite."""
        return self.first is None


def norm_overflows(gradients: Sequence[GradientFacts]) -> bool:
    """Return whether the norm of all gradients is infinite although each element is finite."""
    squares = sum(gradient.norm * gradient.norm for gradient in gradients)
    return squares > _MOST_SQUARES and all(gradient.is_finite for gradient in gradients)


def is_finite(losses: Sequence[LossBits], gradients: Sequence[GradientFacts]) -> bool:
    """Return whether a rank's step is finite: every loss, every gradient, and the norm of all gradients."""
    parts = all(loss.is_finite for loss in losses) and all(gradient.is_finite for gradient in gradients)
    return parts and not norm_overflows(gradients)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A part of a batch that is not in the capture."""

    path: str
    """Its path in the batch."""
    reason: str
    """Its type, why it cannot be encoded, or that there was no space for it, with its fingerprint."""
    is_over_budget: bool = False
    """Whether there was no room for it."""

    @property
    def remedy(self) -> str:
        """How to include the part in the next capture."""
        if self.is_over_budget:
            return "give the guard CaptureSettings(budget=CaptureBudget(host_batches=...)) with room for a whole step"
        return "give the guard CaptureSettings(encode_batch=...), for plain tensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """A forward and backward pass of the step."""

    loss: LossBits | None
    """The loss passed to `backward`, or None if no loss was reported."""
    changed: bool
    """Whether a tensor of the batch changed after its forward pass, during the step. The changed tensor is stored."""
    left_out: LeftOut | None
    """The missing part of the batch, or None if the batch is complete."""
    index: int | None
    """Number of the batch in its epoch, if the training code provides it."""
    outer_autocast: tuple[tuple[str, str], ...]
    """Device and type of each autocast that was active before the training code ran."""
    inner_autocast: tuple[tuple[str, str], ...] | None
    """Device and type of each autocast that was active when the model was called. None if the call was not observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """A recomputation of the micro-batches on the same device, right after the step, without the other ranks."""

    losses: tuple[LossBits, ...]
    gradients: tuple[GradientFacts, ...]
    """Gradients of this rank, before any reduction."""
    repeats: bool | None = None
    """Whether another recomputation gave the same bits. None if there was none."""

    def equals(self, other: Rerun) -> bool:
        """Return whether two recomputations have bit-identical losses and gradients."""
        digests, others = (
            [(gradient.name, gradient.xxh3_128) for gradient in rerun.gradients] for rerun in (self, other)
        )
        return self.has_losses_of(other) and digests == others

    def has_losses_of(self, other: Rerun) -> bool:
        """Return whether two recomputations have bit-identical losses."""
        bits, others = ([(loss.dtype, loss.bits) for loss in rerun.losses] for rerun in (self, other))
        return bits == others

    @property
    def is_finite(self) -> bool:
        """Whether all recomputed values are finite."""
        return is_finite(self.losses, self.gradients)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """The file with one rank's tensors."""

    name: str
    """Name in the capture's folder."""
    size: ByteCount
    xxh3_128: str
    """xxh3-128 of the complete file, as 32 hexadecimal digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCapture:
    """The record of one rank in a capture."""

    rank: Rank
    world_size: int
    step: Step
    optimizer_step: int | None
    """Number of updates applied before. None if unknown."""
    level: CaptureLevel
    host: str
    device: str
    """Device of the parameters, such as `cpu` or `cuda:0`."""
    micro_batches: tuple[MicroBatch, ...]
    gradients: tuple[GradientFacts, ...]
    """Gradients at the end of the step, after any reduction, in the model's order."""
    rerun: Rerun | None
    """The recomputation, or None if the step was not recomputed."""
    weights: tuple[tuple[str, str], ...]
    """Name and xxh3-128 of each parameter, if the weights themselves are not stored."""
    evaluating: tuple[str, ...]
    """Names of the modules that were in evaluation mode. "" is the model itself."""
    buffers_left_out: tuple[str, ...]
    """Names of buffers stored as they were after the forward pass, because they were too large to copy before it."""
    scale: float | None
    """Factor by which a loss scaler multiplied each loss. None without a scaler."""
    environment: tuple[tuple[str, Setting], ...]
    """Captured conditions by name."""
    model_config: EventValue
    """The config of a library's model, or None if the model has no config."""
    run_config: EventValue
    """The user's own record of the run."""
    data_position: EventValue
    content: EventValue
    """The tree of the tensors in the shard."""
    shard: ShardFile

    @property
    def bad_losses(self) -> int:
        """Number of micro-batches with a non-finite loss."""
        return sum(1 for batch in self.micro_batches if batch.loss is not None and not batch.loss.is_finite)

    @property
    def bad_gradients(self) -> tuple[GradientFacts, ...]:
        """Gradients with a non-finite element."""
        return tuple(gradient for gradient in self.gradients if not gradient.is_finite)


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A rank on which the fault began, with the evidence."""

    rank: Rank
    why: str
    """One clause, such as `its loss was nan`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture(Answered):
    """One step with non-finite values, from all ranks whose files are available."""

    NOUN: ClassVar[str] = "nan-capture"

    path: str
    """Path of the folder, as the user passed it."""
    step: Step
    world_size: int
    time: str | None
    """Time of the capture in UTC, or None if rank 0 did not record it."""
    ranks: tuple[RankCapture, ...]
    """The ranks in ascending order."""
    culprits: tuple[Culprit, ...]
    """The culprits in ascending order of ranks. Empty if unknown."""
    findings: tuple[Finding, ...]
    has_stopped: bool | None = None
    """Whether too many dropped updates ended the training run, and it has not continued since. None if unknown."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code 14 if a rank's part is missing or changed."""
        return of_findings(self.findings)


CAPTURES_IN_A_ROW = "captures-in-a-row"
"""Name of the alarm that reports a growing series of captures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRow:
    """A series of captures of consecutive steps with no applied update between them.

    They have the same weights, so one cause is likely.
    """

    first: Step
    last: Step
    path: str
    """Path of the first capture."""

    @property
    def count(self) -> int:
        """Number of captures."""
        return self.last - self.first + 1

    @property
    def later(self) -> range:
        """Steps of the captures after the first one."""
        return range(self.first + 1, self.last + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captures(Answered):
    """All captures in a folder."""

    NOUN: ClassVar[str] = "nan-captures"

    path: str
    """Path of the folder, as the user passed it."""
    captures: tuple[Capture, ...]
    """Captures in order of step."""
    in_a_row: tuple[CaptureRow, ...] = ()
    """Series of two or more consecutive captures."""

    @property
    def exit_code(self) -> ExitCode:
        """The worst exit code of the captures."""
        return of_findings(finding for capture in self.captures for finding in capture.findings)


FOLDER: Final = Option(
    "FOLDER", "A capture, a folder of captures, or the output folder of a training run.", "Arguments"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NanQuestion:
    """The captured step to recompute, and the options."""

    path: Annotated[str, FOLDER]
    """Path of the capture's folder."""
    entry: Annotated[
        str,
        Option(
            "--entry",
            "Your function that builds the model; its module must be importable.",
            "Replay",
            metavar="MODULE:FUNCTION",
        ),
    ]
    """`module:function` in the user's own code."""
    ranks: Annotated[
        tuple[int, ...],
        Option("--rank", "Replay only this rank; repeatable.  [default: all]", "Replay", metavar="R", least=0),
    ] = ()
    """The ranks to replay. If empty, all ranks are replayed."""
    device: Annotated[
        str | None,
        Option("--device", "Device to use: cpu or cuda:N.  [default: as captured]", "Replay", metavar="DEVICE"),
    ] = None
    """A device such as `cpu` or `cuda:0`. If None, the captured device is used if this machine has it."""
    exact: Annotated[bool, Option("--exact", "Require every gradient to be bit-identical.", "Replay")] = False
    """Whether every gradient has to be bit-identical."""
    locate: Annotated[bool, Option("--no-locate", "Do not search for the origin.", "Replay")] = True
    """Whether to search for the origin, in a second run."""
    weights: Annotated[
        str | None,
        Option(
            "--weights", "Weights (safetensors), for a capture that does not contain them.", "Replay", metavar="FILE"
        ),
    ] = None
    """Path of a file with weights, for a capture without weights."""
    timeout: Annotated[
        float | None,
        Option("--timeout", "Give up after this many seconds, with exit code 14.", "Replay", metavar="S", least=0.001),
    ] = None
    """Timeout in seconds, or None for no limit."""
    record: Annotated[bool, Option("--record", "Record the result beside the capture, for guard report.", "Replay")] = (
        False
    )
    """Whether to write the result to the capture's folder, where `guard report` reads it."""


class NanVerdict(str, Enum):
    """The origin of a non-finite value."""

    TRANSIENT = "transient"
    """Finite when recomputed immediately on the same device: the device, or a nondeterministic operation."""
    DEVICE = "device"
    """The device of that rank reproduces the value, and another device does not."""
    DATA_OR_MODEL = "data-or-model"
    """Every device reproduces the value."""
    UNDECIDED = "undecided"
    """Undecided, because a run is missing."""


class OriginKind(str, Enum):
    """The kind of the first non-finite value."""

    OP = "op"
    """The result of an operation whose inputs were finite, or only intentionally infinite."""
    PARAMETER = "parameter"
    BUFFER = "buffer"
    INPUT = "input"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The origin of the first non-finite value."""

    rank: Rank
    micro_batch: int
    """Number of the micro-batch, from 0."""
    phase: str
    """`forward` or `backward`."""
    kind: OriginKind
    op: str
    """torch's name of the operation, or the name of the parameter, buffer or input."""
    module: str
    """Name and class of the module in which it happened, or "" outside of modules."""
    line: str | None
    """File, line and source in the user's code. None if unknown."""
    shape: tuple[int, ...]
    nan: int
    inf: int
    value: float | None = None
    """A finite element that is far too large, or None if the tensor is not finite."""
    times_rms: float | None = None
    """Ratio of that element to the root mean square of the tensor's other elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReplay:
    """The result of recomputing one rank's step."""

    rank: Rank
    losses_equal: int
    """Number of bit-identical losses."""
    losses: int
    """Number of known losses of the step."""
    micro_batches: int
    gradients_equal: int
    """Number of bit-identical gradients."""
    gradients: int
    """Number of gradients to compare."""
    pattern_differs: tuple[str, ...]
    """Names of gradients that are finite in only one of the two runs."""
    losses_differ: tuple[int, ...]
    """Micro-batches with a different loss, numbered from 0."""
    nonfinite: tuple[GradientFacts, ...]
    """Non-finite gradients of this run."""
    is_finite: bool
    """Whether every loss and gradient of this run, and the norm of all gradients, is finite."""
    norm_overflows: bool = False
    """Whether the norm of all gradients is infinite in this run although each gradient is finite."""
    norm_differs: bool = False
    """Whether `norm_overflows` is true in only one of the two runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A condition that differs from the captured one."""

    what: str
    captured: Setting
    here: Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class NanReplay(Answered):
    """The result of recomputing a captured step."""

    NOUN: ClassVar[str] = "nan-replay"

    capture: str
    """Path of the folder, as the user passed it."""
    step: Step
    device: str
    """The device on which the step was recomputed."""
    exact: bool
    """Whether every gradient has to be bit-identical."""
    verdict: NanVerdict
    why: str
    """The evidence for the verdict in one sentence, or what would decide."""
    ranks: tuple[RankReplay, ...]
    culprits: tuple[Culprit, ...]
    origin: Origin | None
    """The origin, or None if it was not requested or not found."""
    environment: tuple[Difference, ...]
    findings: tuple[Finding, ...]
    reproduced: bool

    @property
    def exit_code(self) -> ExitCode:
        """Exit code: 0 if the step was reproduced, 10 if not, 14 if it could not be computed."""
        could_not = of_findings(self.findings)
        return could_not if could_not or self.reproduced else ExitCode.DAMAGE
