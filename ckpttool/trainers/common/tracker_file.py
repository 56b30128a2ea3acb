"""`latest_checkpointed_iteration.txt`: three trainers write it, so by itself it tells nobody's tree."""

from __future__ import annotations

import re
from collections.abc import Collection

TRACKER = "latest_checkpointed_iteration.txt"

_OTHERS = {"Megatron-LM": r"iter_[0-9]{7,18}", "verl": r"global_step_[0-9]{1,18}"}
"""Folders of one save, by whoever else writes a tracker of this name beside them."""


def whose_tracker(names: Collection[str]) -> str:
    """Say whose checkpoints a folder seems to hold that has a tracker, but no save that is known; else nothing."""
    if TRACKER not in names:
        return ""
    for trainer, pattern in _OTHERS.items():
        seen = next((name for name in names if re.fullmatch(pattern, name)), None)
        if seen is not None:
            return f"; {seen} beside {TRACKER} looks like a tree of {trainer}, which ckpttool does not read"
    return f"; {TRACKER} alone is no checkpoint (MindFormers, Megatron-LM and verl all write such a file)"
