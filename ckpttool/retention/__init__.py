"""Deleting superseded checkpoints and restoring them: prune, trash, and records that name the newest intact one.

For who runs out of disk: `ckpttool prune`, `trash`, `repair pointer`. It begins in `verbs.py`; what goes is decided in
`rules.py`.
"""

from __future__ import annotations

from ckpttool.core.extensions import Feature

FEATURE = Feature(
    answers={
        "prune": "ckpttool.retention.answers",
        "trash": "ckpttool.retention.answers_trash",
        "repair": "ckpttool.retention.answers_repair",
    }
)
