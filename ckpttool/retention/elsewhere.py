"""Of a tree that is no folder of this machine: which files would go, and on which machine they lie."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ckpttool.core.domain.retention import Elsewhere, RetentionPlan
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.errors import IncompleteError
from ckpttool.core.storage.base import Kind
from ckpttool.core.verbs.scanning import Tree
from ckpttool.retention.apply import paths_of
from ckpttool.trainers.located import DiskKey


def elsewhere(tree: Tree, plan: RetentionPlan) -> list[Elsewhere]:
    """Return which files would go, by machine; what several machines see of one disk is said of one of them.

    Raises:
        IncompleteError: Something cannot be looked at any more.
    """
    hosts = tree.machines.hosts()
    places = []
    for checkpoint in reversed(plan.going):
        files: dict[DiskKey, list[tuple[str, int]]] = defaultdict(list)
        for path in _files(tree, paths_of(tree, checkpoint)):
            for disk, size in _sizes(tree, path).items():
                files[disk].append((path, size))
        for disk, disk_files in files.items():
            entry = Elsewhere(
                checkpoint=checkpoint.name,
                host=hosts.get(disk),
                paths=tuple(path for path, _ in disk_files),
                nbytes=ByteCount(sum(size for _, size in disk_files)),
            )
            places.append((entry.host or "", disk, entry))
    places.sort(key=lambda item: item[:2])
    return [entry for _, _, entry in places]


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


def _sizes(tree: Tree, path: str) -> Mapping[DiskKey, ByteCount]:
    """Return the bytes of a file on each disk that has it; of an object store there is one, without a name."""
    try:
        size = tree.storage.stamp(path).size
    except OSError as error:
        raise _unread(path, error) from None
    return tree.machines.sizes(path, size)


def _unread(path: str, error: OSError) -> IncompleteError:
    return IncompleteError(f"{path} cannot be read: {error.strerror or error}; it is not known what would go")
