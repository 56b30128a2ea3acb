"""Contents of a shard or a checkpoint, and the differences between two.

For who wants to look inside: `ckpttool inspect`, `ckpttool diff`. It begins in `verbs.py` and `verbs_diff.py`.
"""

from __future__ import annotations

from ckpttool.core.extensions import Feature

FEATURE = Feature(
    answers={
        "contents": "ckpttool.inspect.answers",
        "difference": "ckpttool.inspect.answers_diff",
    }
)
