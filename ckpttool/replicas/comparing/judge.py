"""Find files that differ from their replicas, and the kind of difference, from digests of this checkpoint and others.

The tensors are compared one by one within each set of replicas. All differences of a file become one `Suspicion`, whose
weight is decided in `weight`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.replicas import TENSOR_DIGEST_BYTES, Proof, RecordedSlices, SavedAt, TensorDigests
from ckpttool.core.domain.units import Rank
from ckpttool.replicas.comparing.columns import (
    DigestHistory,
    IdenticalRanks,
    ReplicaSet,
    columns,
    digest_at,
    identical_ranks,
    replica_sets,
)
from ckpttool.replicas.comparing.misplaced import misplaced_files
from ckpttool.replicas.comparing.model import FEW, ReplicaJudgement, Sample, Suspicion, SuspicionKind, few

_PAIR = 2
"""If only two files differ, it is unknown which is damaged, so one fault makes two suspicions."""

_MOST_DAMAGED = 4
"""At most one in this many ranks may have another rank's file. If more differ, the parallel layout changed."""

_OF_ONE_FILE = frozenset({SuspicionKind.DIFFERS, SuspicionKind.STALE, SuspicionKind.DRIFTED})
"""Kinds that mean damage to this file alone."""

_OF_SEVERAL = frozenset({SuspicionKind.TIED, SuspicionKind.PARTED})
"""Kinds for which some files are damaged and it is unknown which, or all files changed."""


def judge_replicas(
    current: Mapping[Rank, TensorDigests], samples: Sequence[Sample], recorded: RecordedSlices | None = None
) -> ReplicaJudgement:
    """Find the files of one role that differ from their replicas, and count the agreeing copies of each.

    Ranks have the same slice of a tensor if the trainer's record says so, or if they were equal at other checkpoints
    and changed together. Shapes prove nothing: slices of a tensor have the same shape.

    Args:
        current: The tensors of each rank at the checkpoint that is judged, as far as they are known.
        samples: Other known checkpoints of the training run, nearest first among the older and among the later ones.
        recorded: The slices of each rank according to the trainer's own record.
    """
    # Before the first update many tensors are equal on ranks that are not replicas.
    samples = [sample for sample in samples if sample.step != 0]
    groups = identical_ranks(current, samples, recorded)
    comparison = _Comparison(groups, samples)
    for name, number, column in columns(groups, recorded):
        for replicas in replica_sets(column, is_recorded=number is not None):
            comparison.add(name, replicas)
    return comparison.judgement()


class _Difference(NamedTuple):
    """One tensor in which a file differs from a replica."""

    name: str
    peer: IdenticalRanks
    """A file with the correct value according to the majority; the same file if all replicas differ."""
    others: tuple[Rank, ...]
    """All ranks whose data should be equal to this rank's."""
    proof: Proof | None
    """The proof that these are replicas; None if the tensor never changed before, so that this is unknown."""
    is_tied: bool = False
    """Whether both values have the same number of ranks."""
    equal: tuple[int, ...] = ()
    """The checkpoints at which the two were equal, counted as in `_Comparison.offsets`."""
    unequal: tuple[int, ...] = ()

    @property
    def is_drift(self) -> bool:
        """Whether the two files differ from some checkpoint on, and were equal before."""
        return bool(self.unequal) and max(self.equal) < min(0, *self.unequal)


