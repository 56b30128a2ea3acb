"""Compare the replicas in checkpoints that are judged one after the other, reading each only once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence

from ckpttool.core.domain.checkpoint import Checkpoint, CheckpointKey
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.replicas import TENSOR_DIGEST_BYTES
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.units import Rank
from ckpttool.core.domain.verdict import ShardReport
from ckpttool.core.verify.copies import CopyComparison, Place, Reading, SeenShards, ShardTensors, Tensors, tensors_of
from ckpttool.core.verify.siblings.neighbours import Neighbours
from ckpttool.replicas.comparing.compare import Context, SavedTensors, compare_replicas, reader_of_tensors
from ckpttool.replicas.rebuilt import rebuilt_from

MOST_LOOKED_UP = 2
"""Number of earlier and later checkpoints whose records are read; a manifest of thousands of ranks takes a second."""

MOST_OTHERS = 8
"""Maximum number of checkpoints per comparison; each takes about 20 MB for thousands of ranks without replicas."""


class Replicas:
    """The comparison of the replicas in the checkpoints of one tree."""

    def __init__(self, neighbours: Neighbours, reading: Reading) -> None:
        """Store the checkpoints, and how to read them."""
        self._neighbours = neighbours
        self._reading = reading
        self._known: dict[CheckpointKey, Tensors] = {}
        self._read: set[CheckpointKey] = set()
        self._looked_up: set[CheckpointKey] = set()
        self.ahead: dict[CheckpointKey, list[ShardReport]] = {}
        """Reports of checkpoints that were read before they are judged themselves."""

    def compare(
        self,
        checkpoint: Checkpoint,
        shards: SeenShards,
        *,
        followed_by: Checkpoint | None,
    ) -> Generator[ShardReport, None, CopyComparison]:
        """Yield the reports of the other shards that were read, and return the result for the checkpoint.

        One other checkpoint is read if none is known, a second if the first leaves a suspicion, and more only if they
        are read in any case. No other is read if checksums prove every file and there is no suspicion: unlike a
        manifest, a checksum inside a file does not prove the rank of the file.

        Args:
            checkpoint: The checkpoint that is judged.
            shards: Its shards.
            followed_by: The checkpoint that is judged next.
        """
        reports, seals, sealed, healed = shards
        checkpoint_tensors = tensors_of(reports)
        self.keep(checkpoint, checkpoint_tensors)
        if not _may_have_replicas(checkpoint_tensors):
            return CopyComparison()
        requested = {*self._reading.requested, *(() if followed_by is None else (followed_by.key,))}
        older, later = self._neighbours.in_line(checkpoint)
        self._look_up((*older[:MOST_LOOKED_UP], *later[:MOST_LOOKED_UP]))
        context = Context(
            recorded=self._reading.slices(checkpoint),
            compare_bytes=reader_of_tensors(self._reading.storage),
            sealed=sealed,
            rebuilt={**dict.fromkeys(healed), **rebuilt_from(reports, seals)},
            ranks={*checkpoint.ranks, *map(Rank, range(checkpoint.topology.world_size or 0))},
        )
        has_checksums = all(map(_has_checksum, reports))
        is_sealed = has_checksums and all(not report.checksum_matched or report.path in sealed for report in reports)
        also_read: list[str] = []
        while True:
            saves = [*self._saves(checkpoint, older, older=True), *self._saves(checkpoint, later, older=False)]
            compared = compare_replicas(reports, saves, context)
            is_settled = self._reading.only_asked or is_sealed or (has_checksums and not compared.findings)
            unread = [save for save in (*older, *later) if save.key not in self._known.keys() | self._read]
            following = self._following(unread, compared, len(saves), requested)
            if following is None or (is_settled and following.key not in requested):
                names = tuple(save.name for save in saves)
                return compared._replace(compared_with=names, also_read=tuple(also_read))
            tensors: dict[Place, ShardTensors] = {}
            if following.key in requested:
                ahead = self.ahead.setdefault(following.key, [])
                for report in self._reading.read(following, None):
                    tensors |= tensors_of((report,))
                    ahead.append(report)
                    yield report
            else:
                also_read.append(following.name)
                for report in self._reading.read(following, checkpoint_tensors.keys()):
                    tensors |= tensors_of((report,))
                    yield report
            self.keep(following, tensors)

    @staticmethod
    def _following(
        unread: Sequence[Checkpoint], compared: CopyComparison, known: int, requested: Collection[CheckpointKey]
    ) -> Checkpoint | None:
        """Return the other checkpoint to read next, or None if no read is worth the cost."""
        if known >= MOST_OTHERS or not unread:
            return None
        if known == 0 or (known == 1 and compared.findings):
            return unread[0]
        if not compared.is_open:
            return None
        return next((checkpoint for checkpoint in unread if checkpoint.key in requested), None)

    def keep(self, checkpoint: Checkpoint, tensors: Tensors) -> None:
        """Store the tensors of a checkpoint that was read."""
        self._read.add(checkpoint.key)
        if tensors:
            rebuilt = self._reading.rebuilt(checkpoint)
            self._known[checkpoint.key] = {place: digests for place, digests in tensors.items() if place not in rebuilt}
        while len(self._known) > MOST_OTHERS + 1:
            self._known.pop(next(iter(self._known)))

    def _look_up(self, checkpoints: Iterable[Checkpoint]) -> None:
        """Read the records of the nearest other checkpoints, each once."""
        for checkpoint in checkpoints:
            if checkpoint.key not in self._looked_up and checkpoint.key not in self._known:
                self._looked_up.add(checkpoint.key)
                if tensors := self._reading.recorded(checkpoint):
                    self._known[checkpoint.key] = tensors

    def _saves(
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
    """Return whether a tensor is equal on two ranks; otherwise, no other checkpoint is worth reading.

    Checks one tensor after the other, because all digests of thousands of ranks would be half a GB of small values.
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
    """Return whether a checksum proves that the shard is intact or damaged."""
    return report.checksum_matched or any(finding.code is Code.CHECKSUM_MISMATCH for finding in report.findings)
