"""MindFormers' own count of the silent errors that the device reports.

Source:
    MindFormers 1.6 to 2.1, SDCMonitor.
"""

from __future__ import annotations

from ckpttool.core.domain.asd import AsdDialect, StrikeCount

MONITOR = AsdDialect(name="mindformers", counts=StrikeCount.STEPS, checksum_minutes=5, pauses_from_stop=True)
"""SDCMonitor, which reads the log of the device's detector.

This monitor has no cooldown, but all values in one step count as one error. A strike within the pause between two
checksums gets no checksum. The pause begins at the last stop, and its end is exclusive.
"""
