"""Storage in a folder of the local file system, or of any file system that is mounted there."""

from __future__ import annotations

import errno
import os
from functools import partial
from stat import S_ISDIR, S_ISREG

from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.storage.base import ByteSource, Entry, Kind, LostLinkError, NotRegularError, OverLimitError


class LocalSource:
    """An open local file, which is read by `pread`.

    mmap is not used, because a file that shrinks would raise SIGBUS, and page faults keep the GIL.
    """

    __slots__ = ("_fd", "stamp")

    def __init__(self, fd: int, stamp: FileStamp) -> None:
        """Wrap an open descriptor, which is closed at the end of a `with` statement."""
        self._fd = fd
        self.stamp = stamp

    def __enter__(self) -> ByteSource:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def fileno(self) -> int:
        """Return the open descriptor, through which the kernel is given read hints."""
        return self._fd

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes from `offset`; fewer than `length` only at the end of the file."""
        chunk = os.pread(self._fd, length, offset)
        if len(chunk) == length or not chunk:
            return chunk
        parts = [chunk]
        have = len(chunk)
        while have < length and (chunk := os.pread(self._fd, length - have, offset + have)):
            parts.append(chunk)
            have += len(chunk)
        return b"".join(parts)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from `offset` and return the number of bytes read."""
        have = 0
        while have < len(buffer) and (got := os.preadv(self._fd, [buffer[have:]], offset + have)):
            have += got
        return have


class LocalStorage:
    """Storage in a folder of the local file system, or of any file system that is mounted there."""

    __slots__ = ("root",)

    def __init__(self, root: str) -> None:
        """Store the `root` folder, to which all paths are relative."""
        self.root = root

    def _full(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def entries(self, folder: str) -> list[Entry]:
        """List a folder, in no particular order."""
        full = self._full(folder)
        entry_of = _entry
        try:
            with os.scandir(full) as listing:
                return [
                    entry_of((entry.name, _FILE if entry.is_file() else _kind_of_other(entry))) for entry in listing
                ]
        except OSError:  # one loop of links must not hide the other names
            return self._entries_with_care(full)

    def _entries_with_care(self, full: str) -> list[Entry]:
        try:
            with os.scandir(full) as listing:
                return [Entry(entry.name, _kind(entry)) for entry in listing]
        except OSError as error:
            raise _specific_error(error, full) from None

    def kind(self, path: str) -> Kind:
        """Return the kind of a path, after following links."""
        full = self._full(path)
        try:
            mode = os.stat(full).st_mode
        except OSError as error:
            raise _specific_error(error, full) from None
        if S_ISREG(mode):
            return _FILE
        return _FOLDER if S_ISDIR(mode) else Kind.OTHER

    def stamp(self, path: str) -> FileStamp:
        """Return the size, mtime and inode of a regular file, after following links."""
        status = os.stat(f"{self.root}/{path}")
        if not S_ISREG(status.st_mode):  # same as `_stamp`, without one call per file
            error = NotRegularError(errno.EINVAL, "not a regular file", path)
            error.modified_ns = status.st_mtime_ns
            raise error
        return _stamped(status)

    def small_file(self, path: str, *, limit: int) -> bytes:
        """Read a complete record file of at most `limit` bytes."""
        try:
            fd = os.open(self._full(path), _READ_FLAGS)
        except OSError as error:
            raise _specific_error(error, self._full(path)) from None
        try:
            data = os.read(fd, _FIRST_READ)
            # Only unusual files are checked further, because a tree has thousands of these files.
            if (not data or len(data) == _FIRST_READ) and _stamp(os.fstat(fd), path).size > limit:
                raise OverLimitError(errno.EFBIG, f"more than {limit} bytes", path)
            more = os.read(fd, _FIRST_READ) if data else b""
            parts = [data, more]
            size = len(data) + len(more)
            while more and size <= limit:
                more = os.read(fd, min(limit + 1 - size, _LATER_READS))
                parts.append(more)
                size += len(more)
        except BlockingIOError:
            raise NotRegularError(errno.EINVAL, "not a regular file", path) from None
        finally:
            os.close(fd)
        if size > limit:  # the file is small, has grown, or is in /proc, where all sizes are 0
            raise OverLimitError(errno.EFBIG, f"more than {limit} bytes", path)
        return b"".join(parts)

    def open(self, path: str) -> LocalSource:
        """Open a regular file for reading ranges."""
        try:
            fd = os.open(self._full(path), _READ_FLAGS)
        except OSError as error:
            raise _specific_error(error, self._full(path)) from None
        try:
            return LocalSource(fd, _stamp(os.fstat(fd), path))
        except OSError:
            os.close(fd)
            raise


# O_NONBLOCK: opening a FIFO without a writer must not block.
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

# This is smaller than the limit, because the buffer is allocated before the size of the file is known.
_FIRST_READ, _LATER_READS = 16 << 10, 1 << 20


# Named tuples are avoided, because half of their time is in the Python constructor, and a tree has many entries.
_entry = partial(tuple.__new__, Entry)
_FILE, _FOLDER = Kind.FILE, Kind.FOLDER

_LOST = {errno.ENOENT: "a broken link", errno.ELOOP: "a circular link"}


def _specific_error(error: OSError, full: str) -> OSError:
    """Return a more specific error if a broken link caused it, and not a missing file."""
    if error.errno in _LOST and os.path.islink(full):
        return LostLinkError(error.errno, _LOST[error.errno], full)
    return error


def _kind(entry: os.DirEntry[str]) -> Kind:
    try:
        if entry.is_file():
            return _FILE
        return _FOLDER if entry.is_dir() else _kind_of_other(entry)
    except OSError:  # a loop of links
        return Kind.LOST


def _kind_of_other(entry: os.DirEntry[str]) -> Kind:
    """Return the kind of an entry that is not a file: a folder, a broken link, or another entry."""
    if entry.is_dir():
        return _FOLDER
    try:
        entry.stat()
    except FileNotFoundError:
        return Kind.LOST if entry.is_symlink() else Kind.OTHER  # or it was deleted after it was listed
    return Kind.OTHER


def _stamp(status: os.stat_result, path: str) -> FileStamp:
    if not S_ISREG(status.st_mode):
        raise NotRegularError(errno.EINVAL, "not a regular file", path)
    return _stamped(status)


def _stamped(status: os.stat_result) -> FileStamp:
    # Same as `FileStamp.on_disk` in half the time, because a tree has tens of thousands of files.
    stamp, mtime_ns = _new(FileStamp), status.st_mtime_ns
    _set_size(stamp, status.st_size)
    _set_token(stamp, (mtime_ns, status.st_ino))
    _set_modified_ns(stamp, mtime_ns)
    _set_changed_ns(stamp, status.st_ctime_ns)
    return stamp


_new = object.__new__
_set_size, _set_token, _set_modified_ns, _set_changed_ns = (
    getattr(FileStamp, name).__set__ for name in ("size", "token", "modified_ns", "changed_ns")
)
