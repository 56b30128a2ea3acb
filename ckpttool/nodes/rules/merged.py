"""Consequences that missing, early or contradicting parts have for each save in a view from several machines."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import combinations

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory, PartsGiven
from ckpttool.core.domain.finding import (
    Code,
    Finding,
    Severity,
    blocking,
    in_order,
    is_of_absent,
    note,
    suspect,
    unknown,
)
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.plan import NoResumePoint
from ckpttool.core.domain.units import counted
from ckpttool.core.domain.verdict import ShardReport
from ckpttool.nodes.findings import NodesCode
from ckpttool.nodes.model import BREAK_NS, Copy, Merge, Seat

SKEW_SECONDS = 60.0
"""Allowed clock difference between machines."""

_MOST_NAMED = 8
"""Maximum number of part numbers in one line."""


def with_merge(inventory: Inventory, merge: Merge, *, declared: Collection[int | None], skew: float) -> Inventory:
    """Report files that are unknown or contradictory, for a tree on several machines and for each save.

    Args:
        inventory: All recorded files, as if they were on one disk.
        merge: The machines, and the times of their parts.
        declared: World sizes from the user or the config, if any: a checkpoint that is intact on as many ranks is
            complete.
        skew: Allowed clock difference between machines, in seconds.
    """
    judge = _Judge(inventory, merge, declared, int(skew * 1e9))
    checkpoints = tuple(map(judge.judged, inventory.checkpoints))
    given = PartsGiven(
        given=len(merge.seats) + len(merge.blind),
        of=merge.of,
        missing=merge.missing,
        stale=tuple(sorted(judge.stale)),
        nodes=tuple(sorted({seat.host for seat in merge.seats})),
    )
    tree_findings = judge.of_tree(checkpoints)
    findings = in_order((*inventory.findings, *tree_findings)) if tree_findings else inventory.findings
    return replace(inventory, root=merge.root, checkpoints=checkpoints, findings=findings, parts=given)


def with_warning(decision: NoResumePoint, merge: Merge) -> NoResumePoint:
    """Report that the answer is unknown if only contradicting parts rule out some save.

    Otherwise a script would conclude that no save exists, and start from scratch.
    """
    doubtful = next((rejection for rejection in decision.rejected if _is_doubtful(rejection.reasons, merge)), None)
    if doubtful is None:
        return decision
    finding = unknown(
        NodesCode.NODES_DISAGREE,
        f"{doubtful.checkpoint.name} may be intact: the only reason against it is that the machines saw different "
        "files",
        path=doubtful.checkpoint.name,
        remedy=(
            "run ckpttool part again on all machines while no save is in progress, and remove the files of former ranks"
        ),
    )
    return replace(decision, findings=(finding, *decision.findings))


def _is_doubtful(reasons: Sequence[Finding], merge: Merge) -> bool:
    """Return whether a save was rejected only because of contradicting parts."""
    is_differing = False
    for finding in blocking(reasons):
        if finding.code in _OF_LOOKS or finding.path in merge.different:
            is_differing = True
        elif finding.severity is not Severity.UNKNOWN:
            return False
    return is_differing


_OF_LOOKS = frozenset({Code.CHANGED_WHILE_READING, NodesCode.NODES_DISAGREE, NodesCode.RANK_ON_SEVERAL_NODES})


class _Judge:
    def __init__(self, inventory: Inventory, merge: Merge, declared: Collection[int | None], skew_ns: int) -> None:
        self._merge, self._declared, self._skew_ns = merge, declared, skew_ns
        self._unseen = tuple(sorted({*merge.missing, *merge.blind}))
        self.stale: set[int] = set()
        self._homes: dict[int, set[int]] = {}
        """The seats that have files of a rank, by rank, over all saves."""
        self._times: Counter[tuple[int, frozenset[int]]] = Counter()
        """Number of saves from which a seat has files of exactly these ranks, by seat and set of ranks."""
        for checkpoint in inventory.checkpoints:
            for at, ranks in self._ranks_of(checkpoint).items():
                self._times[at, ranks] += 1
                for rank in ranks:
                    self._homes.setdefault(rank, set()).add(at)
        self._divided = () if self._unseen else tuple(_divided(merge.seats))
        self._apart = {} if self._unseen else _differing_listings(merge)
        holding = set[int]().union(*(_holders(checkpoint, merge) for checkpoint in inventory.checkpoints))
        self._empty = tuple(_empty(merge.seats, holding))

    def judged(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return a save with the findings about the parts that describe it."""
        copies = self._merge.copies
        added: list[Finding] = []
        for shard in checkpoint.shards:
            if shard.path in copies:
                added.extend(differing(shard.path, copies[shard.path]))
        gaps = [] if self._is_complete(checkpoint) else self._gaps(checkpoint)
        findings = checkpoint.findings
        if gaps:
            findings = tuple(_open(finding) if is_of_absent(finding) else finding for finding in findings)
        return replace(checkpoint, findings=(*findings, *added, *gaps)) if added or gaps else checkpoint

    def _gaps(self, checkpoint: Checkpoint) -> list[Finding]:
        """Return the reasons why a save may have more files than were recorded."""
        gaps = []
        late = self._late(checkpoint)
        if late:
            self.stale |= {seat.number for seat in late}
            gaps.append(_part_stale(checkpoint, late))
        if self._unseen:
            gaps.append(_part_missing(checkpoint.name, self._merge, self._unseen))
        if self._empty and checkpoint.ranks and not any(map(is_of_absent, checkpoint.findings)):
            gaps.append(_part_empty(checkpoint, self._empty))
        if self._divided:
            gaps.append(_of_share(checkpoint.name, self._divided))
        seats = self._differing_seats(checkpoint)
        if seats:
            gaps.append(_listing_finding(checkpoint.name, seats))
        return gaps

    def _is_complete(self, checkpoint: Checkpoint) -> bool:
        """Return whether a save is complete according to a record, so that no other machine has more of its files."""
        if any(is_of_absent(finding) for finding in checkpoint.findings):
            return False
        return checkpoint.expected is not None or len(checkpoint.ranks) in self._declared

    def _differing_seats(self, checkpoint: Checkpoint) -> tuple[Seat, ...]:
        """Return parts of a shared folder that recorded different files there, if a save's files may be among these."""
        folders = {"", *(shard.path.partition("/")[0] for shard in checkpoint.shards)}
        return next((seats for folder, seats in self._apart.items() if folder.partition("/")[0] in folders), ())

    def _late(self, checkpoint: Checkpoint) -> tuple[Seat, ...]:
        """Return the machines that may have received files of a save after recording their part."""
        saved = checkpoint.saved_ns
        if saved is None:
            return ()
        seats = self._merge.seats
        has = _holders(checkpoint, self._merge)
        absent = {rank for finding in checkpoint.findings if is_of_absent(finding) for rank in finding.ranks}
        homes = {at for rank in absent for at in self._homes.get(rank, ())}
        may_lack = {at for at in range(len(seats)) if at not in has} | homes | self._started_saving(checkpoint)
        if absent and not homes:
            may_lack = set(range(len(seats)))
        return tuple(seats[at] for at in sorted(may_lack) if saved > seats[at].began_ns - self._skew_ns)

    def _started_saving(self, checkpoint: Checkpoint) -> set[int]:
        """Return machines with files of a save and no other save of the same ranks: more of its files may follow."""
        return {at for at, ranks in self._ranks_of(checkpoint).items() if self._times[at, ranks] == 1}

    def _ranks_of(self, checkpoint: Checkpoint) -> dict[int, frozenset[int]]:
        """Return the ranks whose files of a save each seat has."""
        ranks_of_seat: defaultdict[int, set[int]] = defaultdict(set)
        for shard in checkpoint.shards:
            if shard.rank is not None:
                for at in self._merge.holders.get(shard.path, ()):
                    ranks_of_seat[at].add(shard.rank)
        return {at: frozenset(ranks) for at, ranks in ranks_of_seat.items()}

    def of_tree(self, checkpoints: Sequence[Checkpoint]) -> list[Finding]:
        """Return the findings about the complete tree."""
        merge, findings = self._merge, []
        is_known = bool(checkpoints) and all(map(self._is_complete, checkpoints))
        severity = Severity.NOTE if is_known else Severity.UNKNOWN
        if self._unseen:
            findings.append(replace(_part_missing(None, merge, self._unseen), severity=severity))
        if self._divided and not is_known:
            findings.append(_of_share(None, self._divided))
        if self._apart:
            different = _listing_finding(None, next(iter(self._apart.values())))
            findings.append(replace(different, severity=severity))
        for name, why in merge.unread:
            message = f"is not a readable part ({why}): its contents are not in the answer"
            remedy = (
                "run ckpttool part again on its machine, or remove it if it belongs to another run of ckpttool part"
            )
            findings.append(unknown(NodesCode.PART_MISSING, message, path=name, remedy=remedy))
        findings.extend(_long_before(merge.seats))
        for seat in merge.left_out:
            message = f"{seat.name} is older than the newest parts, or belongs to another run, and was ignored"
            findings.append(note(NodesCode.PART_STALE, message, remedy="do not give it"))
        return findings


