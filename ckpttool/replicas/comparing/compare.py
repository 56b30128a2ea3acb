"""Find shards that differ from their replicas, and the first difference, by digests of this checkpoint and others."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ckpttool.core.domain.finding import Code, Severity, worst
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.replicas import RecordedSlices, TensorDigests
from ckpttool.core.domain.scalars import NO_FACTS
from ckpttool.core.domain.shard import FileStamp, ShardRole
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.domain.verdict import ShardReport
from ckpttool.core.storage.base import ByteSource, Storage
from ckpttool.core.storage.stream import BLOCK_BYTES
from ckpttool.core.verify.copies import CopyComparison, Tensors
from ckpttool.core.verify.siblings.neighbours import COMPARED
from ckpttool.replicas.comparing.findings import replica_findings
from ckpttool.replicas.comparing.judge import judge_replicas
from ckpttool.replicas.comparing.model import DifferingBytes, Sample, Suspicion, SuspicionKind, credible_record
from ckpttool.replicas.comparing.weight import Evidence, without_cleared

Look = Callable[[ShardReport, ShardReport, str], DifferingBytes | None]
"""A function that returns the bytes in which a tensor differs between two shards, or None if they are unknown."""

_UNSOUND = frozenset({Code.NONFINITE_VALUES, Code.NORM_JUMP, Code.ALL_ZERO_TENSOR, Code.CHECKSUM_MISMATCH})
"""Findings about one of two differing files that support the other."""

_CONVICTS = frozenset({SuspicionKind.DIFFERS, SuspicionKind.STALE})
"""Kinds that mean damage if enough other copies agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensors:
    """The known tensors of another checkpoint, from a read or from a record."""

    name: str
    step: Step | None
    older: bool
    """Whether the checkpoint was saved before the judged checkpoint."""
    same_run: bool
    """Whether the same start of the training run wrote both checkpoints."""
    shards: Tensors


class Context(NamedTuple):
    """The facts about the judged checkpoint, besides its shards."""

    recorded: RecordedSlices | None = None
    """The slices in the trainer's own record."""
    compare_bytes: Look | None = None
    """The function that finds the differing bytes of two shards; None to skip the search."""
    sealed: Collection[str] = ()
    """Paths of files that match a manifest."""
    rebuilt: Mapping[str, str | None] = {}
    """The file of the save from which a file was rebuilt, by the path of the rebuilt file; None if it has changed.

    The two files count as a single sample.
    """
    ranks: Collection[Rank] = ()
    """The known ranks that should have files in the checkpoint."""


_NOTHING = Context()


def compare_replicas(
    reports: Sequence[ShardReport], saves: Sequence[SavedTensors], context: Context = _NOTHING
) -> CopyComparison:
    """Find shards that differ from their replicas, or that have another rank's name.

    Args:
        reports: Reports on the checkpoint's shards; reports without digests are not evidence.
        saves: Other checkpoints of the training run, nearest first; may be empty.
        context: Other known facts.
    """
    of_roles = [_compare_role(role, by_rank, saves, context) for role, by_rank in _by_role(reports).items()]
    return CopyComparison(
        findings=tuple(finding for compared in of_roles for finding in compared.findings),
        agreed={path: copies for compared in of_roles for path, copies in compared.agreed.items()},
        is_open=any(compared.is_open for compared in of_roles),
        drifted={path: since for compared in of_roles for path, since in compared.drifted.items()},
        compared_paths={path for compared in of_roles for path in compared.compared_paths},
    )


