"""Whose file is not what its replicas hold."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from ckpttool.core.domain.replicas import TENSOR_DIGEST_BYTES, Proof, RecordedSlices, SavedAt, TensorDigests
from ckpttool.core.domain.units import Rank
from ckpttool.core.domain.verdict import MIN_COPIES
from ckpttool.replicas.comparing.columns import (
    DigestHistory,
    IdenticalRanks,
    ReplicaSet,
    columns,
    identical_ranks,
    replica_sets,
)
from ckpttool.replicas.comparing.copied import copied
from ckpttool.replicas.comparing.model import FEW, ReplicaJudgement, Sample, Suspicion, SuspicionKind, few
from ckpttool.replicas.comparing.weighing import weighed

_HALVES = 2
"""Contents of which as many hold the one as the other: nobody knows which is whole."""


def judge_replicas(
    current: Mapping[Rank, TensorDigests], samples: Sequence[Sample], recorded: RecordedSlices | None = None
) -> ReplicaJudgement:
    """Say of the files of one role which are not what their replicas hold, and how many copies of each agree.

    Which ranks hold the same slice of a tensor is recorded, or it was seen: they were equal at other checkpoints, and
    changed together. Shapes say nothing: slices have the same.

    Args:
        current: Every rank's tensors at the checkpoint that is judged, as far as they are known.
        samples: Other checkpoints of the training that are known, nearest first among the older and among the later.
        recorded: What the trainer's own record of the checkpoint says of its slices.
    """
    samples = [
        sample for sample in samples if sample.step != 0
    ]  # before the first update much is equal that is no replica
    groups = identical_ranks(current, samples, recorded)
    comparison = _Comparison(groups, samples)
    for name, number, column in columns(groups, recorded):
        for family in replica_sets(column, is_recorded=number is not None):
            comparison.look_at(name, family)
    return comparison.judgement()


class _Row(NamedTuple):
    """One tensor in which a file differs from others."""

    name: str
    like: IdenticalRanks | None
    """One that holds what it should hold, as far as a majority knows that; None where all parted."""
    others: tuple[Rank, ...]
    proof: Proof | None
    """None where this tensor never changed before, and nothing tells."""
    equal: tuple[int, ...] = ()
    """When they were equal, as `_Comparison.times` counts."""
    unequal: tuple[int, ...] = ()
    is_tied: bool = False
    """Whether as many hold the one as hold the other."""


class _Comparison:
    """What the columns showed so far."""

    def __init__(self, groups: Sequence[IdenticalRanks], samples: Sequence[Sample]) -> None:
        self._groups = groups
        self._samples = samples
        counts = Counter[bool]()
        times = []
        for sample in samples:
            counts[sample.older] += 1
            times.append(-counts[True] if sample.older else counts[False])
        self.times = tuple(times)
        """Of each other checkpoint, how many there are between: below zero before this one, above after it."""
        same_run = [time for time, sample in zip(times, samples, strict=True) if sample.same_run]
        self._same_run = frozenset(same_run)
        self._outliers: dict[IdenticalRanks, list[_Row]] = defaultdict(list)
        self._holders: Counter[str] = Counter()
        self._near: dict[tuple[IdenticalRanks, IdenticalRanks, int], bool] = {}

    def look_at(self, name: str, family: ReplicaSet) -> None:
        """Note what one tensor shows of those who hold the same slice of it."""
        self._holders[name] += family.size
        if len(family.values) == 1:
            self._note_agreed(family)
            return
        usual = family.usual
        if usual is None and family.size < MIN_COPIES:
            self._note_pair(name, family)
        elif usual is None:
            self._note_split(name, family)
        else:
            self._note_outvoted(name, family, usual)

    @staticmethod
    def _note_agreed(family: ReplicaSet) -> None:
        (value,) = family.values
        joined = len(family.column) > 1
        for history, by_value in family.column.items():
            proven = family.size > 1 and (joined or family.proof(history, value) is not None)
            for group in by_value[value]:
                if proven:
                    group.compared += 1
                    group.agrees(family.size)
                else:  # what never changes teaches nothing by itself, but the file may be a copy in all that does
                    group.agrees(len(group.ranks) if group.changed_together() else 1)
                    group.unproven += family.size > 1

    def _note_outvoted(self, name: str, family: ReplicaSet, usual: bytes) -> None:
        holders = sorted(family.holders(usual), key=lambda holder: -len(holder[1].ranks))
        history, like = holders[0]
        ranks = tuple(sorted(rank for _, group in holders for rank in group.ranks))
        proof = family.proof(history, usual)
        for _, group in holders:
            group.compared += proof is not None
            group.agrees(1 if proof is None else len(ranks))
        past = [family.usual_at(index) for index in range(len(self._samples))]
        for value in sorted(family.values.keys() - {usual}):
            for outlier_history, outlier in family.holders(value):
                outlier.agrees(1)
                if self._samples or proof is not None:
                    self._add(outlier, _Row(name, like, ranks, proof), past, outlier_history)
                elif family.size - len(ranks) == 1:
                    self._outliers[outlier].append(_Row(name, like, ranks, Proof.MAJORITY))

    def _note_pair(self, name: str, family: ReplicaSet) -> None:
        """Note two that differ, at each of them."""
        (first, first_group), (second, second_group) = (
            holder for value in sorted(family.values) for holder in family.holders(value)
        )
        shared = {
            first_digest
            for first_digest, outlier_history in zip(first, second, strict=True)
            if first_digest is not None and first_digest == outlier_history
        }
        learned = Proof.LEARNED if len(shared) > 1 else Proof.ONCE if shared else None
        proof = Proof.RECORDED if family.is_recorded else learned
        for outlier_history, outlier, past, like in (
            (first, first_group, second, second_group),
            (second, second_group, first, first_group),
        ):
            outlier.agrees(1)
            if proof is not None:
                self._add(outlier, _Row(name, like, like.ranks, proof), past, outlier_history)

    def _note_split(self, name: str, family: ReplicaSet) -> None:
        if len(family.values) == _HALVES and len(set(family.values.values())) == 1:
            self._note_tied(name, family)
            return
        if self._is_outnumbered(name, family):
            return
        holders = [(value, *holder) for value in family.values for holder in family.holders(value)]
        for value, history, group in holders:
            group.agrees(1)
            proof = family.proof(history, value)
            if proof is not None:
                ranks = tuple(
                    sorted(rank for peer_value, _, like in holders if peer_value != value for rank in like.ranks)
                )
                group.compared += 1
                self._outliers[group].append(_Row(name, None, ranks, proof))

    def _note_tied(self, name: str, family: ReplicaSet) -> None:
        """Note two halves that differ, at each of all."""
        halves = [(value, list(family.holders(value))) for value in sorted(family.values)]
        past = [family.usual_at(index) for index in range(len(self._samples))]
        for (value, half), (_, peer_half) in (halves, halves[::-1]):
            ranks = tuple(sorted(rank for _, group in peer_half for rank in group.ranks))
            for history, group in half:
                group.agrees(1)
                self._add(
                    group, _Row(name, peer_half[0][1], ranks, family.proof(history, value), is_tied=True), past, history
                )

    def _is_outnumbered(self, name: str, family: ReplicaSet) -> bool:
        """Note who differs from the most that agree, fewer than half of all though they be; False where none do.

        Only in files that are equal otherwise: where an arrangement changed, much differs.
        """
        (most, times), (_, next_times) = Counter(family.values).most_common(2)
        _, like = max(family.holders(most), key=lambda holder: len(holder[1].ranks))
        outliers = [holder for value in sorted(family.values) if value != most for holder in family.holders(value)]
        if times == next_times or not all(self._is_alike_otherwise(group, like) for _, group in outliers):
            return False
        ranks = tuple(sorted(rank for _, group in family.holders(most) for rank in group.ranks))
        past = [family.usual_at(index) for index in range(len(self._samples))]
        for _, group in family.holders(most):
            group.agrees(1)
        for history, group in outliers:
            group.agrees(1)
            self._add(group, _Row(name, like, ranks, family.proof(history, most)), past, history)
        return True

    def _is_alike_otherwise(self, group: IdenticalRanks, like: IdenticalRanks) -> bool:
        return group.changed_with(like) and self._nearly_equal(group, like, 0)

    def _add(self, outlier: IdenticalRanks, row: _Row, past: Sequence[bytes | None], history: DigestHistory) -> None:
        """Note that a file differs, unless it did so everywhere: that is what each rank has of its own.

        Args:
            outlier: Whose file.
            row: What is known of it; when the two were equal is added.
            past: What it should have held at each other checkpoint.
            history: What it held.
        """
        known_times = [(time, a, b) for time, a, b in zip(self.times, past, history, strict=True) if None not in {a, b}]
        equal, unequal = (
            tuple(time for time, a, b in known_times if a == b),
            tuple(time for time, a, b in known_times if a != b),
        )
        proof = row.proof
        # A tensor that nobody has trained yet is equal in other slices, too; but then all that is trained differs.
        if (
            proof is None
            and row.like is not None
            and outlier.changed_with(row.like)
            and self._nearly_equal(outlier, row.like, 0)
        ):
            proof = Proof.LEARNED if len(set(outlier.other_digests)) > 1 else Proof.ONCE
        if proof is None or (known_times and not equal):
            return
        row = row._replace(proof=proof, equal=equal, unequal=unequal)
        changes = {a for _, a, b in known_times if a == b}
        if proof is not Proof.RECORDED and not (len(changes) > 1 and _is_drift(row)):
            # Between two starts of a training ranks may have changed places.
            in_run = {a for time, a, b in known_times if a == b and time in self._same_run}
            if len(in_run) <= 1:
                row = row._replace(proof=Proof.ONCE)
            is_weak = len(changes) == 1 and bool(unequal)
            if is_weak and not (_is_drift(row) and row.like is not None and self._nearly_equal(outlier, row.like, 0)):
                return
            if not self._is_likely(row, outlier):
                return
        outlier.compared += 1
        self._outliers[outlier].append(row)

    def judgement(self) -> ReplicaJudgement:
        """Put together what was seen of each rank."""
        ranks = sum(len(group.ranks) for group in self._groups)
        doubts = [suspicion for group, rows in self._settled().items() for suspicion in self._doubts(group, rows)]
        doubts = self._with_copied([*weighed(doubts, self._holders, ranks)])
        return ReplicaJudgement(
            suspicions=tuple(sorted(doubts, key=lambda suspicion: suspicion.rank)),
            agreed={rank: group.agreed or 1 for group in self._groups for rank in group.ranks},
            is_open=any(
                0 < len(group.names) - group.compared - group.unproven <= few(len(group.names))
                for group in self._groups
            ),
        )

    def _with_copied(self, doubts: Sequence[Suspicion]) -> list[Suspicion]:
        """Add whose file lies under another rank's name: it is no more than that, and its only copy is not to blame."""
        same_run = {index: time for index, time in enumerate(self.times) if time in self._same_run}
        suspected = {suspicion.rank for suspicion in doubts if suspicion.kind is not SuspicionKind.PARTED}
        copied_files = [
            suspicion
            for suspicion in copied(self._groups, same_run, self._nearly_equal)
            if suspicion.rank not in suspected
        ]
        moved = {suspicion.rank for suspicion in copied_files}
        return [
            *(
                suspicion
                for suspicion in doubts
                if suspicion.rank in suspected or moved.isdisjoint((suspicion.rank, *suspicion.replicas))
            ),
            *copied_files,
        ]

    def _settled(self) -> dict[IdenticalRanks, list[_Row]]:
        """Return the rows, but for those of one that differs from a file that others outvote as well."""
        outvoted = {
            group
            for group, rows in self._outliers.items()
            if any(len(row.others) > 1 and row.like is not None and not row.is_tied for row in rows)
        }
        settled = {}
        for group, rows in self._outliers.items():
            remaining = [row for row in rows if group in outvoted or row.is_tied or row.like not in outvoted]
            if remaining:
                settled[group] = remaining
        return settled

    def _doubts(self, group: IdenticalRanks, rows: Sequence[_Row]) -> Iterable[Suspicion]:
        against = [row for row in rows if row.like is not None]
        parted = len(against) < len(rows) - len(against)
        rows = [row for row in rows if (row.like is None) is parted]
        rows = [row for row in rows if not row.is_tied] or rows  # who is known to be wrong elsewhere is told of that
        drifted = [row for row in rows if _is_drift(row)]
        usual = max(rows, key=lambda row: len(row.others))
        # Rarely trained slices are an older step's by right, in tensors where as many are as are not.
        as_of = self._as_of(group, rows) if not usual.is_tied or _are_most(rows, group) else None
        kind = SuspicionKind.STALE if _are_most(rows, group) else SuspicionKind.DIFFERS
        since = agreed_at = None
        if parted:
            kind = SuspicionKind.PARTED
        elif usual.proof is Proof.MAJORITY:
            kind = SuspicionKind.OUTLIER
        elif drifted:
            kind = SuspicionKind.DRIFTED
            first = min((0, *(time for row in drifted for time in row.unequal)))
            since = self._at(first)
            agreed_at = self._at(max(time for row in drifted for time in row.equal if time < first))
        if usual.is_tied and as_of is None:
            # Much that differs in halves is an arrangement that changed, unless a record says that it did not.
            is_sure = usual.proof is Proof.RECORDED or (
                usual.like is not None and self._is_alike_otherwise(group, usual.like)
            )
            kind = (
                SuspicionKind.PARTED if not is_sure else kind if kind is SuspicionKind.DRIFTED else SuspicionKind.TIED
            )
        proof = max((row.proof for row in rows if row.proof is not None), key=_PROOFS.index)
        is_twin = usual.like is not None and group.changed_with(usual.like)
        if len(usual.others) == 1 and usual.like is not None:
            is_chance = proof is Proof.ONCE and not (is_twin and _are_few(rows, group))
            is_weak = (
                kind is SuspicionKind.DIFFERS and proof is not Proof.RECORDED and not self._share(group, usual.like)
            )
            kind = SuspicionKind.PARTED if is_chance or is_weak else kind
        for rank in group.ranks:
            yield Suspicion(
                kind=kind,
                rank=rank,
                replicas=usual.others,
                tensors=tuple(row.name for row in rows),
                compared=group.compared,
                proof=proof,
                is_twin=is_twin,
                as_of=as_of,
                copy_of=self._copy_of(group, rows, usual.others),
                since=since,
                agreed_at=agreed_at,
            )

    def _is_likely(self, row: _Row, outlier: IdenticalRanks) -> bool:
        """Tell whether what was equal once was so because the files are replicas: then nearly all of them was equal."""
        if row.proof is not Proof.ONCE:
            return True
        if row.like is None:
            return False
        in_run = [self._nearly_equal(outlier, row.like, time) for time in self._same_run.intersection(row.equal)]
        return any(in_run) if in_run else all(self._nearly_equal(outlier, row.like, time) for time in row.equal)

    def _share(self, group: IdenticalRanks, like: IdenticalRanks) -> bool:
        """Tell whether two files changed together in a tensor that not everybody holds.

        Where they did not, a copy under another rank's name at the one other checkpoint explains that they were equal.
        """
        rest = [peer for peer in self._groups if peer not in {group, like} and peer.names == group.names]
        return not rest or any(
            _at(group.digests, place) == _at(like.digests, place)
            and any(_at(peer.digests, place) != _at(group.digests, place) for peer in rest)
            and any(
                digests is not None and _at(digests, place) != _at(group.digests, place)
                for digests in group.other_digests
            )
            for place in range(0, len(group.digests), TENSOR_DIGEST_BYTES)
        )

    def _nearly_equal(self, group: IdenticalRanks, peer: IdenticalRanks, time: int) -> bool:
        """Tell whether two files differed in few tensors at a time."""
        if group.names != peer.names:
            return False
        if (group, peer, time) not in self._near:
            index = self.times.index(time) if time else None
            ours, theirs = (
                member.digests if index is None else member.other_digests[index] or b"" for member in (group, peer)
            )
            places = range(0, len(group.names) * TENSOR_DIGEST_BYTES, TENSOR_DIGEST_BYTES)
            differing = (place for place in places if _at(ours, place) != _at(theirs, place))
            most = few(len(group.names))
            self._near[group, peer, time] = next(islice(differing, most, None), None) is None
        return self._near[group, peer, time]

    def _at(self, time: int) -> SavedAt | None:
        """Return the checkpoint of a time; None for the one that is judged."""
        sample = self._samples[self.times.index(time)] if time else None
        return None if sample is None else SavedAt(sample.name, sample.step)

    def _as_of(self, group: IdenticalRanks, rows: Sequence[_Row]) -> str | None:
        """Return the other checkpoint from which most of what differs comes, by this rank's own tensors there."""
        places = [
            (bisect_left(group.names, row.name) * TENSOR_DIGEST_BYTES, row.like)
            for row in rows
            if row.like is not None and row.like.names == group.names
        ]
        for index, (sample, past) in enumerate(zip(self._samples, group.other_digests, strict=True)):
            old = sample.same_run * sum(
                past is not None
                and _at(past, place) == _at(group.digests, place)
                and (before := like.other_digests[index]) is not None
                and _at(before, place) != _at(like.digests, place)
                for place, like in places
            )
            if 2 * old > len(rows):
                return sample.name
        return None

    def _copy_of(self, group: IdenticalRanks, rows: Sequence[_Row], ranks: Sequence[Rank]) -> Rank | None:
        if len(rows) <= FEW:
            return None
        places = [bisect_left(group.names, row.name) * TENSOR_DIGEST_BYTES for row in rows]
        for peer in self._groups:
            is_same = peer.names == group.names and all(
                _at(peer.digests, at) == _at(group.digests, at) for at in places
            )
            if is_same and peer is not group and peer.ranks[0] not in ranks:
                return peer.ranks[0]
        return None


_PROOFS = tuple(Proof)
"""Best first, as they are listed."""


def _at(digests: bytes, place: int) -> bytes:
    return digests[place : place + TENSOR_DIGEST_BYTES]


def _is_drift(row: _Row) -> bool:
    """Tell whether one differs from some checkpoint on, and did not before."""
    return bool(row.unequal) and max(row.equal) < min(0, *row.unequal)


def _are_few(rows: Sequence[_Row], group: IdenticalRanks) -> bool:
    return len(rows) <= few(group.compared)


def _are_most(rows: Sequence[_Row], group: IdenticalRanks) -> bool:
    return len(rows) > FEW and 2 * len(rows) > group.compared