def _holders(checkpoint: Checkpoint, merge: Merge) -> set[int]:
    """Return the machines that have files of a save, as positions in the merge's seats."""
    return {at for shard in checkpoint.shards for at in merge.holders.get(shard.path, ())}


def _long_before(seats: Sequence[Seat]) -> Iterator[Finding]:
    """Report parts that are older than the others: a part that is not updated keeps its old content."""
    ordered = sorted(seats, key=lambda seat: seat.began_ns)
    before: list[Seat] = []
    ended = late = 0
    for number, seat in enumerate(ordered):
        if number and seat.began_ns > ended + BREAK_NS:
            before, late = ordered[:number], seat.began_ns - ended
        ended = max(ended, seat.ended_ns)
    if before:
        names = _named(sorted(before, key=lambda seat: seat.number))
        more = f" and {len(before) - _MOST_NAMED} more" if len(before) > _MOST_NAMED else ""
        message = (
            f"{names}{more} recorded its files {counted(late // BREAK_NS, 'hour')} or more before the other parts "
            f"of the same name: later changes of the files there are unknown"
        )
        yield note(
            NodesCode.PART_STALE, message, remedy="run ckpttool part there again, and give each run its own name"
        )


def _empty(seats: Sequence[Seat], seats_holding: AbstractSet[int]) -> Iterator[Seat]:
    """Yield machines without any shard on their own disk: files were lost, the folder is wrong, or no rank ran there.

    If the processes of a machine divided its files, one process may have none. Two machines with equal names for
    themselves and their disks, as containers may have, are distinguished by their shares: each share occurs twice.

    Args:
        seats: The seats of all parts.
        seats_holding: Positions in `seats` of machines with a shard.
    """
    machines: dict[tuple[str, str], list[int]] = {}
    for at, seat in enumerate(seats):
        machines.setdefault((seat.host, seat.disk), []).append(at)
    for group in machines.values():
        shares = [seats[at].share for at in group]
        is_one = None not in shares and len({*shares}) == len(shares)
        for at in group:
            if not seats[at].shared and (seats_holding.isdisjoint(group) if is_one else at not in seats_holding):
                yield seats[at]


