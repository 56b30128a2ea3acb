"""What is kept of steps that are not finite, and what that may cost."""

from __future__ import annotations

from collections.abc import Callable

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.guarding import EventValue
from ckpttool.core.domain.units import ByteCount
from ckpttool.guard.capture.again import LossFunction
from ckpttool.guard.capture.remember import DEVICE_BATCHES, HOST_BATCHES


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureBudget:
    """What captures may cost. Over it a capture is light: no weights."""

    captures: int = 3
    """Whole ones in a run."""
    light_captures: int = 20
    """Light ones in a run; after that none is made."""
    every_steps: int = 100
    """Steps that lie between two whole ones, at least."""
    nbytes: ByteCount = ByteCount(20 << 30)
    """Of one rank's shard."""
    device_batches: ByteCount = DEVICE_BATCHES
    """Of an accelerator's memory, for earlier batches of an accumulated step; beyond it they move to the host's."""
    host_batches: ByteCount = HOST_BATCHES
    """Of the host's memory, for the same; beyond it only fingerprints are kept, and the step cannot be replayed."""
    reruns: int = 3
    """How often in a run a step is computed again in place."""
    full_gradients: bool = False
    """Whether every gradient is kept whole, not only its digest."""
    io_timeout: float = 60.0
    """Seconds after which a disk that takes nothing is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSettings:
    """What is kept of a step that is not finite."""

    budget: CaptureBudget = CaptureBudget()
    loss_of: LossFunction | None = None
    """Makes the loss of a micro-batch from model and batch, so that the step can be computed again in place."""
    encode_batch: Callable[[object], object] | None = None
    """Makes of a batch what can be spelled, where it is of classes that cannot."""
    run_config: EventValue = None
    """What the user wants to find in a capture, plain JSON."""
