"""What tells, without a checksum, that two ranks hold the same: one digest a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Rank, Step

TENSOR_DIGEST_BYTES = 8
"""Of xxh3-64, which is as fast as xxh3-128 and half as much to keep: what it must tell apart is no adversary's work."""

PIECE_BYTES = 1 << 20
"""Of a larger tensor the digest is that of its pieces' digests, so that workers can share one whose pieces each saw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDigests:
    """One digest of each tensor of a shard, over its bytes in order, wherever in the file they lie.

    A tensor of `PIECE_BYTES` or fewer: xxh3-64 of its bytes, big-endian. A larger one: the same of the digests of its
    pieces, one after another. Equal digests: equal tensors, in files of whatever format.
    """

    names: tuple[str, ...]
    """Of the tensors, each once, ascending: one tuple for all shards that have the same. Those that are not in it are
    unknown: their bytes lie where nobody looks, or were not read."""
    digests: bytes
    """`TENSOR_DIGEST_BYTES` for each name, in their order: thousands of ranks have millions of tensors."""

    def __len__(self) -> int:
        """Count the tensors."""
        return len(self.names)

    def at(self, index: int) -> bytes:
        """Return the digest of the tensor with the name at `index`."""
        return self.digests[index * TENSOR_DIGEST_BYTES : (index + 1) * TENSOR_DIGEST_BYTES]

    @property
    def by_name(self) -> dict[str, bytes]:
        """The digests, to be looked up."""
        return {name: self.at(index) for index, name in enumerate(self.names)}


_MOST_SHARED = 10_000
"""Tensors of a shard up to which their names are kept to be shared with other shards: they come from files."""


def shared_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first tuple that was equal: the names of thousands of ranks' tensors are the same."""
    return _first(names) if len(names) <= _MOST_SHARED else names


@lru_cache(maxsize=64)  # the stages of a pipeline differ; what does not fit costs memory, no more
def _first(names: tuple[str, ...]) -> tuple[str, ...]:
    return names


class Proof(str, Enum):
    """How it is known that ranks hold the same slice of a tensor, best first."""

    SEALED = "sealed"
    """One holds in every tensor what the manifest has of the other's file."""
    RECORDED = "recorded"
    """The trainer's own record of the save says so."""
    LEARNED = "learned"
    """At other checkpoints they were equal, and changed together between them."""
    ONCE = "once"
    """They were equal at one other checkpoint, and most of them changed together since."""
    MAJORITY = "majority"
    """All but one of those that have it are equal now, and there is nothing else to go by."""


class Trust(str, Enum):
    """What speaks for a shard that another one is rebuilt from, best first."""

    CHECKSUM = "checksum"
    COPY = "copy"
    """Another rank holds the same, bit for bit."""
    NUMERICS = "numerics"
    """It is whole by structure, and nothing is odd about its numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Healed:
    """That a file was rebuilt, and from what."""

    rank: Rank
    """Whose file it was rebuilt from."""
    proof: Proof
    """How it was known that this one holds the same."""
    trust: Trust
    """What spoke for it."""
    tensor: str | None = None
    """The one tensor that was replaced; None: all of the file."""
    at: str
    """UTC, `2025-01-31T23:59:59Z`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSlices:
    """Which slice of each tensor each rank holds, by the trainer's own record of the save."""

    source: str
    """Path of the record, relative to the inventory's root."""
    slices: Mapping[str, Mapping[Rank, int]]
    """By tensor: a number a rank, equal for two that hold the same slice. Tensors that lie alike share one mapping."""
    is_of_save: bool = True
    """Whether it was written with the save; else as its training began, and the save may be of another arrangement."""


class SavedAt(NamedTuple):
    """A checkpoint that bounds an event."""

    name: str
    step: Step | None
