"""Ascend's online feature-value detection: settings, samples, and logged events."""

from __future__ import annotations

from enum import Enum

from ckpttool.core.domain.frozen import dataclass


class StrikeCount(str, Enum):
    """How an implementation counts the abnormal values that lead to a strike."""

    HISTORY = "history"
    """Suppressed values are stored but not counted; the newest counted value also counts towards the next strike."""
    WINDOW = "window"
    """Old values are dropped only if more values are stored than a strike needs."""
    STEPS = "steps"
    """All values of a step count as one value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsdDialect:
    """Behaviour of one implementation; implementations can share a name and still behave differently."""

    name: str
    """Name that is shown to users."""
    counts: StrikeCount
    variable: str | None = None
    """Environment variable that the implementation parses; None if it parses no variable."""
    is_strict: bool = False
    """Whether the parser raises an error on an invalid flag, instead of a warning, and does not strip spaces."""
    sample_interval: int = 3
    """Default sampling interval: one in this many parameters is checked."""
    checksum_minutes: int | None = None
    """Duration of a checksum in minutes; None if it lasts as long as the cooldown."""
    pauses_from_stop: bool = False
    """Whether the pause between two checksums is measured from the end of the first checksum instead of its start."""
    pauses_beyond: bool = False
    """Whether a strike exactly at the end of the pause is still too early to start a checksum."""
    early_strike_waits: bool = False
    """Whether a strike during the pause starts a checksum after the pause; otherwise the strike has no effect."""
    blind_in_checksum: bool = False
    """Whether strikes are missed while a checksum runs."""


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
