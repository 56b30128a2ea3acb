"""Place of Trainer's log.

Each save contains the log up to that save, so the newest save has the complete log.
"""

from __future__ import annotations

import re
from contextlib import suppress

from ckpttool.core.logs.base import RankLogs
from ckpttool.core.storage import open_storage
from ckpttool.trainers.huggingface import SAVE, STATE

_LAST_BYTES = 16


class HfLogs:
    """The logs in `checkpoint-N/trainer_state.json`.

    The `log_history` covers the training run up to the save.
    """

    names = (f"checkpoint-N/{STATE}",)

    def near(self, root: str) -> tuple[RankLogs, ...]:
        """Return the newest log that is not truncated."""
        storage = open_storage(root)
        with suppress(OSError):  # usually there is no such log
            saves = [entry.name for entry in storage.entries("") if re.fullmatch(SAVE, entry.name)]
            for save in sorted(saves, key=lambda name: int(name.rpartition("-")[2]), reverse=True):
                with suppress(OSError), storage.open(f"{save}/{STATE}") as source:
                    if source.read(max(0, source.stamp.size - _LAST_BYTES), _LAST_BYTES).rstrip().endswith(b"}"):
                        return ((f"{root}/{save}/{STATE}",),)
        return ()

    def inside(self, folder: str) -> tuple[str, ...]:
        """Return the log in a save."""
        with suppress(OSError):
            if any(entry.name == STATE for entry in open_storage(folder).entries("")):
                return (f"{folder}/{STATE}",)
        return ()
