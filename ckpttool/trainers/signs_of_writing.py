"""Is somebody writing here, and can every file be moved? What must be known before anything is moved away."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ckpttool.domain.checkpoint import Inventory, LayoutName
from ckpttool.domain.finding import Code, Finding, Severity
from ckpttool.domain.shard import FileStamp
from ckpttool.storage.base import Storage
from ckpttool.trainers.mindformers.layouts.names import FileKind, parse_shape

_OWN_TEMPORARY = re.compile(r"\.ckpttool-[0-9a-f]{16}\.tmp")
"""Ours: no sign of a training. Whoever holds the lock sweeps them away."""

_RECORDS = ("common.json", "metadata.json")
"""Written with every save. Not meta.json and the tracker: we write those ourselves."""


def signs_of_writing(storage: Storage, inventory: Inventory, *, now: float, grace: float) -> Iterator[Finding]:
    """Find temporary files, and the youngest file where it is younger than the grace time.

    Args:
        storage: The tree.
        inventory: Scanned with sizes.
        now: Unix seconds.
        grace: Seconds. A time so far in the future says nothing but that a clock was wrong.
    """
    for path in sorted(_temporary_files(inventory)):
        yield Finding(
            code=Code.IN_PROGRESS,
            severity=Severity.UNKNOWN,
            message="a temporary file: a save is under way, or was cut off",
            path=path,
            remedy="wait for the save; where no training runs, remove the file",
        )
    youngest = min(((abs(now - mtime), path) for path, mtime in _written(storage, inventory)), default=None)
    if youngest is not None and youngest[0] < grace:
        yield Finding(
            code=Code.IN_PROGRESS,
            severity=Severity.UNKNOWN,
            message=f"written {youngest[0]:.0f} s ago: somebody may still be saving (--grace {grace:g})",
            path=youngest[1],
            remedy="wait; where no training runs, --grace 0",
        )


def _temporary_files(inventory: Inventory) -> Iterator[str]:
    """Find them among what the scan told apart: the rank layout knows them, the newer one calls them strays."""
    for finding in [*inventory.findings, *(finding for one in inventory.checkpoints for finding in one.findings)]:
        name = (finding.path or "").rpartition("/")[2]
        temporary = finding.code is Code.IN_PROGRESS or (
            finding.code is Code.STRAY_FILE and parse_shape(name).kind is FileKind.IN_PROGRESS
        )
        if temporary and finding.path is not None and not _OWN_TEMPORARY.fullmatch(name):
            yield finding.path


def _written(storage: Storage, inventory: Inventory) -> Iterator[tuple[str, float]]:
    """Yield what a save writes, with its mtime in Unix seconds."""
    for checkpoint in inventory.checkpoints:
        for shard in checkpoint.shards:
            if shard.modified_ns is not None:
                yield shard.path, shard.modified_ns / 1e9
        if inventory.layout is LayoutName.MINDFORMERS_ITERATION:
            for path in (f"{checkpoint.name}/{record}" for record in _RECORDS):
                try:
                    written = storage.stamp(path).modified_ns
                except OSError:  # not there, which is for the check of the checkpoint to say
                    continue
                if written is not None:
                    yield path, written / 1e9


class Place(NamedTuple):
    """A file or an iteration's folder as it lies in the tree, links not followed."""

    path: str
    stamp: FileStamp | None
    """None where it may not be moved."""
    obstacle: str | None = None
    """Why not."""


def places(storage: Storage, paths: Iterable[str]) -> Iterator[Place]:
    """Look at what is to be moved: nothing goes through a link, and nothing can be renamed to another disk.

    Args:
        storage: The tree.
        paths: Relative to its root.

    Raises:
        OSError: One of them is not there any more, or cannot be looked at.
    """
    disk = os.stat(storage.root).st_dev
    folders: dict[str, str | None] = {}
    for path in paths:
        folder = path.rpartition("/")[0]
        if folder not in folders:
            folders[folder] = _obstacle(os.lstat(f"{storage.root}/{folder}"), disk, folder) if folder else None
        status = os.lstat(f"{storage.root}/{path}")
        obstacle = folders[folder] or _obstacle(status, disk, path)
        stamp = FileStamp.on_disk(size=status.st_size, mtime_ns=status.st_mtime_ns, inode=status.st_ino)
        yield Place(path, None if obstacle else stamp, obstacle)


def record_obstacles(storage: Storage, paths: Iterable[str]) -> Iterator[str]:
    """Say which records must not be written: whoever replaces a link or a folder destroys what it stands for.

    Args:
        storage: The tree.
        paths: Relative to its root; they need not be there, but their folders must.

    Raises:
        OSError: A folder is not there any more, or cannot be looked at.
    """
    disk = os.stat(storage.root).st_dev
    for path in paths:
        folder = path.rpartition("/")[0]
        above = os.lstat(f"{storage.root}/{folder}")
        if folder and stat.S_ISLNK(above.st_mode):
            yield f"{folder} is a link, and nothing is written through a link"
        elif above.st_dev != disk:
            yield f"{folder} is on another disk than the tree, and is left to whoever looks after that"
        elif (trouble := _no_file(f"{storage.root}/{path}")) is not None:
            yield f"{path} is {trouble}, and nothing is written in its place"


def _no_file(full: str) -> str | None:
    try:
        kind = os.lstat(full).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISREG(kind):
        return None
    return "a link" if stat.S_ISLNK(kind) else "a folder" if stat.S_ISDIR(kind) else "a FIFO or a device"


def _obstacle(status: os.stat_result, disk: int, path: str) -> str | None:
    if stat.S_ISLNK(status.st_mode):
        return f"{path} is a link, and nothing is moved through a link or leaves it dangling"
    if status.st_dev != disk:
        return f"{path} is on another disk than the tree, and a rename cannot take it to the tree's trash"
    return None
