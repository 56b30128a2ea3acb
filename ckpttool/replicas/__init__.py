"""A lost or damaged shard is rebuilt from a proven copy on another rank.

For the engineer on call: `ckpttool heal`, and what `resolve` says of a save that it passed over. It begins in
`verbs.py`; which copy is proven is decided in `rules.py`. Whether copies differ is in `core/verify/replicas`.
"""

from __future__ import annotations

from ckpttool.core.extensions import Feature

FEATURE = Feature(
    answers={
        "heal": "ckpttool.replicas.answers",
    },
    on_passed_over="ckpttool.replicas.verbs_advice:advice_on",
)
