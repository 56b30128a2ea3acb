"""Free space and write permissions of a file system, which only this module queries so that tests can fake them."""

from __future__ import annotations

import os
from typing import Protocol

from ckpttool.core.domain.node import Room, Space

__all__ = ["Disk", "LocalDisk", "Room", "Space"]


class Disk(Protocol):
    """Interface of the file systems, with a fake for tests."""

    def nearest(self, folder: str) -> str:
        """Return the folder, or the nearest existing folder above it."""
        ...

    def room(self, folder: str) -> Room:
        """Return the free space in a folder's file system.

        Raises:
            OSError: The file system does not report it.
        """
        ...

    def is_writable(self, folder: str) -> bool:
        """Return whether this user may create files in an existing folder."""
        ...


class LocalDisk:
    """File systems that are mounted on this machine."""

    __slots__ = ()

    def nearest(self, folder: str) -> str:
        """Return the folder, or the nearest existing folder above it."""
        while not os.path.isdir(folder or "."):
            folder = os.path.dirname(folder.rstrip("/"))
        return folder or "."

    def room(self, folder: str) -> Room:
        """Return the result of `statvfs`, which excludes root's reserve, and ignores quotas and concurrent writers."""
        status = os.statvfs(folder)
        return Room(
            free_bytes=status.f_bavail * status.f_frsize,
            free_files=status.f_favail if status.f_files else None,
        )

    def space(self, folder: str) -> Space:
        """Return the result of `statvfs`, as `room` does, with the total.

        It includes the quotas of projects on XFS and of folders on CephFS, but not those of users and groups.
        """
        status = os.statvfs(folder)
        used = status.f_blocks - status.f_bfree
        return Space(
            limit="the disk",
            free_bytes=status.f_bavail * status.f_frsize,
            total_bytes=(used + status.f_bavail) * status.f_frsize,
        )

    def is_writable(self, folder: str) -> bool:
        """Return whether the system permits writing, with regard to read-only mounts and access control lists."""
        return os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)
