"""The contents of a shard or a checkpoint, and the differences between two of them.

The commands are `ckpttool inspect` and `ckpttool diff`. Start reading in `verbs.py` and `verbs_diff.py`.
"""

from __future__ import annotations

from ckpttool.core.extensions import Feature

FEATURE = Feature(
    answers={
        "contents": "ckpttool.inspect.answers",
        "difference": "ckpttool.inspect.answers_diff",
    }
)
