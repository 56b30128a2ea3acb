"""Which checkpoints a training log calls healthy, and which rule and threshold would have called them so.

For who sets up a training: `ckpttool health`, `replay`, `calibrate`, `asd`. It begins in `verbs.py` and its neighbours.
What `resolve` asks of training logs is answered by `verbs_evidence.py`. Rules are pure; `policies` has those that users
choose from, `asd` the detection of silent errors on Ascend.
"""

from __future__ import annotations

from ckpttool.core.extensions import Feature

FEATURE = Feature(
    answers={
        "health": "ckpttool.health.answers",
        "replay": "ckpttool.health.answers_replay",
        "calibration": "ckpttool.health.answers_calibration",
        "asd": "ckpttool.health.answers_asd",
    },
    log_evidence="ckpttool.health.verbs_evidence:gather",
)
