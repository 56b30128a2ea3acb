"""List, restore or permanently delete the checkpoints that prunes moved to the trash."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, Finding, Severity, is_of_absent, note
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.question import CheckQuestion, TreeQuestion
from ckpttool.core.domain.retention import Batch, InTrash, Move, Trash, TrashAction
from ckpttool.core.domain.units import ByteCount, Rank
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import (
    CkptToolError,
    IncompleteError,
    NotDurableError,
    UnknownLayoutError,
    UnsafeError,
    UsageError,
    WriteFailedError,
)
from ckpttool.core.records import BIRTH_FOLDER, JOURNAL
from ckpttool.core.records.birth import birth_paths
from ckpttool.core.records.journal import (
    TRASH,
    TrashFolder,
    journal_bytes,
    read_journal,
    trash_folder,
    trashed_name,
)
from ckpttool.core.records.manifest import added_manifests
from ckpttool.core.storage import assert_changeable, open_storage
from ckpttool.core.storage.base import Kind, Storage, is_there, unreadable
from ckpttool.core.verbs.changes import assert_quiet, change_of, complete_tree, in_trash, members_of, moving, pending
from ckpttool.core.verbs.scanning import Tree, Where, scan_emptied, tree_question
from ckpttool.core.verbs.verifying import session_for
from ckpttool.core.write import moves
from ckpttool.core.write.blockers import files_to_move
from ckpttool.core.write.files import remove
from ckpttool.core.write.files import replace as write
from ckpttool.trainers.base import ScanOptions
from ckpttool.trainers.listing import list_root


def trash(question: Where = None, *, older_than: float | None = None) -> Trash:
    """List the trash of a tree, oldest first.

    Args:
        question: The tree.
        older_than: Mark entries of at least this age, in seconds.

    Raises:
        UnknownLayoutError: There is no tree at the path.
        IncompleteError: The trash, or the journal of an interrupted change, cannot be read.
    """
    question = tree_question(question)
    tree = _tree_of(question)
    batches = _content(tree, ())
    since = None if older_than is None else time.time() - older_than
    content = tuple(replace(item.listed, taken=since is not None and item.listed.since <= since) for item in batches)
    return Trash(
        root=tree.inventory.root,
        layout=tree.inventory.layout,
        action=TrashAction.LIST,
        apply=False,
        older_than=older_than,
        content=content,
        findings=(*pending(tree), *_links(tree), *(item.unread for item in batches if item.unread is not None)),
        resolved_from=tree.resolved_from,
    )


def restore(question: Where, name: str, *more: str, grace: float = 300.0) -> Trash:
    """Restore all named checkpoints from the trash to their previous paths; nothing is overwritten.

    Then check the headers of the restored shards, as `verify` does: they may have been damaged in the trash.

    The next change of the tree completes an interrupted restore. The trainer's records stay as they are: they name a
    newer checkpoint.

    Args:
        question: The tree.
        name: Name of the checkpoint, or of its folder in the trash if several checkpoints have the name.
        more: Names of further checkpoints.
        grace: Age in seconds below which a shard in the tree is a sign of a save in progress.

    Raises:
        UsageError: A checkpoint does not exist, or its place is taken.
        LockedError: Another ckpttool process is changing this tree.
        IncompleteError: A save is in progress, or an entry is not known to be one checkpoint.
        UnsafeError: A link or another disk is in the way.
        WriteFailedError: The disk reported an error. Moved files stay; the next change of the tree finishes it.
        NotDurableError: The restore is done, but the disk did not confirm it.
    """
    question = tree_question(question)
    tree = _tree_of(question)
    root = tree.inventory.root
    begun_folders = [batch.trash.rpartition("/")[2] for batch in read_journal(tree.storage)]
    before = _content(tree, begun_folders, (name, *more))
    chosen = {
        _named(root, before, requested).listed.folder for requested in (name, *more)
    }  # even before a lock is written
    with change_of(root):  # it then completes an interrupted change, even of this restore
        chosen_content = [_looked_into(tree, folder) for folder in in_trash(tree) if folder.name in chosen]
        batches = [_batch(tree, item) for item in chosen_content if item.listed.nbytes != 0]
        if batches:
            assert_quiet(_tree_of(question), grace=grace)
            with moving(root):
                _bring_back(root, batches)
        after = complete_tree(question)
    content = tuple(replace(requested.listed, taken=requested.listed.folder in chosen) for requested in before)
    return Trash(
        root=root,
        layout=after.inventory.layout,
        action=TrashAction.RESTORE,
        apply=True,
        older_than=None,
        content=content,
        findings=_wrong_with(after, {(save.prefix, save.name) for save in content if save.taken}),
        resolved_from=tree.resolved_from,
    )


def _wrong_with(after: Tree, restored: set[tuple[str | None, str]]) -> tuple[Finding, ...]:
    """Check the headers of the restored checkpoints, by prefix and name."""
    back = [
        checkpoint
        for checkpoint in after.inventory.checkpoints
        if restored & {(checkpoint.prefix, checkpoint.name), (None, checkpoint.name)}
    ]
    with closing(session_for(after, CheckQuestion(level=Level.STRUCTURE))) as session:
        findings = [finding for checkpoint in back for finding in session.verdict(checkpoint).findings]
    present_ranks = {shard.rank for checkpoint in after.inventory.checkpoints for shard in checkpoint.shards}
    return tuple(_unless_elsewhere(finding, present_ranks) for finding in findings)


def _unless_elsewhere(finding: Finding, present_ranks: Collection[Rank | None]) -> Finding:
    """Return a finding; make it a note if only ranks without files in this tree are missing."""
    if not is_of_absent(finding) or not finding.ranks or any(rank in present_ranks for rank in finding.ranks):
        return finding
    remedy = "if other machines have these ranks, restore theirs as well"
    return replace(finding, severity=Severity.NOTE, remedy=remedy)


def empty_trash(question: Where = None, *, older_than: float = 0.0, apply: bool = False) -> Trash:
    """List the trash of a tree, and with `apply` delete it.

    Args:
        question: The tree.
        older_than: Only entries of at least this age, in seconds; 0 for all entries.
        apply: Delete these entries.

    Raises:
        LockedError: Another ckpttool process is changing this tree.
        WriteFailedError: An entry could not be deleted; the entries before it are deleted.
    """
    answer = replace(trash(question, older_than=older_than), action=TrashAction.EMPTY, apply=apply)
    if not apply:
        return answer
    with change_of(answer.root):
        answer = replace(trash(question, older_than=older_than), action=TrashAction.EMPTY, apply=True)
        for save in answer.taken:
            moves.delete(answer.root, f"{TRASH}/{save.folder}")
    return answer


def _tree_of(question: TreeQuestion) -> Tree:
    """Scan a tree or, if all of its checkpoints are in the trash, the rest of it. A restore is then needed most."""
    try:
        return complete_tree(question)
    except UnknownLayoutError:
        tree = scan_emptied(replace(question, sizes=True))
        if tree is None:
            raise
        assert_changeable(tree.storage.root)
        return tree


class _TrashFolder(NamedTuple):
    """A folder of the trash, read like a separate tree, because it has the same structure."""

    listed: InTrash
    tree: Tree
    checkpoint: Checkpoint | None
    """The folder's checkpoint; None if the folder does not have exactly one, or cannot be read completely."""
    unread: Finding | None = None
    """A subfolder that cannot be listed, so that its contents are unknown."""


