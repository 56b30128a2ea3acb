"""The local view: the disk of a tree, and the other machines that launchers report."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from ckpttool.core.domain.expectation import RankFiles
from ckpttool.core.domain.frozen import dataclass


class Reach(str, Enum):
    """The machines that can see a file system."""

    SHARED = "shared"
    """Every machine that mounts the file system, so that an absent file does not exist."""
    LOCAL = "local"
    """Only this machine, because other machines have their own file system at the same path."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """The file system of a path, according to the kernel."""

    kind: str
    """`ext4`, `nfs4`, `fuse.sshfs`; empty if the kernel does not report it."""
    source: str
    """`/dev/sda1`, `server:/export`: equal on all machines only if the file system is shared."""
    reach: Reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The free space on a file system for an unprivileged user."""

    free_bytes: int
    free_files: int | None
    """Free inodes; None if the file system creates inodes on demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Facts about the local machine; tests replace these facts."""

    environment: Mapping[str, str]
    mounts: str
    """The mounts, in the format of `/proc/self/mountinfo`; empty if that file does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job of this process, according to the environment of one launcher."""

    said_by: str
    """The variables with their values, as a person would type them."""
    several: bool
    """Whether the job runs on more than one machine. False if only the number of ranks suggests it."""
    ranks: int | None = None
    """Processes of the job on all machines; None if this number is unrelated to the training's ranks."""
    counts_ranks: bool = False
    """Whether each process is certainly a rank, so that a tree with the same number of ranks lacks no rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The evidence on whether ranks of a tree may have files on other machines."""

    files: RankFiles
    sign: str
    """The name pattern of a rank's folder, if each rank has one."""
    declared: tuple[int, ...]
    """World sizes from the user or the config: a checkpoint intact on as many ranks is complete."""
    jobs: tuple[Job, ...]
    """The jobs according to launchers."""
    mount: Mount
    """The mount of the tree's files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The number of this process among the identical processes of a launcher."""

    launcher: str
    """Common name of the launcher: `srun`, `torchrun`."""
    index: int
    """Index among all processes of the start, from 0."""
    count: int
    """All processes of the start, on all machines."""
    local_index: int | None
    """Index among the processes on this machine, from 0; None if the launcher does not report it."""
    local_count: int | None
    """Number of processes on this machine; None if the launcher does not report it."""
    run: str | None
    """ID of the start, equal in all of its processes: letters, digits, dots, dashes and underscores; None if the
    launcher has no ID.
    """
    attempt: int
    """Number of restarts of the whole job by the launcher, from 0."""
    node: int | None = None
    """Index of this machine among the machines of the start, from 0; None if the launcher does not report it."""