def _compare_role(
    role: ShardRole, by_rank: Mapping[Rank, ShardReport], saves: Sequence[SavedTensors], context: Context
) -> CopyComparison:
    same_file = _same_files(by_rank, context.rebuilt)
    current = {
        rank: report.tensor_digests
        for rank, report in by_rank.items()
        if report.tensor_digests is not None and rank not in same_file
    }
    samples = [_sample(save, role, by_rank) for save in saves]
    recorded = credible_record(context.recorded, current)
    judged = judge_replicas(current, samples, recorded)
    sound = {rank for rank, report in by_rank.items() if report.checksum_matched}
    evidence = Evidence(
        sound=sound,
        sealed={rank for rank in sound if by_rank[rank].path in context.sealed},
        unsound={
            rank for rank, report in by_rank.items() if any(finding.code in _UNSOUND for finding in report.findings)
        },
    )
    damaged = {rank for rank, report in by_rank.items() if worst(report.findings) >= Severity.DAMAGE}
    suspicions = [
        suspicion
        for suspicion in without_cleared(_of_every_rank(judged.suspicions, same_file), evidence)
        if suspicion.rank not in damaged and (suspicion.kind is not SuspicionKind.COPIED or role in COMPARED)
    ]
    places: dict[tuple[Rank, str], DifferingBytes] = {}
    if context.compare_bytes is not None:
        suspicions = list(_located(suspicions, by_rank, context.compare_bytes, places))
    if suspicions:
        slices = _Slices(
            recorded=recorded,
            saves=[_of_role(save.shards, role) for save in saves if save.step != 0],
            unsuspected=current.keys() - {suspicion.rank for suspicion in judged.suspicions},
        )
        rebuilt = {rank for rank, report in by_rank.items() if report.path in context.rebuilt}
        suspicions = [
            replace(
                suspicion,
                unheard=_unheard(suspicion, {*by_rank, *context.ranks}, damaged, slices),
                is_of_rebuilt=not rebuilt.isdisjoint((suspicion.rank, *suspicion.replicas)),
            )
            for suspicion in suspicions
        ]
    trained = [sample.tensors for sample in samples if sample.same_run and sample.step != 0]
    paths = {rank: report.path for rank, report in by_rank.items()}
    return CopyComparison(
        findings=replica_findings(suspicions, paths, places),
        agreed={path: judged.agreed[same_file.get(rank, rank)] for rank, path in paths.items()},
        is_open=judged.is_open or any(suspicion.kind is SuspicionKind.COPIED for suspicion in judged.suspicions),
        drifted={
            paths[suspicion.rank]: suspicion.since
            for suspicion in suspicions
            if suspicion.kind is SuspicionKind.DRIFTED
        },
        compared_paths={paths[rank] for rank in current if any(rank in tensors for tensors in trained)},
    )


class _Slices(NamedTuple):
    """Slices by rank, even for ranks whose files are lost."""

    recorded: RecordedSlices | None
    saves: Sequence[Mapping[Rank | None, TensorDigests]]
    """The tensors of each rank at other checkpoints."""
    unsuspected: Collection[Rank]
    """Ranks whose files are not suspected: if these differ in a tensor, they have different slices."""

    def may_be_shared(self, name: str, rank: Rank, peer: Rank) -> bool:
        """Return whether two ranks have the same slice of a tensor, or the first rank's slice is unknown."""
        slices = None if self.recorded is None else self.recorded.slices.get(name)
        if slices is not None:
            return rank in slices and slices[rank] == slices.get(peer)
        of_both = [tensors for tensors in self.saves if rank in tensors and peer in tensors]
        if not of_both:
            return True
        return rank not in self.unsuspected and any(
            _digest(name, tensors[rank]) == _digest(name, tensors[peer]) for tensors in of_both
        )


def _unheard(
    suspicion: Suspicion, ranks: Collection[Rank], damaged: Collection[Rank], slices: _Slices
) -> tuple[Rank, ...]:
    """Return the ranks with a certain or possible copy that is unavailable because the file is lost or damaged."""
    if suspicion.kind not in _CONVICTS or len(suspicion.replicas) == 1:
        return ()
    others = {*ranks} - {suspicion.rank, *suspicion.replicas}
    peer = suspicion.replicas[0]
    silent = {rank for rank in others if any(slices.may_be_shared(name, rank, peer) for name in suspicion.tensors)}
    return tuple(sorted(silent.union(rank for rank in suspicion.replicas if rank in damaged)))


def _of_role(shards: Tensors, role: ShardRole) -> dict[Rank | None, TensorDigests]:
    return {rank: tensors for (rank, of), (_, tensors) in shards.items() if of is role}


def _digest(name: str, digests: TensorDigests) -> bytes | None:
    at = bisect_left(digests.names, name)
    return digests.at(at) if digests.names[at : at + 1] == (name,) else None


def _by_role(reports: Iterable[ShardReport]) -> dict[ShardRole, dict[Rank, ShardReport]]:
    """Return, by role, the files of ranks that have exactly one file, with known digests."""
    times = Counter((report.rank, report.role) for report in reports)
    by_role: dict[ShardRole, dict[Rank, ShardReport]] = defaultdict(dict)
    for report in reports:
        if report.rank is not None and times[report.rank, report.role] == 1 and report.tensor_digests is not None:
            by_role[report.role][report.rank] = report
    return by_role


def _same_files(by_rank: Mapping[Rank, ShardReport], rebuilt: Mapping[str, str | None]) -> dict[Rank, Rank]:
    """Return, by rank, the other rank to whose file the rank's file is linked, or from which it was rebuilt.

    Such a file is not an independent copy.
    """
    from ckpttool.core.records.hashed_json import is_on_disk

    first: dict[FileStamp, Rank] = {}
    same: dict[Rank, Rank] = {}
    for rank, report in sorted(by_rank.items()):
        # In some stores objects of equal content have equal stamps, but two names never refer to one object.
        if report.stamp is not None and is_on_disk(report.stamp):
            first_rank = first.setdefault(report.stamp, rank)
            if first_rank != rank:
                same[rank] = first_rank
    by_path = {report.path: rank for rank, report in by_rank.items()}
    for path, origin in rebuilt.items():
        if path in by_path and origin is not None and origin in by_path:
            origin_rank = by_path[origin]
            same.setdefault(by_path[path], same.get(origin_rank, origin_rank))
    return same


