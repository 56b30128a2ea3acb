"""The facts about copies, and the results of comparing them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.replicas import Proof, RecordedSlices, SavedAt, TensorDigests
from ckpttool.core.domain.units import Rank, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The tensors of ranks at another checkpoint, in the files of one role."""

    name: str
    """The checkpoint's."""
    step: Step | None
    older: bool
    """Whether it was saved before the one that is judged."""
    same_run: bool
    """Whether the same start of the training wrote both: between two starts ranks may change places."""
    tensors: Mapping[Rank, TensorDigests]
    """Of the ranks whose tensors had the names, types and shapes that they have at the one that is judged."""


def credible_record(recorded: RecordedSlices | None, current: Mapping[Rank, TensorDigests]) -> RecordedSlices | None:
    """Return a record unless the save's tensors contradict it: then it is of another parallel layout.

    Only a record that was not written with the save may be. Three things contradict it: several replicas of one slice
    differ in a tensor; single replicas differ in more than few tensors, and these are not all one file's; most tensors
    that should be sliced are equal in two slices.

    Args:
        recorded: The slices of each rank by the trainer's own record.
        current: The tensors of each rank at the save.
    """
    if recorded is None or recorded.is_of_save:
        return recorded
    places = {
        id(digests.names): {name: index for index, name in enumerate(digests.names)} for digests in current.values()
    }
    replicated = sliced = equal_slices = differing_pairs = 0
    outvoted = Counter[Rank]()
    for name, slices in recorded.slices.items():
        by_slice: dict[int, dict[bytes, list[Rank]]] = defaultdict(lambda: defaultdict(list))
        for rank, digests in current.items():
            index = places[id(digests.names)].get(name)
            if index is not None and rank in slices:
                by_slice[slices[rank]][digests.at(index)].append(rank)
        replicated += any(sum(map(len, by_value.values())) > 1 for by_value in by_slice.values())
        differing = 0
        for by_value in by_slice.values():
            *fewer, most = sorted(by_value.values(), key=len)
            differing += sum(map(len, fewer))
            if fewer and len(most) > 1:
                outvoted.update(fewer[0])
            elif fewer:
                differing_pairs += 1
        if differing > 1:
            return None
        sliced += len(by_slice) > 1
        values = {value for by_value in by_slice.values() for value in by_value}
        equal_slices += len(values) < sum(map(len, by_slice.values()))
    of_other_files = outvoted.total() - max(outvoted.values(), default=0)
    is_contradicted = differing_pairs + of_other_files > max(0, few(replicated)) or 2 * equal_slices > sliced
    return None if is_contradicted else recorded


FEW = 2
"""Tensors that are a few, however many there are."""
_FEW_OF = 10
"""One in so many is few, too: damage hits a place, and another file or another arrangement all of it."""


def few(tensors: int) -> int:
    """Return the limit of "few": in a file of six tensors, half of which are counters, two are not few."""
    return min(max(FEW, tensors // _FEW_OF), (tensors - 1) // 3)


class DifferingBytes(NamedTuple):
    """The place where two files differ in a tensor."""

    begin: int
    """The first such byte of the file."""
    end: int
    """The byte after the last one of that range."""
    bits: int | None
    """How many bits of the tensor differ, in all ranges; None if that was not counted."""


class SuspicionKind(str, Enum):
    """The result of a comparison with replicas."""

    DIFFERS = "differs"
    """In some tensors, and at no other checkpoint before or after."""
    STALE = "stale"
    """In most tensors, and at no other checkpoint before or after."""
    DRIFTED = "drifted"
    """From some checkpoint on, here and at every later one that is known."""
    TIED = "tied"
    """In some tensors, as many copies support it as contradict it."""
    PARTED = "parted"
    """So do all: they are replicas no more."""
    COPIED = "copied"
    """The file belongs to another rank: both are equal in every tensor, and had different slices before."""
    OUTLIER = "odd"
    """Alone among all that have it; nothing proves that it should not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """A rank whose file differs from its replicas."""

    kind: SuspicionKind
    rank: Rank
    replicas: tuple[Rank, ...]
    """Those that it should equal, ascending; where all parted, those that it no longer equals; of one that was copied,
    those whose file it may be."""
    tensors: tuple[str, ...]
    """In which it differs, ascending."""
    compared: int
    """In how many of its tensors it could be compared with the others."""
    proof: Proof
    """The weakest of these tensors'."""
    is_twin: bool
    """Whether the two files were equal in every tensor at every other checkpoint that is known."""
    as_of: str | None
    """The other checkpoint from which most of the differences come, if they are this rank's own."""
    copy_of: Rank | None
    """A rank with the same differing tensors, though it is not a replica."""
    since: SavedAt | None
    """Of a drift: the first known checkpoint at which it differs; None: this one."""
    agreed_at: SavedAt | None
    """The last one before at which it was equal; None of one that did not drift."""
    is_decided: bool = False
    """Of two that differ: whether something else says that it is this one."""
    unheard: tuple[Rank, ...] = ()
    """Ranks that have or may have a copy as well, but give no evidence.

    Their file is lost, damaged independently, another rank's file under a second name, or equal to neither.
    """
    is_of_rebuilt: bool = False
    """Whether its file, or one of the others', was rebuilt from another rank's: then not every copy is a witness."""
    may_be_right: bool = False
    """Whether a checksum proves the bytes of its file, and the others are two, or have no checksum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaJudgement:
    """The comparison of one checkpoint's replicas, in the files of one role."""

    suspicions: tuple[Suspicion, ...]
    """By rank."""
    agreed: Mapping[Rank, int]
    """How many copies of each rank's file agree in every tensor, its own counted; 1 where some tensor has no replica
    that is proven, or one differs."""
    is_open: bool
    """Whether yet another checkpoint may tell more: few tensors of some file have no replica that is proven."""
