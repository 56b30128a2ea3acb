"""Whether one name may be two runs' saves: each rank counts its runs by what lies in its own folder.

A rank that lost its files, or was cut off in its first save, starts to count anew. So `10_2` on rank 1 may be of the
run whose save is called `_1-10_2` on the others. The same names come about where rank 1 alone was cut off in the later
run's save, and then all is well. Only times tell these apart, and a time can be changed: it is a doubt, not an order.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from itertools import pairwise
from operator import itemgetter

from ckpttool.core.decide.tracker import CLEARLY_NS
from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.finding import Code, Finding, note, suspect
from ckpttool.core.domain.shard import Shard
from ckpttool.core.domain.units import Rank, on_ranks
from ckpttool.core.domain.verdict import Verdict

HOUR_NS = 3600 * 10**9
"""No save takes so long from its first file to its last; where ranks' names differ, no shorter time proves two."""


def two_runs_in(checkpoint: Checkpoint, inventory: Inventory) -> Finding | None:
    """Tell whether some ranks' files of a checkpoint are as old as another run's save of the same name on the others.

    Args:
        checkpoint: The one in doubt.
        inventory: Its tree, with times where names leave a doubt.
    """
    if checkpoint.renames and (apart := _apart(checkpoint)) is not None:
        return _hours_apart(checkpoint, *apart)
    later = [save for save in inventory.checkpoints if save.run > checkpoint.run and save.is_named_as(checkpoint)]
    if not later:
        return None
    sure = frozenset(checkpoint.ranks).intersection(*(save.ranks for save in later))
    for twin in later:
        late = list(_as_old_as(twin, checkpoint, sure))
        if late:
            return _mixed(checkpoint, twin, late)
    return None


def told_apart(verdict: Verdict) -> list[Finding]:
    """Say in a note that an hour or more lies between the files of one save, where nothing but that speaks of two runs.

    A rank's folder that was copied from another disk looks the same, so it is no reason to pass the save over.
    """
    stamps = [(report.stamp, report.path) for report in verdict.reports if report.stamp is not None]
    files = sorted((stamp.modified_ns, path) for stamp, path in stamps if stamp.modified_ns is not None)
    gaps = [after - before for (before, _), (after, _) in pairwise(files)]
    widest = max(gaps, default=0)
    if widest < HOUR_NS:
        return []
    at = gaps.index(widest) + 1
    fewer, than = (files[:at], "before") if 2 * at <= len(files) else (files[at:], "after")
    more = f" and {len(fewer) - 1} more files were" if len(fewer) > 1 else " was"
    return [
        note(
            Code.TIMES_DISAGREE,
            (
                f"{fewer[0][1]}{more} written more than an hour {than} the other files of {verdict.name}: copied, or "
                "of another run of that name"
            ),
            path=fewer[0][1],
            remedy="compare it with another rank's if nobody copied it",
        )
    ]


def _apart(checkpoint: Checkpoint) -> tuple[Shard, Shard] | None:
    """Find two files of other runs by their names which no one save wrote: an hour and more lies between the runs'."""
    by_run: dict[int, list[tuple[int, Shard]]] = {}
    for shard in checkpoint.shards:
        if shard.modified_ns is not None:
            by_run.setdefault(shard.run, []).append((shard.modified_ns, shard))
    first, last = ([each(files, key=itemgetter(0)) for _, files in sorted(by_run.items())] for each in (min, max))
    spans = sorted(zip(first, last, strict=True), key=lambda span: span[0][0])
    for (_, (before, one)), ((after, other), _) in pairwise(spans):
        if after - before >= HOUR_NS:
            return one, other
    return None


def _as_old_as(twin: Checkpoint, checkpoint: Checkpoint, sure: AbstractSet[Rank]) -> Iterator[Shard]:
    """Find the files of ranks that miss some of these saves which were written with the twin's files, not the others.

    A rank that counts one run less has each of them under the name of the run before; so it misses the last one.
    """
    own, later = _times(checkpoint, sure), _times(twin, sure)
    if not own or not later or min(later) - max(own) < CLEARLY_NS:  # times do not tell the two saves apart
        return
    middle = (max(own) + min(later)) // 2
    for shard in checkpoint.shards:
        if shard.rank not in sure and shard.modified_ns is not None and shard.modified_ns > middle:
            yield shard


def _times(checkpoint: Checkpoint, ranks: AbstractSet[Rank]) -> list[int]:
    return [shard.modified_ns for shard in checkpoint.shards if shard.modified_ns is not None and shard.rank in ranks]


def _hours_apart(checkpoint: Checkpoint, one: Shard, other: Shard) -> Finding:
    return suspect(
        Code.TIMES_DISAGREE,
        (
            f"{other.path} was written more than an hour after {one.path}, and by their names they are of other runs: "
            f"{checkpoint.name} may be two runs' saves"
        ),
        path=other.path,
        remedy=f"choose it with --checkpoint {checkpoint.name} --allow-renames if that file was only copied later",
    )


def _mixed(checkpoint: Checkpoint, twin: Checkpoint, late: list[Shard]) -> Finding:
    ranks = tuple(shard.rank for shard in late if shard.rank is not None)
    return suspect(
        Code.TIMES_DISAGREE,
        (
            f"{checkpoint.name} on {on_ranks(ranks)} was written when the others wrote "
            f"{twin.name}, so it may be of that run: two runs under one name"
        ),
        path=late[0].path,
        expected=f"a file as old as the other ranks' {checkpoint.name}",
        actual=f"as old as their {twin.name}",
        remedy=f"choose it with --checkpoint {checkpoint.name} if that file was only copied later",
        ranks=ranks,
    )
