"""A lost or damaged shard is rebuilt from a proven copy on another rank.

For the engineer on call: `ckpttool heal`. What is compared and proven is in `core/verify/replicas` and
`core/decide/healing`, for `verify` and `resolve` say it, too.
"""

from __future__ import annotations

from ckpttool.core.render.answers import TEXTS

TEXTS.update(
    {
        "heal": "ckpttool.replicas.answers",
    }
)
