"""Facts about the local machine: the disk of a tree, and the machines that launchers report."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from ckpttool.core.domain.expectation import RankFiles
from ckpttool.core.domain.frozen import dataclass


class Reach(str, Enum):
    """Visibility of a file system to machines."""

    SHARED = "shared"
    """All machines that mount the file system see the same files, so that an absent file does not exist."""
    LOCAL = "local"
    """Only this machine sees the files, because other machines have their own file system at the same path."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """File system that contains a path, according to the kernel."""

    kind: str
    """Type of the file system, such as `ext4`, `nfs4`, `fuse.sshfs`; empty if the kernel does not report it."""
    source: str
    """Source of the file system, such as `/dev/sda1` or `server:/export`.

    It is equal on all machines only if the file system is shared.
    """
    reach: Reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Free space on a file system for an unprivileged user."""

    free_bytes: int
    free_files: int | None
    """Number of free inodes; None if the file system creates inodes on demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Space for new files in a folder that one limit allows: the disk's, or a quota's."""

    limit: str
    """Name of the limit: `the disk`, `the quota of user 1000`."""
    free_bytes: int
    """Free space in bytes for an unprivileged user; negative if a quota is exceeded."""
    total_bytes: int
    """Used and free space in bytes."""
    uid: int | None = None
    """User whose files count; None if the files of all users count."""
    gid: int | None = None
    """Group whose files count; None if the files of all groups count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Facts about the local machine, which tests replace."""

    environment: Mapping[str, str]
    mounts: str
    """Mount table in the format of `/proc/self/mountinfo`; empty if that file does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Job of this process, according to the environment variables of one launcher."""

    said_by: str
    """Environment variables with their values, as a person would type them."""
    several: bool
    """Whether the job runs on more than one machine; False if only the number of ranks suggests it."""
    ranks: int | None = None
    """Number of processes on all machines; None if this number is unrelated to the training's ranks."""
    counts_ranks: bool = False
    """Whether each process is certainly a rank, so that a tree with the same number of ranks is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Evidence on whether ranks of a tree may have files on other machines."""

    files: RankFiles
    sign: str
    """Name pattern of the ranks' folders; empty if ranks have no separate folders."""
    declared: tuple[int, ...]
    """World sizes from the user or the config; a checkpoint that is intact on as many ranks is complete."""
    jobs: tuple[Job, ...]
    """Jobs according to launchers."""
    mount: Mount
    """Mount that contains the tree's files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Index of this process among the processes that a launcher started."""

    launcher: str
    """Usual name of the launcher, such as `srun` or `torchrun`."""
    index: int
    """Index among all processes of the start, from 0."""
    count: int
    """Number of processes of the start, on all machines."""
    local_index: int | None
    """Index among the processes on this machine, from 0; None if the launcher does not report it."""
    local_count: int | None
    """Number of processes on this machine; None if the launcher does not report it."""
    run: str | None
    """ID of the start, which is equal in all of its processes; None if the launcher has no ID.

    It consists of letters, digits, dots, dashes and underscores.
    """
    attempt: int
    """Number of restarts of the whole job by the launcher, from 0."""
    node: int | None = None
    """Index of this machine among the machines of the start, from 0; None if the launcher does not report it."""
