"""Digests of tensors, to compare copies on other ranks without a checksum."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Rank, Step

TENSOR_DIGEST_BYTES = 8
"""Size of an xxh3-64 digest: as fast as xxh3-128 at half the size; the compared tensors do not come from an
adversary."""

PIECE_BYTES = 1 << 20
"""A larger tensor is digested in pieces, so that workers can share the work: its digest is the digest of the pieces'
digests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDigests:
    """One digest per tensor of a shard, over its bytes in order, independent of their place in the file.

    For a tensor of at most `PIECE_BYTES`, the digest is xxh3-64 of its bytes, big-endian; for a larger tensor, xxh3-64
    of the concatenated digests of its pieces. Equal digests mean equal tensors, in files of any format.
    """

    names: tuple[str, ...]
    """Names of the tensors, each once, ascending; all shards with equal names share one tuple. Other tensors are
    unknown, because their bytes were not read."""
    digests: bytes
    """`TENSOR_DIGEST_BYTES` per name, in the order of the names, because thousands of ranks have millions of
    tensors."""

    def __len__(self) -> int:
        """Count the tensors."""
        return len(self.names)

    def at(self, index: int) -> bytes:
        """Return the digest of the tensor with the name at `index`."""
        return self.digests[index * TENSOR_DIGEST_BYTES : (index + 1) * TENSOR_DIGEST_BYTES]

    @property
    def by_name(self) -> dict[str, bytes]:
        """The digest of each tensor, by its name."""
        return {name: self.at(index) for index, name in enumerate(self.names)}


_MOST_SHARED = 10_000
"""Shards with more tensors do not share their names with other shards, because the names come from files."""


def shared_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first equal tuple, because thousands of ranks have tensors with the same names."""
    return _first(names) if len(names) <= _MOST_SHARED else names


@lru_cache(maxsize=64)  # only pipeline stages differ; more tuples would only cost memory
def _first(names: tuple[str, ...]) -> tuple[str, ...]:
    return names


class Proof(str, Enum):
    """The proof that ranks have the same slice of a tensor, best first."""

    SEALED = "sealed"
    """One file matches the manifest's record of the other in every tensor."""
    RECORDED = "recorded"
    """The trainer's own record of the save shows that the slices are the same."""
    LEARNED = "learned"
    """The slices were equal at other checkpoints, and changed together between these."""
    ONCE = "once"
    """The slices were equal at one other checkpoint, and most of them have changed together since."""
    MAJORITY = "majority"
    """All ranks with the tensor except one are equal now, and there is no other evidence."""


class Trust(str, Enum):
    """Reason for trusting the shard from which another shard is rebuilt, best first."""

    CHECKSUM = "checksum"
    COPY = "copy"
    """Another rank has the same content, bit for bit."""
    NUMERICS = "numerics"
    """The shard's structure is intact, and no check of its numbers found anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Healed:
    """The record that a file was rebuilt, and from which file."""

    rank: Rank
    """The rank of the donor."""
    proof: Proof
    """The proof that the donor was a copy."""
    trust: Trust
    """Why the donor was trusted."""
    tensor: str | None = None
    """The only replaced tensor; None if the complete file was replaced."""
    at: str
    """UTC, `2025-01-31T23:59:59Z`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSlices:
    """The slice of each tensor that each rank has, according to the trainer's own record of the save."""

    source: str
    """Path of the record, relative to the inventory's root."""
    slices: Mapping[str, Mapping[Rank, int]]
    """Tensor -> one number per rank, equal for equal slices. Tensors with the same layout share one mapping."""
    is_of_save: bool = True
    """Whether it was written with the save. Otherwise it is from the start of a run, and the save's layout may
    differ."""


class SavedAt(NamedTuple):
    """A checkpoint that bounds an event."""

    name: str
    step: Step | None
