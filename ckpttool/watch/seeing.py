"""Polling of a watched tree for saves on this machine, for one machine's part, or for all parts."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from ckpttool.core.domain.finding import Finding, blocking, unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.progress import newest_first
from ckpttool.core.errors import UsageError
from ckpttool.core.records import OWN_FOLDER, PART_SUFFIX, STREAM, is_manifest
from ckpttool.core.storage import forget_listings, open_storage, shortest
from ckpttool.core.storage.base import Kind
from ckpttool.core.verbs.scanning import Tree, looking_at, scanned
from ckpttool.core.write.files import is_own_temporary
from ckpttool.nodes.findings import NodesCode
from ckpttool.nodes.machines import MachinesOfParts
from ckpttool.trainers.base import Refusal
from ckpttool.trainers.listing import list_root
from ckpttool.trainers.locate import locate
from ckpttool.watch.model import SaveState, SeenNode, Sighting
from ckpttool.watch.rules import is_silent, patience_of
from ckpttool.watch.rules_seen_saves import OF_FILES, OF_PARTS, fingerprint, key_of, seen_save

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.question import TreeQuestion
    from ckpttool.core.domain.verdict import Level
    from ckpttool.core.storage.base import Storage
    from ckpttool.nodes.model import Merge
    from ckpttool.watch.model import SeenSave, Watched, WatchQuestion


class Moves(Protocol):
    """Detector of changes in a tree since its listing."""

    @property
    def unfinished(self) -> Collection[str]:
        """Return the paths of files that may be written under a temporary name first."""
        ...

    def moved(self) -> bool:
        """Return whether the tree may have changed."""
        ...


def scans_often(question: TreeQuestion) -> tuple[Tree, Moves]:
    """Scan as `scan` does. Also return an object that detects later changes in the tree, or in a part of it.

    Raises:
        UsageError: As for `scan`, or the tree cannot be polled.
    """
    from ckpttool.watch.listed import ListedFiles, ListedStorage

    if question.path == STREAM:
        raise UsageError("standard input can be read only once: give the folder with the parts")
    forget_listings(question.path or os.curdir)
    files = ListedFiles(open_storage(shortest(question.path or os.curdir)), PART_SUFFIX)
    located = locate(question.path, layout=question.layout, config=question.config, root=question.root)
    if located.machines is not None:
        return scanned(located, question), files
    storage = ListedStorage(located.storage)
    with looking_at(storage.root):
        listing = list_root(storage)
    return scanned(replace(located, storage=storage, listing=listing), question), storage


STAMPS_A_POLL = 2048
"""Number of files from known saves that an idle poll checks, in turn."""


MOST_BESIDE = 20_000
"""Maximum number of names that a poll checks in the folder of a save that is not known to be good."""


class InPlace:
    """The files of a tree's saves, newest first. A write in place does not change a folder's times."""

    def __init__(self, tree: Tree, turn: int) -> None:
        """Record the current state of the files.

        Args:
            tree: The tree as listed.
            turn: Number of files that were checked before the listing.
        """
        self._stamps = [
            (shard.path, shard.stamp)
            for checkpoint in newest_first(tree.inventory.checkpoints)
            for shard in checkpoint.shards
            if shard.stamp is not None
        ]
        self._root = tree.storage.root
        self.turn = turn

    def moved(self) -> bool:
        """Return whether one of the files checked in this turn was written."""
        if not self._stamps:
            return False
        storage = open_storage(self._root)
        for _ in range(min(STAMPS_A_POLL, len(self._stamps))):
            path, stamp = self._stamps[self.turn % len(self._stamps)]
            self.turn += 1
            try:
                if storage.stamp(path) != stamp:
                    return True
            except OSError:
                return True
        return False


def assert_consistent(question: WatchQuestion, tree: Tree) -> None:
    """Raise an error if an option needs files and cannot be used with parts.

    Raises:
        UsageError: Such an option was passed.
    """
    if question.rule.free_below is not None and not tree.is_on_own_disk:
        raise UsageError(
            f"--free-below needs a tree on a disk of this machine, not {tree.inventory.root}; on many machines, use it "
            "with --part-out on each"
        )
    if not isinstance(tree.machines, MachinesOfParts):
        return
    source = tree.machines.merge.source
    if question.seal:
        raise UsageError(f"--seal: {source} has parts; seal the tree on the machines that have its files")
    if question.part is not None:
        raise UsageError(f"--part-out: {source} already has parts; give the tree as this machine sees it")


def sighting(tree: Tree, listed: Moves, question: WatchQuestion, watched: Watched, wall: float) -> Sighting:
    """Return the observation of a tree, without the free space on its disk.

    Args:
        tree: The tree as listed.
        listed: Paths of the tree's unfinished files.
        question: Whether it is a part, the level of the check of its shards, and the patience.
        watched: The good saves, and the machines that fell silent.
        wall: Seconds since 1970.
    """
    ordered = newest_first(tree.inventory.checkpoints)
    complete = not tree.inventory.unlisted
    machines = tree.machines
    if isinstance(machines, MachinesOfParts):
        saves = _saves_of_parts(tree, machines, question, watched, wall)
        complete = complete and not machines.merge.lacking
        return Sighting(saves=saves, is_complete=complete, nodes=_nodes(machines.merge))
    if question.part is not None:
        parts = (seen_save(checkpoint, wall, OF_FILES, _sealed(tree, checkpoint)) for checkpoint in ordered)
        # The watch of all parts judges whether files are missing: here, the present files are to be read.
        return Sighting(saves=tuple(replace(part, files=0) for part in parts), is_complete=complete)
    extras = _Companions(tree, watched)
    seen_saves = tuple(seen_save(checkpoint, wall, extras=extras.of(checkpoint)) for checkpoint in ordered)
    return Sighting(saves=seen_saves, is_complete=complete, under_way=_moved(tree.storage, listed.unfinished))


def _saves_of_parts(
    tree: Tree, machines: MachinesOfParts, question: WatchQuestion, watched: Watched, wall: float
) -> tuple[SeenSave, ...]:
    """Return the saves that some machine still reports, each with its unread shards."""
    patience = patience_of(watched, question.rule)
    silent = {node.number for node in watched.nodes if is_silent(watched, node.number, patience)}
    saves = []
    for checkpoint in newest_first(tree.inventory.checkpoints):
        if not _is_left_behind(checkpoint, machines.merge, silent):
            reported, unlooked = _reported(machines, checkpoint, question.level)
            save = seen_save(checkpoint, wall, OF_PARTS, reported)
            saves.append(replace(save, incomplete=on_hosts((*save.incomplete, *unlooked), tree)))
    return tuple(saves)


class _Companions:
    """The companion files in the folders of saves that are not known to be good."""

    def __init__(self, tree: Tree, watched: Watched) -> None:
        self._tree = tree
        self._good = {save.key for save in watched.saves if save.state is SaveState.GOOD}

    def of(self, checkpoint: Checkpoint) -> str:
        """Return a value that changes with these files. Empty if it is not needed or there is no folder."""
        if key_of(checkpoint) in self._good:
            return ""
        members = self._tree.layout.members(checkpoint)
        shards = {shard.path for shard in checkpoint.shards}
        if isinstance(members, Refusal) or len(members.paths) != 1 or members.paths[0] in shards:
            return ""
        return _moved(self._tree.storage, (path for path in self._files(members.paths[0]) if path not in shards))

    def _files(self, folder: str) -> Iterator[str]:
        """Yield the files in and below a save's folder, up to a limit, without following links to folders.

        The folder itself may be a link to another disk, or to all files of this machine.
        """
        storage, waiting, budget = self._tree.storage, [folder], MOST_BESIDE
        while waiting and budget:
            inner = waiting.pop()
            try:
                entries = sorted(storage.entries(inner))[:budget]
            except OSError:  # it was deleted after it was listed
                continue
            budget -= len(entries)
            for name, kind in entries:
                path = f"{inner}/{name}"
                if kind is Kind.FOLDER:
                    waiting += [] if os.path.islink(f"{storage.root}/{path}") else [path]
                elif not is_manifest(path) and not is_own_temporary(name):
                    yield path


def _moved(storage: Storage, paths: Iterable[str]) -> str:
    """Return a value that changes if one of some files is added, removed or written."""
    stamps = []
    for path in sorted(paths):
        if not path.startswith(f"{OWN_FOLDER}/") and path != OWN_FOLDER:
            with suppress(OSError):
                stamp = storage.stamp(path)
                stamps.append((path, stamp.size, stamp.token))
    return fingerprint(stamps)


def _sealed(tree: Tree, checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the sealed shards of a save. Shards that were sealed after a read are read again and compared."""
    from ckpttool.core.domain.manifest import Manifest
    from ckpttool.core.records.manifest import read_manifest

    place = tree.seal_place(checkpoint)
    manifest = None if place is None else read_manifest(tree.storage, place)
    paths = {shard.path for shard in checkpoint.shards}
    return tuple(seal.path for seal in manifest.shards if seal.path in paths) if isinstance(manifest, Manifest) else ()


