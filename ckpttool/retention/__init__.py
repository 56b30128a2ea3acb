"""Deleting superseded checkpoints and restoring them: prune, trash, and records that name the newest intact one.

Its commands are `ckpttool prune`, `trash` and `repair pointer`. Start reading in `verbs.py`; `rules.py` decides which
checkpoints are deleted.
"""

from __future__ import annotations

from ckpttool.core.extensions import Feature

FEATURE = Feature(
    findings="ckpttool.retention.findings:RetentionCode",
    answers={
        "prune": "ckpttool.retention.answers",
        "trash": "ckpttool.retention.answers_trash",
        "repair": "ckpttool.retention.answers_repair",
    },
)
