"""What a file system says about itself: room, and who may write. The one place that asks, so that tests can answer."""

from __future__ import annotations

import os
from typing import Protocol

from ckpttool.core.domain.node import Room

__all__ = ["Disk", "LocalDisk", "Room"]


class Disk(Protocol):
    """A file system, or something that answers like one."""

    def nearest(self, folder: str) -> str:
        """Return the folder, or the nearest one above it that exists."""
        ...

    def room(self, folder: str) -> Room:
        """Return what is left.

        Raises:
            OSError: The file system does not say.
        """
        ...

    def is_writable(self, folder: str) -> bool:
        """Return whether this user may make files in a folder that exists."""
        ...


class LocalDisk:
    """The file systems that are mounted here."""

    __slots__ = ()

    def nearest(self, folder: str) -> str:
        """Return the folder, or the nearest one above it that exists."""
        while not os.path.isdir(folder or "."):
            folder = os.path.dirname(folder.rstrip("/"))
        return folder or "."

    def room(self, folder: str) -> Room:
        """Ask `statvfs`; quotas and the reserve of root are not in it, nor is what others write meanwhile."""
        status = os.statvfs(folder)
        return Room(
            free_bytes=status.f_bavail * status.f_frsize,
            free_files=status.f_favail if status.f_files else None,
        )

    def is_writable(self, folder: str) -> bool:
        """Ask the system, which knows of read-only mounts and access lists as well."""
        return os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)
