"""Move checkpoints to the trash, or back, atomically. Renames happen in folders opened without following links.

A batch is renamed in order, and the first rename is on the disk before the second is made. So whenever the power fails,
an incomplete batch lacks its first file (rank 0's file), without which no reader treats the checkpoint as intact. (If
the highest rank's file went first, the rest would look like a checkpoint of fewer ranks.)
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ckpttool.core.domain.retention import Batch, Move
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.errors import IncompleteError, UnsafeError, UsageError, WriteFailedError
from ckpttool.core.write.files import close

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def move_to_trash(root: str, batches: Sequence[Batch]) -> None:
    """Move every batch to its trash folder, which must not exist yet.

    Args:
        root: The tree.
        batches: The batches, in order.

    Raises:
        IncompleteError: A file has changed since the plan; that file and later files were not moved.
        UnsafeError: A link or another disk prevents the move.
        WriteFailedError: A rename failed. Files moved so far are in the trash; `restore` moves them back from there.
    """
    with opened(root) as root_fd:
        for batch in batches:
            try:
                _trash_batch(root_fd, batch)
            except OSError as error:
                raise _stopped(batch.trash, error) from error


def restore(root: str, batches: Sequence[Batch]) -> None:
    """Undo `move_to_trash` from any state: everything in the trash folders moves back to its place.

    Files that are already in place, or in neither location, are unchanged. The function can be interrupted and
    repeated.

    Raises:
        IncompleteError: A new file is in the way, or a folder was deleted: manual attention is needed.
        UnsafeError: A link prevents the move.
        WriteFailedError: A rename failed.
    """
    with opened(root) as root_fd:
        for batch in reversed(batches):
            try:
                _restore_batch(root_fd, batch)
            except OSError as error:
                raise _stopped(batch.trash, error) from error


def assert_room(root: str, batch: Batch) -> None:
    """Check that `restore` can move a batch back: every folder exists on both sides, and no path is already taken.

    Raises:
        UsageError: A path is taken, or a folder was deleted.
        UnsafeError: A link prevents the move.
        WriteFailedError: A folder cannot be opened.
    """
    with opened(root) as root_fd:
        for place in sorted({f"{batch.trash}/{folder}".rstrip("/") for folder in {"", *_folders(batch.moves)}}):
            try:
                with entered(root_fd, place):
                    pass
            except OSError as error:
                raise WriteFailedError(f"{place!r} cannot be opened: {error.strerror}; nothing was changed") from error
        for move in batch.moves:
            folder, _, name = move.path.rpartition("/")
            try:
                with entered(root_fd, folder) as fd:
                    if _is_there(fd, name):
                        raise UsageError(f"{move.path!r} already exists in its place; nothing was changed")
            except FileNotFoundError:
                raise UsageError(
                    f"{move.path!r} cannot be moved back, because its folder no longer exists; nothing was changed"
                ) from None
            except OSError as error:
                raise WriteFailedError(f"{folder!r} cannot be opened: {error.strerror}; nothing was changed") from error


def is_untouched(root: str, batch: Batch) -> bool:
    """Return whether an interrupted `restore` has moved nothing, so that all files are still only in the trash."""
    trash = f"{root}/{batch.trash}"
    try:
        return not any(_is_same(f"{trash}/{move.path}", f"{root}/{move.path}") for move in batch.moves)
    except OSError:
        return False


def _is_same(trashed: str, place: str) -> bool:
    status = os.lstat(trashed)
    try:
        return os.path.samestat(status, os.lstat(place))
    except FileNotFoundError:
        return False


def delete(root: str, trash: str) -> None:
    """Delete a trash folder with its contents. Links are removed, never followed.

    Raises:
        UnsafeError: The trash folder is a link.
        WriteFailedError: Something could not be deleted; other files may already be deleted.
    """
    parent, _, name = trash.rpartition("/")
    try:
        with opened(root) as root_fd, entered(root_fd, parent) as parent_fd:
            _delete_folder(parent_fd, name)
    except OSError as error:
        raise WriteFailedError(
            f"{trash!r} could not be deleted ({error.strerror or error}); its checkpoint is out of the tree, "
            "and the next ckpttool prune --apply or trash empty --apply tries again"
        ) from error


def _stopped(trash: str, error: OSError) -> WriteFailedError:
    return WriteFailedError(
        f"stopped while moving to {trash!r} ({error.strerror or error}): moved files are moved back, now or by "
        f"the next ckpttool prune --apply"
    )


def _trash_batch(root_fd: int, batch: Batch) -> None:
    with _made(root_fd, batch) as trash_fd:
        first, rest = batch.moves[:1], batch.moves[1:]
        for moves in (first, rest):
            for move in moves:
                _trash_one(root_fd, trash_fd, move)
            _settle(trash_fd, moves)
            _settle(root_fd, moves)


def _trash_one(root_fd: int, trash_fd: int, move: Move) -> None:
    folder, _, name = move.path.rpartition("/")
    with entered(root_fd, folder) as source, entered(trash_fd, folder) as target:
        _assert_same(source, name, move)
        if os.fstat(source).st_dev != os.fstat(target).st_dev:
            raise UnsafeError(
                f"{move.path!r} is on a different disk from the trash, and files are only moved, never copied"
            )
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)


def _assert_same(folder_fd: int, name: str, move: Move) -> None:
    try:
        status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        raise _changed(move) from None
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise UnsafeError(f"{move.path!r} is a link or not a regular file, so it is not moved")
    if move.stamp != FileStamp.on_disk(size=status.st_size, mtime_ns=status.st_mtime_ns, inode=status.st_ino):
        raise _changed(move)


def _changed(move: Move) -> IncompleteError:
    return IncompleteError(f"{move.path!r} changed since the plan was made; run again when nothing is writing here")


def _restore_batch(root_fd: int, batch: Batch) -> None:
    """Restore the first file last, after all others are safe.

    Until all names are on the disk, each file also keeps its name in the trash, because a power failure may preserve
    the removal of one name but lose the other name.
    """
    if not _is_there(root_fd, batch.trash):  # interrupted before it was created, or after it was removed
        return
    with entered(root_fd, batch.trash) as trash_fd:
        first, rest = batch.moves[:1], batch.moves[1:]
        for moves in (rest[::-1], first):
            back = [move for move in moves if _restore_one(root_fd, trash_fd, move)]
            _settle(root_fd, back)
        for move in batch.moves:
            _forget(trash_fd, move)
        for folder in sorted(_folders(batch.moves), reverse=True):
            _remove_empty(trash_fd, folder)
    _remove_empty(root_fd, batch.trash)


def _restore_one(root_fd: int, trash_fd: int, move: Move) -> bool:
    if not _is_there(trash_fd, move.path):
        return False
    folder, _, name = move.path.rpartition("/")
    if folder and not _is_there(root_fd, folder):
        raise _taken(move, "its folder no longer exists")
    with entered(trash_fd, folder) as source, entered(root_fd, folder) as target:
        if not _put_back(source, target, name):
            raise _taken(move, "a new file has its name")
    return True


NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_IN_THE_WAY = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR})
"""Errors of renaming a folder if the name is taken by a non-empty folder or a file."""


def _put_back(source: int, target: int, name: str) -> bool:
    """Restore the name of a file or folder, and return whether this succeeded; a new save is never replaced.

    A rename would replace a file. A hard link cannot; if the file has both names, an earlier run was interrupted here.
    """
    status = os.stat(name, dir_fd=source, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        try:
            os.link(name, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
        except FileExistsError:
            return os.path.samestat(status, os.stat(name, dir_fd=target, follow_symlinks=False))
        except OSError as error:
            # FAT and some network disks have no hard links, and Linux may forbid hard links to another user's files.
            # Then only the check below protects the file: one that appears between the check and the rename is
            # replaced.
            if error.errno not in NO_HARD_LINKS:
                raise
        else:
            return True
    if _is_there(target, name):
        return False
    try:
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
    except OSError as error:
        if error.errno in _IN_THE_WAY:
            return False
        raise
    return True


def _forget(trash_fd: int, move: Move) -> None:
    """Remove the trash name of a restored file; a folder was renamed, so it has no trash name."""
    folder, _, name = move.path.rpartition("/")
    with suppress(FileNotFoundError), entered(trash_fd, folder) as source:
        os.unlink(name, dir_fd=source)


def _taken(move: Move, why: str) -> IncompleteError:
    return IncompleteError(
        f"cannot put {move.path!r} back: {why}; move it from .ckpttool/trash by hand, then remove .ckpttool/prune.json"
    )


def _is_there(folder_fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _remove_empty(folder_fd: int, path: str) -> None:
    """Remove a folder if it is empty. A leftover empty folder is harmless; a folder with files must stay."""
    with suppress(OSError):
        os.rmdir(path, dir_fd=folder_fd)


def _delete_folder(parent_fd: int, name: str) -> None:
    with entered(parent_fd, name) as fd:
        for child in os.listdir(fd):
            if stat.S_ISDIR(os.stat(child, dir_fd=fd, follow_symlinks=False).st_mode):
                _delete_folder(fd, child)
            else:
                os.unlink(child, dir_fd=fd)
    os.rmdir(name, dir_fd=parent_fd)


@contextmanager
def _made(root_fd: int, batch: Batch) -> Iterator[int]:
    """Create a batch's trash folder with its subfolders, durably, and open it."""
    parent, _, name = batch.trash.rpartition("/")
    with entered(root_fd, parent) as parent_fd:
        os.mkdir(name, dir_fd=parent_fd)
        os.fsync(parent_fd)
        with entered(parent_fd, name) as trash_fd:
            for folder in sorted(_folders(batch.moves)):
                os.mkdir(folder, dir_fd=trash_fd)
            os.fsync(trash_fd)
            yield trash_fd


