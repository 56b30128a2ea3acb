"""xxh3-128 and CRC32 of a range and of each 64 MiB in it, fed block by block."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from ckpttool.core.domain.manifest import CHUNK_BYTES
from ckpttool.core.verify.kernels.crc import crc32, join_crc32

if TYPE_CHECKING:
    import xxhash


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkDigest:
    """The digests of one chunk of a file."""

    begin: int
    """First byte in the file."""
    end: int
    """First byte after the chunk."""
    xxh128: str | None
    """xxh3-128, 32 hexadecimal digits; None if it was not requested."""
    crc32: int | None
    """CRC32 of the bytes of the chunk before `crc_end`; None if not requested."""
    crc_bytes: int = 0
    """Number of bytes that `crc32` covers."""


class ChunkedDigest:
    """Digests of a range that arrives as consecutive blocks.

    Create one object per range, `feed` it, and read `chunks`.
    """

    __slots__ = (
        "_begin",
        "_chunk",
        "_chunk_begin",
        "_crc",
        "_crc_end",
        "_done",
        "_offset",
        "_single",
        "_whole",
    )

    def __init__(
        self, begin: int, *, want_xxh: bool, crc_end: int | None, single: bool = False, is_whole_file: bool = True
    ) -> None:
        """Start at byte `begin` of the file.

        Args:
            begin: First byte of the range.
            want_xxh: Whether to compute hashes.
            crc_end: First byte that the CRC32 does not cover; None for no CRC32.
            single: Whether the range is known to be inside one chunk, so that it is hashed once, not twice.
            is_whole_file: Whether to also hash the complete range, which hashes every byte a second time.
        """
        self._begin = self._chunk_begin = self._offset = begin
        self._crc_end = crc_end
        self._crc = 0
        self._done: list[ChunkDigest] = []
        self._single = single
        self._chunk = _new_hash() if want_xxh else None
        self._whole = _new_hash() if want_xxh and is_whole_file and not single else None

    def feed(self, data: memoryview) -> None:
        """Process the next bytes.

        Raises:
            ValueError: The range was declared as a single chunk but is not.
        """
        while len(data):
            if self._single and self._done:
                raise ValueError(f"a single chunk was announced, but byte {self._offset} is in another one")
            border = (self._offset // CHUNK_BYTES + 1) * CHUNK_BYTES
            part = data[: border - self._offset]
            self._feed_part(part)
            self._offset += len(part)
            if self._offset == border:
                self._close_chunk()
            data = data[len(part) :]

    def _feed_part(self, part: memoryview) -> None:
        if self._crc_end is not None and self._offset < self._crc_end:
            self._crc = crc32(part[: self._crc_end - self._offset], self._crc)
        if self._chunk is not None:
            self._chunk.update(part)
        if self._whole is not None:
            self._whole.update(part)

    def _close_chunk(self) -> None:
        self._done.append(self._chunk_digest())
        self._chunk_begin, self._crc = self._offset, 0
        if self._chunk is not None and not self._single:
            self._chunk = _new_hash()

    def _chunk_digest(self) -> ChunkDigest:
        limit = self._chunk_begin if self._crc_end is None else max(self._chunk_begin, self._crc_end)
        return ChunkDigest(
            begin=self._chunk_begin,
            end=self._offset,
            xxh128=None if self._chunk is None else self._chunk.hexdigest(),
            crc32=None if self._crc_end is None else self._crc,
            crc_bytes=min(limit, self._offset) - self._chunk_begin,
        )

    def chunks(self) -> tuple[ChunkDigest, ...]:
        """Return the digests so far, including an incomplete chunk."""
        return (*self._done, self._chunk_digest()) if self._offset > self._chunk_begin else tuple(self._done)

    def xxh128(self) -> str | None:
        """Return the hash of all bytes fed, or None if it was not requested."""
        digest = self._chunk if self._single else self._whole
        return None if digest is None else digest.hexdigest()


def crc32_of_chunks(chunks: tuple[ChunkDigest, ...]) -> int | None:
    """Return the CRC32 over consecutive chunks, up to their `crc_end`, or None if there are no chunks.

    Raises:
        ValueError: The chunks do not follow one another.
    """
    value: int | None = None
    for chunk in _in_a_row(chunks):
        if chunk.crc32 is not None:
            value = join_crc32(value or 0, chunk.crc32, chunk.crc_bytes)
    return value


def _in_a_row(chunks: tuple[ChunkDigest, ...]) -> tuple[ChunkDigest, ...]:
    for before, after in pairwise(chunks):
        if before.end != after.begin:
            raise ValueError(f"chunks do not join: one ends at {before.end}, the next begins at {after.begin}")
    return chunks


def _new_hash() -> xxhash.xxh3_128:
    import xxhash

    return xxhash.xxh3_128()
