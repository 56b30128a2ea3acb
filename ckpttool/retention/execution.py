"""Begin and execute a prune: wait for a save in progress, lock the tree, and move and delete the checkpoints."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import NamedTuple

from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.question import TreeQuestion
from ckpttool.core.domain.retention import (
    Aim,
    Batch,
    PruneOrder,
    Pruning,
    RetentionPolicy,
)
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import UnsafeError, UsageError, WriteFailedError
from ckpttool.core.storage import is_local
from ckpttool.core.verbs.changes import (
    assert_unchanged,
    change_of,
    complete_tree,
    moving,
    pending,
    signs_of_writing,
)
from ckpttool.core.verbs.scanning import Tree
from ckpttool.core.write.reserve import is_full_disk
from ckpttool.retention.apply import let_go, tidy
from ckpttool.retention.proposal import Prospect

POLL_SECONDS = 10.0
"""Seconds between two scans during a save; a save takes minutes, and a scan of a large tree a second."""


class Begun(NamedTuple):
    """A tree that is about to be pruned. With `apply`, it is locked."""

    question: TreeQuestion
    prospect: Prospect
    refusals: Sequence[Finding]
    """Reasons to change nothing, from an interrupted change."""


@contextmanager
def begun(
    question: TreeQuestion,
    policy: RetentionPolicy,
    order: PruneOrder,
    waiting: Callable[[Finding], None] | None,
    *,
    aim: Aim = Aim(),
) -> Iterator[Begun]:
    """Scan a tree when no save is in progress, and with `apply` lock it first, within this context."""
    with ExitStack() as held:
        tree, patience = _when_quiet(question, order, waiting)
        if aim.free is not None and not tree.is_on_own_disk:
            raise UsageError(f"--free needs a tree on a disk of this machine, not {question.path}: use --max-size")
        refusals: Sequence[Finding] = ()
        if order.apply:
            _assert_here(tree)
            root = tree.inventory.root
            with _full_disk_explained(root):
                held.enter_context(change_of(root, timeout=patience))
            tree = complete_tree(question)
            if signs_of_writing(tree, grace=order.grace):  # it will be refused: no content has to be read for that
                order = replace(order, level=Level.STRUCTURE)
        else:
            refusals = pending(tree)
        yield Begun(question, held.enter_context(closing(Prospect(tree, question, policy, order))), refusals)


def carry_out(started: Begun, pruning: Pruning, batches: Sequence[Batch]) -> None:
    """Execute a plan under the tree's lock."""
    tree, order = started.prospect.tree, pruning.order
    with _full_disk_explained(tree.inventory.root):
        if batches:
            with moving(tree.inventory.root):
                assert_unchanged(tree, started.question, grace=order.grace)
                let_go(tree, batches, pruning.fixes, days=order.trash_days)
        tidy(tree, days=order.trash_days)


@contextmanager
def _full_disk_explained(root: str) -> Iterator[None]:
    """Add the way on to the error of a full disk."""
    try:
        yield
    except WriteFailedError as error:
        if is_full_disk(error):
            raise WriteFailedError(f"{error}; {_MAKE_ROOM.format(root=shlex.quote(root))}") from error
        raise


def _assert_here(tree: Tree) -> None:
    """Check that the files to delete are in a folder of this machine.

    Raises:
        UnsafeError: The files are elsewhere.
    """
    hint = "without --apply the plan is shown, and --json lists each file"
    if not tree.machines.is_here:
        raise UnsafeError(
            f"nothing can be deleted through parts: {hint} with its machine; a folder with all ranks, on a machine's "
            "own disk or a shared one, can be pruned there with --apply"
        )
    if not is_local(tree.storage.root):
        raise UnsafeError(f"{tree.inventory.root} is read-only: ckpttool changes only folders of this machine; {hint}")


_MAKE_ROOM = (
    "the disk is full, and the journal that has to be written before anything is deleted does not fit: free a few "
    "hundred KiB by hand (an old log, or ckpttool trash empty {root} --apply) and run again; prune and seal then "
    "leave a reserve for next time"
)


def _when_quiet(
    question: TreeQuestion, order: PruneOrder, waiting: Callable[[Finding], None] | None
) -> tuple[Tree, float]:
    """Scan until no save is in progress, and return the tree and the remaining seconds, up to the requested time."""
    end, sign_path = time.monotonic() + order.wait, None
    while True:
        tree = complete_tree(question, planned=True)
        remaining = max(0.0, end - time.monotonic())
        sign = next(iter(signs_of_writing(tree, grace=order.grace)), None) if remaining else None
        if sign is None:
            return tree, remaining
        if waiting is not None and sign.path != sign_path:
            waiting(sign)
        sign_path = sign.path
        time.sleep(min(POLL_SECONDS, remaining))
