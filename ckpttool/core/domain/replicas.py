"""Digests of tensors, which allow a comparison with copies on other ranks if there is no checksum."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Rank, Step

TENSOR_DIGEST_BYTES = 8
"""Size of an xxh3-64 digest in bytes.

It is as fast as xxh3-128 at half the size; the compared tensors do not come from an adversary.
"""

PIECE_BYTES = 1 << 20
"""Size in bytes above which a tensor is digested in pieces, so that workers can share the work.

The digest of such a tensor is the digest of the pieces' digests.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDigests:
    """Digests of a shard's tensors, which depend on their bytes but not on their place in the file.

    For a tensor of at most `PIECE_BYTES`, the digest is xxh3-64 of its bytes, big-endian; for a larger tensor, xxh3-64
    of the concatenated digests of its pieces. Equal digests mean equal tensors, in files of any format.
    """

    names: tuple[str, ...]
    """Names of the tensors, each once, ascending; all shards with equal names share one tuple.

    The digests of other tensors are unknown, because their bytes were not read.
    """
    digests: bytes
    """Digests of `TENSOR_DIGEST_BYTES` each, in the order of the names, as one object because there may be millions."""

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self.names)

    def at(self, index: int) -> bytes:
        """Return the digest of the tensor whose name is at `index`."""
        return self.digests[index * TENSOR_DIGEST_BYTES : (index + 1) * TENSOR_DIGEST_BYTES]

    @property
    def by_name(self) -> dict[str, bytes]:
        """Digest of each tensor, by name."""
        return {name: self.at(index) for index, name in enumerate(self.names)}


_MOST_SHARED = 10_000
"""Maximum number of names that shards share, because names are untrusted."""


def shared_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first tuple that is equal to this one, so that thousands of ranks share one tuple."""
    return _first(names) if len(names) <= _MOST_SHARED else names


@lru_cache(maxsize=64)  # only pipeline stages have different names; more tuples would only use memory
def _first(names: tuple[str, ...]) -> tuple[str, ...]:
    return names


class Proof(str, Enum):
    """Proof that ranks have the same slice of a tensor, best first."""

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
    """Record of how a file was rebuilt from another rank's file."""

    rank: Rank
    """Rank of the donor."""
    proof: Proof
    """Proof that the donor was a copy."""
    trust: Trust
    """Reason for trusting the donor."""
    tensor: str | None = None
    """Name of the only replaced tensor; None if the complete file was replaced."""
    at: str
    """UTC time of the repair, such as `2025-01-31T23:59:59Z`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSlices:
    """Slices of each tensor per rank, according to the trainer's own record of the save."""

    source: str
    """Path of the record, relative to the inventory's root."""
    slices: Mapping[str, Mapping[Rank, int]]
    """Number of each rank's slice, by tensor; equal numbers mean equal slices.

    Tensors with the same layout share one mapping.
    """
    is_of_save: bool = True
    """Whether the record was written with the save.

    If not, it is from the start of a run, and the save's layout may differ.
    """


class SavedAt(NamedTuple):
    """A checkpoint before or after an event."""

    name: str
    step: Step | None
