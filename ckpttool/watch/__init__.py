"""Checkpoints are verified, sealed and told of as they land.

For a long training: `ckpttool watch`, `ckpttool.Watch`. It begins in `verbs.py`; what is said and done is decided in
`rules.py`.
"""

from __future__ import annotations

from ckpttool.core.render.answers import TEXTS

TEXTS.update(
    {
        "event": "ckpttool.watch.answers",
    }
)
