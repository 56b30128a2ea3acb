"""Paths that must not be moved or replaced: reached through a link, or on a different disk from the tree."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ckpttool.core.domain.shard import FileStamp


class FileToMove(NamedTuple):
    """A file or folder in the tree; links are not followed."""

    path: str
    stamp: FileStamp | None
    """The stamp of the file or folder; None if it must not be moved."""
    blocker: str | None = None
    """The reason why the file or folder must not be moved."""


def files_to_move(root: str, paths: Iterable[str]) -> Iterator[FileToMove]:
    """Check that no path to move goes through a link or to another disk.

    Args:
        root: The tree.
        paths: Paths relative to the root.

    Raises:
        OSError: A path no longer exists, or cannot be checked.
    """
    disk = os.stat(root).st_dev
    folders: dict[str, str | None] = {}
    for path in paths:
        folder = path.rpartition("/")[0]
        if folder not in folders:
            folders[folder] = _blocker(os.lstat(f"{root}/{folder}"), disk, folder) if folder else None
        status = os.lstat(f"{root}/{path}")
        blocker = folders[folder] or _blocker(status, disk, path)
        stamp = FileStamp.on_disk(size=status.st_size, mtime_ns=status.st_mtime_ns, inode=status.st_ino)
        yield FileToMove(path, None if blocker else stamp, blocker)


def links_to(root: str, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Find the links next to and inside the paths to move that point to or into these paths, each with its target.

    People link to saves in this way, as do scripts that replace equal files of two saves with links.

    Args:
        root: The tree.
        paths: Files and folders, relative to the root. A link that points into the same file or folder that contains it
            is not reported.
    """
    paths = list(paths)
    folders = {path.rpartition("/")[0] for path in paths} | {""}
    links = {link for folder in folders for link in _links(root, folder, recurse=False)}
    links |= {link for path in paths for link in _links(root, path, recurse=True)}
    goals = {os.path.realpath(f"{root}/{path}"): path for path in paths if links and path not in links}
    for link in sorted(links):
        goal = os.path.realpath(f"{root}/{link}")
        while goal not in goals and goal != os.path.dirname(goal):
            goal = os.path.dirname(goal)
        if goal in goals and not link.startswith(f"{goals[goal]}/"):
            yield link, goals[goal]


def _links(root: str, folder: str, *, recurse: bool) -> Iterator[str]:
    """List the links in a folder, and on request those below the folder; empty for a file."""
    for place, folders, files in os.walk(f"{root}/{folder}"):
        for name in (*folders, *files):
            if os.path.islink(f"{place}/{name}"):
                yield os.path.relpath(f"{place}/{name}", root)
        if not recurse:
            return


def files_not_to_replace(root: str, paths: Iterable[str]) -> Iterator[str]:
    """Yield the reasons not to write records. Replacing a link or a folder would destroy its target.

    Args:
        root: The tree.
        paths: Paths relative to the root; the files need not exist, but their folders must.

    Raises:
        OSError: A folder no longer exists, or cannot be checked.
    """
    disk = os.stat(root).st_dev
    for path in paths:
        folder = path.rpartition("/")[0]
        above = os.lstat(f"{root}/{folder}")
        if folder and stat.S_ISLNK(above.st_mode):
            yield f"{folder} is a link, and nothing is written through a link"
        elif above.st_dev != disk:
            yield f"{folder} is on a different disk from the tree, and is not changed"
        elif (trouble := _no_file(f"{root}/{path}")) is not None:
            yield f"{path} is {trouble}, and is not replaced"


def _no_file(full: str) -> str | None:
    try:
        kind = os.lstat(full).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISREG(kind):
        return None
    if stat.S_ISLNK(kind):
        return "a link"
    return "a folder" if stat.S_ISDIR(kind) else "a FIFO or a device"


def _blocker(status: os.stat_result, disk: int, path: str) -> str | None:
    if stat.S_ISLNK(status.st_mode):
        return f"{path} is a link, and is neither followed nor left broken"
    if status.st_dev != disk:
        return f"{path} is on a different disk from the tree, so it cannot be moved to the tree's trash by a rename"
    return None
