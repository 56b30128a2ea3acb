"""Misplaced or misnamed shards, which MindFormers does not find."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ckpttool.core.domain.checkpoint import Inventory
from ckpttool.core.domain.finding import Code, Finding, damage
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import MAX_RANKS, Rank
from ckpttool.core.formats import FORMATS
from ckpttool.core.formats.front import HEAD_BYTES
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.mindformers.findings import MindFormersCode

_MOST_OPENED = 256
"""Maximum number of files named for other ranks to open, highest ranks first.

These files determine the number of ranks.
"""

# The number of digits is limited: no run has larger step numbers, and int() of a million digits takes seconds.
# Compiled at the first stray: most trees have none.
_SHARD = (
    r"(?s)rank_(?P<folder>[0-9]{1,9})/(?P<head>.+)_rank_(?P<rank>[0-9]{1,9})(?:_(?P<run>[0-9]{1,9}))?"
    r"-(?P<epoch>[0-9]{1,18})_(?P<step>[0-9]{1,18})(?P<suffix>\.(?:ckpt|safetensors))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Misplaced:
    """A file that would be a rank's shard in a different folder, or under a different name."""

    path: str
    """Path of the file."""
    target: str
    """The path that MindFormers searches for such a shard."""
    rank: int
    """The rank in the file's name."""
    neighbour: str
    """Name of the shard from the same save that belongs in this folder."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether the file is in a different rank's folder, rather than under a different name."""
        return self.neighbour != self.target

    def instead_of_missing(self, world: str) -> Finding:
        """Report that the rank's shard exists, but not in its proper place.

        Args:
            world: A description of the expected ranks, with the reason.
        """
        folder, _, name = self.target.partition("/")
        if self.is_elsewhere:
            code, message = Code.SHARD_ELSEWHERE, "is in another rank's folder"
            effect = f"looks for it only in {folder}/"
            remedy = f"create {folder}/ if it does not exist, and move the file to {self.target}"
        else:
            code, message = (
                MindFormersCode.SHARD_RESPELLED,
                "has a different form of name from those of the other ranks",
            )
            effect = f"looks for {name}"
            remedy = f"rename it to {self.target}"
        return damage(
            code,
            f"rank {self.rank}'s shard {message}: MindFormers {effect} ({world})",
            path=self.path,
            expected=self.target,
            actual=self.path,
            remedy=remedy,
            ranks=(Rank(self.rank),),
        )


def mere_names(storage: Storage, strays: Iterable[str]) -> tuple[str, ...]:
    """Return strays that have a different rank's name but are not shards, and so are not evidence of that rank.

    A truncated file that begins like a shard counts as a shard. A file that cannot be read may be a shard.
    """
    elsewhere = [file for path in strays if (file := _misplaced(path)) is not None and file.is_elsewhere]
    highest = sorted(elsewhere, key=lambda file: (-file.rank, file.path))[:_MOST_OPENED]
    return tuple(sorted(file.path for file in highest if not _may_be_shard(storage, file.path)))


def _may_be_shard(storage: Storage, path: str) -> bool:
    try:
        with storage.open(path) as source:
            head = source.read(0, HEAD_BYTES)
    except OSError:
        return True
    return bool(head.strip(b"\0")) and any(shard_format.recognise(head) for shard_format in FORMATS)


def misplaced_shards(inventory: Inventory) -> dict[str, Misplaced]:
    """Return the misplaced shards among the strays of rank folders, by their proper paths.

    MindFormers writes numbers without leading zeros, and no suffix for the first run.
    """
    nothing = frozenset(inventory.mere_names)
    misplaced_files = (_misplaced(path) for path in inventory.strays if path not in nothing)
    return {file.target: file for file in misplaced_files if file is not None}


def ranks_found_elsewhere(inventory: Inventory, misplaced: Mapping[str, Misplaced]) -> dict[tuple[str, int], Misplaced]:
    """Return the highest rank's shard in a different rank's folder, by run (prefix, number).

    Such a rank took part in the run, whether or not it has a folder: someone gathered the files.
    """
    neighbours = {file.neighbour for file in misplaced.values() if file.is_elsewhere}
    if not neighbours:
        return {}
    runs = {
        shard.path: (checkpoint.prefix, checkpoint.run)
        for checkpoint in inventory.checkpoints
        for shard in checkpoint.shards
        if shard.path in neighbours
    }
    highest: dict[tuple[str, int], Misplaced] = {}
    for file in sorted(misplaced.values(), key=lambda file: (file.rank, file.path)):
        if file.is_elsewhere and file.neighbour in runs:
            highest[runs[file.neighbour]] = file
    return highest


def _misplaced(path: str) -> Misplaced | None:
    match = re.fullmatch(_SHARD, path)
    if match is None or int(match["rank"]) >= MAX_RANKS:
        return None
    rank = int(match["rank"])
    run = f"_{int(match['run'])}" if int(match["run"] or 0) else ""
    tail = f"{run}-{int(match['epoch'])}_{int(match['step'])}{match['suffix']}"
    target = f"rank_{rank}/{match['head']}_rank_{rank}{tail}"
    neighbour = f"rank_{match['folder']}/{match['head']}_rank_{match['folder']}{tail}"
    return None if target == path else Misplaced(path=path, target=target, rank=rank, neighbour=neighbour)
