"""A lost or damaged shard is rebuilt from a proven copy on another rank.

For the engineer on call: `ckpttool heal`. What is compared and proven is in `core/verify/replicas` and
`core/decide/healing`, for `verify` and `resolve` say it, too.
"""

from __future__ import annotations

from ckpttool.core.extensions import Feature

FEATURE = Feature(
    answers={
        "heal": "ckpttool.replicas.answers",
    },
    on_passed_over="ckpttool.core.verbs.heal_advice:advice_on",
)
