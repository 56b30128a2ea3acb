"""Does each rank's file lie where that rank will start, and what all machines read on each of them?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from shlex import quote

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.finding import Code, Finding, damage, note, suspect, unknown
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.placement import Placed, ReadByAll
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.shard import Shard
from ckpttool.core.domain.units import Rank, counted, on_ranks
from ckpttool.nodes.findings import NodesCode
from ckpttool.nodes.model import Home, Merge, Seat

_MOST_NAMED = 3
"""Machines that lack the same, and files, that one line holds."""

_MOST_COPIED = 8
"""Files that a command names one by one; of more it takes their folders."""


def with_placement(
    plan: ResumePlan, merge: Merge, read: ReadByAll, checkpoints: Sequence[Checkpoint] = ()
) -> ResumePlan:
    """Add to a plan which ranks start where, as the machines that looked said, and what speaks against it.

    Args:
        plan: What is to be loaded.
        merge: Who looked, and what each has.
        read: What a machine must have whichever ranks start there.
        checkpoints: All saves of the tree.
    """
    files: list[set[str]] = [set() for _ in merge.seats]
    for path, seats in merge.holders.items():
        for at in seats:
            files[at].add(path)
    homes = [
        Home(host=seat.host, root=seat.absolute or seat.root, shared=seat.shared, claims=seat.claims, files=seat_files)
        for seat, seat_files in zip(merge.seats, files, strict=True)
    ]
    placement = placement_of(plan.point.checkpoint, homes)
    lacking = not_everywhere(read, merge) or stale_copies(plan.point.checkpoint, checkpoints, merge)
    return replace(plan, placement=placement.placed, findings=(*lacking, *placement.findings, *plan.findings))


def not_everywhere(read: ReadByAll, merge: Merge) -> tuple[Finding, ...]:
    """Say which machines lack, on disks of their own, what each machine reads, with the command that brings it."""
    disks = _disks(merge)
    surely = [path for path in read.surely if path in merge.holders]
    if not surely:
        return ()
    by_lack: defaultdict[tuple[tuple[str, ...], tuple[str, ...]], list[_Disk]] = defaultdict(list)
    for disk in disks:
        lacks = [tuple(path for path in paths if not disk.has(path, merge)) for paths in (surely, read.perhaps)]
        by_lack[lacks[0], lacks[1]].append(disk)
    findings = [_lacking(*lack, lack_disks, disks, merge) for lack, lack_disks in by_lack.items() if any(lack)]
    unseen = sorted({*merge.missing, *(number for number, why in merge.blind.items() if why != "ENOENT")})
    if unseen and not any(disk.shared for disk in disks):
        message = f"{merge.lacking}: whether {surely[0]}, which every machine reads, is there, too, nobody knows"
        remedy = f"run on that machine: ckpttool part --part {unseen[0]}/{merge.of}, and give its file, too"
        findings.append(unknown(NodesCode.PART_MISSING, message, path=surely[0], remedy=remedy))
    return tuple(findings)


def stale_copies(chosen: Checkpoint, checkpoints: Sequence[Checkpoint], merge: Merge) -> tuple[Finding, ...]:
    """Say which machines have ranks' files of other saves, and nothing of the chosen one, which lies elsewhere.

    Where somebody says which ranks start where, that is told by it.
    """
    disks = _disks(merge)
    if any(seat.claims is not None for seat in merge.seats) or any(disk.shared for disk in disks):
        return ()
    paths = [shard.path for shard in chosen.shards if shard.rank in chosen.ranks]
    older = [
        shard.path for save in checkpoints if save.key != chosen.key for shard in save.shards if shard.rank is not None
    ]
    stale = [disk for disk in disks if not disk.has_any(paths, merge) and disk.has_any(older, merge)]
    if not paths or not stale:
        return ()
    hosts = ", ".join(disk.host for disk in stale[:_MOST_NAMED])
    more = f" and {counted(len(stale) - _MOST_NAMED, 'more machine')}" if len(stale) > _MOST_NAMED else ""
    verb = "has" if len(stale) == 1 else "have"
    message = f"{hosts}{more} {verb} files of other saves, and none of {chosen.name}: a rank that starts there has none"
    remedy = f"say --ranks A-B to ckpttool part on every machine; or bring what they read: on {quote(stale[0].host)}: "
    copies = _copies(paths, stale[0], disks, merge)
    return (unknown(Code.SHARD_ELSEWHERE, message, path=paths[0], actual=stale[0].host, remedy=f"{remedy}{copies}"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Disk:
    """One machine's own disk, or one that all see."""

    host: str
    root: str
    shared: bool
    seats: frozenset[int]
    """Who looked at it, by their place in the merge's."""

    def has(self, path: str, merge: Merge) -> bool:
        return not self.seats.isdisjoint(merge.holders.get(path, ()))

    def has_any(self, paths: Iterable[str], merge: Merge) -> bool:
        return any(self.has(path, merge) for path in paths)


