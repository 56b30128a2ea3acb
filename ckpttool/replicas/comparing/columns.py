"""Iterate over tensors, each with its values on all ranks, here and at other checkpoints.

Thousands of ranks have millions of tensors. So ranks with equal data at every checkpoint form one group, and the
digests are checked for one tensor at a time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from ckpttool.core.domain.replicas import TENSOR_DIGEST_BYTES, Proof, RecordedSlices, TensorDigests
from ckpttool.core.domain.units import Rank
from ckpttool.replicas.comparing.model import Sample

DigestHistory: TypeAlias = tuple[bytes | None, ...]
"""A tensor's digest at each other checkpoint; None if the digest is unknown."""


def digest_at(digests: bytes, place: int) -> bytes:
    """Return the tensor digest that begins at a byte."""
    return digests[place : place + TENSOR_DIGEST_BYTES]


class IdenticalRanks:
    """Ranks whose files have the same tensors at this checkpoint and at all others.

    The counts grow as the columns are compared.
    """

    __slots__ = ("agreed", "compared", "digests", "names", "other_digests", "ranks", "unproven")

    def __init__(self, ranks: tuple[Rank, ...], names: tuple[str, ...], digests: bytes, others: DigestHistory) -> None:
        """Store the ranks, ascending, the names of their tensors, and the digests here and at other checkpoints."""
        self.ranks, self.names, self.digests, self.other_digests = ranks, names, digests, others
        self.compared = 0
        """Number of tensors with known replicas."""
        self.unproven = 0
        """Number of tensors that agree but never changed, so that nothing shows whether they have replicas."""
        self.agreed: int | None = None
        """The smallest number of ranks that agree on a tensor of these files."""

    def note_agreement(self, ranks: int) -> None:
        """Record the number of ranks that agree on a tensor of these files, including these ranks."""
        self.agreed = ranks if self.agreed is None else min(self.agreed, ranks)

    @property
    def has_changed(self) -> bool:
        """Whether these files were equal before and after some change."""
        return len({self.digests, *filter(None, self.other_digests)}) > 1

    def has_past_of(self, peer: IdenticalRanks) -> bool:
        """Return whether the files were equal at every other checkpoint, of which at least one is known."""
        return self.names == peer.names and self.other_digests == peer.other_digests and any(self.other_digests)


Column: TypeAlias = dict[DigestHistory, dict[bytes, list[IdenticalRanks]]]
"""The files that have a tensor, by the tensor's digests at other checkpoints, then by the digest here."""


def identical_ranks(
    current: Mapping[Rank, TensorDigests], samples: Sequence[Sample], recorded: RecordedSlices | None
) -> list[IdenticalRanks]:
    """Group the ranks with equal data at every checkpoint."""
    arrangements = {} if recorded is None else {id(ranks): ranks for ranks in recorded.slices.values()}
    alike: dict[tuple[bytes, DigestHistory, tuple[str, ...], tuple[int | None, ...]], list[Rank]] = defaultdict(list)
    for rank, tensors in sorted(current.items()):
        others = tuple(_digests_at(sample.tensors.get(rank), tensors.names) for sample in samples)
        slices = tuple(ranks.get(rank) for ranks in arrangements.values())
        alike[tensors.digests, others, tensors.names, slices].append(rank)
    return [
        IdenticalRanks(tuple(ranks), names, digests, others) for (digests, others, names, _), ranks in alike.items()
    ]


def _digests_at(tensors: TensorDigests | None, names: tuple[str, ...]) -> bytes | None:
    return tensors.digests if tensors is not None and tensors.names == names else None


def columns(
    groups: Sequence[IdenticalRanks], recorded: RecordedSlices | None
) -> Iterator[tuple[str, int | None, Column]]:
    """Yield each tensor's columns by name, one per recorded slice, with the slice's number.

    A tensor that always differs on every rank is recorded and left out. Most tensors do, if an optimizer's state
    is distributed over thousands of ranks.
    """
    by_names: dict[tuple[str, ...], list[IdenticalRanks]] = defaultdict(list)
    for group in groups:
        by_names[group.names].append(group)
    places: dict[str, list[tuple[list[IdenticalRanks], int]]] = defaultdict(list)
    for names, same_names in by_names.items():
        for index, name in enumerate(names):
            places[name].append((same_names, index * TENSOR_DIGEST_BYTES))
    for name in sorted(places):
        slices = None if recorded is None else recorded.slices.get(name)
        members = [(group, place) for same_names, place in places[name] for group in same_names]
        if slices is None and _all_differ(members):
            for group, _ in members:
                group.agreed = 1
            continue
        by_slice: dict[int | None, Column] = defaultdict(dict)
        for group, place in members:
            past = tuple([None if digests is None else digest_at(digests, place) for digests in group.other_digests])
            column = by_slice[None if slices is None else slices.get(group.ranks[0])]
            column.setdefault(past, {}).setdefault(digest_at(group.digests, place), []).append(group)
        for number, column in by_slice.items():
            yield name, number, column