def _of_every_rank(suspicions: Iterable[Suspicion], same_file: Mapping[Rank, Rank]) -> Iterator[Suspicion]:
    """Yield a suspicion about a file once for each of its ranks."""
    for suspicion in suspicions:
        yield suspicion
        for rank, first_rank in same_file.items():
            if first_rank == suspicion.rank:
                yield replace(suspicion, rank=rank)


def _sample(save: SavedTensors, role: ShardRole, current: Mapping[Rank, ShardReport]) -> Sample:
    """Return a save's tensors on ranks whose tensors had the same names, types and shapes."""
    triples = ((rank, report, save.shards.get((rank, role))) for rank, report in current.items())
    return Sample(
        name=save.name,
        step=save.step,
        older=save.older,
        same_run=save.same_run,
        tensors={rank: past[1] for rank, report, past in triples if past is not None and past[0] == report.schema_hash},
    )


def _located(
    suspicions: Iterable[Suspicion],
    by_rank: Mapping[Rank, ShardReport],
    compare_bytes: Look,
    places: dict[tuple[Rank, str], DifferingBytes],
) -> Iterator[Suspicion]:
    """Add the place of the first difference to each suspicion; if nothing differs, a manifest has a wrong digest."""
    for suspicion in suspicions:
        tensors = suspicion.tensors
        while tensors and suspicion.kind is not SuspicionKind.COPIED:
            place = compare_bytes(by_rank[suspicion.rank], by_rank[suspicion.replicas[0]], tensors[0])
            if place is not None and place.bits != 0:
                places[suspicion.rank, tensors[0]] = place
            if place is None or place.bits != 0:
                break
            tensors = tensors[1:]
        if tensors:
            yield suspicion if tensors is suspicion.tensors else replace(suspicion, tensors=tensors)


MOST_COUNTED = 1 << 28
"""Maximum size of a tensor whose differing bits are counted; more would be a second read of a complete shard."""


def reader_of_tensors(storage: Storage) -> Look:
    """Return a function that reads one tensor of two shards again, to find where they differ."""

    def look(report: ShardReport, replica: ShardReport, name: str) -> DifferingBytes | None:
        try:
            with storage.open(report.path) as ours, storage.open(replica.path) as theirs:
                return differing_bytes(ours, theirs, (report, replica), name)
        except OSError:  # then the finding has no place
            return None

    return look


def differing_bytes(
    ours: ByteSource, theirs: ByteSource, reports: tuple[ShardReport, ShardReport], name: str
) -> DifferingBytes | None:
    """Find where a tensor differs between two files; return None if either file no longer has the tensor.

    If the complete tensor is equal, the number of differing bits is 0.

    Raises:
        OSError: The disk did not answer.
    """
    from ckpttool.core.formats import read_header
    from ckpttool.core.formats.front import Front

    spans = []
    for source, report in zip((ours, theirs), reports, strict=True):
        if report.format is None:
            return None
        header = read_header(Front(source), named=report.format, facts=NO_FACTS)
        spans.append(next((entry.spans for entry in header.entries if entry.name == name), ()))
    first = last = None
    bits = nbytes = 0
    for at, mine, peer_block in _blocks(ours, theirs, *spans):
        differing = int.from_bytes(mine, "big") ^ int.from_bytes(peer_block, "big")
        nbytes += len(mine)
        if differing:
            first = at + len(mine) - (differing.bit_length() + 7) // 8 if first is None else first
            last = at + len(mine) - ((differing & -differing).bit_length() - 1) // 8
            bits += differing.bit_count()
        if nbytes >= MOST_COUNTED and first is not None:
            break
    if first is None or last is None:
        sizes = {nbytes, *(sum(end - begin for begin, end in span) for span in spans)}
        return DifferingBytes(begin=0, end=0, bits=0) if nbytes and len(sizes) == 1 else None
    return DifferingBytes(begin=first, end=last, bits=bits if nbytes < MOST_COUNTED else None)


def _blocks(
    ours: ByteSource, theirs: ByteSource, spans: Sequence[tuple[int, int]], peer_spans: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield a tensor's bytes from both files, and their place in the first file, in blocks of one size."""
    for (begin, end), (start, stop) in zip(spans, peer_spans, strict=False):
        length = min(end - begin, stop - start)
        for at in range(0, length, BLOCK_BYTES):
            size = min(BLOCK_BYTES, length - at)
            mine, peer_block = ours.read(begin + at, size), theirs.read(start + at, size)
            if len(mine) == len(peer_block):
                yield begin + at, mine, peer_block