class _Comparison:
    """The differences of the tensors compared so far."""

    def __init__(self, groups: Sequence[IdenticalRanks], samples: Sequence[Sample]) -> None:
        self._groups = groups
        self._samples = samples
        self._offsets: list[int] = []
        """Distance of each sample in known checkpoints, negative for a sample older than the judged checkpoint."""
        for sample in samples:
            if sample.older:
                self._offsets.append(min((0, *self._offsets)) - 1)
            else:
                self._offsets.append(max((0, *self._offsets)) + 1)
        self._index = {offset: index for index, offset in enumerate(self._offsets)}
        self._same_run = frozenset(
            offset for offset, sample in zip(self._offsets, samples, strict=True) if sample.same_run
        )
        self._differences: dict[IdenticalRanks, list[_Difference]] = defaultdict(list)
        self._parted: dict[IdenticalRanks, list[_Difference]] = defaultdict(list)
        """Tensors in which all replicas differ from each other, so that no value is known to be correct."""
        self._holders: Counter[str] = Counter()
        """The number of ranks with each tensor."""
        self._near: dict[tuple[IdenticalRanks, IdenticalRanks, int], bool] = {}
        self._copies_of_file = dict(self._count_copies())
        """Number of ranks whose complete files are copies, by one of them; 1 if no evidence shows that they are copies.
        """

    def _count_copies(self) -> Iterator[tuple[IdenticalRanks, int]]:
        """Count the copies of each file: damage to one of them at another checkpoint does not separate them."""
        equal_here: dict[tuple[tuple[str, ...], bytes], list[IdenticalRanks]] = defaultdict(list)
        for group in self._groups:
            equal_here[group.names, group.digests].append(group)
        for groups in equal_here.values():
            largest = max(groups, key=lambda group: (group.has_changed, len(group.ranks)))
            copies = {group for group in groups if self._changed_together(group, largest)}
            ranks = sum(len(group.ranks) for group in copies)
            for group in groups:
                own_ranks = len(group.ranks) if group.has_changed else 1
                yield group, ranks if group in copies else own_ranks

    def _changed_together(self, group: IdenticalRanks, peer: IdenticalRanks) -> bool:
        """Return whether two files that are equal here were nearly equal at another checkpoint, and changed since."""
        return any(
            digests is not None
            and peer_digests is not None
            and digests != group.digests
            and peer_digests != peer.digests
            and self._nearly_equal(group, peer, offset)
            for offset, digests, peer_digests in zip(
                self._offsets, group.other_digests, peer.other_digests, strict=True
            )
        )

    def add(self, name: str, replicas: ReplicaSet) -> None:
        """Add the comparison of one tensor, on the ranks with the same slice."""
        self._holders[name] += replicas.size
        by_frequency = sorted(replicas.values.items(), key=lambda item: -item[1])
        value, times = by_frequency[0]
        if times == replicas.size:
            self._add_agreement(replicas, value)
        elif 2 * times > replicas.size:
            self._add_minority(name, replicas, value, is_majority=True)
        elif 2 * times == replicas.size and len(by_frequency) == _PAIR:
            self._add_halves(name, replicas)
        elif times > by_frequency[1][1] and self._are_equal_otherwise(replicas, value):
            self._add_minority(name, replicas, value, is_majority=False)
        else:
            self._add_parted(name, replicas)

    def _add_agreement(self, replicas: ReplicaSet, value: bytes) -> None:
        several_histories = len(replicas.column) > 1
        for history, group in replicas.groups_with(value):
            if replicas.size > 1 and (several_histories or replicas.proof(history, value) is not None):
                group.compared += 1
                group.note_agreement(replicas.size)
            else:  # a tensor that never changes proves nothing, but the file may be a copy by all tensors that do
                group.note_agreement(self._copies_of_file[group])
                group.unproven += replicas.size > 1

    def _add_minority(self, name: str, replicas: ReplicaSet, value: bytes, *, is_majority: bool) -> None:
        """Add the files without the most frequent value."""
        agreeing = list(replicas.groups_with(value))
        history, peer = max(agreeing, key=_copies)
        ranks = _ranks_of(agreeing)
        proof = replicas.proof(history, value)
        for _, group in agreeing:
            group.compared += is_majority and proof is not None
            group.note_agreement(len(ranks) if is_majority and proof is not None else 1)
        expected = replicas.expected()
        for differing in sorted(replicas.values.keys() - {value}):
            for differing_history, group in replicas.groups_with(differing):
                group.note_agreement(1)
                if self._samples or proof is not None:
                    self._add(group, _Difference(name, peer, ranks, proof), expected, differing_history)
                elif replicas.size - len(ranks) == 1:
                    self._differences[group].append(_Difference(name, peer, ranks, Proof.MAJORITY))

    def _add_halves(self, name: str, replicas: ReplicaSet) -> None:
        """Add the difference between two files, or between two halves of several files, to each of the files."""
        is_pair = replicas.size == _PAIR
        halves = [(value, list(replicas.groups_with(value))) for value in sorted(replicas.values)]
        for (value, half), (_, peers) in (halves, halves[::-1]):
            peer_history, peer = peers[0]
            ranks = _ranks_of(peers)
            expected = peer_history if is_pair else replicas.expected()
            for history, group in half:
                group.note_agreement(1)
                proof = replicas.proof_of_pair(history, peer_history) if is_pair else replicas.proof(history, value)
                self._add(group, _Difference(name, peer, ranks, proof, is_tied=not is_pair), expected, history)

    def _add_parted(self, name: str, replicas: ReplicaSet) -> None:
        """Add a tensor without a known correct value, because each of several ranks has a different value."""
        by_value = {value: list(replicas.groups_with(value)) for value in replicas.values}
        every_rank = _ranks_of([member for members in by_value.values() for member in members])
        for value, members in by_value.items():
            same = set(_ranks_of(members))
            others = tuple(rank for rank in every_rank if rank not in same)
            for history, group in members:
                group.note_agreement(1)
                proof = replicas.proof(history, value)
                if proof is not None:
                    group.compared += 1
                    self._parted[group].append(_Difference(name, group, others, proof))

    def _are_equal_otherwise(self, replicas: ReplicaSet, value: bytes) -> bool:
        """Return whether all files with a different value differ from a file with this value in few tensors only."""
        _, peer = max(replicas.groups_with(value), key=_copies)
        return all(
            self._is_equal_otherwise(group, peer)
            for other in replicas.values.keys() - {value}
            for _, group in replicas.groups_with(other)
        )

    def _is_equal_otherwise(self, group: IdenticalRanks, peer: IdenticalRanks) -> bool:
        """Return whether two files were equal at all other checkpoints, and differ in few tensors here."""
        return group.has_past_of(peer) and self._nearly_equal(group, peer, 0)

    def _add(
        self, group: IdenticalRanks, difference: _Difference, expected: DigestHistory, history: DigestHistory
    ) -> None:
        """Add a differing file, unless it differed at all checkpoints, because some tensors are separate on each rank.

        Args:
            group: The file.
            difference: The known facts; the checkpoints at which the two were equal are added.
            expected: The digest that the tensor should have had at each other checkpoint.
            history: The digest that the tensor had there.
        """
        equal: dict[int, bytes] = {}
        unequal: list[int] = []
        for offset, digest, actual in zip(self._offsets, expected, history, strict=True):
            if digest is not None and digest == actual:
                equal[offset] = digest
            elif digest is not None and actual is not None:
                unequal.append(offset)
        proof = difference.proof
        # An untrained tensor is also equal in other slices; but then all trained tensors differ.
        if proof is None and self._is_equal_otherwise(group, difference.peer):
            proof = Proof.LEARNED if len(set(group.other_digests)) > 1 else Proof.ONCE
        if proof is None or (unequal and not equal):
            return
        difference = difference._replace(proof=proof, equal=tuple(equal), unequal=tuple(unequal))
        changes = len(set(equal.values()))
        if proof is not Proof.RECORDED and not (changes > 1 and difference.is_drift):
            # Ranks may have changed places between two starts of the training.
            if len({digest for offset, digest in equal.items() if offset in self._same_run}) <= 1:
                difference = difference._replace(proof=Proof.ONCE)
            if not self._were_replicas(group, difference, changes):
                return
        group.compared += 1
        self._differences[group].append(difference)

    def _were_replicas(self, group: IdenticalRanks, difference: _Difference, changes: int) -> bool:
        """Return whether a tensor was equal because the files are replicas, with nearly all tensors equal.

        Args:
            group: One of the two files.
            difference: The difference between that file and its peer.
            changes: Number of values of the tensor that both files shared.
        """
        peer = difference.peer
        has_parted_before = changes == 1 and bool(difference.unequal)
        if has_parted_before and not (difference.is_drift and self._nearly_equal(group, peer, 0)):
            return False
        if difference.proof is not Proof.ONCE:
            return True
        in_run = self._same_run.intersection(difference.equal)
        if in_run:
            return any(self._nearly_equal(group, peer, offset) for offset in in_run)
        return all(self._nearly_equal(group, peer, offset) for offset in difference.equal)

    def judgement(self) -> ReplicaJudgement:
        """Return the result for each file over all tensors."""
        ranks = sum(len(group.ranks) for group in self._groups)
        suspicions = self._with_misplaced(
            tuple(_without_layout_change(tuple(self._suspicions()), self._holders, ranks))
        )
        return ReplicaJudgement(
            suspicions=tuple(sorted(suspicions, key=lambda suspicion: suspicion.rank)),
            agreed={rank: group.agreed or 1 for group in self._groups for rank in group.ranks},
            is_open=any(
                0 < len(group.names) - group.compared - group.unproven <= few(len(group.names))
                for group in self._groups
            ),
        )

    def _with_misplaced(self, suspicions: Sequence[Suspicion]) -> list[Suspicion]:
        """Add the files with another rank's name, and drop the suspicions about their only replicas."""
        in_run = {index: offset for index, offset in enumerate(self._offsets) if offset in self._same_run}
        suspected = {suspicion.rank for suspicion in suspicions if suspicion.kind is not SuspicionKind.PARTED}
        misplaced = [
            suspicion
            for suspicion in misplaced_files(self._groups, in_run, self._nearly_equal)
            if suspicion.rank not in suspected
        ]
        moved = {suspicion.rank for suspicion in misplaced}
        remaining = [
            suspicion
            for suspicion in suspicions
            if suspicion.rank in suspected or moved.isdisjoint((suspicion.rank, *suspicion.replicas))
        ]
        return remaining + misplaced

    def _suspicions(self) -> Iterator[Suspicion]:
        outvoted = {
            group
            for group, differences in self._differences.items()
            if any(len(difference.others) > 1 and not difference.is_tied for difference in differences)
        }
        for group in {**self._differences, **self._parted}:
            differences = self._differences.get(group, [])
            if group not in outvoted:  # a peer that others outvote is the damaged one of the two
                differences = [each for each in differences if each.is_tied or each.peer not in outvoted]
            parted = self._parted.get(group, [])
            if len(parted) > len(differences):
                yield from self._suspicions_of(group, parted, is_parted=True)
            elif differences:
                untied = [difference for difference in differences if not difference.is_tied]
                yield from self._suspicions_of(group, untied or differences, is_parted=False)

    def _suspicions_of(
        self, group: IdenticalRanks, differences: Sequence[_Difference], *, is_parted: bool
    ) -> Iterator[Suspicion]:
        """Yield one suspicion for each rank of a group, from all tensors in which it differs."""
        most_copies = max(differences, key=lambda difference: len(difference.others))
        proof = max((difference.proof for difference in differences if difference.proof), key=_BEST_FIRST.index)
        as_of = since = agreed_at = None
        kind = SuspicionKind.PARTED
        if not is_parted:
            # In tensors in which two halves differ, rarely trained slices may correctly equal those of an older step.
            if not most_copies.is_tied or _are_most(differences, group):
                as_of = self._older_checkpoint(group, differences)
            kind = self._kind(group, differences, most_copies, proof, is_older=as_of is not None)
            drifts = [difference for difference in differences if difference.is_drift]
            if drifts:
                first = min((0, *(offset for drift in drifts for offset in drift.unequal)))
                since = self._saved_at(first)
                agreed_at = self._saved_at(max(at for drift in drifts for at in drift.equal if at < first))
        for rank in group.ranks:
            yield Suspicion(
                kind=kind,
                rank=rank,
                replicas=most_copies.others,
                tensors=tuple(difference.name for difference in differences),
                compared=group.compared,
                proof=proof,
                is_twin=group.has_past_of(most_copies.peer),
                as_of=as_of,
                copy_of=self._copy_of(group, differences, most_copies.others),
                since=since,
                agreed_at=agreed_at,
            )

    def _kind(
        self,
        group: IdenticalRanks,
        differences: Sequence[_Difference],
        most_copies: _Difference,
        proof: Proof,
        *,
        is_older: bool,
    ) -> SuspicionKind:
        """Determine how a file differs.

        Args:
            group: The file.
            differences: All tensors in which it differs.
            most_copies: The difference with the most replicas.
            proof: The weakest proof among these tensors.
            is_older: Whether most of these tensors are from another checkpoint.
        """
        peer = most_copies.peer
        if most_copies.proof is Proof.MAJORITY:
            return SuspicionKind.OUTLIER
        kind = SuspicionKind.DIFFERS
        if any(difference.is_drift for difference in differences):
            kind = SuspicionKind.DRIFTED
        elif most_copies.is_tied and not is_older:
            kind = SuspicionKind.TIED
        elif _are_most(differences, group):
            kind = SuspicionKind.STALE
        if most_copies.is_tied and not is_older:
            # If many tensors differ in halves, the layout changed, unless a record says that it did not.
            is_replica = most_copies.proof is Proof.RECORDED or self._is_equal_otherwise(group, peer)
        elif len(most_copies.others) > 1 or proof is Proof.RECORDED:
            is_replica = True
        elif proof is Proof.ONCE and not (group.has_past_of(peer) and len(differences) <= few(group.compared)):
            is_replica = False
        else:
            is_replica = kind is not SuspicionKind.DIFFERS or self._share_a_slice(group, peer)
        return kind if is_replica else SuspicionKind.PARTED

    def _share_a_slice(self, group: IdenticalRanks, peer: IdenticalRanks) -> bool:
        """Return whether two files changed together in a tensor that not all ranks have.

        Otherwise, a copy with another rank's name at the one other checkpoint explains why the files were equal.
        """
        rest = [other for other in self._groups if other not in {group, peer} and other.names == group.names]
        if not rest:
            return True
        for place in range(0, len(group.digests), TENSOR_DIGEST_BYTES):
            digest = digest_at(group.digests, place)
            pasts = [digest_at(digests, place) for digests in group.other_digests if digests is not None]
            is_shared = digest == digest_at(peer.digests, place)
            is_slice = any(digest_at(other.digests, place) != digest for other in rest)
            if is_shared and is_slice and any(past != digest for past in pasts):
                return True
        return False

    def _nearly_equal(self, group: IdenticalRanks, peer: IdenticalRanks, offset: int) -> bool:
        """Return whether two files differed in few tensors at a checkpoint, where 0 is the judged checkpoint."""
        if group.names != peer.names:
            return False
        key = group, peer, offset
        if key not in self._near:
            ours, theirs = (
                member.other_digests[self._index[offset]] or b"" if offset else member.digests
                for member in (group, peer)
            )
            places = range(0, len(group.names) * TENSOR_DIGEST_BYTES, TENSOR_DIGEST_BYTES)
            differing = (place for place in places if digest_at(ours, place) != digest_at(theirs, place))
            self._near[key] = next(islice(differing, few(len(group.names)), None), None) is None
        return self._near[key]

    def _saved_at(self, offset: int) -> SavedAt | None:
        """Return the checkpoint at this distance; None for the judged checkpoint."""
        if not offset:
            return None
        sample = self._samples[self._index[offset]]
        return SavedAt(sample.name, sample.step)

    def _older_checkpoint(self, group: IdenticalRanks, differences: Sequence[_Difference]) -> str | None:
        """Return the run's other checkpoint with most of the differing tensors, or None if no checkpoint has them."""
        places = [
            (_place(group, difference), difference.peer)
            for difference in differences
            if difference.peer.names == group.names
        ]
        for index, sample in enumerate(self._samples):
            past = group.other_digests[index]
            if past is None or not sample.same_run:
                continue
            unchanged = 0
            for place, peer in places:
                peer_past = peer.other_digests[index]
                if peer_past is not None and digest_at(past, place) == digest_at(group.digests, place):
                    unchanged += digest_at(peer_past, place) != digest_at(peer.digests, place)
            if 2 * unchanged > len(differences):
                return sample.name
        return None

    def _copy_of(
        self, group: IdenticalRanks, differences: Sequence[_Difference], replicas: Collection[Rank]
    ) -> Rank | None:
        """Return a rank that is not a replica but has all the differing tensors, or None if these are few."""
        if len(differences) <= FEW:
            return None
        places = [_place(group, difference) for difference in differences]
        for peer in self._groups:
            if peer is group or peer.names != group.names or peer.ranks[0] in replicas:
                continue
            if all(digest_at(peer.digests, place) == digest_at(group.digests, place) for place in places):
                return peer.ranks[0]
        return None


