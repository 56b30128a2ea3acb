"""View of a tree with some files hidden."""

from __future__ import annotations

import errno
import os
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager

from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.storage.base import ByteSource, Entry, Kind, OverLimitError, PassedOn, Storage


class HiddenStorage(PassedOn):
    """A storage that hides some paths, and reads nothing from the disk twice."""

    def __init__(self, storage: Storage) -> None:
        """Wrap the actual tree; nothing is hidden yet."""
        super().__init__(storage)
        self.hidden: AbstractSet[str] = frozenset()
        """Hidden files and folders (with their contents), as paths relative to the root."""
        self._entries: dict[str, list[Entry]] = {}
        self._stamps: dict[str, FileStamp] = {}
        self._files: dict[str, bytes] = {}

    def _assert_shown(self, path: str) -> None:
        """Raise an error if the path or a folder above it is hidden.

        Raises:
            FileNotFoundError: The path is hidden.
        """
        above = path
        while above:
            if above in self.hidden:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            above = above.rpartition("/")[0]

    def entries(self, folder: str) -> list[Entry]:
        """List the visible entries of a folder."""
        self._assert_shown(folder)
        if folder not in self._entries:
            self._entries[folder] = super().entries(folder)
        start = f"{folder}/" if folder else ""
        return [entry for entry in self._entries[folder] if f"{start}{entry.name}" not in self.hidden]

    def kind(self, path: str) -> Kind:
        """Return the kind of a path, unless it is hidden."""
        self._assert_shown(path)
        return super().kind(path)

    def stamp(self, path: str) -> FileStamp:
        """Return the stamp that the file had at the first request."""
        self._assert_shown(path)
        if path not in self._stamps:
            self._stamps[path] = super().stamp(path)
        return self._stamps[path]

    def small_file(self, path: str, *, limit: int) -> bytes:
        """Read a complete record file; later calls return the same bytes."""
        self._assert_shown(path)
        if path not in self._files:
            self._files[path] = super().small_file(path, limit=limit)
        if len(self._files[path]) > limit:
            raise OverLimitError(errno.EFBIG, f"more than {limit} bytes", path)
        return self._files[path]

    def open(self, path: str) -> AbstractContextManager[ByteSource]:
        """Open a file for reading ranges."""
        self._assert_shown(path)
        return super().open(path)
