"""A storage that remembers the listings of folders. The times of a folder show whether a name in it changed."""

from __future__ import annotations

import os
from collections.abc import Collection
from time import time_ns

from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.storage.base import Entry, Kind, PassedOn, Storage

Moved = tuple[int, int, int]
"""Modification time, status-change time, and identity of a folder or file."""

SECOND = 10**9
TICK = SECOND // 50
"""Resolution of file times in nanoseconds. A kernel takes them from a clock with a hundred ticks per second."""


class ListedStorage(PassedOn):
    """A local storage that lists a folder again only if its times changed."""

    def __init__(self, storage: Storage) -> None:
        """Store the tree, of which nothing has been listed yet."""
        super().__init__(storage)
        self.unfinished: set[str] = set()
        """Paths of files that may be written under a temporary name first, judged by their names."""
        self._times: dict[str, Moved | None] = {}
        self._records: dict[str, Moved | None] = {}

    def forget(self) -> None:
        """Forget all listings, so that the next scan lists everything."""
        self.unfinished, self._times, self._records = set(), {}, {}

    def moved(self) -> bool:
        """Return whether an entry of a listed folder was added, removed or changed, or a root record was written.

        A file that is written in place does not change the times of its folder.
        """
        if not self._times:
            return True
        for records in (self._times, self._records):
            for path, times in records.items():
                if times is None or self._now(path) != times:
                    return True
        return False

    def _now(self, path: str) -> Moved | None:
        try:
            status = os.stat(f"{self.root}/{path}" if path else self.root)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ctime_ns, status.st_ino

    def entries(self, folder: str) -> list[Entry]:
        """List a folder, in no particular order."""
        moment = self._now(folder)  # taken before: a later change updates the times again
        self._times[folder] = None if moment is None or _is_fresh(moment) else moment
        entries = super().entries(folder)
        self.unfinished |= {
            f"{folder}/{entry.name}" if folder else entry.name for entry in entries if _is_unfinished(entry.name)
        }
        return entries

    def small_file(self, path: str, *, limit: int) -> bytes:
        """Read a complete record file."""
        if "/" not in path:
            self._records[path] = self._now(path)
        return super().small_file(path, limit=limit)


def _is_unfinished(name: str) -> bool:
    """Return whether a name is temporary, such as `a.ckpt.tmp`, `.a.ckpt.Xk3f` or `a.part`."""
    return name.startswith(".") or "tmp" in name or name.endswith(".part")


def _is_fresh(times: Moved) -> bool:
    """Return whether a folder changed so recently that another change may leave the same times."""
    coarse = not any(time % SECOND for time in times[:2])  # FAT and old disks count whole seconds
    return abs(time_ns() - max(times[:2])) < (2 * SECOND if coarse else TICK)


class ListedFiles:
    """The files with a suffix in a folder, to detect whether one was added, removed or rewritten."""

    unfinished: Collection[str] = ()
    """Always empty, because the files are replaced atomically."""

    def __init__(self, storage: Storage, suffix: str) -> None:
        self._storage = storage
        self._suffix = suffix
        self._known = self._now()

    def moved(self) -> bool:
        """Return whether the files have changed, or may have changed."""
        return self._known is None or self._now() != self._known

    def _now(self) -> dict[str, FileStamp] | None:
        try:
            names = [entry.name for entry in self._storage.entries("") if entry.kind is not Kind.FOLDER]
            return {name: self._storage.stamp(name) for name in names if name.endswith(self._suffix)}
        except OSError:
            return None