def _named(seats: Sequence[Seat]) -> str:
    return ", ".join(seat.name for seat in seats[:_MOST_NAMED])


def _open(finding: Finding) -> Finding:
    """Report that a missing file may exist after all, so that nothing should be restored yet."""
    return replace(
        finding, severity=Severity.UNKNOWN, remedy="it may be on a machine that was not checked: check there first"
    )


def _part_missing(path: str | None, merge: Merge, unseen: Sequence[int]) -> Finding:
    return unknown(
        NodesCode.PART_MISSING,
        f"{merge.lacking}: the files of {'its machine' if len(unseen) == 1 else 'their machines'} are unknown",
        path=path,
        expected=str(merge.of),
        actual=str(merge.of - len(unseen)),
        remedy=f"run on that machine: ckpttool part --part {unseen[0]}/{merge.of}, and give its file as well",
    )


def _divided(seats: Sequence[Seat]) -> Iterator[Seat]:
    """Yield the seats that checked a share of a disk, if no other seats checked the rest of the disk."""
    disks: dict[str | None, list[Seat]] = {}
    for seat in seats:
        disks.setdefault(seat.own_disk, []).append(seat)
    for group in disks.values():
        shares = {seat.share for seat in group}
        if None in shares:
            continue  # a complete record needs no other parts
        of = Counter(str(share).partition("/")[2] for share in shares)
        if all(str(times) != count for count, times in of.items()):
            yield from group


