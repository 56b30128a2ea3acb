"""Atomic, durable replacement of a file under a lock."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ckpttool.core.errors import LockedError, NotDurableError, UnsafeError, UsageError, WriteFailedError

_COPY_CHUNK = 1 << 20
"""Bytes per read when copying a backup."""
_TEMPORARY_TRIES = 16
"""Maximum number of tries to find a free name. 64 random bits never collide by chance, so after this many collisions
the file system's answers must be false.
"""
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL})
"""Errors of file systems without hard links (FAT, many FUSE mounts), and of kernels that forbid a link."""
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})
"""Errors of Lustre without `-o flock` and of NFS without a lock daemon."""
_OWN_TEMPORARY = re.compile(r"\.ckpttool-[0-9a-f]{16}\.tmp")


def replace(path: str, data: bytes, *, overwrite: bool, backup: bool, mode: int = 0o666) -> None:
    """Write `data` to `path` so that a reader always sees the complete old or new file, even after a power failure.

    The new file is complete on the disk under a temporary name before it is renamed, and the name is never missing. A
    failed fsync is not retried: the kernel may have dropped the pages, so a second fsync that succeeds proves nothing.

    Args:
        path: The file. Its folder must exist; a symbolic link is refused, because its target may be anywhere.
        data: The complete content.
        overwrite: Whether an existing file may be replaced. If not, even a file that appears in the meantime stays.
        backup: Whether to save the replaced file as `<path>.bak`.
        mode: Mode of a new file, before the umask; an existing file keeps its mode.

    Raises:
        UsageError: The file exists and may not be overwritten.
        UnsafeError, WriteFailedError: Nothing was changed. UnsafeError means that a link, a FIFO or a device is in the
            way.
        NotDurableError: The new content is in place, but the folder could not be synced to the disk.
    """
    folder, name = os.path.split(path)
    try:
        folder_fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _failed(path, error) from error
    try:
        try:
            old = _old_file(folder_fd, path, name)
            if old is not None and not overwrite:
                raise _in_the_way(path)
            temporary = _write_temporary(folder_fd, data, mode=None if old is None else _mode(old), new=mode)
            try:
                if backup and old is not None:
                    _keep(folder_fd, name, f"{name}.bak")
                _give_name(folder_fd, temporary, path, name, overwrite=overwrite)
            finally:
                # After a rename, it no longer exists; after anything else, including an interrupt, it is garbage. A
                # failed cleanup must not hide its cause.
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder_fd)
        except OSError as error:
            raise _failed(path, error) from error
        try:
            os.fsync(folder_fd)
        except OSError as error:
            raise NotDurableError(
                f"{path!r} was written, but its folder could not be flushed to disk ({error.strerror}): a power "
                f"failure may still undo it; check the disk, then write again"
            ) from error
    finally:
        close(folder_fd)


def append(path: str, data: bytes) -> None:
    """Append `data` to a file in one write, so that others may also append. A missing file is created.

    Raises:
        WriteFailedError: The file could not be written, or is not a regular file.
    """
    try:
        handle = open_to_append(path)
        try:
            if os.write(handle, data) != len(data):
                raise WriteFailedError(f"{path!r} could not be written completely: the disk is full")
        finally:
            os.close(handle)
    except OSError as error:
        raise _failed(path, error) from error


def open_to_append(path: str) -> int:
    """Open a file for appending, and create it if it is missing.

    Raises:
        OSError: The file cannot be opened, for example because it is a link.
        WriteFailedError: The file is not a regular file, or has a second name.
    """
    # Without O_NONBLOCK this would block on a pipe without a reader.
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        close(handle)
        raise WriteFailedError(f"{path!r} is not a regular file")
    if not is_plain(status):
        close(handle)
        raise WriteFailedError(f"{path!r} has a second name (a hard link), so it is not overwritten")
    return handle


def is_plain(status: os.stat_result) -> bool:
    """Return whether a file is a regular file with one name; only such a file may be written."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink <= 1


def ensure_folder(path: str, *, mode: int = 0o777) -> None:
    """Create a folder and its missing parents, durably.

    Args:
        path: The folder. A symbolic link in its place is refused, because its target may be anywhere.
        mode: The mode of the new folders, before the umask.

    Raises:
        WriteFailedError: The folder cannot be created, or something else has its name.
    """
    try:
        _make_folder(path, mode)
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise WriteFailedError(f"cannot make the folder {path!r}: a file or a symbolic link has its name")
        # Even if it already exists: its creator may have been interrupted before this.
        parent_fd = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(parent_fd)
        finally:
            close(parent_fd)
    except OSError as error:
        raise WriteFailedError(f"cannot make the folder {path!r}: {error.strerror or error}") from error


