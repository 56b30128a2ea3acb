"""One tensor after the other, as all ranks that have it hold it now and held it at other checkpoints.

Thousands of ranks have millions of tensors. So ranks that held the same at every checkpoint are one, and of one tensor
at a time all digests are looked at.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from ckpttool.core.domain.replicas import TENSOR_DIGEST_BYTES, Proof, RecordedSlices, TensorDigests
from ckpttool.core.domain.units import Rank
from ckpttool.replicas.comparing.model import Sample

DigestHistory: TypeAlias = tuple[bytes | None, ...]
"""A tensor's digest at each other checkpoint; None where it is not known."""


class IdenticalRanks:
    """Ranks whose files held the same tensors at this checkpoint and at all others, so that nothing tells them apart.

    What is learned of them is noted as the columns go by.
    """

    __slots__ = ("agreed", "compared", "digests", "names", "other_digests", "ranks", "unproven")

    def __init__(self, ranks: tuple[Rank, ...], names: tuple[str, ...], digests: bytes, thens: DigestHistory) -> None:
        """Take the ranks, ascending, the names of their tensors, and the digests now and then."""
        self.ranks, self.names, self.digests, self.other_digests = ranks, names, digests, thens
        self.compared = 0
        """Tensors of which replicas are known."""
        self.unproven = 0
        """Those that never changed, so that it is not known, and all agree in them."""
        self.agreed: int | None = None
        """The fewest ranks that hold one of its tensors as it does."""

    def agrees(self, ranks: int) -> None:
        """Note that so many ranks, its own counted, hold one of its tensors as it does."""
        self.agreed = ranks if self.agreed is None else min(self.agreed, ranks)

    def changed_together(self) -> bool:
        """Tell whether these files were equal before and after some change."""
        return len({self.digests, *filter(None, self.other_digests)}) > 1

    def changed_with(self, other: IdenticalRanks) -> bool:
        """Tell whether the files were equal at every other checkpoint, of which at least one is known."""
        return self.names == other.names and self.other_digests == other.other_digests and any(self.other_digests)


Column: TypeAlias = dict[DigestHistory, dict[bytes, list[IdenticalRanks]]]
"""Who holds a tensor: by what it was, then by what it is now."""


def identical_ranks(
    current: Mapping[Rank, TensorDigests], samples: Sequence[Sample], recorded: RecordedSlices | None
) -> list[IdenticalRanks]:
    """Put ranks together that nothing tells apart."""
    arrangements = {} if recorded is None else {id(ranks): ranks for ranks in recorded.slices.values()}
    together: dict[tuple[object, ...], list[Rank]] = defaultdict(list)
    for rank, digests in sorted(current.items()):
        thens = tuple(_digests_at(sample.tensors.get(rank), digests.names) for sample in samples)
        slices = tuple(ranks.get(rank) for ranks in arrangements.values())
        together[digests.names, digests.digests, thens, slices].append(rank)
    return [
        IdenticalRanks(tuple(ranks), current[ranks[0]].names, current[ranks[0]].digests, thens)  # type: ignore[arg-type]
        for (_, _, thens, _), ranks in together.items()
    ]


def _digests_at(digests: TensorDigests | None, names: tuple[str, ...]) -> bytes | None:
    return digests.digests if digests is not None and digests.names == names else None


def columns(
    groups: Sequence[IdenticalRanks], recorded: RecordedSlices | None
) -> Iterator[tuple[str, int | None, Column]]:
    """Yield each tensor's column, by name: for each slice that is recorded one, with its number.

    A tensor of which every rank has its own, now and always, is noted and left out: most are such where an optimizer's
    state is shared out over thousands of ranks.
    """
    by_names: dict[tuple[str, ...], list[IdenticalRanks]] = defaultdict(list)
    for group in groups:
        by_names[group.names].append(group)
    places: dict[str, list[tuple[list[IdenticalRanks], int]]] = defaultdict(list)
    for names, holders in by_names.items():
        for index, name in enumerate(names):
            places[name].append((holders, index * TENSOR_DIGEST_BYTES))
    for name in sorted(places):
        slices = None if recorded is None else recorded.slices.get(name)
        if slices is None and _all_differ(places[name]):
            continue
        by_slice: dict[int | None, Column] = defaultdict(dict)
        for holders, begin in places[name]:
            end = begin + TENSOR_DIGEST_BYTES
            for group in holders:
                past = tuple([None if digests is None else digests[begin:end] for digests in group.other_digests])
                column = by_slice[None if slices is None else slices.get(group.ranks[0])]
                column.setdefault(past, {}).setdefault(group.digests[begin:end], []).append(group)
        for number, column in by_slice.items():
            yield name, number, column