def _content(tree: Tree, begun_folders: Sequence[str], asked_for: Collection[str] = ()) -> list[_TrashFolder]:
    """Read every non-empty folder of the trash, and name those that a restore had already emptied.

    Args:
        tree: The original tree of the moved checkpoints.
        begun_folders: Folders that an interrupted restore was emptying.
        asked_for: Requested names. If folder names are enough to identify these, no other folder is read, because
            there may be thousands, with one file per rank.
    """
    folders = in_trash(tree)
    called = {folder.name: {folder.name, _unknown(folder).name} & {*asked_for} for folder in folders}
    all_told = {*asked_for} <= set().union(*called.values())
    content = []
    for folder in folders:
        if not asked_for or not all_told or called[folder.name]:
            item = _looked_into(tree, folder)
        else:
            item = _TrashFolder(_unknown(folder), tree, None)
        if item.listed.nbytes != 0:
            content.append(item)
    listed_folders = {item.listed.folder for item in content}
    emptied = (trash_folder(name) for name in begun_folders if name not in listed_folders)
    return [*content, *(_TrashFolder(_unknown(folder), tree, None) for folder in emptied if folder is not None)]


def _links(tree: Tree) -> Iterator[Finding]:
    """Find the links in the trash, which are never listed, restored or deleted."""
    for name in sorted(entry.name for entry in tree.storage.entries(TRASH)) if is_there(tree.storage, TRASH) else ():
        path = f"{TRASH}/{name}"
        if os.path.islink(f"{tree.inventory.root}/{path}"):
            yield note(
                Code.NOT_A_REGULAR_FILE,
                "a link is not a checkpoint that a prune moved here: it is not changed",
                path=path,
                remedy="remove the link by hand, or replace it with its target",
            )


def _unknown(folder: TrashFolder) -> InTrash:
    name = trashed_name(folder.name)
    return InTrash(folder=folder.name, name=name, prefix=None, step=None, nbytes=None, since=folder.since, taken=False)