def remove(path: str) -> None:
    """Delete a file durably. A missing file is not an error.

    Raises:
        WriteFailedError: The file still exists.
        NotDurableError: The file was deleted, but the disk did not confirm the deletion.
    """
    folder, name = os.path.split(path)
    try:
        folder_fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise WriteFailedError(f"cannot remove {path!r}: {error.strerror or error}") from error
    try:
        try:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder_fd)
        except OSError as error:
            raise WriteFailedError(f"cannot remove {path!r}: {error.strerror or error}") from error
        try:
            os.fsync(folder_fd)
        except OSError as error:
            raise NotDurableError(
                f"{path!r} was removed, but the disk did not confirm it ({error.strerror}): a power failure may "
                f"restore it"
            ) from error
    finally:
        close(folder_fd)


def sweep(folder: str) -> None:
    """Remove the temporary files that a killed ckpttool left in a folder.

    The caller must hold the folder's lock, so that no other process writes to it. Nothing depends on these files, so a
    file that cannot be removed stays.
    """
    with suppress(OSError):
        for name in os.listdir(folder):
            if is_own_temporary(name):
                with suppress(OSError):
                    os.unlink(os.path.join(folder, name))


def is_own_temporary(name: str) -> bool:
    """Return whether a file is a temporary file of a running or killed ckpttool."""
    return _OWN_TEMPORARY.fullmatch(name) is not None


@contextmanager
def locked(path: str, *, timeout: float) -> Iterator[None]:
    """Hold the lock for `path`, from before the read until after the replacement.

    Without the lock, concurrent updates are lost. The lock is the file `<path>.lock`, which is never deleted, because
    otherwise two waiters could lock two different files. If the file system does not support locks, a soft lock
    `<path>.softlock` is used explicitly, because filelock would switch silently, under the same name.

    Args:
        path: The path to lock; it need not exist.
        timeout: Seconds to wait for another holder; 0 tries once.

    Raises:
        LockedError: Another process kept the lock until the timeout.
        UnsafeError: A link, a pipe or a file with a second name has the lock file's name.
        WriteFailedError: The lock file cannot be created.
    """
    lock = _acquire(path, timeout)
    try:
        yield
    finally:
        # Released at the latest when the process ends; the written data stay.
        with suppress(OSError):
            lock.release()


def close(folder_fd: int) -> None:
    """Close a folder. It was only read, so errors do not matter."""
    with suppress(OSError):
        os.close(folder_fd)


def _make_folder(path: str, mode: int) -> None:
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        return
    except FileNotFoundError:
        parent = os.path.dirname(path)
        if parent in {"", path}:
            raise
        ensure_folder(parent, mode=mode)
        with suppress(FileExistsError):
            os.mkdir(path, mode)


def _failed(path: str, error: OSError) -> WriteFailedError:
    return WriteFailedError(f"cannot write {path!r}: {error.strerror or error}; nothing was changed")


def _give_name(folder_fd: int, temporary: str, path: str, name: str, *, overwrite: bool) -> None:
    """Rename the temporary file, which completes the write."""
    if overwrite:
        os.replace(temporary, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
    else:
        _claim(folder_fd, temporary, path, name)


def _mode(status: os.stat_result) -> int:
    return stat.S_IMODE(status.st_mode) & 0o777


def assert_free(path: str) -> None:
    """Refuse a path that `replace` would refuse without `overwrite`.

    Raises:
        UsageError: The path exists.
    """
    if os.path.lexists(path):
        raise _in_the_way(path)


def _in_the_way(path: str) -> UsageError:
    return UsageError(f"{path!r} already exists; choose another name, or pass --force to overwrite it")


def _old_file(folder_fd: int, path: str, name: str) -> os.stat_result | None:
    if name in {"", ".", ".."}:
        raise WriteFailedError(f"cannot write {path!r}: it is a folder, not a file")
    try:
        old = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(old.st_mode):
        raise WriteFailedError(f"cannot write {path!r}: it is a folder, not a file; nothing was changed")
    if not stat.S_ISREG(old.st_mode):
        kind = "a symbolic link; give its target" if stat.S_ISLNK(old.st_mode) else "not a regular file"
        raise UnsafeError(f"cannot write {path!r}: it is {kind}; nothing was changed")
    return old


def _write_temporary(folder_fd: int, data: bytes, *, mode: int | None, new: int = 0o666) -> str:
    """Write and fsync a new file; its mode is `mode`, or `new` minus the umask, which the kernel applies."""
    name, fd = open_temporary(folder_fd, new if mode is None else 0o600)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if mode is not None:
                os.fchmod(fd, mode)
            os.fsync(fd)
        finally:
            os.close(fd)  # NFS reports a full disk only here; it must stop us like a failed write
    except BaseException:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder_fd)
        raise
    return name


