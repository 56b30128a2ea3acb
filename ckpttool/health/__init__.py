"""Health of checkpoints according to a training log, with the rules and thresholds that decide it.

Commands: `ckpttool health`, `log replay`, `log calibrate`, `asd`. Each starts in `verbs`; `resolve` reads the evidence
in logs through `verbs/evidence.py`. Rules are pure: the policies that users choose are in `policies`, the rules for
silent errors on Ascend in `asd`, and all others in `rules`.
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
