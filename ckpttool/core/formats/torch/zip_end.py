"""The end of a zip archive, which contains the position of its directory."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Protocol

from ckpttool.core.domain.finding import Code, Finding, Row, damage, suspect
from ckpttool.core.storage.base import ByteSource

_END = Struct("<4s4H2LH")
_LOCATOR = Struct("<4sLQL")
_END64 = Struct("<4sQ2H2L4Q")
_SEARCHED_BYTES = _END.size + 0xFFFF
"""Number of bytes to search for the end record: its own size, and the maximum length of a comment."""


class _Readable(Protocol):
    @property
    def size(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryPlace:
    """Position and expected contents of the directory."""

    begin: int = 0
    end: int = 0
    """First byte after the directory."""
    records: int = 0
    """Number of records according to the end of the archive."""
    findings: tuple[Finding, ...] = ()


def find_directory(source: _Readable) -> DirectoryPlace:
    """Read the 32-bit and 64-bit ends of the archive, and check that they agree.

    Raises:
        OSError: The disk did not answer.
    """
    tail_at = max(0, source.size - _END.size - _LOCATOR.size - _END64.size)
    tail = source.read(tail_at, source.size - tail_at)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < _END.size:  # there is a comment, or appended data
        tail_at = max(0, source.size - _SEARCHED_BYTES - _LOCATOR.size - _END64.size)
        tail = source.read(tail_at, source.size - tail_at)
        at = tail.rfind(b"PK\x05\x06")
        if at < 0 or len(tail) - at < _END.size:
            return _broken(
                Code.SHARD_TRUNCATED,
                f"The archive of {source.size} bytes has no end record: it was truncated, or much was appended to it.",
            )
    _, disk, first_disk, records_here, records, length, begin, comment = _END.unpack_from(tail, at)
    extra = _after_the_end(source.size, tail_at + at, comment)
    place = DirectoryPlace(begin=begin, end=begin + length, records=records, findings=extra)
    if disk or first_disk or records_here != records:
        return _broken(
            Code.HEADER_INVALID, f"The end record at byte {tail_at + at} describes an archive on several disks."
        )
    end = tail_at + at
    # If the archive has a comment, the locator may begin before the bytes read.
    before = max(0, end - _LOCATOR.size)
    locator = tail[at - _LOCATOR.size : at] if at >= _LOCATOR.size else source.read(before, end - before)
    if len(locator) == _LOCATOR.size and locator.startswith(b"PK\x06\x07"):
        place, end = _wide_place(source, locator, before, place)
        if not place.end:
            return place
    if place.end != end:
        return _broken(
            Code.HEADER_INVALID,
            f"The directory should be at bytes {place.begin} to {place.end}, but must end at {end}.",
            expected=str(end),
            actual=str(place.end),
        )
    return place


def _wide_place(
    source: _Readable, locator: bytes, locator_at: int, narrow: DirectoryPlace
) -> tuple[DirectoryPlace, int]:
    """Read the 64-bit end, and return the directory's position and the offset of this end.

    A position whose end is 0 is invalid.
    """
    _, disk, at, disks = _LOCATOR.unpack(locator)
    raw = source.read(at, _END64.size) if at + _END64.size <= locator_at else b""
    if len(raw) < _END64.size or not raw.startswith(b"PK\x06\x06") or disk or disks != 1:
        return _broken(Code.HEADER_INVALID, f"There is no 64-bit end record at byte {at}."), 0
    _, own_length, _, _, disk, first_disk, records_here, records, length, begin = _END64.unpack(raw)
    wide = DirectoryPlace(begin=begin, end=begin + length, records=records, findings=narrow.findings)
    agree = (
        at + 12 + own_length == locator_at
        and not (disk or first_disk)
        and records_here == records
        and narrow.records == min(records, 0xFFFF)
        and narrow.begin == min(begin, 0xFFFFFFFF)
        and narrow.end - narrow.begin == min(length, 0xFFFFFFFF)
    )
    if not agree:
        return _broken(Code.HEADER_INVALID, "The 32-bit and the 64-bit end records disagree."), 0
    return wide, at


def _after_the_end(size: int, end: int, comment: int) -> tuple[Finding, ...]:
    """Return a finding for bytes after the end of the archive, if there are any."""
    beyond = size - end - _END.size
    if beyond == 0 and comment == 0:
        return ()
    if beyond == comment:
        message = f"The archive ends in a comment of {comment} bytes; torch writes none."
        return (suspect(Code.TRAILING_BYTES, message),)
    message = f"The archive ends at byte {end + _END.size + comment}, but the file has {size}."
    code = Code.TRAILING_BYTES if beyond > comment else Code.SHARD_TRUNCATED
    return (damage(code, message),)


def _broken(code: Row, message: str, *, expected: str | None = None, actual: str | None = None) -> DirectoryPlace:
    finding = damage(code, message, expected=expected, actual=actual)
    return DirectoryPlace(findings=(finding,))


def archive_begin(source: ByteSource, end: int) -> tuple[int | None, int]:
    """Return the start of the archive that ends at a byte of a file, and the number of bytes read.

    The start is known from the archive's own end record.

    Returns:
        The start and the bytes read. The start is None if no gapless archive ends there, or if it would begin before
        the file.

    Raises:
        OSError: The disk did not answer.
    """
    at = max(0, end - _END.size - _LOCATOR.size - _END64.size)
    tail = source.read(at, end - at)
    if len(tail) < _END.size or tail[-_END.size :][:4] != b"PK\x05\x06":
        return None, len(tail)
    *_, length, begin, _ = _END.unpack(tail[-_END.size :])
    before = _END.size
    if len(tail) == _END64.size + _LOCATOR.size + _END.size and tail.startswith(b"PK\x06\x06"):
        *_, length, begin = _END64.unpack_from(tail)
        before = len(tail)
    begin_at = end - before - length - begin
    return begin_at if 0 <= begin_at < end else None, len(tail)
