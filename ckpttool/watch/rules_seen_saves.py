"""The saves of a watched tree, according to its listing."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ckpttool.core.domain.checkpoint import Checkpoint, CommitState
from ckpttool.core.domain.finding import Code, Row, blocking
from ckpttool.core.domain.health import Health
from ckpttool.nodes.findings import NodesCode
from ckpttool.watch.model import SeenSave

OF_FILES = frozenset({Code.SHARD_EMPTY, Code.SHARD_TRUNCATED, Code.UNREADABLE})
"""Codes of a save in progress that is only partly listed."""

OF_A_TREE = OF_FILES | {
    Code.RANK_MISSING, Code.SHARD_MISSING, Code.SHARD_ELSEWHERE, Code.UNCOMMITTED_SAVE, Code.METADATA_INCOMPLETE,
}  # fmt: skip
"""Codes of a save in progress in a listing."""

OF_PARTS = OF_A_TREE | {
    NodesCode.PART_MISSING,
    NodesCode.PART_STALE,
    NodesCode.NOT_LOOKED_AT,
    Code.CHANGED_WHILE_READING,
}
"""Codes that parts written at different times may cause."""

_OF_RECORDS = frozenset({Code.UNCOMMITTED_SAVE, Code.METADATA_INCOMPLETE, Code.META_UNREADABLE, Code.HEADER_INVALID})
"""Codes about the records of a save. Records are not shards, but the shards are useless without them."""


def key_of(checkpoint: Checkpoint) -> str:
    """Return the key of a save in the tree."""
    return "/".join(checkpoint.key)


def fingerprint(of: object) -> str:
    """Return 32 hexadecimal digits that depend on names, sizes and times."""
    from hashlib import sha256

    return sha256(repr(of).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def seen_save(
    checkpoint: Checkpoint,
    wall: float,
    codes: Collection[Row] = OF_A_TREE,
    reported: Sequence[object] = (),
    extras: str = "",
) -> SeenSave:
    """Return a save as shown by a listing.

    Args:
        checkpoint: The save.
        wall: Seconds since 1970.
        codes: Codes that mean that the save may be in progress.
        reported: Other known facts about the save's files. A difference means a change.
        extras: As in `SeenSave.beside`.
    """
    stamps = ((shard.path, shard.stamp) for shard in checkpoint.shards)
    files = sorted((path, None if stamp is None else (stamp.size, stamp.token)) for path, stamp in stamps)
    against = blocking(checkpoint.findings)
    reported = [
        *reported,
        *sorted((finding.code.value, finding.path or "") for finding in against if finding.code in _OF_RECORDS),
    ]
    reported += [checkpoint.health.value] if checkpoint.health is Health.UNHEALTHY else []
    saved = checkpoint.saved_ns
    first = min((shard.modified_ns for shard in checkpoint.shards if shard.modified_ns is not None), default=None)
    return SeenSave(
        key=key_of(checkpoint),
        name=checkpoint.name,
        step=checkpoint.step,
        fingerprint=fingerprint((files, reported) if reported else files),
        incomplete=tuple(finding for finding in against if finding.code in codes),
        nbytes=checkpoint.nbytes,
        age=None if saved is None else max(0.0, wall - saved / 1e9),
        written_ns=None if saved is None or first is None else (first, saved),
        files=len(files),
        beside=extras,
        is_committed=checkpoint.commit is CommitState.COMMITTED,
    )
