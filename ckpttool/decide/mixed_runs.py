"""Whether one name may be two runs' saves: each rank counts its runs by what lies in its own folder.

A rank that lost its files, or was cut off in its first save, starts to count anew. So `10_2` on rank 1 may be of the
run whose save is called `_1-10_2` on the others. The same names come about where rank 1 alone was cut off in the later
run's save, and then all is well. Only times tell these apart, and a time can be changed: it is a doubt, not an order.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpttool.decide.tracker import CLEARLY_NS
from ckpttool.domain.checkpoint import Checkpoint, Inventory
from ckpttool.domain.finding import Code, Finding, Severity
from ckpttool.domain.shard import Shard


def two_runs_in(checkpoint: Checkpoint, inventory: Inventory) -> Finding | None:
    """Tell whether some ranks' files of a checkpoint are as old as another run's save of the same name on the others.

    Args:
        checkpoint: The one in doubt.
        inventory: Its tree, with times where names leave a doubt.
    """
    for twin in inventory.checkpoints:
        if checkpoint.may_be_mixed_with(twin):
            late = list(_as_old_as(twin, checkpoint))
            if late:
                return _mixed(checkpoint, twin, late)
    return None


def _as_old_as(twin: Checkpoint, checkpoint: Checkpoint) -> Iterator[Shard]:
    """Find the files of ranks that the twin lacks which were written when it was saved, not with the other files."""
    there = set(twin.ranks)
    own = [shard.stamp.mtime_ns for shard in checkpoint.shards if shard.stamp is not None and shard.rank in there]
    later = [shard.stamp.mtime_ns for shard in twin.shards if shard.stamp is not None]
    if not own or not later or min(later) - max(own) < CLEARLY_NS:  # times do not tell the two saves apart
        return
    middle = (max(own) + min(later)) // 2
    for shard in checkpoint.shards:
        if shard.rank not in there and shard.stamp is not None and shard.stamp.mtime_ns > middle:
            yield shard


def _mixed(checkpoint: Checkpoint, twin: Checkpoint, late: list[Shard]) -> Finding:
    ranks = tuple(shard.rank for shard in late if shard.rank is not None)
    shown = ", ".join(map(str, ranks[:4])) + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")  # noqa: PLR2004
    return Finding(
        code=Code.TIMES_DISAGREE,
        severity=Severity.SUSPECT,
        message=(
            f"{checkpoint.name} on rank{'s' if len(ranks) > 1 else ''} {shown} was written when the others wrote "
            f"{twin.name}, so it may be of that run: two runs under one name"
        ),
        path=late[0].path,
        expected=f"a file as old as the other ranks' {checkpoint.name}",
        actual=f"as old as their {twin.name}",
        remedy=f"choose it with --checkpoint {checkpoint.name} if that file was only copied later",
        ranks=ranks,
    )
