"""The machines whose parts describe a tree; they answer the core's requests from these parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
from ckpttool.core.domain.finding import Code, Finding, Row, Severity, damage, in_order, note, unknown, worst
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.manifest import ShardSeal
from ckpttool.core.domain.node import Node
from ckpttool.core.domain.plan import NoResumePoint, ResumePlan
from ckpttool.core.domain.preflight import DiskNeed, NextSaves
from ckpttool.core.domain.question import CheckQuestion, TreeQuestion
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import CheckTask, Level, ShardReport
from ckpttool.core.errors import UsageError
from ckpttool.core.records.damaged import FoundDamaged
from ckpttool.core.records.journal import TRASH, trash_folder, trashed_name
from ckpttool.core.storage import open_storage
from ckpttool.core.storage.base import Storage
from ckpttool.core.storage.disk import Disk
from ckpttool.core.verify.check import refused
from ckpttool.core.verify.observation import Engines, Observation
from ckpttool.nodes.findings import NodesCode
from ckpttool.nodes.model import Copy, Merge, Seat
from ckpttool.nodes.part_file import PartView
from ckpttool.nodes.rules.disks import needs_of, with_placement
from ckpttool.nodes.rules.merged import SKEW_SECONDS, with_merge, with_warning
from ckpttool.nodes.storage import Answers
from ckpttool.trainers.base import Layout, Refusal, ScanOptions
from ckpttool.trainers.listing import list_root
from ckpttool.trainers.located import DiskKey, Located


class MachinesOfParts:
    """Machines whose parts have been combined."""

    is_here = False

    def __init__(self, merge: Merge, answers: Answers, views: Sequence[PartView]) -> None:
        """Store the parts.

        Args:
            merge: The machines, and the times of their parts.
            answers: The answers of a storage with all files.
            views: The views, by machine, in the order of the merge's seats.
        """
        self.merge = merge
        self.answers = answers
        self._views = views

    def folder(self, root: str) -> str:
        """Return the absolute path of the tree's folder on the machines, whose working directories may differ.

        Raises:
            UsageError: The machines have the tree in different places, or their parts have no absolute path.
        """
        if len(self.merge.places) == 1:
            return self.merge.places[0]
        where = " and ".join(self.merge.places[:2]) or f"{root}, relative to an unknown folder"
        raise UsageError(
            f"the machines have the tree at {where}, but a config can have only one folder: give --root /PATH"
        )

    def report(self, path: str) -> ShardReport | None:
        """Return the most thorough report on a shard; among equally thorough reports, the worst."""
        copies = self.merge.copies.get(path)
        if copies is not None:
            return chosen_copy(copies).report
        holders = self.merge.holders.get(path)
        return None if holders is None else self._views[holders[0]].report_of(path)

    def engines(self, question: CheckQuestion) -> Engines:
        """Return engines that replay the reports, because there is nothing to read."""
        tasks = RecordedEngine(self.report, but=OF_THE_SAVE_BEFORE if question.jump == 0 else ())
        if not question.level.reads_content or question.bucket is not None:
            return Engines(tasks=tasks, headers=tasks)
        return Engines(tasks=tasks, headers=RecordedEngine(self.report, but=OF_CONTENT))

    def found_damaged(self, storage: Storage) -> tuple[Mapping[str, FoundDamaged], Callable[[str], FileStamp]]:
        """Return damage found earlier on the machines, and the stamps of the files there.

        If any of several copies was found damaged, the damage counts, whichever copy is shown here.
        """
        del storage
        damaged: dict[str, FoundDamaged] = {}
        stamps: dict[str, FileStamp] = {}
        for view in self._views:
            for found in view.damaged:
                if found.path in view.answers.stamps:
                    damaged[found.path], stamps[found.path] = found, view.answers.stamps[found.path]
        return damaged, stamps.__getitem__

    def assessed(self, inventory: Inventory, question: TreeQuestion) -> Inventory:
        """Report missing or early parts, and files that differ between machines."""
        declared = {question.world_size, None if question.config is None else question.config.world_size}
        skew = SKEW_SECONDS if question.skew is None else question.skew
        return with_merge(inventory, self.merge, declared=declared - {None}, skew=skew)

    def placed(
        self,
        decision: ResumePlan | NoResumePoint,
        layout: Layout,
        inventory: Inventory,
        question: TreeQuestion,
        node: Node | None,
    ) -> ResumePlan | NoResumePoint:
        """Add each rank's start machine and missing files; if no checkpoint was chosen, warn if parts differ."""
        del question, node
        decision = replace(decision, parts=inventory.parts)
        if isinstance(decision, NoResumePoint):
            return with_warning(decision, self.merge)
        read = layout.read_by_all(decision.point.checkpoint)
        return with_placement(decision, self.merge, read, inventory.checkpoints)

    def disk_needs(
        self, coming: NextSaves, storage: Storage, paths: tuple[str, ...], disk: Disk
    ) -> tuple[DiskNeed, ...] | Finding:
        """Compare the next saves on each disk with the free space that the disk's machine recorded."""
        del disk
        return needs_of(coming, self.merge, {path: storage.stamp(path).size for path in paths})

    def sizes(self, path: str, size: ByteCount) -> Mapping[DiskKey, ByteCount]:
        """Return the size of a file on each disk that has the file."""
        copies = self.merge.copies.get(path)
        if copies is None:
            return {_disk_of(self.merge.seats[at]): size for at in self.merge.holders.get(path, ())}
        return {_disk_of(copy.seat): copy.stamp.size for copy in reversed(copies)}

    def hosts(self) -> Mapping[DiskKey, str]:
        """Return a machine for each disk, preferably one that can write to the disk."""
        seats: dict[DiskKey, list[Seat]] = defaultdict(list)
        for seat in self.merge.seats_read:
            seats[_disk_of(seat)].append(seat)
        used = {*self.merge.seats}
        return {
            disk: min(own, key=lambda seat: (seat not in used, bool(seat.unwritable), seat.host)).host
            for disk, own in seats.items()
        }

    def without_half_gone(
        self, located: Located, inventory: Inventory, options: ScanOptions
    ) -> tuple[Located, Inventory]:
        """Return a tree without the saves that one machine moved to its trash while another machine still has them.

        The remaining files may look like an intact save with fewer ranks, but are not intact. These files are also
        removed from the answers.
        """
        trashed = self._trashed()
        folders_of: defaultdict[str, list[str]] = defaultdict(list)
        for folder in trashed:
            folders_of[trashed_name(folder)].append(folder)
        halves = []
        for save in inventory.checkpoints:
            candidates = folders_of.get(save.name, ())
            folders = [folder for folder in candidates if self._is_of(located, save, folder, trashed[folder])]
            if folders:
                halves.append((save, folders))
        if not halves:
            return located, inventory
        for save, _ in halves:
            self._forget(_paths(located, save))
        storage = open_storage(located.storage.root)
        located = replace(located, storage=storage, listing=list_root(storage))
        remaining = located.layout.scan(storage, located.listing, options)
        findings = (self._half_gone(save, folders) for save, folders in halves)
        return located, replace(remaining, findings=in_order((*remaining.findings, *findings)))

    def _trashed(self) -> dict[str, list[str]]:
        """Return the entries in a machine's trash that exist nowhere else, with their original places."""
        by_folder: defaultdict[str, list[str]] = defaultdict(list)
        for path in self.merge.holders:
            if path.startswith(f"{TRASH}/"):
                folder, _, place = path.removeprefix(f"{TRASH}/").partition("/")
                if place not in self.merge.holders:
                    by_folder[folder].append(place)
        return by_folder

    def _is_of(self, located: Located, save: Checkpoint, folder: str, trashed: Collection[str]) -> bool:
        """Return whether a trash folder has files from a save: different training runs or formats may share its name.

        A later save under the name of a deleted one is a different save, and younger than the trash.
        """
        place, stamps = trash_folder(folder), self.answers.stamps
        shard_stamps = [stamps[shard.path] for shard in save.shards if shard.path in stamps]
        saved_ns = max((stamp.modified_ns or 0 for stamp in shard_stamps), default=0)
        if place is None or saved_ns > place.since * 1e9:
            return False
        inside = tuple(f"{path}/" for path in _paths(located, save))
        if any(path.startswith(inside) for path in trashed):
            return True
        storage = open_storage(f"{located.storage.root}/{TRASH}/{folder}")
        with suppress(OSError):  # the trash cannot be read, so no save is known to be in it
            inventory = located.layout.scan(storage, list_root(storage), ScanOptions())
            return save.key in {checkpoint.key for checkpoint in inventory.checkpoints}
        return False

    def _half_gone(self, save: Checkpoint, folders: Iterable[str]) -> Finding:
        seats = self.merge.seats
        hosts_without = {
            seat.host
            for seat, view in zip(seats, self._views, strict=True)
            if any(f"{TRASH}/{folder}" in view.answers.entries for folder in folders)
        }
        hosts_with = {seats[at].host for shard in save.shards for at in self.merge.holders.get(shard.path, ())}
        return note(
            NodesCode.HALF_GONE,
            f"{_named(hosts_without)} moved its files to the trash, and {_named(hosts_with)} did not: the remaining "
            "files are ignored",
            path=save.name,
            remedy=f"ckpttool trash restore {save.name} on the machine that moved them; or remove the remaining files",
        )

    def _forget(self, paths: Iterable[str]) -> None:
        """Hide some files or folders from now on; `merge.holders` still lists these."""
        entries, removed = self.answers.entries, set(paths)
        folders = tuple(f"{path}/" for path in removed if path in entries)
        for inner in [entry for entry in entries if entry in removed or entry.startswith(folders)]:
            del entries[inner]
        for above in {path.rpartition("/")[0] for path in removed} & entries.keys():
            start = f"{above}/" if above else ""
            entries[above] = tuple(entry for entry in entries[above] if f"{start}{entry.name}" not in removed)
        for path in removed:
            self.answers.stamps.pop(path, None)


