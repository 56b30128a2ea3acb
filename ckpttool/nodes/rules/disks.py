"""The disks of several machines: the files for a start on each disk, and the space for the next saves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from posixpath import normpath
from shlex import quote

from ckpttool.core.decide.preflight import disk_unknown
from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, Finding, damage, note, suspect, unknown
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.placement import Placed, ReadByAll
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.preflight import DiskNeed, NextSaves
from ckpttool.core.domain.shard import Shard
from ckpttool.core.domain.units import Rank, counted, on_ranks
from ckpttool.nodes.findings import NodesCode
from ckpttool.nodes.model import Home, Merge, Seat

_MOST_NAMED = 3
"""Maximum number of machines with the same missing files, and of such files, to name in one line."""

_MOST_COPIED = 8
"""Maximum number of files that a command names; if there are more, the command names their folders."""


def with_placement(
    plan: ResumePlan, merge: Merge, read: ReadByAll, checkpoints: Sequence[Checkpoint] = ()
) -> ResumePlan:
    """Add to a plan each rank's start machine, as claimed by the machines, and any findings against the placement.

    Args:
        plan: The checkpoint to load.
        merge: The machines and their files.
        read: The files that every machine reads.
        checkpoints: All saves of the tree.
    """
    placement = placement_of(plan.point.checkpoint, _homes(merge))
    lacking = not_everywhere(read, merge) or stale_copies(plan.point.checkpoint, checkpoints, merge)
    return replace(plan, placement=placement.placed, findings=(*lacking, *placement.findings, *plan.findings))


def not_everywhere(read: ReadByAll, merge: Merge) -> tuple[Finding, ...]:
    """Report machines whose own disks lack files that every machine reads, with the command that copies these files."""
    disks = _disks(merge)
    surely = [path for path in read.surely if path in merge.holders]
    if not surely:
        return ()
    by_lack: defaultdict[tuple[tuple[str, ...], tuple[str, ...]], list[Home]] = defaultdict(list)
    for disk in disks:
        lacks = tuple(path for path in surely if path not in disk.files)
        may_lack = tuple(path for path in read.perhaps if path not in disk.files)
        if lacks or may_lack:
            by_lack[lacks, may_lack].append(disk)
    findings = [_lacking(*lack, lack_disks, disks) for lack, lack_disks in by_lack.items()]
    unseen = sorted({*merge.missing, *(number for number, why in merge.blind.items() if why != "ENOENT")})
    if unseen and not any(disk.shared for disk in disks):
        message = f"{merge.lacking}: whether {surely[0]}, which every machine reads, also exists there is unknown"
        remedy = f"run on that machine: ckpttool part --part {unseen[0]}/{merge.of}, and give its file as well"
        findings.append(unknown(NodesCode.PART_MISSING, message, path=surely[0], remedy=remedy))
    return tuple(findings)


def stale_copies(chosen: Checkpoint, checkpoints: Sequence[Checkpoint], merge: Merge) -> tuple[Finding, ...]:
    """Find machines with ranks' files from other saves but none from the chosen save, which other machines have.

    If the machines claim ranks, `placement_of` finds this problem.
    """
    disks = _disks(merge)
    if any(seat.claims is not None for seat in merge.seats) or any(disk.shared for disk in disks):
        return ()
    paths = [shard.path for shard in chosen.shards if shard.rank in chosen.ranks]
    others = [save for save in checkpoints if save.key != chosen.key]
    older = [shard.path for save in others for shard in save.shards if shard.rank is not None]
    without = [disk for disk in disks if disk.files.isdisjoint(paths)]
    stale = [disk for disk in without if not disk.files.isdisjoint(older)]
    if not paths or not stale:
        return ()
    verb = "has" if len(stale) == 1 else "have"
    message = (
        f"{_named(stale)} {verb} files of other saves, but none of {chosen.name}: a rank that starts there has no file"
    )
    remedy = (
        "give --ranks A-B to ckpttool part on every machine; or copy the files that they read: on "
        f"{quote(stale[0].host)}: "
    )
    copies = _copies(paths, stale[0], disks)
    return (unknown(Code.SHARD_ELSEWHERE, message, path=paths[0], actual=stale[0].host, remedy=f"{remedy}{copies}"),)


def _homes(merge: Merge) -> list[Home]:
    """Return each machine's files and claimed ranks, in the order of the merge's seats."""
    files: list[set[str]] = [set() for _ in merge.seats]
    for path, seats in merge.holders.items():
        for at in seats:
            files[at].add(path)
    return [_home(seat, seat_files) for seat, seat_files in zip(merge.seats, files, strict=True)]


def _home(seat: Seat, files: set[str]) -> Home:
    return Home(host=seat.host, root=seat.folder, shared=seat.shared, claims=seat.claims, files=frozenset(files))


def _disks(merge: Merge) -> list[Home]:
    """Return the disks that a start reads from, excluding those of machines on which no rank starts.

    Folders on one disk differ by inode, or by path if the inode is unknown; all shared disks count as one.
    """
    absent = [seat for seat in merge.seats_read if merge.blind.get(seat.number) == "ENOENT"]
    groups: defaultdict[tuple[object, ...] | None, list[Home]] = defaultdict(list)
    for seat, home in [*zip(merge.seats, _homes(merge), strict=True), *((seat, _home(seat, set())) for seat in absent)]:
        if seat.claims != ():
            folder = home.root if seat.inode is None else seat.inode
            groups[None if seat.shared else (seat.disk, folder)].append(home)
    return [replace(homes[0], files=frozenset().union(*(home.files for home in homes))) for homes in groups.values()]


def _lacking(
    surely: Sequence[str], perhaps: Sequence[str], lacking_disks: Sequence[Home], disks: Sequence[Home]
) -> Finding:
    """Report files missing on some machines, and how to copy them to the first of these machines."""
    lack, first = surely or perhaps, lacking_disks[0]
    files = ", ".join(lack[:_MOST_NAMED])
    if len(lack) > _MOST_NAMED:
        files += f" and {counted(len(lack) - _MOST_NAMED, 'more file')}"
    remedy = f"on {quote(first.host)}: {_copies([*surely, *perhaps], first, disks)}"
    if len(lacking_disks) > 1:
        remedy += "; and likewise on the other machines"
    verb = "lacks" if len(lacking_disks) == 1 else "lack"
    message = f"{_named(lacking_disks)} {verb} {files}: "
    if surely:
        message += "every machine reads this at the start, and otherwise stops or starts from scratch"
        return damage(Code.SHARD_ELSEWHERE, message, path=lack[0], actual=first.host, remedy=remedy)
    message += "no record shows whether the ranks that start there read it"
    return unknown(Code.SHARD_ELSEWHERE, message, path=lack[0], actual=first.host, remedy=remedy)


def _named(disks: Sequence[Home]) -> str:
    hosts = ", ".join(disk.host for disk in disks[:_MOST_NAMED])
    more = len(disks) - _MOST_NAMED
    return f"{hosts} and {counted(more, 'more machine')}" if more > 0 else hosts


def _copies(paths: Sequence[str], target: Home, disks: Sequence[Home]) -> str:
    """Return the commands that copy each file from the first disk that has the file; names are quoted."""
    sources: defaultdict[int, list[str]] = defaultdict(list)
    for path in paths:
        at = next((at for at, disk in enumerate(disks) if path in disk.files), None)
        if at is not None:
            sources[at].append(path)
    commands = []
    for at, files in sources.items():
        folders = sorted({path.partition("/")[0] for path in files})
        commands.append(_rsync(disks[at], target, files if len(files) <= _MOST_COPIED else folders))
    return " && ".join(commands)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The start machine of each rank, and any findings against this placement."""

    placed: tuple[Placed, ...]
    """Start machines, sorted by first rank; empty if no machine claims ranks."""
    findings: tuple[Finding, ...]


