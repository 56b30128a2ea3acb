"""The captures of steps that were not finite, and their replay."""

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
"""A value of the environment: a version, a switch, a number of threads."""

_MOST_SQUARES = 3.4028234663852886e38
"""The largest float32: a sum of squares beyond it makes the norm infinite."""


class CaptureLevel(str, Enum):
    """The amount of data in a capture."""

    FULL = "full"
    LIGHT = "light"
    """Digests instead of weights: a replay takes the weights from a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossBits:
    """The bits of a number: two NaN are equal only if their bits are."""

    value: float
    dtype: str
    """torch's name for the type: `float32`."""
    bits: str
    """Hexadecimal, the least significant byte first."""

    @property
    def is_finite(self) -> bool:
        """Whether it is finite."""
        return math.isfinite(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientFacts:
    """One parameter's gradient, before clipping."""

    name: str
    shape: tuple[int, ...]
    xxh3_128: str
    """Digest of its bytes in order, 32 hexadecimal digits."""
    norm: float
    """The L2 norm."""
    nan: int
    positive_inf: int
    negative_inf: int
    first: tuple[int, ...] | None
    """Index of the first element that is not finite; None if all are."""

    @property
    def is_finite(self) -> bool:
        """Whether every element is finite."""
        return self.first is None


def norm_overflows(gradients: Sequence[GradientFacts]) -> bool:
    """Return whether the norm of all gradients is infinite while each of their elements is finite."""
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
    """Its type, or why it cannot be encoded; or that there was no space for it, with its fingerprint."""
    is_over_budget: bool = False
    """Whether there was no room for it."""

    @property
    def remedy(self) -> str:
        """How to include it in the next capture."""
        if self.is_over_budget:
            return "give the guard CaptureSettings(budget=CaptureBudget(host_batches=...)) with room for a whole step"
        return "give the guard CaptureSettings(encode_batch=...), for plain tensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """A forward and backward pass of the step."""

    loss: LossBits | None
    """The loss passed to `backward`; None if the training passed none."""
    changed: bool
    """Whether a tensor of the batch changed after its forward pass, during the step; the changed tensor is stored."""
    left_out: LeftOut | None
    """The missing part of the batch; None if it is complete."""
    index: int | None
    """Number of the batch in its epoch, if the training provides it."""
    outer_autocast: tuple[tuple[str, str], ...]
    """Device and type of each autocast that was on before the training code ran."""
    inner_autocast: tuple[tuple[str, str], ...] | None
    """The same when the model was called; None if the call was not observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """The micro-batches recomputed on the same device, right after the step, without the other ranks."""

    losses: tuple[LossBits, ...]
    gradients: tuple[GradientFacts, ...]
    """Gradients of this rank, before any reduction."""
    repeats: bool | None = None
    """Whether another recomputation gave the same bits; None: there was none."""

    def equals(self, other: Rerun) -> bool:
        """Return whether two recomputations have the same losses and gradients in every bit."""
        digests, others = (
            [(gradient.name, gradient.xxh3_128) for gradient in rerun.gradients] for rerun in (self, other)
        )
        return self.has_losses_of(other) and digests == others

    def has_losses_of(self, other: Rerun) -> bool:
        """Return whether two recomputations have the same losses in every bit."""
        bits, others = ([(loss.dtype, loss.bits) for loss in rerun.losses] for rerun in (self, other))
        return bits == others

    @property
    def is_finite(self) -> bool:
        """Whether all values were finite this time."""
        return is_finite(self.losses, self.gradients)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """The file with one rank's tensors."""

    name: str
    """Name in the capture's folder."""
    size: ByteCount
    xxh3_128: str
    """Digest of the complete file, 32 hexadecimal digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCapture:
    """The record of one rank."""

    rank: Rank
    world_size: int
    step: Step
    optimizer_step: int | None
    """Number of updates applied before; None if unknown."""
    level: CaptureLevel
    host: str
    device: str
    """Device of its parameters: `cpu`, `cuda:0`."""
    micro_batches: tuple[MicroBatch, ...]
    gradients: tuple[GradientFacts, ...]
    """Gradients at the end of the step, after any reduction; in the model's order."""
    rerun: Rerun | None
    """None if the step was not recomputed."""
    weights: tuple[tuple[str, str], ...]
    """Name and xxh3-128 of each parameter's bytes, if the weights themselves are not stored."""
    evaluating: tuple[str, ...]
    """Names of the modules that were in evaluation mode; '' is the model itself."""
    buffers_left_out: tuple[str, ...]
    """Names of buffers stored as they were after the forward pass: together they were too large to copy before it."""
    scale: float | None
    """Factor by which a loss scaler multiplied each loss; None without a scaler."""
    environment: tuple[tuple[str, Setting], ...]
    """By name."""
    model_config: EventValue
    """The config of a library's model; None if the model has no config."""
    run_config: EventValue
    """The user's own record of the run."""
    data_position: EventValue
    content: EventValue
    """The tree of the tensors in the shard."""
    shard: ShardFile

    @property
    def bad_losses(self) -> int:
        """Number of micro-batches whose loss was not finite."""
        return sum(1 for batch in self.micro_batches if batch.loss is not None and not batch.loss.is_finite)

    @property
    def bad_gradients(self) -> tuple[GradientFacts, ...]:
        """Gradients with an element that was not finite."""
        return tuple(gradient for gradient in self.gradients if not gradient.is_finite)


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """The rank on which the fault began, with the evidence."""

    rank: Rank
    why: str
    """One clause: `its loss was nan`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture(Answered):
    """One step with non-finite values, from all ranks whose files are available."""

    NOUN: ClassVar[str] = "nan-capture"

    path: str
    """The folder, as the user named it."""
    step: Step
    world_size: int
    time: str | None
    """Time of the capture, in UTC; None if rank 0 did not record it."""
    ranks: tuple[RankCapture, ...]
    """Ascending."""
    culprits: tuple[Culprit, ...]
    """Ascending by rank; empty if unknown."""
    findings: tuple[Finding, ...]
    has_stopped: bool | None = None
    """Whether training ended because of too many dropped updates, and has not continued since; None: unknown."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code 14 if a rank's part is missing or changed."""
        return of_findings(self.findings)


CAPTURES_IN_A_ROW = "captures-in-a-row"
"""Name of the alarm that reports such a row while it grows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRow:
    """Captures of neighbouring steps without an applied update between them: the same weights, so one likely cause."""

    first: Step
    last: Step
    path: str
    """Step of the first capture."""

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
    """The folder, as the user named it."""
    captures: tuple[Capture, ...]
    """By step."""
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
    """The capture's folder."""
    entry: Annotated[
        str,
        Option(
            "--entry",
            "Your function that builds the model; its module must be importable.",
            "Replay",
            metavar="MODULE:FUNCTION",
        ),
    ]
    """`module:function` of the user's own code."""
    ranks: Annotated[
        tuple[int, ...],
        Option("--rank", "Replay only this rank; repeatable.  [default: all]", "Replay", metavar="R", least=0),
    ] = ()
    """Only these ranks; empty: all."""
    device: Annotated[
        str | None,
        Option("--device", "Device to use: cpu or cuda:N.  [default: as captured]", "Replay", metavar="DEVICE"),
    ] = None
    """`cpu`, `cuda:0`; None: the captured device, if this machine has it."""
    exact: Annotated[bool, Option("--exact", "Require every gradient to be bit-identical.", "Replay")] = False
    """Whether every gradient has to be equal in every bit."""
    locate: Annotated[bool, Option("--no-locate", "Do not search for the origin.", "Replay")] = True
    """Whether to search the origin, in a second run."""
    weights: Annotated[
        str | None,
        Option(
            "--weights", "Weights (safetensors), for a capture that does not contain them.", "Replay", metavar="FILE"
        ),
    ] = None
    """A file of weights, for a capture without weights."""
    timeout: Annotated[
        float | None,
        Option("--timeout", "Give up after this many seconds, with exit code 14.", "Replay", metavar="S", least=0.001),
    ] = None
    """Timeout in seconds; None: no limit."""
    record: Annotated[bool, Option("--record", "Record the result beside the capture, for guard report.", "Replay")] = (
        False
    )
    """Whether the result is written into the capture's folder, from which `guard report` reads it."""


class NanVerdict(str, Enum):
    """The origin of a value that was not finite."""

    TRANSIENT = "transient"
    """Finite when recomputed immediately on the same device: the device, or a nondeterministic operation."""
    DEVICE = "device"
    """The device of that rank reproduces it, and another device does not."""
    DATA_OR_MODEL = "data-or-model"
    """Every device reproduces it."""
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
    """From 0."""
    phase: str
    """`forward` or `backward`."""
    kind: OriginKind
    op: str
    """torch's name of the operation; of a parameter, buffer or input: its own name."""
    module: str
    """Name of the module in which it happened, with its class; '' outside of all."""
    line: str | None
    """File, line and source in the user's code; None if unknown."""
    shape: tuple[int, ...]
    nan: int
    inf: int
    value: float | None = None
    """The element that is far too large, though finite; None if the tensor is not finite."""
    times_rms: float | None = None
    """Ratio of that element to the root mean square of the tensor's other elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReplay:
    """The result of recomputing one rank's step."""

    rank: Rank
    losses_equal: int
    """In every bit."""
    losses: int
    """Number of known losses of the step."""
    micro_batches: int
    gradients_equal: int
    """In every bit."""
    gradients: int
    """Number of gradients to compare."""
    pattern_differs: tuple[str, ...]
    """Names of gradients that are finite in only one of the two runs."""
    losses_differ: tuple[int, ...]
    """Micro-batches with a different loss, from 0."""
    nonfinite: tuple[GradientFacts, ...]
    """Gradients of this run that are not finite."""
    is_finite: bool
    """Whether every loss and gradient of this run, and the norm of all gradients, is finite."""
    norm_overflows: bool = False
    """Whether that norm is infinite in this run while each gradient is finite."""
    norm_differs: bool = False
    """Whether that is true in only one of the two runs."""


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
    """The folder, as the user named it."""
    step: Step
    device: str
    """The device on which it was recomputed."""
    exact: bool
    """Whether every gradient has to be equal in every bit."""
    verdict: NanVerdict
    why: str
    """One sentence: the evidence of the verdict, or what would decide."""
    ranks: tuple[RankReplay, ...]
    culprits: tuple[Culprit, ...]
    origin: Origin | None
    """None if it was not requested, or nothing was found."""
    environment: tuple[Difference, ...]
    findings: tuple[Finding, ...]
    reproduced: bool

    @property
    def exit_code(self) -> ExitCode:
        """Exit code: 0 if the step was reproduced, 10 if not, 14 if it could not be computed."""
        could_not = of_findings(self.findings)
        return could_not if could_not or self.reproduced else ExitCode.DAMAGE
