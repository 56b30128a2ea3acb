"""Steps shared by all changes of a tree: only one change at a time, no active writer, no difference from the plan."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ckpttool.core.decide.changes import signs_of_writing as signs
from ckpttool.core.decide.naming import named
from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey, Inventory
from ckpttool.core.domain.finding import FOUND_EARLIER, Code, Finding, Severity, unknown, unsafe
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.pointer import Pointer, PointerFix
from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.domain.settings import RunConfig
from ckpttool.core.errors import IncompleteError, NotDurableError, UnknownLayoutError, UnsafeError, UsageError
from ckpttool.core.records import HEAL_JOURNAL, JOURNAL, OWN_FOLDER
from ckpttool.core.records.journal import TRASH, TrashFolder, read_heal_journal, read_journal, trash_folders
from ckpttool.core.storage import assert_changeable, is_local, open_storage
from ckpttool.core.verbs.scanning import Tree, interrupted, scan, surroundings
from ckpttool.core.verbs.sealing import no_other_sealer
from ckpttool.core.write.blockers import files_not_to_replace, files_to_move, links_to
from ckpttool.core.write.files import ensure_folder, is_own_temporary, locked, remove, sweep
from ckpttool.core.write.files import replace as write
from ckpttool.core.write.moves import restore
from ckpttool.core.write.puts import put_all
from ckpttool.trainers.base import Members, Refusal
from ckpttool.trainers.common import jobs_of

NEW_RECORD_MODE = 0o640
"""The mode of a new record if there is no existing record to copy the mode from."""


def changeable_tree(question: TreeQuestion, *, planned: bool = False) -> Tree:
    """Scan a tree that may be changed, with sizes.

    Args:
        question: The question about the tree.
        planned: Whether the change is only planned, in a tree of any kind.

    Raises:
        UnknownLayoutError: The tree's layout does not allow checkpoints to be moved.
        UnsafeError: The tree is not a folder on this machine.
    """
    tree = scan(replace(question, sizes=True))
    if not planned:
        assert_changeable(tree.storage.root)
    for answer in map(tree.layout.members, tree.inventory.checkpoints):
        if isinstance(answer, Refusal) and answer.is_of_tree:
            raise UnknownLayoutError(f"{question.path or tree.inventory.root} {answer.why}")
    return tree


def complete_tree(question: TreeQuestion, *, planned: bool = False) -> Tree:
    """Scan a complete tree that may be changed, with sizes; the arguments are those of `changeable_tree`.

    Raises:
        UnknownLayoutError: The tree's layout does not allow checkpoints to be moved.
        UsageError: The path selects only one checkpoint.
        UnsafeError: The tree is not a folder on this machine.
    """
    tree = changeable_tree(question, planned=planned)
    if tree.focus is not None:
        part = next((checkpoint.name for checkpoint in named(tree.inventory.checkpoints, tree.focus)), tree.focus)
        path = question.path or tree.inventory.root
        raise UsageError(f"{path} is a part of {part}; give the folder that contains all checkpoints")
    return tree


def not_moved(tree: Tree, config: RunConfig | None = None) -> dict[CheckpointKey, str]:
    """Return the saves that must not be moved: the layout forbids it, the trainer will do it, or a link points to them.

    Other saves may still be moved: by the layout's contract, the files of a save belong to no other save.

    Args:
        tree: The tree.
        config: The config of the run that saves there; None if unknown.
    """
    refused = {} if tree.trainer is None else dict(tree.trainer.owned(tree.inventory, config))
    holders: dict[str, CheckpointKey] = {}
    for checkpoint in tree.inventory.checkpoints:
        answer = tree.layout.members(checkpoint)
        if isinstance(answer, Refusal):
            refused[checkpoint.key] = answer.why
        else:
            holders |= dict.fromkeys(answer.paths, checkpoint.key)
    if is_local(tree.storage.root):
        for link, path in links_to(tree.storage.root, holders):
            refused.setdefault(holders[path], f"is the target of the link {link}")
    return refused


@contextmanager
def change_of(root: str, *, timeout: float = 0.0) -> Iterator[None]:
    """Take the lock for changes to this tree, and first undo an interrupted change.

    Args:
        root: The tree.
        timeout: Seconds to wait for another ckpttool process that is changing the tree.

    Raises:
        LockedError: Another ckpttool process is changing this tree.
        IncompleteError: The interrupted change cannot be undone automatically.
    """
    own_folder = f"{root}/{OWN_FOLDER}"
    ensure_folder(own_folder)
    with locked(f"{own_folder}/prune", timeout=timeout):
        _undo_interrupted(root)
        yield


@contextmanager
def moving(root: str) -> Iterator[None]:
    """Also take the lock for sealing, because manifests move with their checkpoints."""
    with no_other_sealer(root):
        sweep(f"{root}/{OWN_FOLDER}")
        yield


def _undo_interrupted(root: str) -> None:
    """Undo a prune, and complete a heal, whose files were all prepared before it began."""
    batches = read_journal(open_storage(root))
    puts = read_heal_journal(open_storage(root))
    if puts:
        with no_other_sealer(root):  # nothing is cleaned up, because some files are prepared
            put_all(root, puts)
            remove(f"{root}/{HEAL_JOURNAL}")
    if not batches:
        return
    with moving(root):
        # Other processes may also write in the root, where a pointer may be; a leftover temporary file is reported.
        for folder in sorted({move.path.rpartition("/")[0] for batch in batches for move in batch.moves}):
            sweep(f"{root}/{folder}")
        restore(root, batches)
        remove(f"{root}/{JOURNAL}")


def pending(tree: Tree) -> list[Finding]:
    """Report that a prune or a heal was interrupted, or is running.

    Raises:
        IncompleteError: The journal is invalid.
    """
    if not (read_journal(tree.storage) or read_heal_journal(tree.storage)):
        return []
    return [replace(finding, severity=Severity.UNKNOWN) for finding in interrupted(tree.storage)]


def in_trash(tree: Tree) -> list[TrashFolder]:
    """List the checkpoints that earlier prunes moved to the trash, oldest first; links are not included.

    Raises:
        UnsafeError: The trash itself is a link.
        IncompleteError: The trash cannot be listed.
    """
    root = tree.inventory.root
    for place in (OWN_FOLDER, TRASH):
        if os.path.islink(f"{root}/{place}"):
            raise UnsafeError(f"{place} is a link, and ckpttool does not follow links to the trash")
    return [folder for folder in trash_folders(tree.storage) if not os.path.islink(f"{root}/{TRASH}/{folder.name}")]


def signs_of_writing(tree: Tree, *, grace: float) -> list[Finding]:
    """Report signs of a save in progress."""
    return list(signs(_unfinished(tree), _written(tree), now=time.time(), grace=grace))


def seen_in_part(tree: Tree, question: TreeQuestion, checkpoint: Checkpoint) -> list[Finding]:
    """Report that a checkpoint intact here may lack files on other machines, so that no change may rely on it."""
    jobs = jobs_of(os.environ)
    if not jobs:
        return []  # there is no evidence of other machines
    from ckpttool.core.decide.one_node import intact_here_alone

    finding = intact_here_alone(checkpoint, surroundings(tree.inventory, tree.layout, question, jobs))
    return [] if finding is None else [finding]


def _unfinished(tree: Tree) -> Iterator[str]:
    """Find temporary files among all entries of the scan, recognised or not."""
    findings = (finding for checkpoint in tree.inventory.checkpoints for finding in checkpoint.findings)
    for finding in (*tree.inventory.findings, *findings):
        name = (finding.path or "").rpartition("/")[2]
        unfinished = finding.code is Code.IN_PROGRESS or (
            finding.code is Code.STRAY_FILE and tree.layout.is_unfinished(name)
        )
        # A temporary file of ckpttool does not indicate a training run: the next holder of the lock removes it.
        if (
            unfinished
            and finding.path is not None
            and finding.path not in {JOURNAL, HEAL_JOURNAL}
            and not is_own_temporary(name)
        ):
            yield finding.path


def _written(tree: Tree) -> Iterator[tuple[str, float]]:
    """Yield the files that saves write, with their mtime in Unix seconds."""
    for checkpoint in tree.inventory.checkpoints:
        for shard in checkpoint.shards:
            if shard.modified_ns is not None:
                yield shard.path, shard.modified_ns / 1e9
        members = tree.layout.members(checkpoint)
        for path in () if isinstance(members, Refusal) else members.records:
            try:
                written = tree.storage.stamp(path).modified_ns
            except OSError:  # missing; the check of the checkpoint reports it
                continue
            if written is not None:
                yield path, written / 1e9


def members_of(tree: Tree, checkpoint: Checkpoint) -> Members:
    """Return the files that are moved with a checkpoint.

    Raises:
        UnknownLayoutError: The layout does not define how to move a save.
    """
    members = tree.layout.members(checkpoint)
    if isinstance(members, Refusal):
        raise UnknownLayoutError(f"{tree.inventory.root} {members.why}")
    return members


def blockers(tree: Tree, paths: Iterable[str]) -> list[Finding]:
    """Report paths that must not be changed: reached through a link, or on another disk.

    Raises:
        IncompleteError: A path no longer exists.
    """
    blockers_found = (file.blocker for file in files_to_move(tree.storage.root, paths) if file.blocker is not None)
    return _unsafe(tree, blockers_found, "change the link's target, or the files on the other disk, by hand")


def obstacles(tree: Tree, paths: Iterable[str]) -> list[Finding]:
    """Report files that cannot be written: links, files that are not regular, and files in linked folders.

    Raises:
        IncompleteError: A folder no longer exists.
    """
    existing = [path for path in paths if os.path.lexists(f"{tree.inventory.root}/{path.rpartition('/')[0]}")]
    blockers_found = files_not_to_replace(tree.storage.root, existing)
    return _unsafe(tree, blockers_found, "replace it by a file or a folder, or change the link's target by hand")


def unwritable(tree: Tree, fixes: Iterable[PointerFix]) -> list[Finding]:
    """Report the trainer's records that cannot be written: not a regular file, or reached through a link.

    Raises:
        IncompleteError: A folder no longer exists.
    """
    blockers_found = files_not_to_replace(tree.storage.root, [fix.path for fix in fixes])
    return _unsafe(tree, blockers_found, "replace it by a file, or change the link's target by hand")


def _unsafe(tree: Tree, blockers: Iterator[str], remedy: str) -> list[Finding]:
    """Return one finding per distinct blocker. The disk is checked while `blockers` is read."""
    try:
        messages = dict.fromkeys(blockers)
    except OSError as error:
        raise _changed(error.filename or tree.inventory.root) from None
    code = Code.NOT_A_REGULAR_FILE
    return [unsafe(code, message, remedy=remedy) for message in messages]


def unreadable(pointers: Iterable[Pointer]) -> list[Finding]:
    """Report the trainer's unreadable records, which may name a checkpoint to delete."""
    return [
        unknown(
            Code.META_UNREADABLE,
            f"{pointer.path} {pointer.trouble}; it may name a checkpoint that would be deleted",
            path=pointer.path,
            remedy="make it readable (mount the disk of a link's target), or remove it and rewrite it with "
            "ckpttool repair pointer --apply",
        )
        for pointer in pointers
        if pointer.unknown
    ]


