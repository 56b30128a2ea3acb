"""Which disks have the files of what may go, and the plan that says it to their machines."""

from __future__ import annotations

import os
import socket
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from ckpttool import __version__
from ckpttool.api.letting_go import paths_of
from ckpttool.api.scanning import Tree
from ckpttool.domain.checkpoint import Checkpoint
from ckpttool.domain.merge import Seat
from ckpttool.domain.node import Reach
from ckpttool.domain.pointer import PointerFix
from ckpttool.domain.prune_plan import Machine, PlannedSave, PrunePlan, Share, TreeOnDisk
from ckpttool.domain.retention import Elsewhere, Move, RetentionPlan
from ckpttool.domain.shard import FileStamp
from ckpttool.domain.units import Rank, moment
from ckpttool.errors import IncompleteError, UnsafeError
from ckpttool.records import is_manifest
from ckpttool.records.merging import MergedLooks
from ckpttool.storage import is_local
from ckpttool.storage.base import Kind
from ckpttool.storage.mounts import disk_id, mount_of, mount_table
from ckpttool.trainers.base import Refusal


def assert_plannable(tree: Tree) -> None:
    """See that a plan of what may go can be applied by machines that have the tree's files.

    Raises:
        UnsafeError: It lies in an object store.
        IncompleteError: A part does not tell where it was taken.
    """
    if tree.looks is None and not is_local(tree.storage.root):
        raise UnsafeError(
            f"{tree.inventory.root}: ckpttool changes nothing in an object store, so nobody could apply a plan: --json "
            "names each object, for the store's own tool"
        )
    for seat in () if tree.looks is None else tree.looks.merge.looked:
        if seat.absolute is None:
            raise IncompleteError(f"{seat.name} is of another version, which does not tell where it looked: look again")


def elsewhere(tree: Tree, plan: RetentionPlan) -> Iterator[Elsewhere]:
    """Say which files would go, machine by machine; what several machines see of one disk goes on one of them."""
    disks = _disks_of(tree)
    saves = [_going(tree, disks, checkpoint) for checkpoint in reversed(plan.going)]
    for number, disk in enumerate(disks.all):
        for save in saves:
            for share in save.shares:
                if share.disk == number and share.files:
                    paths = tuple(file.path for file in share.files)
                    yield Elsewhere(checkpoint=save.name, host=disk.mover, paths=paths, nbytes=share.nbytes)


def planned(tree: Tree, plan: RetentionPlan, fixes: tuple[PointerFix, ...], *, age: float) -> PrunePlan:
    """Return what may go with the stamp of every file, and of every one that must stay for it.

    Args:
        tree: All of it, as it was judged.
        plan: What was decided.
        fixes: Records that name what goes.
        age: Seconds that the plan is good.

    Raises:
        IncompleteError: Something is not there any more.
    """
    disks, looks, now = _disks_of(tree), tree.looks, time.time()
    return PrunePlan(
        version=__version__,
        made=moment(now),
        valid_until=moment(now + age),
        run=looks.merge.seats[0].run if looks is not None and looks.merge.seats else "",
        root=tree.inventory.root,
        layout=tree.inventory.layout,
        disks=disks.all,
        going=tuple(_going(tree, disks, checkpoint) for checkpoint in reversed(plan.going)),
        good=tuple(_staying(tree, disks, checkpoint) for checkpoint in plan.good) if plan.going else (),
        records=fixes,
    )


def _going(tree: Tree, disks: _Disks, checkpoint: Checkpoint) -> PlannedSave:
    return _planned(tree, disks, checkpoint, paths_of(tree, checkpoint))


def _staying(tree: Tree, disks: _Disks, checkpoint: Checkpoint) -> PlannedSave:
    """Say what must stay of a save; a seal of it may be written meanwhile."""
    members = tree.layout.members(checkpoint)
    paths = [shard.path for shard in checkpoint.shards] if isinstance(members, Refusal) else list(members.paths)
    files = [path for path in _files(tree, paths) if not is_manifest(path)]
    return _planned(tree, disks, checkpoint, files)


def _planned(tree: Tree, disks: _Disks, checkpoint: Checkpoint, paths: Sequence[str]) -> PlannedSave:
    """Divide what belongs to a save among the disks that have it."""
    folders: dict[int, list[str]] = defaultdict(list)
    files: dict[int, list[Move]] = defaultdict(list)
    ranks: dict[int, set[Rank]] = defaultdict(set)
    rank_of = {shard.path: shard.rank for shard in checkpoint.shards if shard.rank is not None}
    for path in paths:
        if _is_folder(tree, path):
            for disk in disks.listing(path):
                folders[disk].append(path)
        for file in _files(tree, [path]):
            for disk, stamp in disks.holding(file):
                files[disk].append(Move(path=file, stamp=stamp))
                if file in rank_of:
                    ranks[disk].add(rank_of[file])
    shares = (
        Share(
            disk=disk,
            ranks=tuple(sorted(ranks[disk])),
            folders=tuple(folders[disk]),
            files=tuple(files[disk]),
        )
        for disk in sorted(folders.keys() | files.keys())
    )
    return PlannedSave(name=checkpoint.name, prefix=checkpoint.prefix, step=checkpoint.step, shares=tuple(shares))


