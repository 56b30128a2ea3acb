"""Measure disks: free space with quotas, the size of trees, and the blocks of files to delete."""

from __future__ import annotations

import os
import stat
from collections.abc import Hashable, Iterable, Iterator

from ckpttool.core.domain.node import Space
from ckpttool.core.storage.disk import LocalDisk
from ckpttool.core.storage.mounts import mount_table
from ckpttool.core.storage.quotas import owner_of, quotas_of
from ckpttool.retention.rules_room import FileUse

BLOCK = 512
"""Unit of `st_blocks` in bytes."""


def uses_of(root: str, paths: Iterable[str]) -> Iterator[FileUse]:
    """Yield the blocks of files, and of folders with their contents. Links are not followed.

    Raises:
        OSError: Something no longer exists, or cannot be listed.
    """
    for path in paths:
        place = f"{root}/{path}"
        status = os.lstat(place)
        yield _use(status)
        if stat.S_ISDIR(status.st_mode):
            yield from uses_of(place, sorted(os.listdir(place)))


def _use(status: os.stat_result) -> FileUse:
    return FileUse(
        identity=(status.st_dev, status.st_ino),
        names=1 if stat.S_ISDIR(status.st_mode) else status.st_nlink,
        nbytes=status.st_blocks * BLOCK,
        uid=status.st_uid,
        gid=status.st_gid,
    )


def size_of(root: str, seen: set[Hashable], unread: list[OSError]) -> int:
    """Return the size of a folder, as by `du`.

    Args:
        root: The folder.
        seen: Identities of the files that are not counted again; those of this folder are added.
        unread: The errors of folders that cannot be listed are added; their contents are not counted.
    """
    total = 0
    places = [root]
    while places:
        place = places.pop()
        try:
            status = os.lstat(place)
            names = sorted(os.listdir(place)) if stat.S_ISDIR(status.st_mode) else []
        except FileNotFoundError:  # a process deletes files here
            continue
        except OSError as error:
            unread.append(error)
            continue
        places += [f"{place}/{name}" for name in names]
        use = _use(status)
        if use.identity not in seen:
            seen.add(use.identity)
            total += use.nbytes
    return total


def spaces_of(root: str, newest_file: str | None) -> tuple[tuple[Space, ...], tuple[str, ...]]:
    """Return the limits on new files in a tree, and the reasons why a limit is unknown.

    Args:
        root: The tree.
        newest_file: A file of the newest save, relative to the root: its owner will also own the next save.

    Raises:
        OSError: The file system does not report its free space.
    """
    quotas = quotas_of(root, owner_of(root, newest_file), table=mount_table())
    return (LocalDisk().space(root), *quotas.spaces), quotas.troubles