def _reported(
    machines: MachinesOfParts, checkpoint: Checkpoint, level: Level
) -> tuple[list[object], tuple[Finding, ...]]:
    """Return the machines' reports on the shards of a save, and a finding if some are not checked yet."""
    reported: list[object] = []
    unlooked = []
    for shard in sorted(checkpoint.shards, key=lambda shard: shard.path):
        report = machines.report(shard.path)
        against = () if report is None else blocking(report.findings)
        reported.append(
            None if report is None else (report.level.value, sorted(finding.code.value for finding in against))
        )
        if report is None or (report.level < level and not against):
            unlooked.append(shard)
    if not unlooked:
        return reported, ()
    first = unlooked[0]
    message = f"{len(unlooked)} of {len(checkpoint.shards)} shards have not been read yet by the machine that has them"
    remedy = f"check whether ckpttool watch --part-out --level {level.word} runs there"
    ranks = tuple(sorted({shard.rank for shard in unlooked if shard.rank is not None}))
    return reported, (unknown(NodesCode.NOT_LOOKED_AT, message, path=first.path, ranks=ranks, remedy=remedy),)


def on_hosts(findings: Sequence[Finding], tree: Tree) -> tuple[Finding, ...]:
    """Add to each finding the machine that reported it, if several machines checked the tree."""
    if not isinstance(tree.machines, MachinesOfParts):
        return tuple(findings)
    merge = tree.machines.merge
    of_rank: dict[int, set[int]] = {}
    for checkpoint in tree.inventory.checkpoints:
        for shard in checkpoint.shards:
            if shard.rank is not None:
                of_rank.setdefault(shard.rank, set()).update(merge.holders.get(shard.path, ()))
    named = []
    for finding in findings:
        seats = {*merge.holders.get(finding.path or "", ())} or {
            at for rank in finding.ranks for at in of_rank.get(rank, ())
        }
        hosts = sorted({merge.seats[at].host for at in seats})
        listed = ", ".join(hosts[:_MOST_HOSTS]) + (
            f" and {len(hosts) - _MOST_HOSTS} more" if hosts[_MOST_HOSTS:] else ""
        )
        is_said = not hosts or all(host in finding.message for host in hosts)
        named.append(finding if is_said else replace(finding, message=f"{finding.message} (on {listed})"))
    return tuple(named)


_MOST_HOSTS = 4
"""Maximum number of machines in one line."""


def _nodes(merge: Merge) -> tuple[SeenNode, ...]:
    """Return the machines of a tree, including machines whose part is missing."""
    seats = {seat.number: seat for seat in merge.seats_read}
    return tuple(
        SeenNode(number=number, name=seat.name, mark=str(seat.began_ns))
        if (seat := seats.get(number)) is not None
        else SeenNode(number=number, name=f"part {number} of {merge.of}", mark="")
        for number in range(1, merge.of + 1)
    )


def _is_left_behind(checkpoint: Checkpoint, merge: Merge, silent: Collection[int]) -> bool:
    """Return whether only silent machines report a save, while the others have deleted their files."""
    if not silent or all(seat.number in silent for seat in merge.seats):
        return False
    holders = {at for shard in checkpoint.shards for at in merge.holders.get(shard.path, ())}
    return all(merge.seats[at].number in silent for at in holders)
