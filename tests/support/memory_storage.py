"""Trees that lie on no disk, and disks that note what is asked of them."""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.storage.base import ByteSource, Entry, Kind, NotRegularError, OverLimitError, Storage
from tests.support.shard_writers import MemorySource


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Files by their paths, as an object store has them: no inode, and a word of its own for each state of a file."""

    files: dict[str, tuple[bytes, int | None]]
    """Content, and the time of the last change in nanoseconds; None: nobody keeps it."""
    folders: frozenset[str]

    @classmethod
    def copied(cls, folder: Path, *, timeless: bool = False) -> Bucket:
        """Take a folder and its content, under the folder's own name."""
        found = {str(path.relative_to(folder.parent)): path for path in (folder, *folder.rglob("*"))}
        return cls(
            files={
                name: (path.read_bytes(), None if timeless else path.stat().st_mtime_ns)
                for name, path in found.items()
                if path.is_file()
            },
            folders=frozenset({".", *(name for name, path in found.items() if path.is_dir())}),
        )


class MemoryStorage:
    """A part of a bucket, as `memory://PATH` spells it."""

    def __init__(self, root: str, bucket: Bucket) -> None:
        self.root = root
        self._start = root.partition("://")[2]
        self._bucket = bucket

    def _full(self, path: str) -> str:
        return os.path.normpath(f"{self._start}/{path}")

    def entries(self, folder: str) -> list[Entry]:
        if self.kind(folder) is not Kind.FOLDER:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
        full = Path(self._full(folder))
        files, folders = map(Path, self._bucket.files), map(Path, self._bucket.folders)
        return [
            *(Entry(path.name, Kind.FILE) for path in files if path.parent == full),
            *(Entry(path.name, Kind.FOLDER) for path in folders if path.parent == full and path.name),
        ]

    def kind(self, path: str) -> Kind:
        full = self._full(path)
        if full in self._bucket.folders:
            return Kind.FOLDER
        self._file(path)
        return Kind.FILE

    def _file(self, path: str) -> tuple[bytes, int | None]:
        full = self._full(path)
        if full in self._bucket.folders:
            raise NotRegularError(errno.EINVAL, "not a regular file", full)
        if full not in self._bucket.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), full)
        return self._bucket.files[full]

    def stamp(self, path: str) -> FileStamp:
        data, modified_ns = self._file(path)
        return FileStamp(size=ByteCount(len(data)), token=(f"etag {crc32(data)}",), modified_ns=modified_ns)

    def small_file(self, path: str, *, limit: int) -> bytes:
        data, _ = self._file(path)
        if len(data) > limit:
            raise OverLimitError(errno.EFBIG, f"more than {limit} bytes", path)
        return data

    @contextmanager
    def open(self, path: str) -> Iterator[ByteSource]:
        yield _Opened(self._file(path)[0], self.stamp(path))


class _Opened(MemorySource):
    def __init__(self, data: bytes, stamp: FileStamp) -> None:
        super().__init__(data)
        self._stamp = stamp

    @property
    def stamp(self) -> FileStamp:
        return self._stamp


@dataclass(slots=True)
class Recording:
    """A storage that notes what was asked for, and while it asks for it itself."""

    inner: Storage
    notes: list[tuple[str, str]]
    """What was done, and the full path that it was done to."""
    read: Counter[str]
    """Bytes that were read of each file, by its full path."""
    asking: threading.local
    """Its `begun` is True while a storage asks the disk in this thread."""

    @property
    def root(self) -> str:
        return self.inner.root

    @contextmanager
    def _noted(self, what: str, path: str) -> Iterator[None]:
        self.notes.append((what, full_path(self, path)))
        self.asking.begun = True
        try:
            yield
        finally:
            self.asking.begun = False

    def entries(self, folder: str) -> list[Entry]:
        with self._noted("entries", folder):
            return self.inner.entries(folder)

    def kind(self, path: str) -> Kind:
        with self._noted("kind", path):
            return self.inner.kind(path)

    def stamp(self, path: str) -> FileStamp:
        with self._noted("stamp", path):
            return self.inner.stamp(path)

    def small_file(self, path: str, *, limit: int) -> bytes:
        with self._noted("open", path):
            return self.inner.small_file(path, limit=limit)

    @contextmanager
    def open(self, path: str) -> Iterator[ByteSource]:
        with self._noted("open", path):
            opened = self.inner.open(path)
        with opened as source:
            counted = _Counted(source)
            yield counted
            self.read[full_path(self, path)] += counted.count


class _Counted:
    """An open file that counts the bytes which it gives."""

    def __init__(self, inner: ByteSource) -> None:
        self._inner = inner
        self.stamp = inner.stamp
        self.count = 0

    def read(self, offset: int, length: int) -> bytes:
        data = self._inner.read(offset, length)
        self.count += len(data)
        return data

    def read_into(self, offset: int, buffer: memoryview) -> int:
        length = self._inner.read_into(offset, buffer)
        self.count += length
        return length


def full_path(storage: Storage, path: str) -> str:
    return os.path.realpath(f"{storage.root}/{path}")
