"""Verify, seal and report checkpoints as they are saved.

For a long training: `ckpttool watch`, `ckpttool.types.Watch`. It starts in `verbs.py`; `rules.py` decides on reports
and actions.
"""

from __future__ import annotations

from ckpttool.core.extensions import Feature

FEATURE = Feature(
    findings="ckpttool.watch.findings:WatchCode",
    answers={
        "event": "ckpttool.watch.answers",
    },
)