def chosen_copy(copies: Sequence[Copy]) -> Copy:
    """Return the copy to show, chosen by findings, never by time or order."""

    def rank(copy: Copy) -> tuple[int, int, int, str, str, str]:
        of_report = (-1, -1) if copy.report is None else (int(worst(copy.report.findings)), int(copy.report.level))
        return *of_report, copy.stamp.size, copy.seat.host, copy.seat.disk, str(copy.stamp.token)

    return max(copies, key=rank)


def _disk_of(seat: Seat) -> DiskKey:
    """Return a disk's key; for a machine's own disk, the key includes the folder, to allow trials on one machine."""
    return (seat.disk,) if seat.shared else (seat.disk, seat.folder)


def _paths(located: Located, save: Checkpoint) -> tuple[str, ...]:
    members = located.layout.members(save)
    return tuple(shard.path for shard in save.shards) if isinstance(members, Refusal) else members.paths


def _named(hosts: set[str]) -> str:
    first, *more = sorted(hosts)
    return f"{first} and {len(more)} more" if more else first


OF_THE_SAVE_BEFORE = frozenset({Code.NORM_JUMP, Code.ALL_ZERO_TENSOR})
"""Codes of findings that depend only on the statistics of the previous save."""

OF_CONTENT = OF_THE_SAVE_BEFORE | {Code.CHECKSUM_MISMATCH, Code.CHECKSUM_MISSING, Code.NONFINITE_VALUES}
"""Codes of findings that headers cannot show, so that comparisons of headers ignore these codes."""