def _all_differ(members: Sequence[tuple[IdenticalRanks, int]]) -> bool:
    """Return whether several ranks have a tensor, and no two ranks ever had equal values."""
    if len(members) == 1 or any(len(group.ranks) > 1 for group, _ in members):
        return False
    for index in range(-1, len(members[0][0].other_digests)):
        known = [
            digest_at(digests, place)
            for group, place in members
            if (digests := group.digests if index < 0 else group.other_digests[index]) is not None
        ]
        if len(set(known)) < len(known):
            return False
    return True


class ReplicaSet:
    """Ranks that have, or had, the same slice of a tensor."""

    __slots__ = ("column", "is_recorded", "size", "values")

    def __init__(self, column: Column, *, is_recorded: bool) -> None:
        """Store the part of a column that these ranks share."""
        self.column = column
        self.is_recorded = is_recorded
        values: dict[bytes, int] = {}
        for by_value in column.values():
            for value, groups in by_value.items():
                values[value] = values.get(value, 0) + sum([len(group.ranks) for group in groups])
        self.values = values
        """Number of ranks with each current value."""
        self.size = sum(values.values())

    def groups_with(self, value: bytes) -> Iterator[tuple[DigestHistory, IdenticalRanks]]:
        """Yield the files with a current value, each after the tensor's digests at other checkpoints."""
        for history, by_value in self.column.items():
            for group in by_value.get(value, ()):
                yield history, group

    def proof(self, history: DigestHistory, value: bytes) -> Proof | None:
        """Return the proof that files with the same history and value are replicas, or None if there is no proof."""
        if self.is_recorded:
            return Proof.RECORDED
        digests = {digest for digest in history if digest is not None}
        if len(digests) > 1:
            return Proof.LEARNED
        return Proof.ONCE if digests and value not in digests else None

    def proof_of_pair(self, history: DigestHistory, peer_history: DigestHistory) -> Proof | None:
        """Return the proof that two files with different values are replicas, or None if there is no proof."""
        if self.is_recorded:
            return Proof.RECORDED
        shared = _shared(history, peer_history)
        if not shared:
            return None
        return Proof.LEARNED if len(shared) > 1 else Proof.ONCE

    def expected(self) -> DigestHistory:
        """Return the most frequent digest at each other checkpoint, or None if no digest is known there."""
        times: list[Counter[bytes]] = [Counter() for _ in next(iter(self.column))]
        for history, by_value in self.column.items():
            size = _size(by_value)
            for counts, digest in zip(times, history, strict=True):
                if digest is not None:
                    counts[digest] += size
        return tuple(counts.most_common(1)[0][0] if counts else None for counts in times)


def replica_sets(column: Column, *, is_recorded: bool) -> Iterator[ReplicaSet]:
    """Group the files with the same slice, by the record or, without a record, by equality at other checkpoints.

    Files that were equal only at earlier checkpoints belong together if they changed together between two checkpoints,
    or if one was equal to several that still agree.
    """
    if is_recorded or len(column) == 1:
        yield ReplicaSet(column, is_recorded=is_recorded)
        return
    sizes = {history: _size(by_value) for history, by_value in column.items()}
    roots = {history: history for history in column}

    def root(history: DigestHistory) -> DigestHistory:
        while roots[history] is not history:
            history = roots[history]
        return history

    largest: dict[tuple[int, bytes], DigestHistory] = {}
    """The history with the most copies, by checkpoint and digest."""
    for history in sorted(column, key=lambda history: -sizes[history]):
        for index, digest in enumerate(history):
            if digest is not None:
                earlier = largest.setdefault((index, digest), history)
                if earlier is not history and _belong(earlier, history, sizes):
                    roots[root(history)] = root(earlier)
    parts: dict[DigestHistory, Column] = defaultdict(dict)
    for history, by_value in column.items():
        parts[root(history)][history] = by_value
    for part in parts.values():
        yield ReplicaSet(part, is_recorded=False)


def _belong(larger: DigestHistory, history: DigestHistory, sizes: Mapping[DigestHistory, int]) -> bool:
    """Return whether files that were equal at some checkpoint are replicas of each other."""
    has_changed = len({digest for digest in larger if digest is not None}) > 1
    return len(_shared(larger, history)) > 1 or (has_changed and sizes[larger] > max(1, sizes[history]))


def _shared(history: DigestHistory, peer_history: DigestHistory) -> set[bytes]:
    return {
        digest
        for digest, peer_digest in zip(history, peer_history, strict=True)
        if digest is not None and digest == peer_digest
    }


def _size(by_value: Mapping[bytes, Sequence[IdenticalRanks]]) -> int:
    return sum(len(group.ranks) for groups in by_value.values() for group in groups)
