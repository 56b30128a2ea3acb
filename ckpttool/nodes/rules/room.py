"""Have the disks of several machines room for what the next saves put on each?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from posixpath import normpath

from ckpttool.core.decide.preflight import disk_unknown
from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.preflight import DiskNeed, NextSaves
from ckpttool.nodes.model import Merge, Seat


def needs_of(coming: NextSaves, merge: Merge, sizes: Mapping[str, int]) -> tuple[DiskNeed, ...] | Finding:
    """Compare for each disk what the next saves put there with what its machine found free.

    Args:
        coming: Where they go, and how many must fit.
        merge: Who looked.
        sizes: Bytes of each file of the save that is resumed from, by its path: the next ones are taken to be alike,
            and each file to go where it lies now.

    Returns:
        One for each disk that has files of that save, the one with the least room first; or why nobody knows.
    """
    if normpath(coming.folder) != normpath(merge.root):
        return disk_unknown(coming.folder, f"the machines that looked told what is free in {merge.root}")
    disks: defaultdict[str | None, dict[str, int]] = defaultdict(dict)
    seats: defaultdict[str | None, list[Seat]] = defaultdict(list)
    for seat in merge.seats:
        seats[_disk(seat)].append(seat)
    for path, size in sizes.items():
        for at in merge.holders.get(path, ()):
            disks[_disk(merge.seats[at])][path] = size
    needs = []
    for disk, files in disks.items():
        rooms = [seat.room for seat in seats[disk] if seat.room is not None]
        first = seats[disk][0]
        if not rooms:
            return disk_unknown(coming.folder, f"{first.name} does not say what was free there")
        inodes = [room.free_files for room in rooms if room.free_files is not None]
        unwritable = {folder for seat in seats[disk] for folder in seat.unwritable}
        needs.append(
            DiskNeed(
                folder=coming.folder,
                saves=coming.count,
                save_bytes=sum(files.values()),
                save_files=len(files),
                free_bytes=min(room.free_bytes for room in rooms),
                free_files=min(inodes, default=None),
                unwritable=tuple(sorted(unwritable)),
                stays=coming.stays,
                host=None if first.shared else first.host,
            )
        )
    return tuple(sorted(needs, key=_space_left))


def _disk(seat: Seat) -> str | None:
    """Tell disks apart; what all machines see counts as one."""
    return None if seat.shared else seat.disk


def _space_left(need: DiskNeed) -> tuple[float, str]:
    return need.free_bytes / max(1, need.save_bytes), need.host or ""