def _of_share(path: str | None, seats: Sequence[Seat]) -> Finding:
    message = f"{_named(seats)} checked a share of a disk, and the rest of it was not checked: its files are unknown"
    remedy = "run ckpttool part --split none again on all machines"
    return unknown(NodesCode.NOT_LOOKED_AT, message, path=path, remedy=remedy)


def _differing_listings(merge: Merge) -> dict[str, tuple[Seat, ...]]:
    """Return folders that were divided among parts with different names there, and two such parts for each folder.

    If the tree's folder is on a different disk, the complete tree counts as different, whatever its names.
    """
    disks: dict[str | None, list[tuple[Seat, Mapping[str, str]]]] = {}
    for seat, folders in zip(merge.seats, merge.divided, strict=False):
        if seat.share is not None:
            disks.setdefault(seat.own_disk, []).append((seat, folders))
    different: dict[str, tuple[Seat, ...]] = {}
    for group in disks.values():
        first, first_folders = group[0]
        elsewhere = next((seat for seat, _ in group if _is_another_folder(first, seat)), None)
        if elsewhere is not None:
            different.setdefault("", (first, elsewhere))
        for folder in sorted({folder for _, folders in group for folder in folders}):
            second = next((seat for seat, folders in group if folders.get(folder) != first_folders.get(folder)), None)
            if second is not None:
                different.setdefault(folder, (first, second))
    return different


def _is_another_folder(first: Seat, second: Seat) -> bool:
    """Return whether two seats have different exports, and not one export mounted under two addresses.

    Some mounts number folders arbitrarily.
    """
    return first.disk != second.disk and None not in {first.inode, second.inode} and first.inode != second.inode


def _listing_finding(path: str | None, seats: Sequence[Seat]) -> Finding:
    names = " and ".join(seat.name for seat in seats)
    message = (
        f"{names} divided the files as if they saw one disk, but saw different names there: files that each machine "
        "left to the other may be unchecked"
    )
    remedy = "run ckpttool part --split none again on all machines, or run it again when no save is in progress"
    return unknown(NodesCode.NOT_LOOKED_AT, message, path=path, remedy=remedy)


def _part_empty(checkpoint: Checkpoint, empty: Sequence[Seat]) -> Finding:
    message = f"{_named(empty)} saw no shard of any save: whether the last ranks belong there is unknown"
    remedy = "run ckpttool part there on the right folder; if no rank belongs there, give --world-size"
    return unknown(NodesCode.PART_MISSING, message, path=checkpoint.name, remedy=remedy)


def _part_stale(checkpoint: Checkpoint, late: Sequence[Seat]) -> Finding:
    message = (
        f"{_named(late)} recorded its files before the last file of this save was written: the missing files may "
        f"exist by now"
    )
    remedy = "run ckpttool part again on all machines; if their clocks differ by more, give --skew"
    return unknown(NodesCode.PART_STALE, message, path=checkpoint.name, remedy=remedy)


