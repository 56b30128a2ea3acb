"""Health of checkpoints according to a training log, and the rules and thresholds for it.

For who sets up a training: `ckpttool health`, `log replay`, `log calibrate`, `asd`. It begins in `verbs`;
`resolve` is told by `verbs/evidence.py` what logs have to say. Rules are pure: those that users choose from are in
`policies`, those of the detection of silent errors on Ascend in `asd`, all others in `rules`.
"""

from __future__ import annotations

from ckpttool.core.extensions import Feature

FEATURE = Feature(
    findings="ckpttool.health.findings:HealthCode",
    answers={
        "health": "ckpttool.health.answers.health",
        "replay": "ckpttool.health.answers.replay",
        "calibration": "ckpttool.health.answers.calibration",
        "asd": "ckpttool.health.answers.asd",
    },
    log_evidence="ckpttool.health.verbs.evidence:gather",
)
