"""Of a tree that is no folder of this machine: which files would go, and on which machine they lie."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ckpttool.core.domain.merge import Merge, Seat
from ckpttool.core.domain.retention import Elsewhere, RetentionPlan
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.errors import IncompleteError
from ckpttool.core.storage.base import Kind
from ckpttool.core.verbs.scanning import Tree
from ckpttool.retention.letting_go import paths_of


def elsewhere(tree: Tree, plan: RetentionPlan) -> list[Elsewhere]:
    """Return which files would go, by machine; what several machines see of one disk is said of one of them.

    Raises:
        IncompleteError: Something cannot be looked at any more.
    """
    hosts = {} if tree.looks is None else _host_of_each_disk(tree.looks.merge)
    found = []
    for checkpoint in reversed(plan.going):
        files: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
        for path in _files(tree, paths_of(tree, checkpoint)):
            for disk, size in _sizes(tree, path).items():
                files[disk].append((path, size))
        for disk, own in files.items():
            entry = Elsewhere(
                checkpoint=checkpoint.name,
                host=hosts.get(disk),
                paths=tuple(path for path, _ in own),
                nbytes=ByteCount(sum(size for _, size in own)),
            )
            found.append((entry.host or "", disk, entry))
    found.sort(key=lambda each: each[:2])
    return [entry for _, _, entry in found]


def _files(tree: Tree, paths: Sequence[str]) -> Iterator[str]:
    """Yield the files at paths, and of folders all in them."""
    for path in paths:
        try:
            if tree.storage.kind(path) is not Kind.FOLDER:
                yield path
                continue
            inside = [f"{path}/{entry.name}" for entry in tree.storage.entries(path)]
        except OSError as error:
            raise _unread(path, error) from None
        yield from _files(tree, inside)


def _sizes(tree: Tree, path: str) -> dict[tuple[str, ...], int]:
    """Return the bytes of a file on each disk that has it; of an object store there is one, without a name."""
    try:
        size = tree.storage.stamp(path).size
    except OSError as error:
        raise _unread(path, error) from None
    if tree.looks is None:
        return {(): size}
    merge = tree.looks.merge
    copies = merge.copies.get(path)
    if copies is None:
        return {_disk_of(merge.seats[at]): size for at in merge.held.get(path, ())}
    return {_disk_of(copy.seat): copy.stamp.size for copy in reversed(copies)}


def _unread(path: str, error: OSError) -> IncompleteError:
    return IncompleteError(f"{path} cannot be read: {error.strerror or error}; it is not known what would go")


def _disk_of(seat: Seat) -> tuple[str, ...]:
    """Tell disks apart; of a machine's own disk also two folders, which are two machines' in a trial."""
    return (seat.disk,) if seat.shared else (seat.disk, seat.absolute or seat.root)


def _host_of_each_disk(merge: Merge) -> dict[tuple[str, ...], str]:
    """Return a machine for each disk, one that can change what lies there if any can."""
    seats: dict[tuple[str, ...], list[Seat]] = defaultdict(list)
    for seat in merge.looked:
        seats[_disk_of(seat)].append(seat)
    used = {*merge.seats}
    return {
        disk: min(own, key=lambda seat: (seat not in used, bool(seat.unwritable), seat.host)).host
        for disk, own in seats.items()
    }