def _folders(moves: Iterable[Move]) -> set[str]:
    """Return the folders of the moved files, and the folders above these."""
    parts = {tuple(move.path.split("/")[:-1]) for move in moves}
    return {"/".join(folder[:depth]) for folder in parts for depth in range(1, len(folder) + 1)}


def _settle(base_fd: int, moves: Sequence[Move]) -> None:
    """Flush renames to the disk, by syncing every folder that they changed."""
    if not moves:
        return
    for folder in sorted({move.path.rpartition("/")[0] for move in moves}):
        with entered(base_fd, folder) as fd:
            os.fsync(fd)


@contextmanager
def opened(root: str) -> Iterator[int]:
    """Open the root of a tree.

    Raises:
        WriteFailedError: The root cannot be opened.
    """
    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise WriteFailedError(f"cannot open {root!r}: {error.strerror or error}; nothing was changed") from error
    try:
        yield fd
    finally:
        close(fd)


@contextmanager
def entered(base_fd: int, path: str) -> Iterator[int]:
    """Open a folder below an open one, without following links. The empty path is the folder itself.

    Raises:
        UnsafeError: A part of the path is a link.
    """
    fd = os.dup(base_fd)
    try:
        for part in path.split("/") if path else ():
            try:
                deeper = os.open(part, _FOLDER, dir_fd=fd)
            except OSError as error:
                if error.errno in {errno.ELOOP, errno.ENOTDIR}:
                    raise UnsafeError(
                        f"{path!r} is a link or not a folder, and files are not moved through a link"
                    ) from None
                raise
            close(fd)
            fd = deeper
        yield fd
    finally:
        close(fd)
