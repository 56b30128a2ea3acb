"""The names in a folder of torch.distributed.checkpoint: enough to tell one, which every start does."""

from __future__ import annotations

import re
from collections.abc import Iterable

METADATA = ".metadata"
UNFINISHED = f"{METADATA}.tmp"
COMPOSER_TIME = "state.timestamp.Timestamp."
"""What the names of Composer's counters begin with: `batch` is the step."""
WRITER = re.compile(r"__(?P<rank>[0-9]{1,9})_[0-9]{1,9}\.distcp")
OF_RANK = re.compile(r"__(?P<rank>[0-9]{1,9})\.metadata")


def is_store(names: Iterable[str]) -> bool:
    """Tell by the names in a folder whether it is one, finished or not."""
    return any(name == METADATA or OF_RANK.fullmatch(name) or WRITER.fullmatch(name) for name in names)


def is_own(name: str) -> bool:
    """Tell whether a file's name in such a folder is one that torch gives, once it is done or while it saves."""
    return name == UNFINISHED or is_store((name,))


def is_committed(names: Iterable[str]) -> bool:
    """Tell by the names in a folder whether a record was written, which is what comes last."""
    return any(name == METADATA or OF_RANK.fullmatch(name) for name in names)