def placement_of(checkpoint: Checkpoint, homes: Sequence[Home]) -> Placement:
    """Return each rank's start machine for a save, and findings about files that are not on that machine.

    Args:
        checkpoint: The checkpoint to load.
        homes: Each machine's files and claimed ranks, in any order.
    """
    homes = sorted(homes, key=lambda home: (home.host, home.root))
    if all(home.claims is None for home in homes):
        return Placement(placed=(), findings=())
    shards: defaultdict[Rank, list[Shard]] = defaultdict(list)
    for shard in checkpoint.shards:
        if shard.rank is not None:
            shards[shard.rank].append(shard)
    starts = {rank: [home for home in homes if rank in (home.claims or ())] for rank in sorted(shards)}
    return Placement(placed=_placed(starts), findings=(*_claimed_badly(starts), *_elsewhere(shards, starts, homes)))


def _placed(starts: Mapping[Rank, Sequence[Home]]) -> tuple[Placed, ...]:
    ranks: defaultdict[str, list[Rank]] = defaultdict(list)
    for rank, homes in starts.items():
        if len(_hosts(homes)) == 1:
            ranks[homes[0].host].append(rank)
    placed = [Placed(ranks=tuple(host_ranks), host=host) for host, host_ranks in ranks.items()]
    return tuple(sorted(placed, key=lambda group: group.ranks))


