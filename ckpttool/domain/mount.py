"""The disk that a tree lies on: one machine's own, or one that many machines see."""

from __future__ import annotations

from enum import Enum

from ckpttool.domain.frozen import dataclass


class Reach(str, Enum):
    """Who sees a file system."""

    SHARED = "shared"
    """Every machine that mounts it: what is not there is nowhere."""
    LOCAL = "local"
    """This machine alone: other machines have one of their own under the same path."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """The file system that a path lies on, as the kernel tells it."""

    kind: str
    """`ext4`, `nfs4`, `fuse.sshfs`; empty where the kernel does not tell."""
    source: str
    """`/dev/sda1`, `server:/export`: on every machine the same only where the file system is shared."""
    reach: Reach