def _is_folder(tree: Tree, path: str) -> bool:
    try:
        return tree.storage.kind(path) is Kind.FOLDER
    except OSError as error:
        raise _unread(path, error) from None


def _files(tree: Tree, paths: Sequence[str]) -> Iterator[str]:
    """Yield the files at paths, and of folders all in them."""
    for path in paths:
        if not _is_folder(tree, path):
            yield path
            continue
        if is_local(tree.storage.root) and os.path.islink(f"{tree.storage.root}/{path}"):
            raise IncompleteError(f"{path} is a link to a folder, and a plan names files alone; no plan was made")
        try:
            inside = [f"{path}/{entry.name}" for entry in tree.storage.entries(path)]
        except OSError as error:
            raise _unread(path, error) from None
        yield from _files(tree, inside)


def _unread(path: str, error: OSError) -> IncompleteError:
    return IncompleteError(f"{path} cannot be read: {error.strerror or error}; no plan was made")


class _Disks:
    """The disks on which a tree lies, in the order in which a plan has them."""

    def __init__(self, tree: Tree, disks: Sequence[TreeOnDisk]) -> None:
        self._tree = tree
        self.all = tuple(disks)

    def listing(self, folder: str) -> Sequence[int]:
        """Return which disks have a folder."""
        del folder
        return range(len(self.all))

    def holding(self, file: str) -> Iterator[tuple[int, FileStamp]]:
        """Yield which disks have a file, and its stamp there."""
        try:
            yield 0, self._tree.storage.stamp(file)
        except OSError as error:
            raise _unread(file, error) from None


class _DisksOfMachines(_Disks):
    """Those that several machines looked at."""

    def __init__(self, tree: Tree, looks: MergedLooks) -> None:
        groups: dict[tuple[str, ...], list[Seat]] = defaultdict(list)
        for seat in looks.merge.looked:
            groups[_key(seat)].append(seat)
        seeing = {*looks.merge.seats}
        disks = {key: _on_disk(seats, seeing) for key, seats in groups.items()}
        order = sorted(disks, key=lambda key: (disks[key].mover or "", key))
        super().__init__(tree, [disks[key] for key in order])
        numbers = {key: number for number, key in enumerate(order)}
        self._looks = looks
        self._disk_of = [numbers[_key(seat)] for seat in looks.merge.seats]

    def listing(self, folder: str) -> Sequence[int]:
        return sorted({self._disk_of[at] for at in self._looks.listing(folder)})

    def holding(self, file: str) -> Iterator[tuple[int, FileStamp]]:
        merge = self._looks.merge
        seats, copies = merge.held.get(file, ()), merge.copies.get(file)
        stamps = [self._tree.storage.stamp(file)] if copies is None else [copy.stamp for copy in copies]
        found: dict[int, FileStamp] = {}
        for at, stamp in zip(seats, stamps, strict=True):
            found.setdefault(self._disk_of[at], stamp)
        yield from sorted(found.items())


def _key(seat: Seat) -> tuple[str, ...]:
    """Tell disks apart; of a machine's own disk also two folders, which are two machines' in a trial."""
    return (seat.disk,) if seat.shared else (seat.disk, seat.absolute or seat.root)


def _on_disk(seats: Sequence[Seat], seeing: Collection[Seat]) -> TreeOnDisk:
    """Return a disk with its machines: first those that can change what lies there."""
    order = sorted(seats, key=lambda seat: (seat not in seeing, bool(seat.unwritable), seat.host))
    machines = dict.fromkeys((seat.host, seat.absolute or seat.root) for seat in order)
    return TreeOnDisk(
        disk=seats[0].disk,
        shared=seats[0].shared,
        machines=tuple(Machine(host=host, root=root) for host, root in machines),
    )


def _disks_of(tree: Tree) -> _Disks:
    if tree.looks is not None:
        return _DisksOfMachines(tree, tree.looks)
    root = tree.storage.root
    if not is_local(root):
        return _Disks(tree, [TreeOnDisk(disk="", shared=True, machines=())])
    machine = Machine(host=socket.gethostname(), root=os.path.abspath(root))
    shared = mount_of(root, mount_table()).reach is Reach.SHARED
    return _Disks(tree, [TreeOnDisk(disk=disk_id(root), shared=shared, machines=(machine,))])