def _all_differ(places: Sequence[tuple[Sequence[IdenticalRanks], int]]) -> bool:
    """Tell whether nobody holds, or held, what another does; then note it of all."""
    every = [(group, begin) for holders, begin in places for group in holders]
    if len(every) == 1 or any(len(group.ranks) > 1 for group, _ in every):
        return False
    for index in range(-1, len(every[0][0].other_digests)):
        digests = [(group.other_digests[index] if index >= 0 else group.digests, begin) for group, begin in every]
        known_digests = [all_of[begin : begin + TENSOR_DIGEST_BYTES] for all_of, begin in digests if all_of is not None]
        if len(set(known_digests)) < len(known_digests):
            return False
    for group, _ in every:
        group.agreed = 1
    return True


class ReplicaSet:
    """Ranks that hold, or held, the same slice of a tensor."""

    __slots__ = ("column", "is_recorded", "size", "values")

    def __init__(self, column: Column, *, is_recorded: bool) -> None:
        """Take the part of a column that belongs together."""
        self.column = column
        self.is_recorded = is_recorded
        values: dict[bytes, int] = {}
        for by_value in column.values():
            for value, holders in by_value.items():
                values[value] = values.get(value, 0) + sum([len(group.ranks) for group in holders])
        self.values = values
        """How many ranks hold each value now."""
        self.size = sum(values.values())

    @property
    def usual(self) -> bytes | None:
        """What most of them hold now, at least two; None where no value has a majority."""
        value, times = max(self.values.items(), key=lambda item: item[1])
        return value if times > 1 and 2 * times > self.size else None

    def holders(self, value: bytes) -> Iterator[tuple[DigestHistory, IdenticalRanks]]:
        """Yield who holds a value now, each with what it held."""
        for history, by_value in self.column.items():
            for group in by_value.get(value, ()):
                yield history, group

    def proof(self, history: DigestHistory, value: bytes) -> Proof | None:
        """Return what proves that those who share a history and a value are replicas; None where nothing does."""
        if self.is_recorded:
            return Proof.RECORDED
        digests = {digest for digest in history if digest is not None}
        if len(digests) > 1:
            return Proof.LEARNED
        return Proof.ONCE if digests and value not in digests else None

    def usual_at(self, index: int) -> bytes | None:
        """Return what most of them held at another checkpoint; None where nobody knows."""
        times: Counter[bytes] = Counter()
        for history, by_value in self.column.items():
            past = history[index]
            if past is not None:
                times[past] += _size(by_value)
        return times.most_common(1)[0][0] if times else None


def replica_sets(column: Column, *, is_recorded: bool) -> Iterator[ReplicaSet]:
    """Put together who holds, or held, the same slice: by the record, else by what was equal at other checkpoints.

    Equal at all of them, or at some and then no more: those who changed together between two checkpoints are replicas,
    and so is one that was equal to several who still do.
    """
    if is_recorded or len(column) == 1:
        yield ReplicaSet(column, is_recorded=is_recorded)
        return
    heads = _joined(column)
    parts: dict[DigestHistory, Column] = defaultdict(dict)
    for history, by_value in column.items():
        parts[_head(heads, history)][history] = by_value
    for part in parts.values():
        yield ReplicaSet(part, is_recorded=False)


def _joined(column: Column) -> dict[DigestHistory, DigestHistory]:
    """Join histories that are of one slice, each to its head."""
    sizes = {history: _size(by_value) for history, by_value in column.items()}
    first: dict[tuple[int, bytes], DigestHistory] = {}
    heads: dict[DigestHistory, DigestHistory] = {}
    # Who has most copies says most about the others.
    for history in sorted(column, key=lambda history: -sizes[history]):
        heads[history] = history
        for index, past in enumerate(history):
            if past is None:
                continue
            earlier = first.setdefault((index, past), history)
            if earlier is not history and _belong(earlier, history, sizes):
                heads[_head(heads, history)] = _head(heads, earlier)
    return heads


def _size(by_value: Mapping[bytes, Sequence[IdenticalRanks]]) -> int:
    return sum(len(group.ranks) for holders in by_value.values() for group in holders)


def _head(heads: Mapping[DigestHistory, DigestHistory], history: DigestHistory) -> DigestHistory:
    while heads[history] is not history:
        history = heads[history]
    return history


def _belong(head: DigestHistory, history: DigestHistory, sizes: Mapping[DigestHistory, int]) -> bool:
    """Tell whether one that was equal to others at some checkpoint is a replica of theirs."""
    shared = {
        first_digest
        for first_digest, second_digest in zip(head, history, strict=True)
        if second_digest is not None and second_digest == first_digest
    }
    if len(shared) > 1:
        return True
    changed = len({digest for digest in head if digest is not None}) > 1
    return changed and sizes[head] > max(1, sizes[history])
