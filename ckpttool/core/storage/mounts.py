"""File system of a path, and whether other machines see it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from ckpttool.core.domain.node import Mount, Reach
from ckpttool.core.storage import is_local

_SHARED = frozenset({
    "acfs", "afs", "beegfs", "ceph", "cifs", "dpc", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2",
    "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs", "yrfs",
})  # fmt: skip
_LOCAL = frozenset({
    "aufs", "bcachefs", "btrfs", "devtmpfs", "ecryptfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "fuseblk",
    "iso9660", "jfs", "msdos", "nilfs2", "ntfs", "ntfs3", "overlay", "ramfs", "reiserfs", "rootfs", "squashfs", "tmpfs",
    "ubifs", "vfat", "xfs", "zfs",
    # These programs add a layer over a disk of this machine.
    "fuse.bindfs", "fuse.encfs", "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.mergerfs", "fuse.ntfs-3g",
})  # fmt: skip
"""Types of file systems on this machine.

Types that are neither in this list nor in the next are unknown. `9p` and `virtiofs` share a folder of the host, which
may be on any disk; `autofs` is not mounted yet; a bare `fuse` does not name its program.
"""

_ESCAPE = re.compile(r"\\([0-7]{3})")


def mount_table() -> str:
    """Return the kernel's mount table for this process; empty if the system has no such table."""
    return _text("/proc/self/mountinfo")


def boot_id() -> str:
    """Return an ID that is unique to this machine until its next boot; empty if the system has no such ID."""
    return _text("/proc/sys/kernel/random/boot_id").strip()


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.read())
    except OSError:
        return ""


def mount_of(path: str, table: str) -> Mount:
    """Return the file system that contains a path, after following links.

    Args:
        path: A file, a folder, or an object store, which every machine sees.
        table: The mount table in the form of `/proc/self/mountinfo`. If there are several mounts at the same path, the
            last covers the others.
    """
    if not is_local(path):
        kind, _, place = path.partition("://")
        return Mount(kind=kind, source=place.partition("/")[0], reach=Reach.SHARED)
    return mount_and_point(path, table)[0]


def mount_and_point(path: str, table: str) -> tuple[Mount, str]:
    """Return the file system that contains a local path, and the folder where it is mounted; empty if unknown."""
    real_path = os.path.realpath(path)
    best, mount = "", Mount(kind="", source="", reach=Reach.UNKNOWN)
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        fields, system = before.split(" "), after.split(" ")
        if len(fields) < 6 or len(system) < 2:  # noqa: PLR2004  proc(5): at least six fields, then type and source
            continue
        point = _unescaped(fields[4])
        if len(point) >= len(best) and _covers(point, real_path):
            best, mount = point, Mount(kind=system[0], source=_unescaped(system[1]), reach=_reach(system[0]))
    return mount, best


def _reach(kind: str) -> Reach:
    if kind in _LOCAL:
        return Reach.LOCAL
    # FUSE programs that are used for checkpoints and are not in the list above are network file systems in practice.
    return Reach.SHARED if kind in _SHARED or kind.startswith("fuse.") else Reach.UNKNOWN


def _unescaped(field: str) -> str:
    """Decode spaces, tabs, newlines and backslashes, which are octal escapes."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), field)


class PlannedMount(NamedTuple):
    """A file system that the machine's settings mount at a path."""

    point: str
    """The folder at which it is mounted."""
    source: str
    """Path of the settings file."""


_FSTAB, _AUTOMASTER = "/etc/fstab", ("/etc/auto.master", "/etc/autofs/auto.master")
_UNITS, _WHERE = "/etc/systemd/system", re.compile("(?m)^Where=(.*)$")
_BARE = ("/", "/mnt", "/media")
"""Folders of which each subfolder is usually a mount point."""