class RecordedEngine:
    """An engine that reads nothing: it replays the reports of the machines that have the files."""

    def __init__(self, report_of: Callable[[str], ShardReport | None], *, but: Collection[Row] = ()) -> None:
        """Store the reports.

        Args:
            report_of: Returns the report on a shard, by its path; None if the shard was not checked.
            but: Codes of findings that are omitted, because the question does not include them.
        """
        self._report_of = report_of
        self._but = but

    def run(self, tasks: Sequence[CheckTask]) -> Iterator[Observation]:
        """Yield one observation per task, in order; if tasks share a file, the first task counts the file's bytes."""
        visited = set()
        for task in tasks:
            report = self._report_of(task.path)
            if report is None:
                yield refused(task, _unseen(task.path))
                continue
            findings = tuple(finding for finding in report.findings if finding.code not in self._but)
            bytes_read = ByteCount(0) if task.path in visited else report.bytes_read
            visited.add(task.path)
            report = replace(report, rank=task.rank, role=task.role, findings=findings, bytes_read=bytes_read)
            yield Observation(task=task, report=_compared(task, report))


def _unseen(path: str) -> Finding:
    return unknown(
        NodesCode.NOT_LOOKED_AT,
        "is listed, but was not checked on the machine that has it: unknown, not damaged",
        path=path,
        remedy=(
            "run ckpttool part again on its machine; if the save's own records are on another machine, put them on "
            "one disk, because without them nothing shows that the file belongs to a save"
        ),
    )


def _compared(task: CheckTask, report: ShardReport) -> ShardReport:
    """Add comparisons that a machine could not make: a check is missing, or a different machine has the record."""
    if report.level < task.level:
        finding = unknown(
            NodesCode.NOT_LOOKED_AT,
            f"was checked on its machine only by {report.level.word}: unknown, not damaged",
            path=task.path,
            expected=task.level.word,
            actual=report.level.word,
            remedy=f"run ckpttool part --level {task.level.word} on its machine",
        )
        return replace(report, findings=(*report.findings, finding))
    if not _is_uncompared(task, report):
        return report
    if task.seal is not None and report.digest is not None:
        report = _compared_with(task.seal, report, report.digest.xxh3_128)
        if not _is_uncompared(task, report):
            return report
    finding = unknown(
        NodesCode.NOT_LOOKED_AT,
        "was read on a machine without the record of its checksum, and the record is on a machine without the file: "
        "not compared",
        path=task.path,
        remedy="copy the record to its machine as well, and run ckpttool part there again",
    )
    return replace(report, findings=(*report.findings, finding))


def _is_uncompared(task: CheckTask, report: ShardReport) -> bool:
    """Return whether one machine has the record of a checksum and another the file, so that they were not compared."""
    has_record = task.seal is not None or task.sha256 is not None
    is_requested = task.level >= Level.CHECKSUM and not report.checksum_matched
    return has_record and is_requested and worst(report.findings) < Severity.UNKNOWN


def _compared_with(seal: ShardSeal, report: ShardReport, digest: str) -> ShardReport:
    """Compare the recorded hash of a file with the hash that was computed on the file's machine."""
    if digest == seal.xxh3_128:
        findings = tuple(finding for finding in report.findings if finding.code is not Code.CHECKSUM_MISSING)
        return replace(report, checksum_matched=True, findings=findings)
    finding = damage(
        Code.CHECKSUM_MISMATCH,
        f"its bytes differ from the manifest that another machine recorded on {seal.first_seen}",
        path=report.path,
        expected=seal.xxh3_128,
        actual=digest,
        remedy="resume from another checkpoint, or copy this shard again from an intact copy",
    )
    return replace(report, findings=(*report.findings, finding))
