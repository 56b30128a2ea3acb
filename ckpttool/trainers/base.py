"""The seam for directory layouts: recognise by names, then scan."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from itertools import islice, takewhile
from typing import NamedTuple, Protocol

from ckpttool.domain.checkpoint import Checkpoint, Inventory, LayoutName
from ckpttool.domain.finding import Code, Finding, Severity
from ckpttool.domain.shard import FileStamp
from ckpttool.domain.units import Rank
from ckpttool.storage.base import Entry, LostLinkError, Storage
from ckpttool.storage.fan_out import map_waiting

_FROM_A_COPY = "bring it back from a copy, or resume from another checkpoint"


class Listing(NamedTuple):
    """The names directly in a folder, sorted; nothing has been opened."""

    entries: tuple[Entry, ...]

    def beginning(self, start: str) -> tuple[Entry, ...]:
        """Return the entries whose names begin so: found without a look at thousands of others."""
        first = bisect_left(self.entries, (start,))
        names = takewhile(lambda entry: entry.name.startswith(start), islice(self.entries, first, None))
        return tuple(names)


class ScanOptions(NamedTuple):
    """What a scan is asked for beyond the names."""

    sizes: bool = False
    """Also take every shard's stamp: one more call a file."""
    steps_per_epoch: int | None = None
    """Sink size, or batches in the data set: turns names into steps where no shard tells."""


class Layout(Protocol):
    """One way to arrange checkpoints in folders."""

    name: LayoutName

    def recognise(self, listing: Listing) -> bool:
        """Tell from names alone whether this folder is arranged so."""
        ...

    def scan(self, storage: Storage, listing: Listing, options: ScanOptions) -> Inventory:
        """List all checkpoints, whole or not, with what one header of each tells."""
        ...


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


LOST_LINK_REMEDY = "mount the disk that it leads to, or mend the link"


def lost_link(storage: Storage, path: str, rank: Rank) -> list[Finding]:
    """Report a link under a shard's name that leads nowhere, in the words of the check of every shard.

    The shard counts as listed: what it should lead to is unknown, not missing.
    """
    try:
        with storage.open(path):
            return []  # it was mounted meanwhile
    except OSError as error:
        remedy = LOST_LINK_REMEDY if isinstance(error, LostLinkError) else None
        return [unreadable(path, error, rank, remedy=remedy)]


def unreadable(path: str, error: OSError, rank: Rank | None, *, remedy: str | None = None) -> Finding:
    """Report what the disk withholds."""
    return Finding(
        code=Code.UNREADABLE,
        severity=Severity.UNKNOWN,
        message=f"cannot be read ({error.strerror or error}): unknown, not damaged",
        path=path,
        remedy=remedy,
        ranks=() if rank is None else (rank,),
    )


def damage(code: Code, message: str, path: str, *, remedy: str = _FROM_A_COPY) -> Finding:
    """Report what the listing alone shows to be damaged."""
    return Finding(code=code, severity=Severity.DAMAGE, message=message, path=path, remedy=remedy)
