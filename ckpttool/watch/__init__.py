"""Verify, seal and report checkpoints as they are saved.

Use `ckpttool watch` or `ckpttool.types.Watch` during a long training run. It starts in `verbs.py`, and `rules.py`
decides on reports and actions.
"""

from __future__ import annotations

from ckpttool.core.extensions import Feature

FEATURE = Feature(
    findings="ckpttool.watch.findings:WatchCode",
    answers={
        "event": "ckpttool.watch.answers",
    },
)
