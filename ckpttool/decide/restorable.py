"""Where nothing can be resumed from: which ranks' shards would change that."""

from __future__ import annotations

from collections.abc import Sequence

from ckpttool.domain.finding import Code, Finding, Severity, blocking
from ckpttool.domain.plan import Rejection
from ckpttool.domain.units import Rank, on_ranks


def ranks_to_restore(rejected: Sequence[Rejection], *, opened: bool) -> tuple[Finding, ...]:
    """Say which ranks alone stand against the newest checkpoint, where some ranks do and others do not.

    Args:
        rejected: Every checkpoint, newest first, with all that is known against it.
        opened: Whether the newest one's shards were looked into, on all ranks that have one.
    """
    ranks = _at_fault(rejected[0]) if rejected else frozenset()
    if not ranks:
        return ()
    newest = rejected[0].checkpoint.name
    who, everywhere = on_ranks(sorted(ranks)), len(rejected) > 1 and all(_at_fault(one) == ranks for one in rejected)
    what = f"all {len(rejected)} checkpoints fail" if everywhere else f"{newest} fails"
    doubt = "" if opened else "; the other ranks' shards were not opened"
    return (
        Finding(
            code=Code.RANKS_TO_RESTORE,
            severity=Severity.NOTE,
            message=f"{what} on {who} alone",
            remedy=f"bring back whole shards of {who}, and {newest} is {'whole' if opened else 'complete'}{doubt}",
            ranks=tuple(sorted(ranks)),
        ),
    )


def _at_fault(rejection: Rejection) -> frozenset[Rank]:
    """Return the ranks whose shards are all that is wrong; none where something else is, or where all are at fault."""
    reasons, world = blocking(rejection.reasons), rejection.checkpoint.topology.world_size
    if world is None or any(reason.severity < Severity.UNKNOWN or not reason.ranks for reason in reasons):
        return frozenset()
    ranks = frozenset(rank for reason in reasons for rank in reason.ranks)
    return ranks if len(ranks) < world else frozenset()
