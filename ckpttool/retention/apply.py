"""Delete checkpoints by moving all files to the trash under a journal, and deleting the trash later."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.pointer import PointerFix
from ckpttool.core.domain.retention import Batch, Move
from ckpttool.core.errors import CkptToolError, IncompleteError, NotDurableError, WriteFailedError
from ckpttool.core.records import JOURNAL, OWN_FOLDER
from ckpttool.core.records.birth import birth_paths
from ckpttool.core.records.journal import TIME_FORMAT, TRASH, journal_bytes
from ckpttool.core.records.manifest import added_manifests
from ckpttool.core.verbs.changes import in_trash, members_of, write_pointers
from ckpttool.core.verbs.scanning import Tree
from ckpttool.core.write.blockers import files_to_move
from ckpttool.core.write.files import ensure_folder, remove
from ckpttool.core.write.files import replace as write
from ckpttool.core.write.moves import delete, move_to_trash, restore
from ckpttool.core.write.reserve import is_full_disk, keep_reserve, missing_reserve, spend_reserve

DAY_SECONDS = 86400.0


def paths_of(tree: Tree, checkpoint: Checkpoint) -> list[str]:
    """Return the files that are moved with a checkpoint, in order: its members, and separate seals.

    Raises:
        UnknownLayoutError: The layout does not define how to move a save.
        IncompleteError: Something that may belong to the checkpoint cannot be checked.
    """
    paths = list(members_of(tree, checkpoint).paths)
    place = tree.seal_place(checkpoint)
    if place is None:
        return paths
    paths += added_manifests(tree.storage, place)
    if not place.is_apart:
        return paths
    births: list[str] = []
    try:
        births = birth_paths(tree.storage, place)
        tree.storage.stamp(place.path)
    except (FileNotFoundError, NotADirectoryError):
        return [*paths, *births]
    except OSError as error:
        raise IncompleteError(f"{place.path}: whether it exists is unknown ({error.strerror or error})") from None
    return [*paths, place.path, *births]


def batches_of(tree: Tree, saves: Iterable[tuple[str, Sequence[str]]]) -> tuple[Batch, ...]:
    """Plan every rename.

    Args:
        tree: The tree on this machine.
        saves: The name of each checkpoint to delete, oldest first, and its files, in order.

    Raises:
        IncompleteError: A file no longer exists.
    """
    taken = {folder.name for folder in in_trash(tree)}
    start = time.strftime(TIME_FORMAT, time.gmtime())
    batches = []
    for checkpoint, paths in saves:
        name = f"{start}-{checkpoint}"
        while name in taken:  # the same save in two formats, or a prune a second ago
            name += "+"
        taken.add(name)
        try:
            file_moves = list(files_to_move(tree.storage.root, paths))
        except OSError as error:
            raise IncompleteError(f"{checkpoint} changed while the plan was made ({error.strerror})") from None
        moves = tuple(Move(path=file.path, stamp=file.stamp) for file in file_moves if file.stamp is not None)
        batches.append(Batch(trash=f"{TRASH}/{name}", moves=moves))
    return tuple(batches)


def expired(tree: Tree, days: float) -> list[str]:
    """Return the trash folders that are old enough; for zero days, all folders regardless of the clock."""
    current, patience = time.time(), days * DAY_SECONDS
    return [folder.name for folder in in_trash(tree) if not patience or current - folder.since >= patience]


def let_go(tree: Tree, batches: Sequence[Batch], fixes: Sequence[PointerFix], *, days: float) -> None:
    """Move all checkpoints to the trash, or none; on a full disk, one at a time. The caller must have the locks.

    Args:
        tree: The tree on this machine.
        batches: Oldest checkpoint first.
        fixes: Records that must name another checkpoint before any file moves.
        days: As for `tidy`.

    Raises:
        IncompleteError: A file changed since the plan was made. Nothing was changed.
        UnsafeError: A link or another disk is in the way. Nothing was changed.
        WriteFailedError: The disk reported an error. Moved files are back, or will be with the next change.
        NotDurableError: The deletion is done, but the disk did not confirm it.
    """
    root = tree.inventory.root
    try:
        _move(root, batches, fixes)
    except WriteFailedError as error:
        if not is_full_disk(error) or not _made_room(tree, days):
            raise
        _move_one_by_one(root, batches, fixes, deletes=days == 0)


def tidy(tree: Tree, *, days: float) -> None:
    """Delete trash entries older than this many days, and leave a reserve for a full disk."""
    root = tree.inventory.root
    for name in expired(tree, days):
        delete(root, f"{TRASH}/{name}")
    keep_reserve(f"{root}/{OWN_FOLDER}", files=_most_files(tree))


def own_bytes(tree: Tree) -> int:
    """Return the number of bytes that a prune itself needs for the reserve and its folders, at most."""
    reserve = missing_reserve(f"{tree.inventory.root}/{OWN_FOLDER}", files=_most_files(tree))
    return reserve + _FOLDERS_BYTES


_FOLDERS_BYTES = 32 << 10


def _most_files(tree: Tree) -> int:
    return max((len(checkpoint.shards) for checkpoint in tree.inventory.checkpoints), default=0)


def _move(root: str, batches: Sequence[Batch], fixes: Sequence[PointerFix]) -> None:
    """Move everything, or nothing.

    The journal is on the disk before the first file moves, and stays until the last file has moved: a later run that
    finds it moves the named files back. Records are written first, so no record ever names a missing checkpoint.
    """
    ensure_folder(f"{root}/{TRASH}")
    try:
        try:
            write(f"{root}/{JOURNAL}", journal_bytes(batches), overwrite=True, backup=False)
            write_pointers(root, fixes)
        except NotDurableError as error:
            raise WriteFailedError(
                f"nothing was moved, because the journal or a record could not be flushed to disk: {error}"
            ) from error
        move_to_trash(root, batches)
    except BaseException:
        # If this also fails, the next prune does it.
        with suppress(CkptToolError):
            restore(root, batches)
            remove(f"{root}/{JOURNAL}")
        raise
    remove(f"{root}/{JOURNAL}")


def _made_room(tree: Tree, days: float) -> bool:
    """Delete expired trash entries and the reserve, and return whether there were any."""
    root = tree.inventory.root
    names = expired(tree, days)
    for name in names:
        delete(root, f"{TRASH}/{name}")
    return spend_reserve(f"{root}/{OWN_FOLDER}") or bool(names)


def _move_one_by_one(root: str, batches: Sequence[Batch], fixes: Sequence[PointerFix], *, deletes: bool) -> None:
    """Move and delete the checkpoints in turn, because each frees the space that the next needs."""
    for number, batch in enumerate(batches):
        _move(root, [batch], () if number else fixes)
        if deletes:
            delete(root, batch.trash)
