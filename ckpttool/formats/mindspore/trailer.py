"""What stands behind the last record of a MindSpore `.ckpt`: nothing, a CRC-32, or what does not belong there.

Source: with `crc_check`, `_exec_save` in MindSpore's train/serialization.py writes `crc_num` and ten bytes.
"""

from __future__ import annotations

from ckpttool.domain.finding import Code, damage
from ckpttool.formats.base import CRC_LIMIT, Checksum
from ckpttool.formats.mindspore.wire import RECORD, BadRecordError, RecordReader

_MARK = b"crc_num"
_TRAILER_BYTES = len(_MARK) + 10


def read_trailer(rest: bytes, *, offset: int, size: int) -> Checksum:
    """Read the checksum behind the last record.

    Args:
        rest: The file from `offset` on, or as much of it as holds the head of any record.
        offset: Where the last record ends.
        size: Bytes of the file.

    Raises:
        BadRecordError: It is no checksum.
    """
    if not rest.startswith(_MARK[: len(rest)]):
        raise _misplaced(rest, offset, size)
    if size - offset < _TRAILER_BYTES:
        raise BadRecordError(
            damage(
                Code.SHARD_TRUNCATED,
                f"The file ends at byte {size}, inside the checksum that begins at byte {offset}.",
                expected=str(offset + _TRAILER_BYTES),
                actual=str(size),
            )
        )
    if size - offset > _TRAILER_BYTES:
        end = offset + _TRAILER_BYTES
        raise BadRecordError(
            damage(
                Code.TRAILING_BYTES,
                f"The checksum ends at byte {end}, but the file goes on to {size}.",
                expected=str(end),
                actual=str(size),
            )
        )
    value = int.from_bytes(rest[len(_MARK) :], "big")
    if value >= CRC_LIMIT:
        raise BadRecordError(
            damage(
                Code.HEADER_INVALID,
                f"The checksum behind the last record is {value}, which is no CRC-32.",
                expected="below 2^32",
                actual=str(value),
            )
        )
    return Checksum(algorithm="crc32-file", value=value, end=offset)


def _misplaced(rest: bytes, offset: int, size: int) -> BadRecordError:
    """Name what stands where a record, a checksum or the end of the file should be."""
    if not rest.strip(b"\0"):
        return BadRecordError(
            damage(
                Code.ZERO_TAIL,
                f"From byte {offset} on, {len(rest)} bytes or more are zero; the file has {size}.",
                expected="a record or the end of the file",
                actual="zeros",
            )
        )
    first = f"{rest[0]:02x}"
    try:
        # A whole record but for its first byte: then that byte is what was damaged.
        RecordReader().read(bytes([RECORD]) + rest[1:], 0)
    except (BadRecordError, IndexError):
        return BadRecordError(
            damage(
                Code.TRAILING_BYTES,
                f"The last record ends at byte {offset}, but the file goes on to {size}, beginning with {first}.",
                expected=str(offset),
                actual=str(size),
            )
        )
    return BadRecordError(
        damage(
            Code.HEADER_INVALID,
            f"The record at byte {offset} begins with {first}, not with {RECORD:02x}.",
            expected=f"{RECORD:02x}",
            actual=first,
        )
    )
