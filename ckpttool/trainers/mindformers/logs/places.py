"""Where MindFormers and its launcher write training logs."""

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


class MindFormersLogs:
    """`log/rank_N/info.log`, and what `msrun` catches.

    Source:
        MindFormers writes `log/rank_N/info.log` below the output folder and rotates it (`info.log.1` is the one
        before). `msrun` catches what a process prints in `msrun_log/worker_N.log`, by default in the output folder,
        and starts it anew at each launch. Both hold the same lines, so the first kind that is there is enough.
    """

    names = ("rank_N/info.log", "worker_N.log")

    def near(self, root: str) -> tuple[RankLogs, ...]:
        """Look in the output folder, and in the one around it."""
        output = above(root)
        for folder in (output, above(output)):
            for name, find in (("log", _rank_logs), ("msrun_log", _worker_logs)):
                paths = find(os.path.join(folder, name))
                if paths:
                    return paths
        return ()

    def inside(self, folder: str) -> tuple[str, ...]:
        """Look in a folder as a user may name it: `log/`, `log/rank_N/` or `msrun_log/`."""
        for find in (_rank_logs, _worker_logs):
            if paths := find(folder):
                return tuple(path for logs in paths for path in logs)
        return _info_logs(folder)


def _rank_logs(folder: str) -> tuple[RankLogs, ...]:
    """Return the logs in `rank_N/` folders."""
    ranks = [(int(rank), os.path.join(folder, name)) for name, rank in _numbered(folder, _RANK_FOLDER)]
    return tuple(logs for _, path in sorted(ranks) if (logs := _info_logs(path)))


def _worker_logs(folder: str) -> tuple[RankLogs, ...]:
    """Return the logs that `msrun` made."""
    workers = [(int(rank), os.path.join(folder, name)) for name, rank in _numbered(folder, _WORKER_LOG)]
    return tuple((path,) for _, path in sorted(workers))


def _info_logs(folder: str) -> RankLogs:
    rotated = [(int(age or 0), name) for name, age in _numbered(folder, _INFO_LOG)]
    return tuple(os.path.join(folder, name) for _, name in sorted(rotated, reverse=True))


def _numbered(folder: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    with suppress(OSError):  # it is only looked for: not being there is the usual case
        for entry in open_storage(folder).entries(""):
            if match := pattern.fullmatch(entry.name):
                yield entry.name, match[1]