def open_temporary(folder_fd: int, mode: int) -> tuple[str, int]:
    """Create a file with a name recognizable as ours, and return the name and the open file.

    Raises:
        OSError: The file cannot be created.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    for _ in range(_TEMPORARY_TRIES):
        # Not derived from the target's name, which may already have the maximum length.
        name = f".ckpttool-{secrets.token_hex(8)}.tmp"
        with suppress(FileExistsError):
            return name, os.open(name, flags, mode, dir_fd=folder_fd)
    raise FileExistsError(errno.EEXIST, "every temporary name is taken")


def _keep(folder_fd: int, name: str, retained: str) -> None:
    """Make `retained` a second name of the file `name`. Neither name is missing at any moment."""
    temporary = f".ckpttool-{secrets.token_hex(8)}.tmp"
    try:
        os.link(name, temporary, src_dir_fd=folder_fd, dst_dir_fd=folder_fd, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        temporary = _copy(folder_fd, name)
    try:
        os.replace(temporary, retained, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
    finally:
        # rename(2) successfully does nothing if both names are already links to one file.
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder_fd)


def _copy(folder_fd: int, name: str) -> str:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder_fd)
    try:
        mode = _mode(os.fstat(fd))
        content = b"".join(iter(lambda: os.read(fd, _COPY_CHUNK), b""))
    finally:
        os.close(fd)
    return _write_temporary(folder_fd, content, mode=mode)


def _claim(folder_fd: int, temporary: str, path: str, name: str) -> None:
    """Give the temporary file its name unless the name is taken; unlike rename(2), link(2) never replaces a file."""
    try:
        os.link(temporary, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd, follow_symlinks=False)
    except FileExistsError as error:
        raise _in_the_way(path) from error
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _claim_without_links(folder_fd, temporary, path, name)


def _claim_without_links(folder_fd: int, temporary: str, path: str, name: str) -> None:
    """Reserve the name with an empty file, which O_EXCL allows to only one process; then rename over that file."""
    try:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder_fd))
    except FileExistsError as error:
        raise _in_the_way(path) from error
    try:
        os.replace(temporary, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder_fd)
        raise


def _acquire(path: str, timeout: float) -> Any:  # noqa: ANN401  # two lock classes of a library imported lazily
    # Takes 48 ms, which a command that writes nothing must not pay.
    import filelock

    lock_path = f"{path}.lock"
    with suppress(FileNotFoundError, NotADirectoryError):
        if not is_plain(os.lstat(lock_path)):  # a lock file is emptied when it is opened
            raise UnsafeError(
                f"{lock_path!r} is not a regular file with one name, so it is not used as a lock; check what it "
                f"is, and remove it"
            )
    try:
        lock: Any = _hard_lock(lock_path, timeout)
        try:
            lock.acquire()
        except (NotImplementedError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
                raise
            # No lifetime, because one that expires can admit two processes. filelock clears locks of dead processes on
            # this host.
            lock_path = f"{path}.softlock"
            lock = filelock.SoftFileLock(lock_path, timeout=timeout)
            lock.acquire()
    except filelock.Timeout as error:
        raise LockedError(
            f"{path!r} is being changed by another ckpttool (waited {timeout:g} s): try again when it has "
            f"finished; if none runs on any host, remove {lock_path!r}"
        ) from error
    except OSError as error:
        raise WriteFailedError(f"cannot lock {path!r}: {error.strerror or error}; nothing was changed") from error
    return lock


def _hard_lock(lock_path: str, timeout: float) -> Any:  # noqa: ANN401  # as above
    """Create a lock that fails on file systems without locks, which was the default before filelock 4."""
    import filelock

    make: Any = filelock.FileLock
    try:
        return make(lock_path, timeout=timeout, fallback_to_soft=False)
    except TypeError:
        return make(lock_path, timeout=timeout)
