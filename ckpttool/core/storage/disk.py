"""A file system's free space and write permission. Only this module queries them, so that tests can fake them."""

from __future__ import annotations

import os
from typing import Protocol

from ckpttool.core.domain.node import Room

__all__ = ["Disk", "LocalDisk", "Room"]


class Disk(Protocol):
    """A file system, or a fake file system for tests."""

    def nearest(self, folder: str) -> str:
        """Return the folder, or the nearest existing folder above it."""
        ...

    def room(self, folder: str) -> Room:
        """Return the free space.

        Raises:
            OSError: The file system does not report it.
        """
        ...

    def is_writable(self, folder: str) -> bool:
        """Return whether this user may create files in an existing folder."""
        ...


class LocalDisk:
    """The file systems mounted here."""

    __slots__ = ()

    def nearest(self, folder: str) -> str:
        """Return the folder, or the nearest existing folder above it."""
        while not os.path.isdir(folder or "."):
            folder = os.path.dirname(folder.rstrip("/"))
        return folder or "."

    def room(self, folder: str) -> Room:
        """Call `statvfs`; the result excludes root's reserve, and ignores quotas and concurrent writers."""
        status = os.statvfs(folder)
        return Room(
            free_bytes=status.f_bavail * status.f_frsize,
            free_files=status.f_favail if status.f_files else None,
        )

    def is_writable(self, folder: str) -> bool:
        """Return the system's answer, which includes read-only mounts and access control lists."""
        return os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)