_BEST_FIRST = tuple(Proof)


def _copies(member: tuple[DigestHistory, IdenticalRanks]) -> int:
    return len(member[1].ranks)


def _ranks_of(members: Sequence[tuple[DigestHistory, IdenticalRanks]]) -> tuple[Rank, ...]:
    return tuple(sorted(rank for _, group in members for rank in group.ranks))


def _place(group: IdenticalRanks, difference: _Difference) -> int:
    """Return the position of a tensor's digest in a group's digests."""
    return bisect_left(group.names, difference.name) * TENSOR_DIGEST_BYTES


def _are_most(differences: Sequence[_Difference], group: IdenticalRanks) -> bool:
    return len(differences) > FEW and 2 * len(differences) > group.compared


def _without_layout_change(
    suspicions: Sequence[Suspicion], holders: Mapping[str, int], ranks: int
) -> Iterator[Suspicion]:
    """Treat many differing files as a changed layout instead of damage, and leave out the intact file of a pair.

    In a pair, a file that is known to come from another rank or step is the damaged file. But if several ranks have the
    earlier contents of others, the ranks changed places.

    Args:
        suspicions: Suspicions about all files of one role.
        holders: By tensor: the number of ranks that have it.
        ranks: The number of ranks.
    """
    times = Counter(name for suspicion in suspicions if suspicion.kind in _OF_ONE_FILE for name in suspicion.tensors)
    systematic = {name for name, count in times.items() if count > _PAIR and count * _MOST_DAMAGED > holders[name]}
    moved = sum(suspicion.copy_of is not None for suspicion in suspicions)
    stale = sum(suspicion.kind is SuspicionKind.STALE and suspicion.as_of is None for suspicion in suspicions)
    is_rearranged = moved > 1 or (stale > _PAIR and stale * _MOST_DAMAGED > ranks)
    explained = {
        suspicion.rank for suspicion in suspicions if suspicion.as_of is not None or suspicion.copy_of is not None
    }
    for suspicion in suspicions:
        kind = suspicion.kind
        is_moved = is_rearranged and (kind is SuspicionKind.STALE or suspicion.copy_of is not None)
        is_systematic = 2 * sum(name in systematic for name in suspicion.tensors) >= len(suspicion.tensors)
        is_outvoted = len(suspicion.replicas) > 1 and kind not in _OF_SEVERAL
        if kind in _OF_ONE_FILE and suspicion.as_of is None and (is_moved or is_systematic):
            yield replace(suspicion, kind=SuspicionKind.PARTED)
        elif suspicion.rank in explained or is_outvoted or explained.isdisjoint(suspicion.replicas):
            yield suspicion
