"""A reserve file in ckpttool's folder, created while there is space, and deleted on a full disk to free space.

Before anything can be deleted, a journal must be on the disk, and the trash needs folders. A disk without a free block
has no space for either, so a tree that fills its disk could not be pruned.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from ckpttool.core.write.files import is_plain, remove

NAME = "reserve"

_LEAST_BYTES = 64 << 10
_BYTES_A_FILE = 8 << 10
"""Bytes per moved file of a checkpoint: a folder in the trash takes a block of 4 KiB, and a line in the journal takes
less."""
_MOST_BYTES = 64 << 20
_SHARE = 16
"""The reserve is created only if this many reserves would fit, so that it never stops a training run."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def keep_reserve(folder: str, *, files: int) -> None:
    """Create a reserve for moving a checkpoint of this many files, unless it exists; errors are ignored.

    Args:
        folder: ckpttool's folder in the tree. It must exist.
        files: Number of files of the largest checkpoint.
    """
    nbytes = _nbytes(files)
    path = f"{folder}/{NAME}"
    with suppress(OSError):
        disk = os.statvfs(folder)
        if disk.f_bavail * disk.f_frsize < _SHARE * nbytes:
            return
        with suppress(FileNotFoundError):
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode) or (is_plain(status) and status.st_size >= nbytes):
                return
            os.unlink(path)
        # Only a new file: an existing file may be a hard link to a shard. An incomplete reserve does no harm; a
        # temporary file would. The content is not zeros, because zeros may be compressed.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, os.urandom(nbytes))
            os.fsync(fd)
        finally:
            os.close(fd)


def missing_reserve(folder: str, *, files: int) -> int:
    """Return the number of bytes that `keep_reserve` would write, at most; the arguments are the same."""
    try:
        exists = os.lstat(f"{folder}/{NAME}").st_size >= _nbytes(files)
    except OSError:
        exists = False
    return 0 if exists else _nbytes(files)


def _nbytes(files: int) -> int:
    return min(_LEAST_BYTES + files * _BYTES_A_FILE, _MOST_BYTES)


def spend_reserve(folder: str) -> bool:
    """Delete the reserve, and return whether there was one.

    Raises:
        WriteFailedError: The reserve still exists.
        NotDurableError: The reserve was deleted, but the disk did not confirm the deletion.
    """
    exists = os.path.lexists(f"{folder}/{NAME}")
    remove(f"{folder}/{NAME}")
    return exists


def is_full_disk(error: BaseException | None) -> bool:
    """Return whether the disk or the user's quota was full, in any of the error's forms."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        error = error.__cause__
    return False
