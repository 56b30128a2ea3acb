"""A folder of large files that gets its name when all of them are on the disk, and were read back from it."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from ckpttool.core.domain.units import ByteCount
from ckpttool.core.errors import LockedError, NotDurableError, UnsafeError, UsageError, WriteFailedError
from ckpttool.core.write.files import close
from ckpttool.core.write.stream import Block, FileDigest, assert_room, write_block

PART = ".part"
"""Suffix of the folder's name until it is complete."""
_MARK = ".ckpttool-writing"
"""File in a folder that ckpttool is filling. Without it, an existing folder with the suffix is someone else's."""
_READ_BYTES = 8 << 20
_NO_LOCKS = frozenset({errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
"""Errors of file systems that cannot lock a folder, such as NFS."""


class NewFolder:
    """A folder that is being filled."""

    def __init__(self, path: str, folder_fd: int) -> None:
        """Store the final path, and the open folder under its temporary name."""
        self._path, self._fd = path, folder_fd

    def write(self, name: str, blocks: Iterable[Block], *, size: int) -> ByteCount:
        """Write a file, flush it to the disk, and compare the file on the disk with the blocks.

        Args:
            name: Name of the file, without a folder.
            blocks: The content, in order; a block is used before the next one is requested.
            size: Total bytes of all blocks.

        Raises:
            OSError: The disk did not accept or return the content.
            WriteFailedError: The disk returned a different content.
            ValueError: The blocks had a different total size.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        written = FileDigest()
        fd = os.open(name, flags, 0o666, dir_fd=self._fd)
        try:
            for block in blocks:
                write_block(fd, memoryview(block).cast("B"), written)
            os.fsync(fd)
            if hasattr(os, "posix_fadvise"):  # the content must come from the disk, not from memory
                with suppress(OSError):
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)  # NFS reports a full disk only here
        if written.streamed().size != size:
            raise ValueError(f"{name}: {size} bytes were announced, but {written.streamed().size} were written")
        if self._digest(name).streamed() != written.streamed():
            raise WriteFailedError(
                f"{self._path!r}: the disk returned a different content for {name} than was written; nothing was "
                f"kept; check the disk and its cables, or write to another disk"
            )
        return ByteCount(size)

    def _digest(self, name: str) -> FileDigest:
        digest = FileDigest()
        buffer = memoryview(bytearray(_READ_BYTES))
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
        try:
            while length := os.readv(fd, [buffer]):
                digest.feed(buffer[:length])
        finally:
            os.close(fd)
        return digest


def assert_new(path: str) -> None:
    """Check that a folder can be created at a path, before anything is read.

    Raises:
        UsageError: The path exists and is not an empty folder, or its parent does not exist.
        WriteFailedError: The path cannot be checked.
    """
    try:
        status = os.lstat(path)
        taken = not stat.S_ISDIR(status.st_mode) or bool(os.listdir(path))
    except FileNotFoundError:
        _assert_parent(path)
        return
    except OSError as error:
        raise WriteFailedError(f"{path!r} cannot be checked: {error.strerror or error}") from error
    if taken:
        raise UsageError(f"{path!r} already exists, and nothing is overwritten: give a new folder")


def _assert_parent(path: str) -> None:
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(parent):
        raise UsageError(f"{path!r} cannot be created, because {parent!r} is not a folder: create that folder first")


@contextmanager
def new_folder(path: str, *, size: int) -> Iterator[NewFolder]:
    """Yield a folder to fill, which gets its name at the end of the block; after an error, nothing of it remains.

    Until then it is called `<path>.part`. If the process is killed, that folder remains, and the next call for the same
    path replaces it.

    Args:
        path: The folder. It must not exist, or must be empty; its parent must exist.
        size: Total bytes of its files; free space is checked first.

    Raises:
        UsageError: The folder exists and is not empty, its parent does not exist, or `<path>.part` is someone else's.
        LockedError: Another process is filling the same folder.
        WriteFailedError: The folder could not be written; nothing was changed.
        NotDurableError: The folder is in place, but the disk did not confirm it.
    """
    path = os.path.abspath(path)
    part = f"{path}{PART}"
    try:
        assert_new(path)
        folder_fd = _claim(path, part)
    except OSError as error:
        raise _failed(path, error) from error
    is_complete = False
    try:
        try:
            assert_room(folder_fd, path, size)
            yield NewFolder(path, folder_fd)
            os.fsync(folder_fd)
            os.rename(part, path)
            is_complete = True
        except OSError as error:
            raise _failed(path, error) from error
        _finish(path, folder_fd)
    finally:
        try:
            if not is_complete:
                _discard(part, folder_fd)
        finally:
            close(folder_fd)


def _claim(path: str, part: str) -> int:
    """Create and lock the temporary folder, without what a killed process left in it."""
    try:
        os.mkdir(part)
        existed = False
    except FileExistsError:
        existed = True
    folder_fd = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _lock(folder_fd, path, part, existed=existed)
        names = os.listdir(folder_fd)
        if not names:
            os.close(os.open(_MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=folder_fd))
        _assert_own(part, names)
        _empty(folder_fd, names)
    except BaseException:
        close(folder_fd)
        raise
    return folder_fd


def _assert_own(part: str, names: list[str]) -> None:
    if names and _MARK not in names:
        raise UsageError(
            f"{part!r} exists and is not from an interrupted ckpttool: move it away, or give another folder"
        )


def _lock(folder_fd: int, path: str, part: str, *, existed: bool) -> None:
    busy = LockedError(f"another ckpttool is writing {path!r}: wait for it, or remove {part!r} if none is running")
    try:
        fcntl.flock(folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise busy from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        if existed:  # it may be in use, and nothing shows whether it is
            raise busy from None
    if not _is_same(folder_fd, part):
        raise busy


def _is_same(folder_fd: int, part: str) -> bool:
    ours, there = os.fstat(folder_fd), os.lstat(part)
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def _empty(folder_fd: int, names: Iterable[str]) -> None:
    """Delete what a killed process wrote: regular files only."""
    for name in names:
        if name != _MARK:
            if not stat.S_ISREG(os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode):
                raise UnsafeError(f"{name!r} in the unfinished folder is not a file: remove the folder")
            os.unlink(name, dir_fd=folder_fd)


def _discard(part: str, folder_fd: int) -> None:
    """Delete the unfinished folder after an error, which must not be hidden by another.

    If an interrupt arrived just after the rename, the folder is complete, and stays.
    """
    with suppress(OSError, UnsafeError):
        if not _is_same(folder_fd, part):
            return
        _empty(folder_fd, os.listdir(folder_fd))
        os.unlink(_MARK, dir_fd=folder_fd)
        os.rmdir(part)


def _finish(path: str, folder_fd: int) -> None:
    """Remove the mark, and confirm the new name."""
    with suppress(OSError):  # a hidden empty file does no harm
        os.unlink(_MARK, dir_fd=folder_fd)
    try:
        parent_fd = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(parent_fd)
        finally:
            close(parent_fd)
    except OSError as error:
        raise NotDurableError(
            f"{path!r} was written, but its parent folder could not be flushed to disk ({error.strerror}): a power "
            f"failure may still undo it; check the disk, then export again"
        ) from error


def _failed(path: str, error: OSError) -> WriteFailedError:
    return WriteFailedError(f"cannot write {path!r}: {error.strerror or error}; nothing was changed")
