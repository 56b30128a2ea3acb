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
    """Whether the checkpoint was saved before the judged checkpoint."""
    same_run: bool
    """Whether the same start of the training run wrote both checkpoints; between two starts, ranks may change places.
    """
    tensors: Mapping[Rank, TensorDigests]
    """Tensors of the ranks with the same names, types and shapes as at the judged checkpoint."""


def credible_record(recorded: RecordedSlices | None, current: Mapping[Rank, TensorDigests]) -> RecordedSlices | None:
    """Return a record, unless the save's tensors show that the record describes a different parallel layout.

    This is possible only for a record that was not written with the save. Three things contradict it: several replicas
    of one slice differ in a tensor; single replicas differ in more than few tensors, and these are not all one file's;
    most tensors that should be sliced are equal in two slices.

    Args:
        recorded: The slices of each rank according to the trainer's own record.
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
"""One in this many also counts as few: damage affects one place, but a wrong file or layout affects all tensors."""


def few(tensors: int) -> int:
    """Return the limit of "few", which is below two in a file of six tensors, because half of them may be counters."""
    return min(max(FEW, tensors // _FEW_OF), (tensors - 1) // 3)


class DifferingBytes(NamedTuple):
    """The place where two files differ in a tensor."""

    begin: int
    """The first differing byte, as an offset in the file."""
    end: int
    """The byte after the first range of differing bytes."""
    bits: int | None
    """Number of differing bits in the tensor, over all ranges; None if not counted."""


class SuspicionKind(str, Enum):
    """The result of comparing a file with its replicas."""

    DIFFERS = "differs"
    """The file differs in some tensors, and at no other checkpoint before or after."""
    STALE = "stale"
    """The file differs in most tensors, and at no other checkpoint before or after."""
    DRIFTED = "drifted"
    """The file differs from some checkpoint on, here and at every known later checkpoint."""
    TIED = "tied"
    """The file differs in some tensors, and as many copies agree with it as disagree."""
    PARTED = "parted"
    """All files differ, so they are no longer replicas."""
    COPIED = "copied"
    """The file belongs to another rank, because both are equal in every tensor but had different slices before."""
    OUTLIER = "odd"
    """The file is the only differing one, but there is no proof that the files should be equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """A rank whose file differs from its replicas."""

    kind: SuspicionKind
    rank: Rank
    replicas: tuple[Rank, ...]
    """Ascending ranks whose files the file should equal.

    If all files differ: ranks whose files it no longer equals. For a copied file: ranks that the file may belong to.
    """
    tensors: tuple[str, ...]
    """Names of the differing tensors, ascending."""
    compared: int
    """Number of the file's tensors that could be compared with replicas."""
    proof: Proof
    """The weakest proof among these tensors."""
    is_twin: bool
    """Whether the two files were equal in every tensor at every other known checkpoint."""
    as_of: str | None
    """The other checkpoint from which most of the differing tensors are, if they are from this rank."""
    copy_of: Rank | None
    """A rank that has the same differing tensors although it is not a replica."""
    since: SavedAt | None
    """For a drift: the first known checkpoint at which the file differs; None for the judged checkpoint."""
    agreed_at: SavedAt | None
    """The last earlier checkpoint at which the file was equal; None if it did not drift."""
    is_decided: bool = False
    """For two differing files: whether other evidence shows that this file is damaged."""
    unheard: tuple[Rank, ...] = ()
    """Ranks that have or may have a copy as well, but give no evidence.

    Their file is lost, damaged independently, another rank's file under a second name, or equal to neither.
    """
    is_of_rebuilt: bool = False
    """Whether this file or a replica was rebuilt from another rank's file, so that not every copy is independent."""
    may_be_right: bool = False
    """Whether a checksum proves the bytes of this file, and there are only two others, or others without a checksum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaJudgement:
    """The comparison of one checkpoint's replicas, in the files of one role."""

    suspicions: tuple[Suspicion, ...]
    """Suspicions by rank."""
    agreed: Mapping[Rank, int]
    """Number of copies of each rank's file that agree in every tensor, including its own.

    The number is 1 if some tensor has no proven replica, or a replica differs.
    """
    is_open: bool
    """Whether another checkpoint may show more, because a few tensors of some file have no proven replica."""