def assert_unchanged(tree: Tree, question: TreeQuestion, *, grace: float) -> None:
    """Scan again, and compare every name, size, time and inode with the plan's.

    Raises:
        IncompleteError: Something differs, or a save has begun.
    """
    current = changeable_tree(question)
    if _listed(current) != _listed(tree):
        before = {shard.path: shard.stamp for checkpoint in tree.inventory.checkpoints for shard in checkpoint.shards}
        after = {shard.path: shard.stamp for checkpoint in current.inventory.checkpoints for shard in checkpoint.shards}
        differs = sorted(path for path, _ in before.items() ^ after.items())
        raise _changed(differs[0] if differs else tree.inventory.root)
    assert_quiet(current, grace=grace)


def _listed(tree: Tree) -> Inventory:
    """Return the tree's listing without saved results about its content, which planning itself may have added."""
    checkpoints = (
        replace(
            checkpoint,
            findings=tuple(finding for finding in checkpoint.findings if finding.code not in FOUND_EARLIER),
        )
        for checkpoint in tree.inventory.checkpoints
    )
    return replace(tree.inventory, checkpoints=tuple(checkpoints))


def assert_quiet(tree: Tree, *, grace: float) -> None:
    """Check that no save is in progress.

    Raises:
        IncompleteError: A save is in progress.
    """
    for sign in signs_of_writing(tree, grace=grace):
        raise IncompleteError(f"{sign.path}: {sign.message}; nothing was changed")


def _changed(change: str) -> IncompleteError:
    return IncompleteError(
        f"{change} changed since the plan was made; nothing was changed: run again when nothing is writing here"
    )


def write_pointers(root: str, fixes: Iterable[PointerFix]) -> None:
    """Write the trainer's records; after an interruption, each record is either the old or the new one.

    Raises:
        WriteFailedError: A record could not be written; the records before it are new.
        NotDurableError: All records are written, but the disk did not confirm one of them.
    """
    unconfirmed = []
    for fix in fixes:
        try:
            write(
                f"{root}/{fix.path}", fix.text.content, overwrite=True, backup=False, mode=mode_of(root, fix.text.like)
            )
        except NotDurableError as error:
            unconfirmed.append(error)
    if unconfirmed:
        raise unconfirmed[0]


def mode_of(root: str, like: str | None) -> int:
    """Return the mode of an existing record, for a new one."""
    try:
        return NEW_RECORD_MODE if like is None else os.stat(f"{root}/{like}").st_mode & 0o666
    except OSError:
        return NEW_RECORD_MODE
