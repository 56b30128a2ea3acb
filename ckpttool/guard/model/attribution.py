"""The cause of a suspicious step: the device, or data and model."""

from __future__ import annotations

from enum import Enum

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Rank, Step


class Cause(str, Enum):
    """The cause of a suspicious step. The first two are faults of hardware."""

    TRANSIENT = "transient"
    """The device erred once: the same computation on it gave another result at once."""
    PERSISTENT = "persistent"
    """The device errs again and again: it repeats the result, and another device has another one."""
    DATA_OR_MODEL = "data-or-model"
    """Every device has the same result: the data, or the training's own software."""
    UNKNOWN = "unknown"
    """The computation that would decide is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """One suspicious step of one rank, and its cause."""

    step: Step
    rank: Rank | None
    """None if the rank is unknown."""
    host: str
    """Empty if unknown."""
    device: str
    """Such as `cuda:0`; empty if unknown."""
    suspicion: str
    """The kind of the event: `nonfinite`, `sdc-strike`, `checksum-abnormal` or `replicas-disagree`."""
    cause: Cause
    why: str
    """One sentence: the evidence, or the computation that would decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Causes:
    """The suspicious steps of one rank on one host."""

    host: str
    rank: Rank | None
    device: str
    transient: int
    persistent: int
    data_or_model: int
    unknown: int
    advice: str
    """One sentence: what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedReplay:
    """The result of a replay, as recorded beside the capture."""

    host: str
    device: str
    """Host and device of the replay."""
    verdict: str
    """A value of `NanVerdict`."""
    why: str
    ranks: tuple[Rank, ...]
    """The ranks that were computed again."""