def _disks(merge: Merge) -> list[_Disk]:
    """Return the disks that a start reads from: that of a machine on which no rank starts is none of them."""
    seats: defaultdict[tuple[object, ...] | None, list[tuple[int | None, Seat]]] = defaultdict(list)
    absent = [seat for seat in merge.seats_read if merge.blind.get(seat.number) == "ENOENT"]
    for at, seat in [*enumerate(merge.seats), *((None, seat) for seat in absent)]:
        if seat.claims != ():
            folder = seat.absolute or seat.root if seat.inode is None else seat.inode
            seats[None if seat.shared else (seat.disk, folder)].append((at, seat))
    return [
        _Disk(
            host=disk_seats[0][1].host,
            root=disk_seats[0][1].absolute or disk_seats[0][1].root,
            shared=key is None,
            seats=frozenset(at for at, _ in disk_seats if at is not None),
        )
        for key, disk_seats in seats.items()
    ]


def _lacking(
    surely: Sequence[str], perhaps: Sequence[str], lacking_disks: Sequence[_Disk], disks: Sequence[_Disk], merge: Merge
) -> Finding:
    """Say what some machines lack, and how the first of them gets it."""
    lack = (surely or perhaps)[:_MOST_NAMED]
    more = len(surely or perhaps) - len(lack)
    files = ", ".join(lack) + (f" and {counted(more, 'more file')}" if more else "")
    hosts = ", ".join(disk.host for disk in lacking_disks[:_MOST_NAMED])
    rest = (
        f" and {counted(len(lacking_disks) - _MOST_NAMED, 'more machine')}" if len(lacking_disks) > _MOST_NAMED else ""
    )
    commands = _copies([*surely, *perhaps], lacking_disks[0], disks, merge)
    remedy = f"on {quote(lacking_disks[0].host)}: {commands}" + (
        "; and so on the others" if len(lacking_disks) > 1 else ""
    )
    verb = "lacks" if len(lacking_disks) == 1 else "lack"
    if surely:
        message = f"{hosts}{rest} {verb} {files}: every machine reads that at the start, and stops or begins anew"
        return damage(Code.SHARD_ELSEWHERE, message, path=surely[0], actual=lacking_disks[0].host, remedy=remedy)
    message = f"{hosts}{rest} {verb} {files}: whether the ranks that start there read it no record tells"
    return unknown(Code.SHARD_ELSEWHERE, message, path=perhaps[0], actual=lacking_disks[0].host, remedy=remedy)


