"""What the core asks of machines that looked at a tree, answered by the parts that they wrote."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from ckpttool.core.domain.checkpoint import Inventory
from ckpttool.core.domain.finding import Finding
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.node import Node
from ckpttool.core.domain.plan import NoResumePoint, ResumePlan
from ckpttool.core.domain.preflight import DiskNeed, NextSaves
from ckpttool.core.domain.question import CheckQuestion, TreeQuestion
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import ShardReport
from ckpttool.core.errors import UsageError
from ckpttool.core.records.damaged import FoundDamaged
from ckpttool.core.storage.base import Storage
from ckpttool.core.storage.disk import Disk
from ckpttool.core.verify.observation import Engines
from ckpttool.nodes.model import Seat
from ckpttool.nodes.read.engine import OF_CONTENT, OF_THE_SAVE_BEFORE, RecordedEngine
from ckpttool.nodes.read.merging import MergedViews
from ckpttool.nodes.read.partial_delete import without_half_gone
from ckpttool.nodes.rules.merged import SKEW_SECONDS, with_merge, with_warning
from ckpttool.nodes.rules.placement import with_placement
from ckpttool.nodes.rules.room import needs_of
from ckpttool.trainers.base import Layout, ScanOptions
from ckpttool.trainers.located import DiskKey, Located


class MachinesOfParts:
    """Machines whose parts were put together."""

    is_here = False

    def __init__(self, looks: MergedViews) -> None:
        """Take what they saw."""
        self._looks = looks
        self.merge = looks.merge

    def folder(self, root: str) -> str:
        """Return the absolute path of the tree's folder on them: their working directory is not ours.

        Raises:
            UsageError: They have it at several places, or do not say where.
        """
        if len(self.merge.places) == 1:
            return self.merge.places[0]
        where = " and ".join(self.merge.places[:2]) or f"{root}, wherever they stood"
        raise UsageError(f"the machines have the tree at {where}: one config names one folder, so give --root /PATH")

    def report(self, path: str) -> ShardReport | None:
        """Return what was seen of a shard; of several looks the hardest, and of equal ones the worst."""
        return self._looks.report_of(path)

    def engines(self, question: CheckQuestion) -> Engines:
        """Return what gives again what was seen: there is nothing to read."""
        tasks = RecordedEngine(self.report, but=OF_THE_SAVE_BEFORE if question.jump == 0 else ())
        is_of_headers = not question.level.reads_content or question.bucket is not None
        return Engines(tasks=tasks, headers=tasks if is_of_headers else RecordedEngine(self.report, but=OF_CONTENT))

    def without_half_gone(
        self, located: Located, inventory: Inventory, options: ScanOptions
    ) -> tuple[Located, Inventory]:
        """Return a tree without the saves of which files lie in one machine's trash, and others on another one."""
        if not self._looks.trashed:
            return located, inventory
        return without_half_gone(located, self._looks, inventory, options)

    def found_damaged(self, storage: Storage) -> tuple[Mapping[str, FoundDamaged], Callable[[str], FileStamp]]:
        """Return what earlier looks on a machine found of its files, with the stamps that the files have there."""
        del storage
        there = self._looks.found_damaged()
        return {path: found for path, (found, _) in there.items()}, lambda path: there[path][1]

    def assessed(self, inventory: Inventory, question: TreeQuestion) -> Inventory:
        """Say which parts are missing or early, and where machines see other files."""
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
        """Say which ranks start where and what a machine lacks; of no decision, where machines merely disagree."""
        del question, node
        decision = replace(decision, parts=inventory.parts)
        if isinstance(decision, NoResumePoint):
            return with_warning(decision, self.merge)
        read = layout.read_by_all(decision.point.checkpoint)
        return with_placement(decision, self.merge, read, inventory.checkpoints)

    def disk_needs(
        self, coming: NextSaves, storage: Storage, paths: tuple[str, ...], disk: Disk
    ) -> tuple[DiskNeed, ...] | Finding:
        """Compare what the next saves put on each disk with what its machine found free."""
        del disk
        return needs_of(coming, self.merge, {path: storage.stamp(path).size for path in paths})

    def sizes(self, path: str, size: ByteCount) -> Mapping[DiskKey, ByteCount]:
        """Return the bytes of a file on each disk that has it."""
        copies = self.merge.copies.get(path)
        if copies is None:
            return {_disk_of(self.merge.seats[at]): size for at in self.merge.holders.get(path, ())}
        return {_disk_of(copy.seat): copy.stamp.size for copy in reversed(copies)}

    def hosts(self) -> Mapping[DiskKey, str]:
        """Return a machine for each disk, one that can change what lies there if any can."""
        seats: dict[DiskKey, list[Seat]] = defaultdict(list)
        for seat in self.merge.seats_read:
            seats[_disk_of(seat)].append(seat)
        used = {*self.merge.seats}
        return {
            disk: min(own, key=lambda seat: (seat not in used, bool(seat.unwritable), seat.host)).host
            for disk, own in seats.items()
        }


def _disk_of(seat: Seat) -> DiskKey:
    """Tell disks apart; of a machine's own disk also two folders, which are two machines' in a trial."""
    return (seat.disk,) if seat.shared else (seat.disk, seat.absolute or seat.root)
