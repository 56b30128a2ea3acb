"""Places of the logs of MindFormers and its launcher, and the epoch size that the logs next to a tree show."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress

from ckpttool.core.logs.base import RankLogs
from ckpttool.core.storage import above, open_storage

_RANK_FOLDER = re.compile(r"rank_(\d+)")
_INFO_LOG = re.compile(r"info\.log(?:\.(\d+))?")
_WORKER_LOG = re.compile(r"worker_(\d+)\.log")

TAIL_BYTES = 4 << 20
"""Bytes to search at the end of a log: ten thousand steps or more."""


class MindFormersLogs:
    """The places of MindFormers' logs: `log/rank_N/info.log`, and the output captured by `msrun`.

    Source:
        MindFormers writes `log/rank_N/info.log` in the output folder and rotates it (`info.log.1` is the previous
        file). `msrun` captures the output of a process in `msrun_log/worker_N.log`, by default in the output folder,
        and replaces it at each launch. Both contain the same lines, so the first kind that exists is enough.
    """

    names = ("rank_N/info.log", "worker_N.log")

    def near(self, root: str) -> tuple[RankLogs, ...]:
        """Return the logs in the output folder or its parent."""
        output = above(root)
        for folder in (output, above(output)):
            for name, find in (("log", _rank_logs), ("msrun_log", _worker_logs)):
                paths = find(os.path.join(folder, name))
                if paths:
                    return paths
        return ()

    def inside(self, folder: str) -> tuple[str, ...]:
        """Return the logs in a folder that a user named: `log/`, `log/rank_N/` or `msrun_log/`."""
        for find in (_rank_logs, _worker_logs):
            if paths := find(folder):
                return tuple(path for logs in paths for path in logs)
        return _info_logs(folder)


def _rank_logs(folder: str) -> tuple[RankLogs, ...]:
    ranks = [(int(rank), os.path.join(folder, name)) for name, rank in _numbered(folder, _RANK_FOLDER)]
    return tuple(logs for _, path in sorted(ranks) if (logs := _info_logs(path)))


def _worker_logs(folder: str) -> tuple[RankLogs, ...]:
    workers = [(int(rank), os.path.join(folder, name)) for name, rank in _numbered(folder, _WORKER_LOG)]
    return tuple((path,) for _, path in sorted(workers))


def _info_logs(folder: str) -> RankLogs:
    rotated = [(int(age or 0), name) for name, age in _numbered(folder, _INFO_LOG)]
    return tuple(os.path.join(folder, name) for _, name in sorted(rotated, reverse=True))


def _numbered(folder: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    with suppress(OSError):  # usually there is no such log
        for entry in open_storage(folder).entries(""):
            if match := pattern.fullmatch(entry.name):
                yield entry.name, match[1]


def logged_epoch(root: str, *, step: int, epoch: int | None) -> int | None:
    """Return the batches per epoch in the log's last line about a save's step; None if there is no such line.

    The batches have the save's batch size, because the line is about the step that preceded the save.

    Args:
        root: The folder of the checkpoints; the log is near this folder.
        step: Completed steps, as the save counts them.
        epoch: The save's own number of epochs, or of sinks.

    Source:
        MFLossMonitor (1.3.2 to 2.1.0) prints `Epoch:[e/E], step:[n/N]`: n is always the step within N batches. With
        sinks, e also follows from the step; without, it is the epoch that MindSpore counts and the save records.
    """
    ranks = MindFormersLogs().near(root)
    if not ranks:
        return None
    from ckpttool.trainers.mindformers.logs.text import POSITION

    for path in reversed(ranks[0]):
        for match in reversed([*POSITION.finditer(_tail(path))]):
            logged, within, size = map(int, match.groups())
            if size and (step - 1) % size + 1 == within and logged in {epoch, (step - 1) // size + 1}:
                return size
    return None


def _tail(path: str) -> bytes:
    """Return the end of a file; empty bytes if the file cannot be read."""
    folder, name = os.path.split(path)
    with suppress(OSError), open_storage(folder).open(name) as source:
        begin = max(0, source.stamp.size - TAIL_BYTES)
        return source.read(begin, TAIL_BYTES)
    return b""