def _copies(paths: Sequence[str], target: _Disk, disks: Sequence[_Disk], merge: Merge) -> str:
    """Spell the commands that bring files from where they lie, whatever their names hold."""
    sources: defaultdict[int, list[str]] = defaultdict(list)
    for path in paths:
        at = next((at for at, disk in enumerate(disks) if disk.has(path, merge)), None)
        if at is not None:
            sources[at].append(path)
    return " && ".join(
        _rsync(
            disks[at],
            target,
            host_paths if len(host_paths) <= _MOST_COPIED else sorted({path.partition("/")[0] for path in host_paths}),
        )
        for at, host_paths in sources.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which ranks start where, and what speaks against it."""

    placed: tuple[Placed, ...]
    """By the first rank; empty where no machine said which ranks start there."""
    findings: tuple[Finding, ...]


def placement_of(checkpoint: Checkpoint, homes: Sequence[Home]) -> Placement:
    """Say for each rank of a save where it starts, and whether its files lie there.

    Args:
        checkpoint: What is to be loaded.
        homes: What each machine has and which ranks it claims, in any order.
    """
    homes = sorted(homes, key=lambda home: (home.host, home.root))
    if all(home.claims is None for home in homes):
        return Placement(placed=(), findings=())
    shards: defaultdict[Rank, list[Shard]] = defaultdict(list)
    for shard in checkpoint.shards:
        if shard.rank is not None:
            shards[shard.rank].append(shard)
    starts = {rank: [home for home in homes if _claims(home, rank)] for rank in sorted(shards)}
    return Placement(placed=_placed(starts), findings=(*_claimed_badly(starts), *_elsewhere(shards, starts, homes)))


def _claims(home: Home, rank: Rank) -> bool:
    return home.claims is not None and rank in home.claims


def _placed(starts: Mapping[Rank, Sequence[Home]]) -> tuple[Placed, ...]:
    ranks: defaultdict[str, list[Rank]] = defaultdict(list)
    for rank, homes in starts.items():
        if len(_hosts(homes)) == 1:
            ranks[homes[0].host].append(rank)
    placed = [Placed(ranks=tuple(host_ranks), host=host) for host, host_ranks in ranks.items()]
    return tuple(sorted(placed, key=lambda group: group.ranks))


def _claimed_badly(starts: Mapping[Rank, Sequence[Home]]) -> list[Finding]:
    """Say which ranks nobody starts, and which several machines would."""
    findings = []
    unclaimed = [rank for rank, homes in starts.items() if not homes]
    if unclaimed:
        message = (
            f"no machine says that {on_ranks(unclaimed)} will start there: nobody knows whether the files lie right"
        )
        remedy = "say --ranks A-B or --devices-per-node D to ckpttool part on every machine"
        findings.append(note(Code.SHARD_ELSEWHERE, message, remedy=remedy, ranks=tuple(unclaimed)))
    twice: defaultdict[tuple[str, ...], list[Rank]] = defaultdict(list)
    for rank, homes in starts.items():
        if len(_hosts(homes)) > 1:
            twice[_hosts(homes)].append(rank)
    for hosts, ranks in sorted(twice.items()):
        message = f"{' and '.join(hosts)} each say that {on_ranks(ranks)} will start there"
        remedy = "a rank starts once: give every machine ranks of its own with --ranks A-B"
        findings.append(suspect(Code.SHARD_ELSEWHERE, message, remedy=remedy, ranks=tuple(ranks)))
    return findings


def _elsewhere(
    shards: Mapping[Rank, Sequence[Shard]], starts: Mapping[Rank, Sequence[Home]], homes: Sequence[Home]
) -> list[Finding]:
    """Name each rank whose files lie on another machine alone, and the command that brings them."""
    moves = []
    for rank, claimers in starts.items():
        if len(_hosts(claimers)) != 1:
            continue
        lacking: defaultdict[str, list[str]] = defaultdict(list)
        by_host: dict[str, Home] = {}
        for shard in shards[rank]:
            holders = [home for home in homes if shard.path in home.files]
            if not holders or any(home.shared or home.host == claimers[0].host for home in holders):
                continue  # nobody has it: that it is missing is said elsewhere
            lacking[holders[0].host].append(shard.path)
            by_host.setdefault(holders[0].host, holders[0])
        for host, paths in lacking.items():
            home, claimer = by_host[host], claimers[0]
            moves.append(
                damage(
                    Code.SHARD_ELSEWHERE,
                    f"rank {rank} will start on {claimer.host}, which has no file of it: that lies on {host}",
                    path=paths[0],
                    expected=claimer.host,
                    actual=host,
                    remedy=f"on {quote(claimer.host)}: {_rsync(home, claimer, paths)}",
                    ranks=(rank,),
                )
            )
    return moves


def _rsync(source: Home | _Disk, target: Home | _Disk, paths: Sequence[str]) -> str:
    """Spell the command that brings files to the same places below another folder, whatever their names hold."""
    hosts = [source.host, *[""] * (len(paths) - 1)]  # that of the first source is that of all
    arguments = [f"{host}:{source.root}/./{path}" for host, path in zip(hosts, paths, strict=True)]
    return f"rsync -asR -- {' '.join(map(quote, arguments))} {quote(target.root + '/')}"


def _hosts(homes: Sequence[Home]) -> tuple[str, ...]:
    return tuple(sorted({home.host for home in homes}))