def planned_mounts() -> tuple[PlannedMount, ...]:
    """Return the mounts in `/etc/fstab`, systemd's units and autofs' maps; empty if there are no such files."""
    planned = [PlannedMount(_unescaped(fields[1]), _FSTAB) for fields in _settings(_text(_FSTAB)) if len(fields) > 1]
    for path in _AUTOMASTER:
        for point, *maps in _settings(_text(path)):
            if point == "/-" and maps:  # a direct map, with one mount point per line
                direct = os.path.join("/etc", maps[0])
                planned += [PlannedMount(_unescaped(fields[0]), direct) for fields in _settings(_text(direct))]
            elif point != "/-":
                planned.append(PlannedMount(_unescaped(point), path))
    with suppress(OSError):
        units = [f"{_UNITS}/{name}" for name in sorted(os.listdir(_UNITS)) if name.endswith((".mount", ".automount"))]
        planned += [PlannedMount(match[1].strip(), unit) for unit in units for match in _WHERE.finditer(_text(unit))]
    return tuple(mount for mount in planned if mount.point.startswith("/") and mount.point != "/")


def _settings(text: str) -> Iterator[list[str]]:
    """Yield the fields of each line, without comments."""
    for line in text.splitlines():
        fields = line.partition("#")[0].split()
        if fields:
            yield fields


def not_mounted(path: str, *, table: str, planned: tuple[PlannedMount, ...]) -> str | None:
    """Return why the file system of a path may not be mounted, as a clause; None if nothing suggests this.

    Args:
        path: A path, whether or not it exists.
        table: The result of `mount_table`; if it is empty, only the path itself is judged.
        planned: The result of `planned_mounts`.
    """
    real_path = os.path.realpath(path)
    points = {_unescaped(fields[4]) for line in table.splitlines() if len(fields := line.split(" ")) > 4}  # noqa: PLR2004  proc(5)
    for mount in planned if points else ():
        point = os.path.normpath(mount.point)
        if not _covers(point, real_path):
            continue
        if not any(_covers(other, real_path) and _covers(point, other) for other in points):
            return f"{point} is not mounted, although {mount.source} lists it"
    if os.path.lexists(real_path):
        return None
    if mount_of(real_path, table).kind == "autofs":
        return "autofs has not mounted it"
    missing, nearest = real_path, os.path.dirname(real_path)
    while not os.path.lexists(nearest):
        missing, nearest = nearest, os.path.dirname(nearest)
    return f"{missing} does not exist: its file system may not be mounted" if nearest in _BARE else None


def _covers(point: str, path: str) -> bool:
    """Return whether a path is at a mount point, or below it."""
    return path == point or path.startswith(f"{point.rstrip('/')}/")


def disk_identity(path: str, *, table: str, boot: str) -> str:
    """Return a string that is equal for the same disk, and differs between the disks of two machines.

    A shared disk is identified by its source, on every machine. Every other disk is identified by its device on this
    machine. After a restart it counts as a different disk, which causes a second check but never a wrong answer.

    Args:
        path: A folder on the disk.
        table: The result of `mount_table`.
        boot: The result of `boot_id`.
    """
    mount = mount_of(path, table)
    if mount.reach is Reach.SHARED:
        return f"{mount.kind} {mount.source}"
    try:
        device = os.stat(path).st_dev
    except OSError:
        device = 0
    return f"{boot or os.uname().nodename} {device}"


def disk_id(root: str) -> str:
    """Return an ID of a tree's disk, as a hash to keep the machine's name for the disk private.

    Args:
        root: The tree; if it does not exist, the result is the ID of the disk on which it would be created.
    """
    from xxhash import xxh3_128_hexdigest  # most commands do not need this library

    place = nearest_existing(root)
    return xxh3_128_hexdigest(os.fsencode(disk_identity(place, table=mount_table(), boot=boot_id())))


def nearest_existing(path: str) -> str:
    """Return a path as an absolute one or, if it does not exist, the nearest existing folder above it."""
    place = os.path.abspath(path)
    while not os.path.exists(place) and place != os.path.dirname(place):  # `/` may also be inaccessible
        place = os.path.dirname(place)
    return place
