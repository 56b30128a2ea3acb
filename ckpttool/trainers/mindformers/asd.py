"""MindFormers' SDCMonitor, which reads the log of the device's detector."""

from __future__ import annotations

from ckpttool.domain.asd import AsdDialect, StrikeCount

MONITOR = AsdDialect(name="mindformers", counts=StrikeCount.STEPS, checksum_minutes=5, pauses_from_stop=True)
"""Its code: no cooldown, but all values of one step are one error. A strike within the pause between two checksums gets
none; the pause is counted from the last stop, and its last moment is no part of it."""
