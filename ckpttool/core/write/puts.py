"""Prepare files next to their destination, then put all of them in place.

Prepared files are complete and on the disk, so any later process that finds their list can finish the operation: each
file is put in place by one rename, and an existing file is backed up.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.retention import Put
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.errors import IncompleteError, UnsafeError, WriteFailedError
from ckpttool.core.write.files import open_temporary
from ckpttool.core.write.moves import NO_HARD_LINKS, entered, opened
from ckpttool.core.write.stream import Block, FileDigest, Streamed, assert_room, write_block


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A prepared file."""

    temporary: str
    """Path of the prepared file, relative to the tree's root."""
    stamp: FileStamp
    streamed: Streamed


def lay_ready(  # noqa: PLR0913  what a file is, by keyword
    root: str, path: str, blocks: Iterable[Block], *, size: int, mode: int, mtime_ns: int | None = None
) -> Ready:
    """Write a file next to its destination, durably.

    Args:
        root: The tree.
        path: Path of the destination, relative to the root. The folder must exist.
        blocks: The content, in order.
        size: Total bytes of all blocks, for the check of free space.
        mode: Mode of the file, regardless of the umask.
        mtime_ns: The mtime to set, in nanoseconds since 1970, because some trainers choose the newest file; None for
            the current time.

    Raises:
        UnsafeError, WriteFailedError: Nothing was changed.
    """
    folder, _, _ = path.rpartition("/")
    with _explained(f"cannot write {path!r}"), opened(root) as root_fd, entered(root_fd, folder) as folder_fd:
        assert_room(folder_fd, path, size)
        name, fd = open_temporary(folder_fd, 0o600)
        try:
            digest = FileDigest()
            try:
                for block in blocks:
                    write_block(fd, memoryview(block).cast("B"), digest)
                os.fchmod(fd, mode)
                if mtime_ns is not None:
                    os.utime(fd, ns=(mtime_ns, mtime_ns))
                os.fsync(fd)
                stamp = _stamp(os.fstat(fd))
            finally:
                os.close(fd)  # NFS reports a full disk only here; it must stop us like a failed write
            os.fsync(folder_fd)
        except BaseException:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder_fd)
            raise
    return Ready(temporary=f"{folder}/{name}" if folder else name, stamp=stamp, streamed=digest.streamed())


def put_all(root: str, puts: Sequence[Put]) -> None:
    """Put every file in place, and back up the replaced files. The function can be interrupted and repeated.

    Raises:
        IncompleteError: A destination or a prepared file has changed and needs manual attention.
        UnsafeError: A link prevents the operation.
        WriteFailedError: A write failed. Files already in place stay; a repetition completes the rest.
    """
    with _explained("stopped while moving files to their final places"), opened(root) as root_fd:
        for put in puts:
            _put(root_fd, put)


def is_untouched(root: str, puts: Sequence[Put]) -> bool:
    """Return whether no file has been put in place, so that the operation can be undone."""
    with opened(root) as root_fd:
        return all(_stamp_at(root_fd, put.temporary) == put.stamp for put in puts) and all(
            put.replaces is None or _stamp_at(root_fd, put.path) == put.replaces for put in puts
        )


def take_back(root: str, puts: Iterable[Put]) -> None:
    """Remove the prepared files and the second names of replaced files; errors are ignored."""
    with suppress(OSError, WriteFailedError, UnsafeError), opened(root) as root_fd:
        for put in puts:
            _forget(root_fd, put.temporary)
            if put.retained is not None and _stamp_at(root_fd, put.path) == put.replaces:
                _forget(root_fd, put.retained)


def _forget(root_fd: int, path: str) -> None:
    folder, _, name = path.rpartition("/")
    with suppress(OSError), entered(root_fd, folder) as folder_fd:
        os.unlink(name, dir_fd=folder_fd)


def _put(root_fd: int, put: Put) -> None:
    folder, _, name = put.path.rpartition("/")
    stamp = _stamp_at(root_fd, put.path)
    if stamp == put.stamp:
        return  # it was already done
    if _stamp_at(root_fd, put.temporary) != put.stamp:
        raise _changed(put, f"{put.temporary!r}, the file to be moved there, has changed")
    is_kept = put.retained is not None and stamp is None and _stamp_at(root_fd, put.retained) == put.replaces
    if put.replaces is not None and stamp != put.replaces and not is_kept:
        raise _changed(put, "it was changed after it was read, so it was not replaced")
    with entered(root_fd, folder) as folder_fd:
        if put.retained is not None and not is_kept:
            _keep(root_fd, folder_fd, name, put.retained)
        os.replace(put.temporary.rpartition("/")[2], name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        os.fsync(folder_fd)


def _keep(root_fd: int, folder_fd: int, name: str, retained: str) -> None:
    """Give a file a second name, which remains when the first is replaced; without hard links, rename the file."""
    folder, _, last = retained.rpartition("/")
    for depth in range(1, folder.count("/") + 2):
        parent, _, base = "/".join(folder.split("/")[:depth]).rpartition("/")
        with entered(root_fd, parent) as parent_fd, suppress(FileExistsError):
            os.mkdir(base, dir_fd=parent_fd)
            os.fsync(parent_fd)
    with entered(root_fd, folder) as kept_fd:
        try:
            os.link(name, last, src_dir_fd=folder_fd, dst_dir_fd=kept_fd, follow_symlinks=False)
        except FileExistsError:  # it was interrupted here before
            pass
        except OSError as error:
            if error.errno not in NO_HARD_LINKS:
                raise
            os.rename(name, last, src_dir_fd=folder_fd, dst_dir_fd=kept_fd)
        os.fsync(kept_fd)


def _stamp_at(root_fd: int, path: str) -> FileStamp | None:
    folder, _, name = path.rpartition("/")
    try:
        with entered(root_fd, folder) as folder_fd:
            status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise UnsafeError(f"{path!r} is a link or not a regular file, so it is not replaced")
    return _stamp(status)


def _stamp(status: os.stat_result) -> FileStamp:
    return FileStamp.on_disk(size=status.st_size, mtime_ns=status.st_mtime_ns, inode=status.st_ino)


def _changed(put: Put, why: str) -> IncompleteError:
    return IncompleteError(
        f"cannot complete an interrupted heal at {put.path!r}: {why}; check both files, then remove .ckpttool/heal.json"
    )


@contextmanager
def _explained(operation: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WriteFailedError(f"{operation}: {error.strerror or error}") from error
