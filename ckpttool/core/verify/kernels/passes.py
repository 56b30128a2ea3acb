"""Requests to a pass over a file, the results of a pass, and the joining of several workers' results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ckpttool.core.domain.shard import TensorEntry
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.verify.kernels.crc import EntriesCrc, EntryBytes, entries_crc, join_crc32
from ckpttool.core.verify.kernels.hashes import ChunkDigest, crc32_of_chunks
from ckpttool.core.verify.kernels.numeric import NumericPartial
from ckpttool.core.verify.kernels.tensors import TensorsSeen, join_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Wants:
    """The requested results of a pass. Each result costs time, but no result needs another read."""

    crc_end: int | None = None
    """Compute the CRC32 of the file up to this byte, exclusive, for the trailer of a `.ckpt`. None for no CRC32."""
    xxh: bool = False
    """Whether to compute xxh3-128 of the file and of each 64 MiB, for a manifest."""
    chunks: bool = False
    """Whether to hash each chunk of 64 MiB, for comparison with a manifest."""
    sha256: bool = False
    """Whether to compute SHA-256 of the file, for a digest that its trainer recorded; a single pass must read the whole
    file."""
    entry_crcs: bool = False
    """Whether to compute CRC32 of each entry's data, for torch's zip records and for MindSpore's `crc_num`."""
    numerics: bool = False
    """Whether to compute the statistics of every floating-point tensor."""
    tensors: Sequence[TensorEntry] = ()
    """The tensors to digest; their spans are disjoint and inside the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryDigest:
    """The results of a pass for one tensor or zip record, or a part of it."""

    entry: TensorEntry
    begin: int
    """First byte read, counted from the start of the entry's data."""
    end: int
    """First byte after the part."""
    crc32: int | None
    """CRC32 of the bytes read; None if not requested."""
    scalar: bytes
    """The data of an integer without dimensions, as far as it was read; empty for all other entries."""
    numeric: NumericPartial | None
    """The statistics; None if not requested, or if the elements are not floating-point numbers."""

    @property
    def is_complete(self) -> bool:
        """Whether every byte of the entry has been read."""
        return self.begin == 0 and self.end == self.entry.nbytes

    @property
    def integer(self) -> int | None:
        """The value of an integer without dimensions."""
        if not self.scalar or not self.is_complete:
            return None
        return int.from_bytes(self.scalar, "little", signed=self.entry.dtype.value.startswith("I"))

    def join(self, after: EntryDigest) -> EntryDigest:
        """Return the joined results of this part and the next part.

        Raises:
            ValueError: `after` does not begin at the end of this part.
        """
        if after.entry != self.entry or after.begin != self.end:
            raise ValueError(f"{self.entry.name}: a part ends at byte {self.end}, the next begins at {after.begin}")
        crc = None
        if self.crc32 is not None and after.crc32 is not None:
            crc = join_crc32(self.crc32, after.crc32, after.end - after.begin)
        numeric = self.numeric
        if numeric is not None and after.numeric is not None:
            numeric = numeric.join(after.numeric)
        return replace(self, end=after.end, crc32=crc, scalar=self.scalar + after.scalar, numeric=numeric)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """The results of one pass, or of several joined passes. Picklable."""

    begin: int
    """First byte of the file that was read."""
    end: int
    """First byte after the range."""
    chunks: tuple[ChunkDigest, ...]
    """In file order; empty if neither CRC32 nor hash was requested."""
    xxh128: str | None
    """Hash of the complete range; None if not requested, and after joining, because this hash cannot be joined."""
    sha256: str | None = None
    """Hash of the complete range; None if not requested, and after joining."""
    entries: tuple[EntryDigest, ...]
    """In file order: entries with a byte in the range, and empty entries."""
    tensors: TensorsSeen | None = None
    """Digests of the tensors; None if no tensor was named."""

    @property
    def crc32(self) -> int | None:
        """CRC32 of the range up to `crc_end`; None if it was not requested."""
        return crc32_of_chunks(self.chunks)

    @property
    def bytes_read(self) -> ByteCount:
        """Bytes that were read from the disk."""
        return ByteCount(self.end - self.begin)

    def entries_crc(self) -> EntriesCrc:
        """Return the `crc_num` of a MindSpore safetensors file with these tensors.

        Raises:
            ValueError: A tensor was not read completely, or CRC32s were not requested.
        """
        parts = []
        for entry in self.entries:
            if entry.crc32 is None or not entry.is_complete:
                raise ValueError(f"{entry.entry.name}: no CRC32 of the whole tensor")
            name, nbytes = entry.entry.name, entry.entry.nbytes
            parts.append(EntryBytes(name=name, crc32=entry.crc32, nbytes=nbytes, integer=entry.integer))
        return entries_crc(parts)


def file_order(entry: TensorEntry) -> tuple[tuple[tuple[int, int], ...], str]:
    """Return the key that sorts entries by their position in the file."""
    return entry.spans, entry.name


def join_passes(parts: Sequence[PassResult]) -> PassResult:
    """Return the joined results of passes over consecutive parts of one file, in any order.

    Raises:
        ValueError: There are no parts, or there is a gap between two parts.
    """
    ordered = sorted(parts, key=lambda part: (part.begin, part.end))
    if not ordered:
        raise ValueError("no parts to join")
    for before, after in pairwise(ordered):
        if before.end != after.begin:
            raise ValueError(f"parts do not join: one ends at {before.end}, the next begins at {after.begin}")
    if len(ordered) == 1 and not any(before.entry == after.entry for before, after in pairwise(ordered[0].entries)):
        return ordered[0]
    digests: dict[TensorEntry, EntryDigest] = {}
    for digest in (digest for part in ordered for digest in part.entries):
        digest_before = digests.get(digest.entry)
        # An entry without bytes is in every part.
        digests[digest.entry] = (
            digest if digest_before is None or not digest.entry.nbytes else digest_before.join(digest)
        )
    return PassResult(
        begin=ordered[0].begin,
        end=ordered[-1].end,
        chunks=tuple(chunk for part in ordered for chunk in part.chunks),
        xxh128=ordered[0].xxh128 if len(ordered) == 1 else None,
        sha256=ordered[0].sha256 if len(ordered) == 1 else None,
        entries=tuple(sorted(digests.values(), key=lambda digest: file_order(digest.entry))),
        tensors=join_tensors(tensors) if (tensors := [part.tensors for part in ordered if part.tensors]) else None,
    )
