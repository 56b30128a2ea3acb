"""Select the superseded checkpoints to delete for a requested space: the oldest of all trees first, and no more."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from math import inf

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.node import Space
from ckpttool.core.domain.retention import Aim, Reached
from ckpttool.retention.times import saved


@dataclass(frozen=True, slots=True, kw_only=True)
class FileUse:
    """Disk blocks of a file or folder, and their names."""

    identity: Hashable
    """The same for all names of a file."""
    names: int
    """Number of names (hard links); the blocks are free only when the last one is deleted."""
    nbytes: int
    """Size of the blocks, which is less than the length for a sparse file."""
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """A checkpoint that may be deleted."""

    checkpoint: Checkpoint
    uses: tuple[FileUse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeUse:
    """What a prune of one tree may free."""

    disk: Hashable
    """Identity of its disk; None if the tree is not on a disk of this machine."""
    trash: tuple[FileUse, ...]
    """Files in the trash, which are deleted before anything else."""
    superseded: tuple[Superseded, ...]
    """Checkpoints that may be deleted, oldest first."""
    own: FileUse | None = None
    """Space that the prune itself needs if it deletes anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Space before a prune."""

    spaces: Mapping[Hashable, tuple[Space, ...]]
    """Limits of each disk; empty if no space is to be free."""
    size: int
    """Size of all trees together in bytes; 0 if it is not limited."""


class Freed:
    """Space that deletions free."""

    def __init__(self) -> None:
        """Begin without a deletion."""
        self.total = 0
        self._names: Counter[Hashable] = Counter()
        self._by_owner: defaultdict[tuple[Hashable, int | None, int | None], int] = defaultdict(int)
        self._changed: set[int] = set()

    def add(self, tree: TreeUse, uses: Iterable[FileUse]) -> None:
        """Add deletions. A file with further names frees nothing until all of them are deleted."""
        for use in uses:
            if id(tree) not in self._changed and tree.own is not None:
                self._count(tree.disk, tree.own, -tree.own.nbytes)
            self._changed.add(id(tree))
            self._names[use.identity] += 1
            if self._names[use.identity] == use.names:
                self._count(tree.disk, use, use.nbytes)

    def _count(self, disk: Hashable, use: FileUse, nbytes: int) -> None:
        self.total += nbytes
        self._by_owner[disk, use.uid, use.gid] += nbytes

    def of(self, disk: Hashable, space: Space) -> int:
        """Return the freed bytes that count for a limit: all files, or those of its user or group."""
        return sum(
            nbytes
            for (place, uid, gid), nbytes in self._by_owner.items()
            if place == disk and space.uid in {None, uid} and space.gid in {None, gid}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """The deletions in one tree that the aim needs."""

    trash: bool
    """Whether the trash is deleted."""
    checkpoints: tuple[Checkpoint, ...]
    """Checkpoints to delete, oldest first."""


def needed(trees: Sequence[TreeUse], aim: Aim, measured: Measured) -> tuple[Needed, ...]:
    """Return the deletions in each tree.

    If space is missing, first the trash is deleted, and then as many checkpoints as necessary, oldest first. In one
    tree, checkpoints are deleted in the order of their steps; among trees, by the time when they were saved, and those
    with an unknown time last. A checkpoint whose deletion frees nothing stays.
    """
    names = Counter(use.identity for use in _all_uses(trees))
    freed = Freed()
    is_short = [_is_short(tree, aim, measured, freed) for tree in trees]
    for tree, short in zip(trees, is_short, strict=True):
        freed.add(tree, tree.trash if short else ())
    queues = [
        [save for save in tree.superseded if any(use.nbytes and names[use.identity] >= use.names for use in save.uses)]
        for tree in trees
    ]
    chosen: list[list[Checkpoint]] = [[] for _ in trees]
    while True:
        open_trees = [at for at, queue in enumerate(queues) if queue and _is_short(trees[at], aim, measured, freed)]
        if not open_trees:
            return tuple(
                Needed(trash=short, checkpoints=tuple(saves)) for short, saves in zip(is_short, chosen, strict=True)
            )
        at = min(open_trees, key=lambda at: (_time(queues[at][0].checkpoint), at))
        save = queues[at].pop(0)
        chosen[at].append(save.checkpoint)
        freed.add(trees[at], save.uses)


def planned(
    trees: Sequence[TreeUse], deletions: Sequence[Needed], aim: Aim, measured: Measured
) -> dict[Hashable, tuple[Reached, ...]]:
    """Return for each disk how far deletions reach the aim."""
    freed = Freed()
    for tree, deletion in zip(trees, deletions, strict=True):
        freed.add(tree, tree.trash if deletion.trash else ())
        keys = {checkpoint.key for checkpoint in deletion.checkpoints}
        for save in tree.superseded:
            if save.checkpoint.key in keys:
                freed.add(tree, save.uses)
    return {disk: tuple(_reached(aim, measured, disk, freed)) for disk in dict.fromkeys(tree.disk for tree in trees)}


def _reached(aim: Aim, measured: Measured, disk: Hashable, freed: Freed) -> Iterator[Reached]:
    for space in measured.spaces.get(disk, ()):
        if aim.free is not None:
            yield Reached(
                aim="free",
                of=space.limit,
                nbytes=aim.free.of(space.total_bytes),
                before=space.free_bytes,
                after=space.free_bytes + freed.of(disk, space),
            )
    if aim.max_size is not None:
        yield Reached(
            aim="max-size",
            of="all trees",
            nbytes=aim.max_size,
            before=measured.size,
            after=measured.size - freed.total,
        )


def _is_short(tree: TreeUse, aim: Aim, measured: Measured, freed: Freed) -> bool:
    return any(reached.missing for reached in _reached(aim, measured, tree.disk, freed))


def _all_uses(trees: Iterable[TreeUse]) -> Iterator[FileUse]:
    for tree in trees:
        yield from tree.trash
        for save in tree.superseded:
            yield from save.uses


def _time(checkpoint: Checkpoint) -> float:
    time = saved(checkpoint)
    return inf if time is None else time.last
