"""Events of a guarded training run, stored in files that any log reader can read."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Step

EventValue: TypeAlias = "str | int | float | bool | list[EventValue] | dict[str, EventValue] | None"
"""Values in an event line; NaN and infinities are allowed, and are encoded as words."""


EVENTS_SCHEMA = "ckpttool/events/1"
"""Start of the first line of an event file."""


EVENTS_FOLDER = "guard"
"""Folder of event files, inside a training run's output folder."""


class GuardEventKind(str, Enum):
    """The kind of an event in an event file."""

    RUN = "run"
    """The first line of a process: its rank, host, versions and policy."""
    RESUMED = "resumed"
    BLIND = "blind"
    """Steps at which the policy cannot detect anything, because it has no saved state and is warming up."""
    GUARD_RESET = "guard-reset"
    """The saved state was not used, because it belongs to a different policy or different settings."""
    STEP = "step"
    """The numbers of one optimizer step."""
    SKIP = "skip"
    SPIKE = "spike"
    CLIP = "clip"
    NONFINITE = "nonfinite"
    OVERFLOW = "overflow"
    """A normal event of the loss scaler: its scale was too large."""
    STOP = "stop"
    ALARM = "alarm"
    """More than one in a hundred of the last thousand updates were dropped."""
    TRANSIENT = "transient"
    """A non-finite value was finite when it was computed again."""
    RECOMPUTED = "recomputed"
    """A suspicious step with finite values was computed again immediately, or could not be."""
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
    """A part of the guard itself failed; the training continued."""
    GUARD_OFF = "guard-off"
    """A part of the guard failed too often or took too much time, and was switched off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardEvent:
    """One event, to be written as one line of an event file."""

    kind: GuardEventKind
    step: Step
    values: dict[str, EventValue]
