"""What one of many machines sees of a tree, written down as a part that another judges with the rest.

For who has disks of one machine each: `ckpttool part`, `ckpttool.part(...)`. It begins in `verbs.py`. How parts are put
together is in `core`, for every command takes them.
"""

from __future__ import annotations

from ckpttool.core.extensions import Feature

FEATURE = Feature(
    answers={
        "part": "ckpttool.nodes.answers",
    }
)
