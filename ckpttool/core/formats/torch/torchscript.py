"""TorchScript's source code in an archive of `torch.jit.save`, which is decompressed in chunks and discarded.

Source: `torch/csrc/jit/serialization/export_module.cpp` of torch 2.13: it compresses the records of `code/`, texts of a
few kilobytes each, and no others.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from ckpttool.core.domain.finding import Code, Finding, damage, unknown
from ckpttool.core.formats.torch.zip_directory import Deflated
from ckpttool.core.storage.base import ByteSource

MOST_BYTES = 64 << 20
"""Maximum number of decompressed bytes per archive; the source of the largest models has a few megabytes."""
_PIECE = 64 << 10
_RAW = -15
"""Window bits of zlib for a stream without a header, as in zip files."""


def look_at_code(source: ByteSource, records: Iterable[Deflated]) -> tuple[tuple[Finding, ...], int]:
    """Compare compressed records with their CRC32s.

    Args:
        source: The open file.
        records: The compressed records of the archive.

    Returns:
        The finding about the first damaged record, without a path, and the number of bytes read.

    Raises:
        OSError: The disk did not answer.
    """
    inflated = nbytes = 0
    for record in records:
        inflated += record.size
        if inflated > MOST_BYTES:
            message = (
                f"The archive of torch.jit.save has more than {MOST_BYTES >> 20} MiB of compressed source, which "
                f"ckpttool does not decompress."
            )
            return (unknown(Code.UNSUPPORTED_FORMAT, message),), nbytes
        nbytes += record.record.end - record.record.begin
        if (why := _fault(source, record)) is not None:
            message = f"The compressed record '{record.record.name[:120]}' is damaged: {why}."
            return (damage(Code.CHECKSUM_MISMATCH, message),), nbytes
    return (), nbytes


def _fault(source: ByteSource, record: Deflated) -> str | None:
    """Return why a record does not match its headers; None if it matches."""
    inflater = zlib.decompressobj(_RAW)
    crc = size = 0
    at, end = record.record.begin, record.record.end
    pending = b""
    try:
        while not inflater.eof and size <= record.size:
            if not pending:
                pending = source.read(at, min(_PIECE, end - at))
                at += len(pending)
                if not pending:
                    return "it is truncated"
            piece = inflater.decompress(pending, _PIECE)
            pending = inflater.unconsumed_tail
            size += len(piece)
            crc = zlib.crc32(piece, crc)
    except zlib.error as error:
        return str(error)
    if size != record.size or inflater.unused_data or at < end:
        return f"it does not decompress to {record.size} bytes"
    return None if crc == record.record.crc32 else f"CRC32 {crc:08x} instead of {record.record.crc32:08x}"
