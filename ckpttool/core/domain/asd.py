"""Ascend's online feature-value detection: its settings, its samples, and the events it logs."""

from __future__ import annotations

from enum import Enum

from ckpttool.core.domain.frozen import dataclass


class StrikeCount(str, Enum):
    """How an implementation counts abnormal values up to a strike."""

    HISTORY = "history"
    """Suppressed values are kept but not counted; the newest counted value also belongs to the next strike."""
    WINDOW = "window"
    """Old values are dropped only while there are more than a strike needs."""
    STEPS = "steps"
    """All values of a step count as one value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsdDialect:
    """One implementation: several share a name and differ in behaviour."""

    name: str
    """Name for users."""
    counts: StrikeCount
    variable: str | None = None
    """The environment variable that its parser reads; None: it reads no variable."""
    is_strict: bool = False
    """Its parser does not strip or warn, and raises on an invalid flag."""
    sample_interval: int = 3
    """Default sampling interval: one of this many parameters is checked."""
    checksum_minutes: int | None = None
    """How long a checksum runs; None: as long as the cooldown."""
    pauses_from_stop: bool = False
    """The pause between two checksums is counted from the end of the last one, not from its start."""
    pauses_beyond: bool = False
    """A strike exactly at the end of the pause does not start a checksum."""
    early_strike_waits: bool = False
    """A strike in the pause gets its checksum after the pause; otherwise it gets no checksum."""
    blind_in_checksum: bool = False
    """It does not detect strikes while its checksum runs."""


TORCH_NPU = AsdDialect(
    name="torch-npu", counts=StrikeCount.HISTORY, variable="NPU_ASD_CONFIG", is_strict=True, pauses_beyond=True
)
MINDSPORE = AsdDialect(
    name="mindspore",
    counts=StrikeCount.WINDOW,
    variable="MS_NPU_ASD_CONFIG",
    sample_interval=10,
    early_strike_waits=True,
    blind_in_checksum=True,
)
DIALECTS = (TORCH_NPU, MINDSPORE)
"""The implementations of the frameworks; a trainer may define another."""