def _looked_into(tree: Tree, folder: TrashFolder) -> _TrashFolder:
    place = f"{TRASH}/{folder.name}"
    storage = open_storage(f"{tree.inventory.root}/{place}")
    listed, path = _unknown(folder), place
    try:
        entries = storage.entries("")
        folders = [entry.name for entry in entries if entry.kind is Kind.FOLDER]
        entry_count = len(entries) - len(folders)
        for name in folders:
            path = f"{place}/{name}"
            entry_count += sum(f"{name}/{entry.name}" != BIRTH_FOLDER for entry in storage.entries(name))
        is_empty = not (entry_count and _has_files(storage))
        inventory = tree.layout.scan(storage, list_root(storage), ScanOptions(sizes=True))
    except OSError as error:
        return _TrashFolder(listed, tree, None, unreadable(path, error))
    checkpoint = inventory.checkpoints[0] if len(inventory.checkpoints) == 1 else None
    if checkpoint is not None:
        listed = replace(
            listed,
            name=checkpoint.name,
            prefix=checkpoint.prefix,
            step=checkpoint.step,
            # Another machine may have the shards: then these files are significant.
            nbytes=checkpoint.nbytes or (ByteCount(0) if is_empty else None),
        )
    elif is_empty:  # only empty folders: these are the remains of an interrupted restore
        listed = replace(listed, nbytes=ByteCount(0))
    return _TrashFolder(listed, replace(tree, inventory=inventory, storage=storage), checkpoint)


def _has_files(storage: Storage, folder: str = "") -> bool:
    """Return whether there are entries other than folders.

    Raises:
        OSError: A folder cannot be listed.
    """
    entries = storage.entries(folder)
    inner = (f"{folder}/{entry.name}".lstrip("/") for entry in entries if entry.kind is Kind.FOLDER)
    return any(entry.kind is not Kind.FOLDER for entry in entries) or any(_has_files(storage, entry) for entry in inner)


def _named(root: str, content: Sequence[_TrashFolder], name: str) -> _TrashFolder:
    """Return the entry with this name.

    Raises:
        UsageError: No entry has this name, or several have it.
    """
    matches = [item for item in content if name in {item.listed.name, item.listed.folder}]
    if len(matches) == 1:
        return matches[0]
    if matches:
        prefixes = len({match.listed.prefix for match in matches}) > 1
        folders = ", ".join(
            f"{match.listed.folder} (prefix {match.listed.prefix})" if prefixes else match.listed.folder
            for match in matches
        )
        raise UsageError(f"{len(matches)} checkpoints named {name} are in the trash: give the folder of one: {folders}")
    names = ", ".join(dict.fromkeys(item.listed.name for item in content[-8:])) or "nothing"
    raise UsageError(f"there is no checkpoint {name!r} in the trash of {root}; there is: {names}")


def _batch(tree: Tree, item: _TrashFolder) -> Batch:
    """Plan every rename: the checkpoint's files in its layout's order, and its seal.

    Raises:
        IncompleteError: The checkpoint's files are unknown.
        UnsafeError: A link or another disk is in the way.
    """
    place = f"{TRASH}/{item.listed.folder}"
    if item.unread is not None:
        raise IncompleteError(f"{item.unread.path} {item.unread.message}; nothing was moved")
    if item.checkpoint is None:
        raise IncompleteError(f"{place} does not contain exactly one checkpoint; move the files you need back by hand")
    paths = list(members_of(item.tree, item.checkpoint).paths)
    seal = tree.seal_place(item.checkpoint)
    try:
        if seal is not None:
            paths += added_manifests(item.tree.storage, seal)
        if seal is not None and seal.is_apart:
            paths += [seal.path] if is_there(item.tree.storage, seal.path) else []
            paths += birth_paths(item.tree.storage, seal)
        files = list(files_to_move(f"{tree.inventory.root}/{place}", paths))
    except OSError as error:
        raise IncompleteError(f"{place} changed while it was read ({error.strerror}); run again") from None
    for file in files:
        if file.blocker is not None:
            raise UnsafeError(f"{place}: {file.blocker}")
    return Batch(
        trash=place, moves=tuple(Move(path=file.path, stamp=file.stamp) for file in files if file.stamp is not None)
    )


def _bring_back(root: str, batches: Sequence[Batch]) -> None:
    """Move checkpoints back under the journal of an undone prune, so that the next command can complete the move."""
    paths = [move.path for batch in batches for move in batch.moves]
    if len(set(paths)) < len(paths):
        raise UsageError("two of these have the same destination, and nothing is overwritten: name one of them")
    for batch in batches:
        moves.assert_room(root, batch)
    try:
        write(f"{root}/{JOURNAL}", journal_bytes(batches), overwrite=True, backup=False)
    except NotDurableError as error:
        remove(f"{root}/{JOURNAL}")
        raise WriteFailedError(
            f"nothing was moved, because the journal could not be flushed to disk: {error}"
        ) from error
    try:
        moves.restore(root, batches)
    except CkptToolError:
        # Otherwise the journal would block every later command needlessly.
        if all(moves.is_untouched(root, batch) for batch in batches):
            remove(f"{root}/{JOURNAL}")
        raise
    remove(f"{root}/{JOURNAL}")