def _claimed_badly(starts: Mapping[Rank, Sequence[Home]]) -> list[Finding]:
    """Find ranks that no machine claims, and ranks that several machines claim."""
    findings = []
    unclaimed = [rank for rank, homes in starts.items() if not homes]
    if unclaimed:
        message = (
            f"no machine says that {on_ranks(unclaimed)} will start there: whether their files are on the right "
            "machine is unknown"
        )
        remedy = "give --ranks A-B or --devices-per-node D to ckpttool part on every machine"
        findings.append(note(Code.SHARD_ELSEWHERE, message, remedy=remedy, ranks=tuple(unclaimed)))
    twice: defaultdict[tuple[str, ...], list[Rank]] = defaultdict(list)
    for rank, homes in starts.items():
        if len(_hosts(homes)) > 1:
            twice[_hosts(homes)].append(rank)
    for hosts, ranks in sorted(twice.items()):
        message = f"{' and '.join(hosts)} each say that {on_ranks(ranks)} will start there"
        remedy = "a rank starts once: give each machine its own ranks with --ranks A-B"
        findings.append(suspect(Code.SHARD_ELSEWHERE, message, remedy=remedy, ranks=tuple(ranks)))
    return findings


def _elsewhere(
    shards: Mapping[Rank, Sequence[Shard]], starts: Mapping[Rank, Sequence[Home]], homes: Sequence[Home]
) -> list[Finding]:
    """Report each rank whose files are only on a different machine, with the command that copies these files."""
    moves = []
    for rank, claimers in starts.items():
        if len(_hosts(claimers)) != 1:
            continue
        lacking: defaultdict[str, list[str]] = defaultdict(list)
        by_host: dict[str, Home] = {}
        for shard in shards[rank]:
            holders = [home for home in homes if shard.path in home.files]
            if not holders or any(home.shared or home.host == claimers[0].host for home in holders):
                continue  # on no machine: another finding reports a missing shard
            lacking[holders[0].host].append(shard.path)
            by_host.setdefault(holders[0].host, holders[0])
        for host, paths in lacking.items():
            home, claimer = by_host[host], claimers[0]
            moves.append(
                damage(
                    Code.SHARD_ELSEWHERE,
                    f"rank {rank} will start on {claimer.host}, which has no file of it: the file is on {host}",
                    path=paths[0],
                    expected=claimer.host,
                    actual=host,
                    remedy=f"on {quote(claimer.host)}: {_rsync(home, claimer, paths)}",
                    ranks=(rank,),
                )
            )
    return moves


def _rsync(source: Home, target: Home, paths: Sequence[str]) -> str:
    """Return the command that copies files to the same places below a different folder; names are quoted."""
    hosts = [source.host, *[""] * (len(paths) - 1)]  # the folder of the first source is that of all
    arguments = [f"{host}:{source.root}/./{path}" for host, path in zip(hosts, paths, strict=True)]
    return f"rsync -asR -- {' '.join(map(quote, arguments))} {quote(target.root + '/')}"


def _hosts(homes: Sequence[Home]) -> tuple[str, ...]:
    return tuple(sorted({home.host for home in homes}))


def needs_of(coming: NextSaves, merge: Merge, sizes: Mapping[str, int]) -> tuple[DiskNeed, ...] | Finding:
    """Compare the size of the next saves on each disk with the free space that the disk's machine recorded.

    Args:
        coming: The folder of the next saves, and how many must fit.
        merge: The machines of the parts.
        sizes: Bytes of each file in the save to resume from, by path: the next saves are assumed to be equally large,
            with each file on its current disk.

    Returns:
        One entry per disk with files of that save, the disk with the least room first; or the reason why the space is
        unknown.
    """
    if normpath(coming.folder) != normpath(merge.root):
        return disk_unknown(coming.folder, f"the parts report the free space only for {merge.root}")
    disks: defaultdict[str | None, dict[str, int]] = defaultdict(dict)
    seats: defaultdict[str | None, list[Seat]] = defaultdict(list)
    for seat in merge.seats:
        seats[seat.own_disk].append(seat)
    for path, size in sizes.items():
        for at in merge.holders.get(path, ()):
            disks[merge.seats[at].own_disk][path] = size
    needs = []
    for disk, files in disks.items():
        rooms = [seat.room for seat in seats[disk] if seat.room is not None]
        first = seats[disk][0]
        if not rooms:
            return disk_unknown(coming.folder, f"{first.name} did not report the free space there")
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


def _space_left(need: DiskNeed) -> tuple[float, str]:
    return need.free_bytes / max(1, need.save_bytes), need.host or ""
