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
    """One implementation; several implementations share a name but behave differently."""

    name: str
    """Name for users."""
    counts: StrikeCount
    variable: str | None = None
    """The environment variable that its parser reads; None if the parser reads no variable."""
    is_strict: bool = False
    """Whether the parser does not strip or warn, and raises an error on an invalid flag."""
    sample_interval: int = 3
    """Default sampling interval: one in this many parameters is checked."""
    checksum_minutes: int | None = None
    """How long a checksum runs; None if it runs as long as the cooldown."""
    pauses_from_stop: bool = False
    """Whether the pause between two checksums counts from the end of the first checksum, not from its start."""
    pauses_beyond: bool = False
    """Whether a strike exactly at the end of the pause does not start a checksum."""
    early_strike_waits: bool = False
    """Whether a strike in the pause starts a checksum after the pause; otherwise it starts none."""
    blind_in_checksum: bool = False
    """Whether the detection misses strikes while a checksum runs."""


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
