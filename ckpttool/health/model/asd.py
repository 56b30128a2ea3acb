"""Feature-value detection on Ascend: the settings, the samples, and the logged events."""

from __future__ import annotations

from enum import Enum

from ckpttool.core.domain.asd import AsdDialect
from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.metrics import LocalTime
from ckpttool.core.domain.units import Rank, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class AsdConfig:
    """The effective settings of feature detection; the defaults are torch_npu's."""

    enable: bool = False
    with_checksum: bool = False
    cooldown: int = 5
    """Minutes after a counted event during which another event does not count; also the duration of a checksum."""
    strikes_num: int = 3
    """Number of counted events that make a strike-out."""
    strikes_window: int = 480
    """Maximum number of minutes between the events of a strike-out."""
    checksum_cooldown: int = 180
    """Minutes between two checksum runs."""
    upper_thresh1: int = 1_000_000
    """Multiple of the debiased mean from which a value is abnormal; not an absolute value, despite the size."""
    upper_thresh2: int = 100
    """Multiple of the debiased mean up to which a value enters the mean."""
    grad_sample_interval: int = 3
    """Interval between checked parameters: every N-th parameter is checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsdCheck:
    """The effect of a configuration string in the actual parser."""

    dialect: AsdDialect
    config: AsdConfig
    """The effective settings; the defaults if the parser raises."""
    error: str | None
    """The error of the real parser, which prevents the training run from starting; None if it raises no error."""
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureValue:
    """One sample, which is the squared largest absolute gradient of one parameter."""

    value: float
    name: str = ""
    """Name of the parameter; each has a separate history."""
    time: LocalTime | None = None
    step: Step | None = None
    rank: Rank | None = None


class AsdKind(str, Enum):
    """The kind of a detector's log line."""

    EVENT = "event"
    """One abnormal value."""
    ECHO = "echo"
    """An abnormal value that does not count, because it follows another abnormal value too soon."""
    STRIKE = "strike"
    """Enough abnormal values in the window."""
    CHECKSUM_ON = "checksum-on"
    CHECKSUM_OFF = "checksum-off"
    CHECKSUM_DROPPED = "checksum-dropped"
    """A strike that starts no checksum."""
    CHECKSUM_ABNORMAL = "checksum-abnormal"
    """A matrix product was wrong, so the hardware of that rank is faulty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsdEvent:
    """One event that a detector logged."""

    kind: AsdKind
    time: LocalTime | None = None
    """Time on the machine's own clock, in whole seconds."""
    rank: Rank | None = None
    name: str = ""
    """Name of the parameter."""
    value: float | None = None
    backward: int | None = None
    """Number of backward passes for this parameter, counting each micro-batch."""
    step: Step | None = None
    """Global step, if the log has it."""
    group_since: LocalTime | None = None
    """Time of a strike's first event, if the log lists its events."""
    group_since_step: Step | None = None
    """Step of a strike's first event, if the log lists steps."""
    message: str = ""
    """The detector's own message if it is a sentence; otherwise empty."""
    source: str = ""
    line: int = 0
    """Line number, from 1."""
