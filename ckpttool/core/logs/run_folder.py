"""The folder in which one start of a training run writes its log."""

from __future__ import annotations

import re
from contextlib import suppress

from ckpttool.core.logs.base import RankLogs
from ckpttool.core.storage import open_storage

_EVENTS = re.compile(r"(?s)events\.out\.tfevents\.(\d{1,18})?.*")
METRICS = "metrics.csv"
"""The usual name of a log as CSV."""


class RunFolder:
    """A folder with TensorBoard's event files, or with `metrics.csv`."""

    names = ("events.out.tfevents.*", METRICS)

    def near(self, root: str) -> tuple[RankLogs, ...]:  # noqa: ARG002  a trainer knows where its folders are
        """Return no logs, because only a trainer knows the places of such folders."""
        return ()

    def inside(self, folder: str) -> tuple[str, ...]:
        """Return the logs in the folder, oldest first."""
        return logs_in(folder)


def logs_in(folder: str) -> tuple[str, ...]:
    """Return TensorBoard's event files in a folder, by the time in their names, or else `metrics.csv`."""
    with suppress(OSError):  # the folder is optional
        names = [entry.name for entry in open_storage(folder).entries("")]
        events = sorted((start_time(name), name) for name in names if _EVENTS.fullmatch(name))
        chosen = [name for _, name in events] or [name for name in names if name == METRICS]
        return tuple(f"{folder}/{name}" for name in chosen)
    return ()


def start_time(name: str) -> int:
    """Return the seconds since 1970 in the name of an event file; 0 for other names."""
    match = _EVENTS.fullmatch(name)
    return int(match[1] or 0) if match else 0
