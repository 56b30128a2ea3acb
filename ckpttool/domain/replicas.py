"""What tells, without a checksum, that two ranks hold the same: one digest a tensor."""

from __future__ import annotations

from ckpttool.domain.frozen import dataclass

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
