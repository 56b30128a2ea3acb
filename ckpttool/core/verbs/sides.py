"""The checkpoint, or one of its files, that an argument of a command line selects."""

from __future__ import annotations

import os
from typing import NamedTuple

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import blocking
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.progress import newest_first
from ckpttool.core.domain.question import CheckQuestion, TreeQuestion
from ckpttool.core.errors import IncompleteError, NothingToResumeError, UnknownLayoutError, UsageError
from ckpttool.core.storage import is_folder, open_storage
from ckpttool.core.storage.base import Kind
from ckpttool.core.verbs.scanning import Tree, scan
from ckpttool.core.verbs.verifying import chosen, session_for
from ckpttool.trainers.common import LOOSE_FILE_LAYOUT


class Side(NamedTuple):
    """The selected object: a checkpoint, or one of its files."""

    tree: Tree
    checkpoint: Checkpoint
    """The checkpoint. If a file was selected, it has only that shard."""
    file: str | None
    """The path of the selected file, or None for a checkpoint."""


def side_of(
    path: str | None,
    *,
    checkpoint: str | None = None,
    layout: str | None = None,
    tree: str | None = None,
    is_intact: bool = False,
) -> Side:
    """Resolve an argument of a command line.

    Args:
        path: A file, a folder, `DIR:NAME`, or the name of a checkpoint in `tree`. None for that tree.
        checkpoint: A checkpoint of that tree.
        layout: Search only for this layout.
        tree: The tree for names.
        is_intact: In a tree without a name, choose the newest checkpoint that is intact according to its headers; else
            the newest without missing files; else the newest.

    Raises:
        UnknownLayoutError: ckpttool recognizes nothing there.
        UsageError: No checkpoint has that name.
        NothingToResumeError: The tree has no checkpoint.
        IncompleteError: The tree's folder cannot be read.
    """
    if path is None:
        return _of_tree(tree, checkpoint, layout, is_intact=is_intact)
    kind = _kind(path)
    if kind is Kind.FILE and checkpoint is None:
        return _of_file(path, layout)
    if kind is None:
        folder, colon, name = path.rpartition(":")
        if colon and is_folder(folder):
            return _of_tree(folder, name, layout, is_intact=is_intact)
        if checkpoint is None and not os.path.dirname(path):
            return _of_name(path, tree, layout)
    return _of_tree(path, checkpoint, layout, is_intact=is_intact)


def _kind(path: str) -> Kind | None:
    try:
        return open_storage(path).kind("")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:  # the search for the tree reports the reason
        return Kind.OTHER


def _of_name(name: str, tree: str | None, layout: str | None) -> Side:
    try:
        return _of_tree(tree, name, layout, is_intact=False)
    except UnknownLayoutError as error:
        raise UnknownLayoutError(
            f"there is no file or folder {name!r}, and no tree with such a checkpoint: {error}"
        ) from None


def _here(question: TreeQuestion) -> Tree:
    """Return a tree whose shards can be opened on this machine.

    Raises:
        IncompleteError: The shards are on other machines.
    """
    tree = scan(question)
    if not tree.machines.is_here:
        raise IncompleteError(
            f"{question.path} has parts, the records that machines wrote about {tree.inventory.root}, without the "
            "shards' contents; run this on the machine that has the shards"
        )
    return tree


def _of_tree(path: str | None, name: str | None, layout: str | None, *, is_intact: bool) -> Side:
    tree = _here(TreeQuestion(path=path, layout=layout, sizes=True))
    if not tree.inventory.checkpoints:
        raise NothingToResumeError(f"there is no checkpoint in {tree.inventory.root}")
    several = chosen(tree, name)
    if is_intact and name is None and tree.focus is None:
        ordered = newest_first(tree.inventory.checkpoints)
        complete = [checkpoint for checkpoint in ordered if not blocking(checkpoint.findings)]
        session = session_for(tree, CheckQuestion())
        is_whole = (checkpoint for checkpoint in complete if not blocking(session.verdict(checkpoint).findings))
        several = [next(is_whole, (complete or ordered)[0])]
    elif len(several) > 1:
        names = ", ".join(f"{checkpoint.prefix}-{checkpoint.name}" for checkpoint in several)
        title = name or path or tree.inventory.root
        raise UsageError(f"{title} matches several checkpoints ({names}): give the file of one of its shards")
    return Side(tree, several[0], None)


def _of_file(path: str, layout: str | None) -> Side:
    """Return a file with its checkpoint, which provides its rank and seal. Without one, return only the file."""
    try:
        tree = _here(TreeQuestion(path=path, layout=layout, sizes=True))
        several = chosen(tree, None)
    except (UsageError, UnknownLayoutError):
        tree = scan(TreeQuestion(path=path, layout=LOOSE_FILE_LAYOUT, sizes=True))
        several = chosen(tree, None)
    for checkpoint in several:
        for shard in checkpoint.shards:
            if os.path.abspath(os.path.join(tree.inventory.root, shard.path)) == os.path.abspath(path):
                return Side(tree, replace(checkpoint, shards=(shard,), findings=()), shard.path)
    if not several:
        raise NothingToResumeError(f"there is no checkpoint in {tree.inventory.root}")
    return Side(tree, several[0], None)
