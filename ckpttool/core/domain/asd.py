"""Ascend's online feature-value detection: its settings, its samples, and the events it logs."""

from __future__ import annotations

from enum import Enum

from ckpttool.core.domain.frozen import dataclass


class StrikeCount(str, Enum):
    """How an implementation counts abnormal values up to a strike."""

    HISTORY = "history"
    """Suppressed values are kept without counting; the newest that counted takes part in the next strike, too."""
    WINDOW = "window"
    """Old ones go only while there are more than a strike needs."""
    STEPS = "steps"
    """All values of one step are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsdDialect:
    """One implementation: several share a name and differ in behaviour."""

    name: str
    """Name for users."""
    counts: StrikeCount
    variable: str | None = None
    """The environment variable that its parser reads; None: it has none."""
    is_strict: bool = False
    """Its parser strips nothing, says nothing, and raises at a wrong flag."""
    sample_interval: int = 3
    """Every how many-th parameter is checked, if nothing is set."""
    checksum_minutes: int | None = None
    """How long a checksum runs; None: as long as the cooldown."""
    pauses_from_stop: bool = False
    """The pause between two checksums is counted from the end of the last one, not from its start."""
    pauses_beyond: bool = False
    """A strike at the very end of the pause still starts none."""
    early_strike_waits: bool = False
    """A strike in the pause gets its checksum when that is over; else it gets none."""
    blind_in_checksum: bool = False
    """It looks for no strike while its checksum runs."""


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
"""Those of the frameworks; a trainer may have one of its own."""
