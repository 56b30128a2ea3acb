"""Which checkpoints a training log calls healthy, and which rule and threshold would have called them so.

For who sets up a training: `ckpttool health`, `replay`, `calibrate`, `asd`. It begins in `verbs.py` and its neighbours.
Policies and what `resolve` asks of a log are in `core/decide`, for the main job needs them.
"""

from __future__ import annotations

from ckpttool.core.extensions import Feature

FEATURE = Feature(
    answers={
        "health": "ckpttool.health.answers",
        "replay": "ckpttool.health.answers_replay",
        "calibration": "ckpttool.health.answers_calibration",
        "asd": "ckpttool.health.answers_asd",
    }
)
