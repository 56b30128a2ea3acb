"""What layouts say of the files that they list."""

from __future__ import annotations

from dataclasses import replace

from ckpttool.domain.checkpoint import Checkpoint
from ckpttool.domain.finding import Code, Finding, damage
from ckpttool.domain.shard import FileStamp
from ckpttool.domain.units import Rank
from ckpttool.storage.base import Storage, unreadable
from ckpttool.storage.fan_out import map_waiting
from ckpttool.trainers.base import Refusal

_FROM_A_COPY = "bring it back from a copy, or resume from another checkpoint"


def one_save(folders: str) -> Refusal:
    """Refuse to move some saves where there is but one.

    Args:
        folders: What those with several are told by: `rank_N/ or iteration_*/`.
    """
    return Refusal(why=f"is one checkpoint, not a tree of {folders} folders")


def holds_its_mark(layout: str, *, other: str) -> Refusal:
    """Refuse to record a judgement beside the saves, where each has it inside.

    Args:
        layout: Its name.
        other: The layout whose saves are recorded so.
    """
    mark = f"in {layout} each checkpoint holds its own mark, and checkpoints are never changed"
    return Refusal(why=f"is for {other}: {mark}")


def stamp_if_there(storage: Storage, path: str) -> FileStamp | None:
    """Return a listed file's stamp; None where it is gone or unreadable since the listing."""
    try:
        return storage.stamp(path)
    except OSError:
        return None


def stamped(storage: Storage, checkpoint: Checkpoint) -> Checkpoint:
    """Take the size and time of each of a checkpoint's files."""
    stamps = map_waiting(lambda shard: shard.stamp or stamp_if_there(storage, shard.path), checkpoint.shards)
    pairs = zip(checkpoint.shards, stamps, strict=True)
    return replace(checkpoint, shards=tuple(replace(shard, stamp=stamp) for shard, stamp in pairs))


def lost_link(storage: Storage, path: str, rank: Rank) -> list[Finding]:
    """Report a link under a shard's name that leads nowhere, in the words of the check of every shard.

    The shard counts as listed: what it should lead to is unknown, not missing.
    """
    try:
        with storage.open(path):
            return []  # it was mounted meanwhile
    except OSError as error:
        return [unreadable(path, error, rank)]


def listed_damage(code: Code, message: str, path: str, *, remedy: str = _FROM_A_COPY) -> Finding:
    """Report what the listing alone shows to be damaged."""
    return damage(code, message, path=path, remedy=remedy)
