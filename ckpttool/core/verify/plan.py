"""The plan of a check: its tasks, one per shard or several for a big shard, with their costs. Nothing is read yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.scalars import ShardFacts
from ckpttool.core.domain.shard import Shard
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import CheckTask, Level

if TYPE_CHECKING:
    from ckpttool.core.domain.manifest import ShardSeal

HEADER_COST = ByteCount(64 << 10)
"""Bytes that a structure check reads from a typical shard: headers of a few hundred tensors."""

PART_BYTES = 1 << 30
"""Bytes per part of a big file: whole chunks of 64 MiB, and seconds of work, so that workers can share the file's
end."""


def in_bucket(path: str, bucket: tuple[int, int] | None) -> bool:
    """Return whether a shard belongs to a subset.

    Only the shard's path decides, regardless of other files, so that t nights cover everything.

    Args:
        path: Path of the shard.
        bucket: (n, t): the n-th of t parts, n from 1; None for all.
    """
    if bucket is None:
        return True
    from xxhash import xxh3_64_intdigest  # not a CRC, which is linear: the names of ranks differ in one digit

    number, total = bucket
    return xxh3_64_intdigest(path.encode("utf-8", "surrogateescape")) % total == number - 1


def plan_checks(
    root: str,
    checkpoint: Checkpoint,
    level: Level,
    *,
    seals: Mapping[str, ShardSeal] | None = None,
    hashes: bool = False,
) -> tuple[CheckTask, ...]:
    """Plan the check of every shard of a checkpoint, in the order (rank, path).

    Args:
        root: The folder that the paths are relative to.
        checkpoint: The checkpoint, with its shards' sizes if `level` reads content.
        level: How thoroughly to check.
        seals: The records of a manifest, by path.
        hashes: Whether to also hash every complete file, for sealing. Such a hash cannot be joined, so no file is split
            between workers; the same applies to a file whose digest is in the save.
    """
    digests = dict(checkpoint.digests)
    facts = ShardFacts(scalars=checkpoint.rules.requested)
    return tuple(
        CheckTask(
            root=root,
            path=shard.path,
            rank=shard.rank,
            role=shard.role,
            named_format=shard.format,
            level=level,
            cost=ByteCount(cost),
            facts=replace(facts, entries=shard.entries) if shard.entries else facts,
            part=part,
            seal=None if seals is None else seals.get(shard.path),
            sha256=digests.get(shard.path),
            hashes=hashes,
            listed=shard.stamp,
        )
        for shard in checkpoint.shards
        for part, cost in _parts(shard, level, in_full=hashes or shard.path in digests)
    )


def _parts(shard: Shard, level: Level, *, in_full: bool) -> Iterator[tuple[tuple[int, int] | None, int]]:
    """Yield the parts of a shard to read, each with its cost. None means the complete shard."""
    size = shard.stamp.size if shard.stamp is not None else 0
    if not level.reads_content:
        yield None, HEADER_COST
    elif in_full or size <= PART_BYTES:
        yield None, size
    else:
        for begin in range(0, size, PART_BYTES):
            end = min(begin + PART_BYTES, size)
            yield (begin, end), end - begin
