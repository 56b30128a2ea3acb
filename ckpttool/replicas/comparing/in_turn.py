"""What replicas say of checkpoints that are judged one after the other: each is read once, and remembered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence

from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.replicas import TENSOR_DIGEST_BYTES
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.units import Rank
from ckpttool.core.domain.verdict import ShardReport
from ckpttool.core.verify.copies import FromCopies, HeldTensors, Place, Reading, SeenShards, Tensors, tensors_of
from ckpttool.core.verify.siblings.neighbours import Neighbours
from ckpttool.replicas.comparing.compare import Compared, Context, SavedTensors, compare_replicas, looking_in
from ckpttool.replicas.rebuilt import rebuilt_from

MOST_LOOKED_UP = 2
"""Checkpoints before and after of which records are asked: a manifest of thousands of ranks takes a second to read."""

MOST_OTHERS = 8
"""Checkpoints that a comparison takes: of thousands of ranks without any replica each takes some 20 MB."""


class Replicas:
    """Compares checkpoints of one tree with replicas."""

    def __init__(self, neighbours: Neighbours, reading: Reading) -> None:
        """Take the checkpoints, and how to read them."""
        self._neighbours = neighbours
        self._reading = reading
        self._known: dict[CheckpointKey, Tensors] = {}
        self._read: set[CheckpointKey] = set()
        self._looked_up: set[CheckpointKey] = set()
        self.ahead: dict[CheckpointKey, list[ShardReport]] = {}
        """Reports of checkpoints whose turn is still to come."""

    def compare(
        self,
        checkpoint: Checkpoint,
        shards: SeenShards,
        *,
        followed_by: Checkpoint | None,
    ) -> Generator[ShardReport, None, FromCopies]:
        """Yield the reports of what else had to be read, and return what is to be said of the checkpoint.

        One other checkpoint is read where none is known; a second where the first leaves a doubt; more where they are
        to be read anyway. None is where checksums prove every file, and none of them is odd: a checksum in a file does
        not know whose it is, as a manifest does.

        Args:
            checkpoint: The one that is judged.
            shards: What was seen of its shards.
            followed_by: The one that is judged next.
        """
        reports, seals, sealed, healed = shards
        checkpoint_tensors = tensors_of(reports)
        self.keep(checkpoint, checkpoint_tensors)
        if not _may_have_replicas(checkpoint_tensors):
            return FromCopies()
        requested = {*self._reading.requested, *(() if followed_by is None else (followed_by.key,))}
        older, later = self._neighbours.in_line(checkpoint)
        self._look_up((*older[:MOST_LOOKED_UP], *later[:MOST_LOOKED_UP]))
        ranks = {*checkpoint.ranks, *map(Rank, range(checkpoint.topology.world_size or 0))}
        slices, look = self._reading.slices(checkpoint), looking_in(self._reading.storage)
        rebuilt = {**dict.fromkeys(healed), **rebuilt_from(reports, seals)}
        known = Context(slices, look, checkpoint.name, sealed, rebuilt, ranks)
        also_read: list[str] = []
        has_checksums = all(map(_has_checksum, reports))
        is_sealed = has_checksums and all(not report.checksum_matched or report.path in sealed for report in reports)
        while True:
            saved = [*self._saved(checkpoint, older, older=True), *self._saved(checkpoint, later, older=False)]
            compared = compare_replicas(reports, saved, known)
            is_settled = self._reading.only_asked or is_sealed or (has_checksums and not compared.findings)
            unread = [save for save in (*older, *later) if save.key not in self._known.keys() | self._read]
            following = self._following(unread, compared, len(saved), requested)
            if following is None or (is_settled and following.key not in requested):
                names = tuple(save.name for save in saved)
                return FromCopies(
                    findings=compared.findings,
                    agreed=compared.agreed,
                    compared_with=names,
                    also_read=tuple(also_read),
                    compared_paths=compared.compared_paths,
                    drifted=compared.drifted,
                )
            if following.key not in requested:
                also_read.append(following.name)
            tensors: dict[Place, HeldTensors] = {}
            ahead = self.ahead.setdefault(following.key, []) if following.key in requested else None
            for report in self._reading.read(following, checkpoint_tensors.keys() if ahead is None else None):
                tensors |= tensors_of((report,))
                if ahead is not None:
                    ahead.append(report)
                yield report
            self.keep(following, tensors)

    @staticmethod
    def _following(
        unread: Sequence[Checkpoint], compared: Compared, known_count: int, requested: Collection[CheckpointKey]
    ) -> Checkpoint | None:
        """Return which other checkpoint is to be read next; None where it would cost more than it may tell."""
        if known_count >= MOST_OTHERS or not unread:
            return None
        if not known_count or (known_count == 1 and compared.findings):
            return unread[0]
        if not compared.is_open:
            return None
        return next((checkpoint for checkpoint in unread if checkpoint.key in requested), None)

    def keep(self, checkpoint: Checkpoint, tensors: Tensors) -> None:
        """Remember the tensors of a checkpoint that was read."""
        self._read.add(checkpoint.key)
        if tensors:
            rebuilt = self._reading.rebuilt(checkpoint)
            self._known[checkpoint.key] = {place: digests for place, digests in tensors.items() if place not in rebuilt}
        while len(self._known) > MOST_OTHERS + 1:
            self._known.pop(next(iter(self._known)))

    def _look_up(self, checkpoints: Iterable[Checkpoint]) -> None:
        """Take what records have of the nearest others, each once."""
        for checkpoint in checkpoints:
            if checkpoint.key not in self._looked_up and checkpoint.key not in self._known:
                self._looked_up.add(checkpoint.key)
                if tensors := self._reading.recorded(checkpoint):
                    self._known[checkpoint.key] = tensors

    def _saved(
        self, checkpoint: Checkpoint, companions: Iterable[Checkpoint], *, older: bool
    ) -> Iterator[SavedTensors]:
        for companion in companions:
            if (tensors := self._known.get(companion.key)) is not None:
                yield SavedTensors(
                    name=companion.name,
                    step=companion.step,
                    older=older,
                    same_run=companion.run == checkpoint.run,
                    shards=tensors,
                )


def _may_have_replicas(tensors: Tensors) -> bool:
    """Tell whether two ranks hold the same of any tensor: where none do, no other checkpoint is worth reading.

    One tensor after the other: all digests of thousands of ranks at once would be half a GB of small values.
    """
    by_names: dict[tuple[ShardRole, tuple[str, ...]], list[bytes]] = defaultdict(list)
    for (rank, role), (_, digests) in tensors.items():
        if rank is not None:
            by_names[role, digests.names].append(digests.digests)
    places: dict[tuple[ShardRole, str], list[tuple[list[bytes], int]]] = defaultdict(list)
    for (role, names), values in by_names.items():
        for index, name in enumerate(names):
            places[role, name].append((values, index * TENSOR_DIGEST_BYTES))
    for columns in places.values():
        column = [values[at : at + TENSOR_DIGEST_BYTES] for several, at in columns for values in several]
        if len(set(column)) < len(column):
            return True
    return False


def _has_checksum(report: ShardReport) -> bool:
    """Tell whether a checksum says what a copy would, for the shard or against it."""
    return report.checksum_matched or any(finding.code is Code.CHECKSUM_MISMATCH for finding in report.findings)
