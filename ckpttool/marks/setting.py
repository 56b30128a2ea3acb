"""Write a mark, and return the marks of a tree."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.units import moment
from ckpttool.core.errors import IncompleteError, UnsafeError, WriteFailedError
from ckpttool.core.records import MARKS, OWN_FOLDER
from ckpttool.core.storage import assert_changeable, is_object_store
from ckpttool.core.verbs.scanning import Tree
from ckpttool.core.write.files import ensure_folder, locked
from ckpttool.core.write.files import replace as write
from ckpttool.marks.identity import witnesses_of
from ckpttool.marks.model import Mark, MarkedSave, MarkKind, MarkQuestion, Marks, MarkState
from ckpttool.marks.reading import MarksRead, read_marks
from ckpttool.marks.record import encode, file_name, label_of, mark_files

PATIENCE_SECONDS = 30.0
"""Seconds to wait for another process that marks. Under the lock, only marks are read and written."""


def set_mark(tree: Tree, checkpoint: Checkpoint, question: MarkQuestion, *, is_automatic: bool = False) -> Marks:
    """Record a mark of a save, and return the marks of the tree after that."""
    root = tree.storage.root
    if not is_object_store(root):
        assert_changeable(root)
    try:
        witnesses = witnesses_of(checkpoint, tree.storage)
    except OSError as error:
        raise IncompleteError(
            f"{error.filename or checkpoint.name} cannot be read ({error.strerror or error}), so the checkpoint could "
            "not be recognized later; nothing was marked"
        ) from None
    new = Mark(
        kind=question.kind or MarkKind.CLEARED,
        reason=question.text,
        by=_user(),
        at=moment(time.time()),
        checkpoint=checkpoint.name,
        step=checkpoint.step,
        witnesses=witnesses,
        is_automatic=is_automatic,
    )
    if question.dry_run:
        return replace(answer(tree), written=new, is_dry_run=True)
    path = _written(tree, checkpoint, new)
    return replace(answer(tree, written=new), written=new, path=path)


def _written(tree: Tree, checkpoint: Checkpoint, new: Mark) -> str:
    """Write a mark under a new name, with the next number of the save, and return its path."""
    root, label, token = tree.storage.root, label_of(checkpoint.key), secrets.token_hex(8)
    if is_object_store(root):
        from ckpttool.core.storage.objects import put_new

        path = file_name(label, _next_number(tree, label), token)
        put_new(root, path, encode(new))
        return path
    ensure_folder(f"{root}/{OWN_FOLDER}")
    ensure_folder(f"{root}/{MARKS}")
    if not Path(root, MARKS).resolve().is_relative_to(Path(root).resolve()):
        raise UnsafeError(f"{root}/{MARKS} is a link to a folder outside the tree, and ckpttool does not write there")
    with locked(f"{root}/{MARKS}", timeout=PATIENCE_SECONDS):
        path = file_name(label, _next_number(tree, label), token)
        write(f"{root}/{path}", encode(new), overwrite=False, backup=False)
    return path


def _next_number(tree: Tree, label: str) -> int:
    try:
        files, _ = mark_files(tree.storage)
    except OSError as error:
        raise WriteFailedError(
            f"the marks cannot be listed ({error.strerror or error}), so a new one might not count; nothing was changed"
        ) from None
    return 1 + max((file.number for file in files if file.label == label), default=0)


def already(tree: Tree, checkpoint: Checkpoint, question: MarkQuestion) -> str | None:
    """Return that a save has the requested mark, as a sentence; None if it must be written."""
    marks_read = read_marks(tree.inventory, tree.storage)
    if marks_read.of_saves.get(checkpoint.key):
        return None  # a mark that cannot be read is replaced
    marked = marks_read.of(checkpoint)
    if marked is None:
        return f"{checkpoint.name} has no mark" if question.kind is MarkKind.CLEARED else None
    mark = marked.mark
    if mark.kind is not question.kind or marked.state is not MarkState.COUNTS:
        return None
    if mark.kind is MarkKind.CLEARED:
        return f"{checkpoint.name} has no mark: it was removed at {mark.at}"
    if mark.reason != question.text:
        return None
    return f"{checkpoint.name} was already marked as {mark.kind.value} by {mark.author} at {mark.at}"


def answer(tree: Tree, *, written: Mark | None = None) -> Marks:
    """Return the marks of a tree.

    Args:
        tree: The tree, as scanned before a mark was written.
        written: The mark that was just written.
    """
    storage = tree.storage
    if written is not None and is_object_store(storage.root):
        from ckpttool.core.storage import forget_listings, open_storage

        forget_listings(storage.root)
        storage = open_storage(storage.root)
    marks_read = read_marks(tree.inventory, storage)
    return Marks(
        root=tree.inventory.root,
        layout=tree.inventory.layout,
        marks=_listed(tree, marks_read),
        findings=_problems(marks_read),
        resolved_from=tree.resolved_from,
    )


def _listed(tree: Tree, marks_read: MarksRead) -> tuple[MarkedSave, ...]:
    of_tree = [marked for save in tree.inventory.checkpoints if (marked := marks_read.of(save)) is not None]
    absent = sorted(
        (marked for key, marked in marks_read.marks if key is None), key=lambda marked: (marked.mark.at, marked.path)
    )
    return tuple(marked for marked in (*of_tree, *absent) if marked.mark.kind is not MarkKind.CLEARED)


def _problems(marks_read: MarksRead) -> tuple[Finding, ...]:
    of_saves = (finding for key in sorted(marks_read.of_saves) for finding in marks_read.of_saves[key])
    return tuple(dict.fromkeys((*of_saves, *marks_read.of_tree)))


def _user() -> str:
    """Return the user and the host of this process."""
    try:
        import pwd

        user = pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):  # a user without an entry, as in many containers
        user = f"user {os.getuid()}"
    return f"{user}@{os.uname().nodename}"
