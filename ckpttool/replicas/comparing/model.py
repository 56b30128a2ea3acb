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
    """Name of the checkpoint."""
    step: Step | None
    older: bool
    """Whether it was saved before the one that is judged."""
    same_run: bool
    """Whether the same start of the training wrote both: between two starts ranks may change places."""
    tensors: Mapping[Rank, TensorDigests]
    """Tensors of the ranks with the same names, types and shapes as at the judged checkpoint."""


def credible_record(recorded: RecordedSlices | None, current: Mapping[Rank, TensorDigests]) -> RecordedSlices | None:
    """Return a record unless the save's tensors contradict it: then it describes another parallel layout.

    This is possible only for a record that was not written with the save. Three things contradict it: several replicas
    of one slice differ in a tensor; single replicas differ in more than few tensors, and these are not all one file's;
    most tensors that should be sliced are equal in two slices.

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
"""Number of tensors that always counts as few, regardless of the total."""
_FEW_OF = 10
"""One in this many also counts as few: damage affects one place, but a wrong file or arrangement affects all of it."""


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
    """Number of differing bits in the tensor, over all ranges; None if not counted."""


class SuspicionKind(str, Enum):
    """The result of a comparison with replicas."""

    DIFFERS = "differs"
    """It differs in some tensors, and at no other checkpoint before or after."""
    STALE = "stale"
    """It differs in most tensors, and at no other checkpoint before or after."""
    DRIFTED = "drifted"
    """It differs from some checkpoint on, here and at every later one that is known."""
    TIED = "tied"
    """It differs in some tensors, in which as many copies support it as contradict it."""
    PARTED = "parted"
    """All differ: they are no longer replicas."""
    COPIED = "copied"
    """The file belongs to another rank: both are equal in every tensor, and had different slices before."""
    OUTLIER = "odd"
    """It is the only differing file, but there is no proof that the files should be equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """A rank whose file differs from its replicas."""

    kind: SuspicionKind
    rank: Rank
    replicas: tuple[Rank, ...]
    """Ranks that it should equal, ascending.

    If all differ: ranks that it no longer equals; for a copied file: ranks whose file it may be.
    """
    tensors: tuple[str, ...]
    """Tensors in which it differs, ascending."""
    compared: int
    """Number of its tensors that could be compared with the others."""
    proof: Proof
    """The weakest proof among these tensors."""
    is_twin: bool
    """Whether the two files were equal in every tensor at every other checkpoint that is known."""
    as_of: str | None
    """The other checkpoint with most of the differing tensors, if they are from this rank."""
    copy_of: Rank | None
    """A rank with the same differing tensors, though it is not a replica."""
    since: SavedAt | None
    """For a drift: the first known checkpoint at which it differs; None for this one."""
    agreed_at: SavedAt | None
    """The last earlier checkpoint at which it was equal; None if it did not drift."""
    is_decided: bool = False
    """For two differing files: whether other evidence shows that this is the damaged one."""
    unheard: tuple[Rank, ...] = ()
    """Ranks that have or may have a copy as well, but give no evidence.

    Their file is lost, damaged independently, another rank's file under a second name, or equal to neither.
    """
    is_of_rebuilt: bool = False
    """Whether its file, or another one, was rebuilt from another rank's: then not every copy is independent."""
    may_be_right: bool = False
    """Whether a checksum proves the bytes of its file, and the others are two, or have no checksum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaJudgement:
    """The comparison of one checkpoint's replicas, in the files of one role."""

    suspicions: tuple[Suspicion, ...]
    """Suspicions by rank."""
    agreed: Mapping[Rank, int]
    """Number of copies of each rank's file that agree in every tensor, including its own.

    It is 1 if some tensor has no proven replica, or a replica differs.
    """
    is_open: bool
    """Whether another checkpoint may show more: a few tensors of some file have no proven replica."""
