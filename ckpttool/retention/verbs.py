"""Delete superseded checkpoints. Concurrent changes never lose a good one."""

from __future__ import annotations

from collections.abc import Callable

from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.retention import Aim, PruneOrder, Pruning, RetentionPolicy
from ckpttool.core.errors import CkptToolError
from ckpttool.core.verbs.scanning import Where, tree_question
from ckpttool.retention.execution import begun, carry_out
from ckpttool.retention.verbs_room import prune_to


def prune(
    question: Where,
    policy: RetentionPolicy,
    order: PruneOrder = PruneOrder(),
    *,
    aim: Aim = Aim(),
    waiting: Callable[[Finding], None] | None = None,
) -> Pruning:
    """Choose the checkpoints that may be deleted, and with `apply` delete them.

    Each checkpoint is moved completely or not at all, to a trash folder in the tree, and is deleted from there after
    the retention period. An interrupted prune is undone first.

    Args:
        question: The tree.
        policy: The checkpoints to keep.
        order: How to check, what to do, and how long to wait for a save in progress.
        aim: Space to have afterwards. Without an aim, all superseded checkpoints are deleted.
        waiting: Called with the reason for waiting, whenever the reason changes.

    Raises:
        UsageError: The policy names a checkpoint that does not exist, or the aim contradicts the order.
        LockedError: Another ckpttool process is changing this tree.
        IncompleteError: The tree changed since the plan was made. Nothing was changed.
        UnsafeError: A link or another disk is in the way, or the tree is not a folder on this machine.
        WriteFailedError: The disk reported an error. Moved files were moved back, or will be by the next prune.
        NotDurableError: The deletion is done, but the disk did not confirm it.
    """
    if aim.is_set:
        (answer,) = prune_to((question,), policy, order, aim=aim, waiting=waiting)
        if isinstance(answer, CkptToolError):
            raise answer
        return answer
    with begun(tree_question(question), policy, order, waiting) as started:
        pruning, batches = started.prospect.answer(started.prospect.plan(), started.refusals)
        if pruning.applied:
            carry_out(started, pruning, batches)
    return pruning
