"""What Orbax calls its saves and what lies in them.

Source: orbax-checkpoint 0.12.8, checkpoint_manager.py and _src/path/step.py; saves of it.
"""

from __future__ import annotations

import re

from ckpttool.core.domain.units import STEP_DIGITS, Step

RECORD = "_CHECKPOINT_METADATA"
"""Names the items of a save."""
RECORD_LIMIT = 16 << 20
"""Bytes of it; a real one has some hundred."""
TREE = "_METADATA"
"""In an item: names its arrays."""
SHARDING = "_sharding"
"""In an item with arrays of JAX: how they were spread over devices."""
ARRAYS = "array_metadatas"
"""A folder in such an item."""
FIRST_API = ".experimental.v1."
"""In the names of the handlers of `orbax.checkpoint.v1`, which loads no arrays of JAX without `_sharding`."""
MARK = "commit_success.txt"
"""Asked for on object stores alone, where a folder cannot be renamed."""

SAVE = rf"(?s:(?P<prefix>.+)_)?(?P<step>[0-9]{{1,{STEP_DIGITS}}})"
_UNFINISHED = ".orbax-checkpoint-tmp"


def prefix_and_step(name: str) -> tuple[str, Step] | None:
    """Return what a save's name says; None where it is none of one."""
    match = re.fullmatch(SAVE, name)
    return None if match is None else (match["prefix"] or "", Step(int(match["step"])))


def is_unfinished(name: str) -> bool:
    """Tell whether something is called as what will be renamed once it is whole."""
    return _UNFINISHED in name