# Several machines have a file at one path.


def differing(path: str, copies: Iterable[Copy]) -> Iterator[Finding]:
    """Report parts that contradict each other about a path, and separate copies on machines.

    Args:
        path: Path of the file.
        copies: The records of the file, at least two.
    """
    different: dict[str, list[Copy]] = {}
    for copy in copies:
        different.setdefault(copy.seat.disk, []).append(copy)
    exports = _one_export(different.values())
    for same in exports:
        yield from _of_one_disk(path, same)
    if len(exports) > 1:
        yield _on_several(path, [export[0] for export in exports])


def _one_export(groups: Iterable[Sequence[Copy]]) -> list[list[Copy]]:
    """Group records of one shared disk under two addresses: the files have the same size, time and inode."""
    exports: dict[object, list[Copy]] = {}
    for group in groups:
        seat = group[0].seat
        key = frozenset(copy.stamp for copy in group) if seat.shared else seat.disk
        exports.setdefault(key, []).extend(group)
    return list(exports.values())


def _of_one_disk(path: str, copies: Sequence[Copy]) -> Iterator[Finding]:
    if len({copy.stamp for copy in copies}) > 1:
        names = _hosts(copies)
        if len(names) == 1:
            names = [copy.seat.name for copy in copies]
        message = f"differed between the checks on {names[0]} and {names[-1]}: another process is writing it"
        yield unknown(Code.CHANGED_WHILE_READING, message, path=path, remedy="run again when nothing is writing it")
        return
    for first, second in combinations([copy for copy in copies if copy.report is not None], 2):
        if not _may_be_same(first.report, second.report):
            yield suspect(
                NodesCode.NODES_DISAGREE,
                f"{first.seat.host} and {second.seat.host} read different contents from one unchanged file on one disk",
                path=path,
                expected=first.seat.host,
                actual=second.seat.host,
                remedy="a cache, a link or a controller of one machine is bad: read the file on a third machine",
            )
            return


def _may_be_same(first: ShardReport | None, second: ShardReport | None) -> bool:
    """Return whether two records may describe the same bytes, because their checks agree."""
    if first is None or second is None:
        return first is second
    names = ["format", "scalars", "schema_hash", "tensors", "tail_hash", "metadata_hash"]
    if first.level is second.level:
        names.append("findings")
    if first.digest is not None and second.digest is not None:
        names.append("digest")
    if first.tensor_digests is not None and second.tensor_digests is not None:
        names.append("tensor_digests")
    return all(getattr(first, name) == getattr(second, name) for name in names)


def _on_several(path: str, copies: Sequence[Copy]) -> Finding:
    """Report that machines have their own files under one path; if these differ, the right file is unknown."""
    hosts = _hosts(copies)
    named = hosts if len(hosts) <= _MOST_NAMED else [*hosts[:_MOST_NAMED], f"{len(hosts) - _MOST_NAMED} more"]
    where = f"{', '.join(named[:-1])} and {named[-1]}" if len(named) > 1 else f"two disks of {named[0]}"
    first = copies[0]
    ranks = () if first.report is None or first.report.rank is None else (first.report.rank,)
    if all(copy.stamp.size == first.stamp.size and _may_be_same(first.report, copy.report) for copy in copies[1:]):
        return note(
            NodesCode.RANK_ON_SEVERAL_NODES,
            f"is on {where}, and the copies are equal as far as they were checked",
            path=path,
            ranks=ranks,
        )
    return suspect(
        NodesCode.RANK_ON_SEVERAL_NODES,
        f"is on {where}, and the copies differ: which one the training would load is unknown",
        path=path,
        ranks=ranks,
        remedy="on the machine where this rank will not start, remove the files of the former rank",
    )


def _hosts(copies: Sequence[Copy]) -> list[str]:
    return sorted({copy.seat.host for copy in copies})
