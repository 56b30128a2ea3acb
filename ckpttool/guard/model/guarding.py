"""Decisions on one step in a training process, and the destination of its events."""

from __future__ import annotations

import math
from enum import Enum, IntEnum
from typing import Protocol

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.guarding import EventValue, GuardEvent, GuardEventKind
from ckpttool.core.domain.units import Step

SKIPS_TOO_OFTEN = "skips-too-often"
"""Name of the alarm that reports too many dropped updates."""


class Action(IntEnum):
    """The decision about an update. The ranks agree on the largest value."""

    APPLY = 0
    SKIP = 1
    """The update is dropped, and weights, optimizer and buffers do not change."""
    STOP = 2
    """The update is dropped, and the training run ends."""


class GuardMode(str, Enum):
    """The mode of the guard: to act, or only to watch."""

    ACT = "act"
    WATCH = "watch"
    """Nothing is dropped. Events show the updates that would have been dropped."""


class Emit(Protocol):
    """Destination of events. It never raises: lost lines are counted, and the next written line reports them."""

    def __call__(self, kind: GuardEventKind, /, *, step: Step, **values: EventValue) -> None:
        """Send one event at a step."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The decision that one rank would make about its update, based on its own numbers."""

    action: Action
    norm: float
    """L2 norm of all gradients, before clipping. It may be NaN or infinite."""
    is_finite: bool
    """Whether the norm and every local loss are finite, or only gradients overflowed because of the loss scale."""

    @property
    def is_overflow(self) -> bool:
        """Whether the loss scale is too large, and no rank has another non-finite value."""
        return self.is_finite and not math.isfinite(self.norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision of all ranks about an update."""

    action: Action
    events: tuple[GuardEvent, ...] = ()
    limit: float | None = None
    """Norm to which the gradients are scaled down, or None for no change."""
