"""What is decided on one step inside a training process, and the events that tell of it."""

from __future__ import annotations

import math
from enum import Enum, IntEnum
from typing import Protocol, TypeAlias

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Step

EventValue: TypeAlias = "str | int | float | bool | list[EventValue] | dict[str, EventValue] | None"
"""What a line of an event file can hold; NaN and infinities are allowed, and are spelled as words."""


EVENTS_SCHEMA = "ckpttool/events/1"
"""How the first line of an event file begins."""


EVENTS_FOLDER = "guard"
"""In the output folder of a training."""


def event_path(output: str, rank: int) -> str:
    """Return where a rank's events lie, below the output folder of its training."""
    return f"{output}/{EVENTS_FOLDER}/events-{rank:05d}.jsonl"


class Action(IntEnum):
    """What becomes of an update. Ranks agree on the largest."""

    APPLY = 0
    SKIP = 1
    """The update is dropped: weights, optimizer and buffers stay as they were."""
    STOP = 2
    """The update is dropped, and training ends here."""


class GuardMode(str, Enum):
    """Whether anything is done."""

    ACT = "act"
    WATCH = "watch"
    """Nothing is dropped; the events say what would have been."""


class GuardEventKind(str, Enum):
    """What a line of an event file tells of."""

    RUN = "run"
    """The first line of a process: who writes, of which run."""
    RESUMED = "resumed"
    BLIND = "blind"
    """Steps in which the policy cannot notice anything: nothing was remembered, and it warms up."""
    GUARD_RESET = "guard-reset"
    """What was remembered belongs to another policy or other settings, and is not used."""
    STEP = "step"
    """The numbers of one optimizer step."""
    SKIP = "skip"
    SPIKE = "spike"
    CLIP = "clip"
    NONFINITE = "nonfinite"
    OVERFLOW = "overflow"
    """The loss scaler's own business: its scale was too large."""
    STOP = "stop"
    ALARM = "alarm"
    """More than one in a hundred of the last thousand updates were dropped."""
    TRANSIENT = "transient"
    """What was not finite is finite when it is computed once more."""
    CAPTURE = "capture"
    CAPTURE_FAILED = "capture-failed"
    REPLICAS_DISAGREE = "replicas-disagree"
    SDC_EVENT = "sdc-event"
    SDC_ECHO = "sdc-echo"
    SDC_STRIKE = "sdc-strike"
    CHECKSUM_ON = "checksum-on"
    CHECKSUM_OFF = "checksum-off"
    CHECKSUM_DROPPED = "checksum-dropped"
    CHECKSUM_SUSPICION = "checksum-suspicion"
    CHECKSUM_ABNORMAL = "checksum-abnormal"
    SAVED = "saved"
    SAVE_FAILED = "save-failed"
    GUARD_ERROR = "guard-error"
    """A part of the guard itself failed; the training went on."""
    GUARD_OFF = "guard-off"
    """A part of the guard failed too often, or cost too much, and is switched off."""


class Emit(Protocol):
    """Where events go. It never raises: what cannot be written is counted, and told by the next line that can."""

    def __call__(self, kind: GuardEventKind, /, *, step: Step, **values: EventValue) -> None:
        """Tell one event at a step."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardEvent:
    """One line of an event file, before it is written."""

    kind: GuardEventKind
    step: Step
    values: dict[str, EventValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What one rank would do with its update, from its own numbers."""

    action: Action
    norm: float
    """L2 norm of all gradients, before clipping; NaN or infinite as it was."""
    is_finite: bool
    """Whether the norm and every local loss are; or only gradients are not, and a loss scaler is to blame."""

    @property
    def is_overflow(self) -> bool:
        """Whether a loss scaler tries too large a scale: no rank knows of anything else that is not finite."""
        return self.is_finite and not math.isfinite(self.norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What all ranks do with it."""

    action: Action
    events: tuple[GuardEvent, ...] = ()
    limit: float | None = None
    """Norm to which the gradients are scaled down; None: as the training does it anyway."""
