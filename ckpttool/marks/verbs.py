"""Mark a save, remove its mark, and list the marks of a tree."""

from __future__ import annotations

from ckpttool.core.decide.naming import focused, named, none_called
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.progress import newest_first
from ckpttool.core.errors import NothingToResumeError, UsageError
from ckpttool.core.verbs.scanning import Tree, Where, scan, tree_question
from ckpttool.marks.model import MarkQuestion, Marks
from ckpttool.marks.setting import already, answer, set_mark


def mark(where: Where = None, question: MarkQuestion = MarkQuestion()) -> Marks:
    """Mark a save as bad or good, remove its mark, or list the marks of a tree.

    Args:
        where: The tree.
        question: The save and its mark, or the number of failed starts; without these, the marks are listed.

    Raises:
        UsageError: No save has that name, or the request names no save.
        NothingToResumeError: The tree has no checkpoint.
        UnsafeError: The tree is neither a folder of this machine nor in an object store, or a
            link leaves the tree.
        LockedError: Another process marks saves of this tree.
        WriteFailedError: Nothing was changed.
        IncompleteError: A file of the save cannot be read, the marks cannot be listed, or a log cannot be read to its
            end.
        NotDurableError: The mark is in place, but the disk did not confirm it.
    """
    question.assert_consistent()
    tree = scan(replace(tree_question(where), sizes=True))
    if question.after_failed_starts is not None:
        from ckpttool.marks.starts import mark_after_failed_starts  # reads logs

        return mark_after_failed_starts(tree, question)
    if question.kind is None:
        return answer(tree)
    checkpoint = _named(tree, question.name)
    unchanged = already(tree, checkpoint, question)
    if unchanged is not None:
        return replace(answer(tree), unchanged=unchanged)
    return set_mark(tree, checkpoint, question)


def _named(tree: Tree, name: str | None) -> Checkpoint:
    """Return the save to mark, which the user must name: a mark on the wrong save costs work.

    Raises:
        UsageError: None is named, or several have that name.
        NothingToResumeError: The tree has no checkpoint.
    """
    checkpoints = tree.inventory.checkpoints
    if not checkpoints:
        raise NothingToResumeError(f"there is no checkpoint in {tree.inventory.root}")
    if name in {None, "latest", "all"} and tree.focus is None:
        raise UsageError("name the checkpoint to mark: ckpttool mark NAME DIR")
    newest = newest_first(checkpoints)
    several = named(newest, name or "") if tree.focus is None else focused(newest, tree.focus, name)
    if not several:
        raise none_called(name or tree.focus or "", newest, tree.inventory.root)
    if len(several) > 1:
        names = ", ".join(f"{checkpoint.prefix}-{checkpoint.name}" for checkpoint in several)
        raise UsageError(f"{name} matches several checkpoints ({names}): give the path of one of its shards as DIR")
    return several[0]
