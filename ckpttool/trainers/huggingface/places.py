"""Places of Trainer's logs.

Each save contains the log up to that save, so the newest save has the complete log. With `report_to: tensorboard`, each
start writes an event file.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

from ckpttool.core.logs.base import RankLogs
from ckpttool.core.logs.run_folder import logs_in, start_time
from ckpttool.core.storage import open_storage
from ckpttool.trainers.huggingface import SAVE, STATE

_LAST_BYTES = 16
_RUNS = "runs"
"""The folder in the output folder in which each start makes a folder for TensorBoard."""


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


def start_logs(root: str) -> tuple[str, ...]:
    """Return TensorBoard's event files, `runs/TIME_HOST/events.out.tfevents.*`, in the order of their starts."""
    logs: list[str] = []
    with suppress(OSError):  # written only with `report_to: tensorboard`
        folders = [entry.name for entry in open_storage(f"{root}/{_RUNS}").entries("")]
        logs += [log for folder in sorted(folders) for log in logs_in(f"{root}/{_RUNS}/{folder}")]
    return tuple(sorted(logs, key=lambda log: start_time(os.path.basename(log))))
