"""The cause of a suspicious step: the device, or data and model."""

from __future__ import annotations

from enum import Enum

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Rank, Step


class Cause(str, Enum):
    """The cause of a suspicious step. The first two causes are faults of hardware."""

    TRANSIENT = "transient"
    """The device failed once: the same computation on it gave another result immediately."""
    PERSISTENT = "persistent"
    """The device fails repeatedly: it gives the same wrong result again, and another device gives another result."""
    DATA_OR_MODEL = "data-or-model"
    """Every device gives the same result, so the cause is the data or the software of the training run."""
    UNKNOWN = "unknown"
    """The computation that would decide is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """One suspicious step of one rank, with its cause."""

    step: Step
    rank: Rank | None
    """The rank, or None if it is unknown."""
    host: str
    """The host. Empty if unknown."""
    device: str
    """The device, such as `cuda:0`. Empty if unknown."""
    suspicion: str
    """The kind of the event: `nonfinite`, `sdc-strike`, `checksum-abnormal` or `replicas-disagree`."""
    cause: Cause
    why: str
    """One sentence with the evidence, or with the computation that would decide."""


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
    """The advised action in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedReplay:
    """The result of a replay, as recorded in the folder of the capture."""

    host: str
    device: str
    """Host and device of the replay."""
    verdict: str
    """A value of `NanVerdict`."""
    why: str
    ranks: tuple[Rank, ...]
    """The recomputed ranks."""
