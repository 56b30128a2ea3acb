"""safetensors files: eight bytes with the header's length, a JSON header, and the tensors' bytes without gaps.

Source: The format section of the safetensors README, and the metadata that MindSpore's `save_checkpoint` writes.
"""

from __future__ import annotations

import re
from threading import Lock
from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import Code, Finding, damage, note
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.scalars import RequestedScalar, ShardFacts
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.formats.base import (
    CHECKSUM_KEY,
    CRC_LIMIT,
    LAST_PAGE_BYTES,
    LENGTH_BYTES,
    Checksum,
    Header,
    over_limit,
    unread_header,
)
from ckpttool.core.formats.front import Front
from ckpttool.core.formats.safetensors import ALIGNMENT
from ckpttool.core.formats.scalars import ScalarPlan, ScalarReading, plan_scalars, read_scalars

if TYPE_CHECKING:
    from ckpttool.core.formats.safetensors.header import HeaderText

_FORMAT_LIMIT = 100_000_000
"""Maximum size of a header in bytes, as defined by the format; 200,000 tensors need about 19 MB."""
_WIDE_LIMIT = _FORMAT_LIMIT // 4
"""Maximum size of a non-ASCII header in bytes.

A single four-byte character makes every character of a Python string take four bytes.
"""


class Safetensors:
    """The safetensors format."""

    name = FormatName.SAFETENSORS

    def header(self, source: Front, head: bytes, facts: ShardFacts) -> Header:
        """Read and check the header, the size of the file, and the requested scalars.

        `bytes_read` counts the needed bytes without read-ahead, so it is the same in every run.
        """
        length = int.from_bytes(head[:LENGTH_BYTES], "little")
        data_begin = LENGTH_BYTES + length
        if refusal := _refuse_length(length, source.stamp.size):
            return unread_header(self.name, refusal, bytes_read=len(head))
        source.extend(data_begin)
        bytes_read = max(len(head), min(data_begin, source.length))
        if source.length < data_begin:  # truncated after the file was opened
            finding = _truncated(data_begin, source.length, "its header")
            return unread_header(self.name, finding, bytes_read=bytes_read)
        source.expect_again(data_begin)
        if length > _WIDE_LIMIT and not bytes(memoryview(source.block)[LENGTH_BYTES:data_begin]).isascii():
            finding = over_limit(
                f"The header has {length} bytes and is not ASCII; ckpttool reads at most {_WIDE_LIMIT} bytes of "
                f"such a header."
            )
            return unread_header(self.name, finding, bytes_read=bytes_read)
        try:
            parsed, digits = _parse(source.block, data_begin, facts.scalars)
        except UnicodeDecodeError as error:
            finding = damage(Code.HEADER_INVALID, f"The header is not UTF-8: {error.reason} at its byte {error.start}.")
            return unread_header(self.name, finding, bytes_read=bytes_read)
        metadata = parsed.text.metadata
        if digits is not None:
            metadata = tuple((key, digits if key == CHECKSUM_KEY else value) for key, value in metadata)
        return _checked(source, parsed, metadata, bytes_read)


def _checked(source: Front, header: ParsedHeader, metadata: tuple[tuple[str, str], ...], bytes_read: int) -> Header:
    """Return the header with findings about the rest of the file."""
    text = header.text
    checksum, findings = _checksum(metadata, source.stamp.size)
    findings = [*text.findings, *findings]
    if text.schema_hash is not None:
        findings += _wrong_size(source.stamp.size, header.data_begin + text.data_bytes)
    if not (text.findings or header.is_canonical):
        findings.append(_NOT_CANONICAL)
    reading = ScalarReading(scalars=(), findings=(), bytes_read=0)
    if text.schema_hash is not None:
        if header.last_page is not None and header.scalars.last_read >= header.last_page[0]:
            source.keep(header.last_page)
        reading = read_scalars(source, header.scalars)
    return Header(
        format=FormatName.SAFETENSORS,
        entries=text.entries,
        scalars=reading.scalars,
        metadata=metadata,
        checksum=checksum,
        findings=(*findings, *reading.findings),
        bytes_read=bytes_read + reading.bytes_read,
        schema_hash=text.schema_hash,
        last_page=header.last_page,
    )


_NOT_CANONICAL = note(
    Code.HEADER_NOT_CANONICAL,
    "The header is valid, but not as safetensors or MindSpore writes it: another tool wrote it, or one bit flipped.",
)


def _refuse_length(length: int, size: int) -> Finding | None:
    """Return a finding if a header of this length must not be read; otherwise None."""
    if length > _FORMAT_LIMIT:
        return damage(
            Code.HEADER_INVALID,
            f"The file declares a header of {length} bytes; the format allows {_FORMAT_LIMIT}.",
            expected=f"<= {_FORMAT_LIMIT}",
            actual=str(length),
        )
    if LENGTH_BYTES + length > size:
        return _truncated(LENGTH_BYTES + length, size, "its header")
    return None


def _wrong_size(size: int, end: int) -> list[Finding]:
    if size < end:
        return [_truncated(end, size, "the last tensor")]
    if size > end:
        return [
            damage(
                Code.TRAILING_BYTES,
                f"The last tensor ends at byte {end}, but the file continues to {size}.",
                expected=str(end),
                actual=str(size),
            )
        ]
    return []


def _truncated(expected: int, actual: int, fault: str) -> Finding:
    return damage(
        Code.SHARD_TRUNCATED,
        f"The file ends at byte {actual}, but {fault} ends at {expected}.",
        expected=str(expected),
        actual=str(actual),
    )


# --- checksum --------------------------------------------------------------------------------------------------------


def _checksum(metadata: tuple[tuple[str, str], ...], size: int) -> tuple[Checksum | None, list[Finding]]:
    """Return the CRC-32 that MindSpore adds with `crc_check`, if there is one, and the problems with it."""
    text = dict(metadata).get(CHECKSUM_KEY)
    if text is None:
        return None, []
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(CRC_LIMIT)) and int(text) < CRC_LIMIT):
        return None, [
            damage(
                Code.HEADER_INVALID,
                f"{CHECKSUM_KEY} in the metadata is not a CRC-32: {text[:40]!r}.",
                expected="a number below 2^32",
                actual=text[:40],
            )
        ]
    return Checksum(algorithm="crc32-entries", value=int(text), end=size), []


# --- headers repeat --------------------------------------------------------------------------------------------------

# The digits of a checksum in a header that safetensors wrote. No brace or backslash precedes them, so they are in a
# string inside `__metadata__`. The pattern is compiled with the first header, because most trees have no such header.
_CRC_DIGITS = rb'\{"__metadata__":\{[^{}\\]*"crc_num":"([0-9]*)"'


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedHeader:
    """Results that depend only on a header's bytes and the requested scalars."""

    text: HeaderText
    data_begin: int
    """End of the header."""
    is_canonical: bool
    """Whether safetensors itself would write the same bytes, including the padding."""
    requested: tuple[RequestedScalar, ...]
    scalars: ScalarPlan
    """Positions of the requested scalars."""
    last_page: tuple[int, int] | None


def _parse(block: bytearray, end: int, requested: tuple[RequestedScalar, ...]) -> tuple[ParsedHeader, str | None]:
    """Return a parsed header, from the cache if possible.

    Data-parallel ranks and successive steps have the same headers.

    Args:
        block: Bytes that begin with the header and its length; later bytes are ignored.
        end: End of the header.
        requested: The requested scalars.

    Returns:
        The parsed header, whose metadata may contain the checksum of another file; and this file's checksum.

    Raises:
        UnicodeDecodeError: The header is not valid UTF-8.
    """
    digits = re.compile(_CRC_DIGITS).match(block, LENGTH_BYTES, end)
    hole = (end, end) if digits is None else digits.span(1)
    header = _MEMORY.get(block, end, hole)
    if header is None:
        if end > _MEMORY.limit:  # it would not fit together with another header
            _MEMORY.clear()
        header = _parsed(block, end, requested)
        if not header.text.findings:
            _MEMORY.put(block, end, hole, header)
    elif header.requested != requested:
        header = replace(header, requested=requested, scalars=plan_scalars(header.text.entries, requested))
        _MEMORY.put(block, end, hole, header)
    return header, None if digits is None else digits[1].decode()


def _parsed(block: bytearray, end: int, requested: tuple[RequestedScalar, ...]) -> ParsedHeader:
    """Parse a header that is not in the cache.

    Raises:
        UnicodeDecodeError: The header is not valid UTF-8.
    """
    view = memoryview(block)
    last = bytes(view[max(LENGTH_BYTES, end - ALIGNMENT) : end])
    padding = len(last) - len(last.rstrip(b" "))
    text = str(view[LENGTH_BYTES : end - padding], "utf-8").rstrip(" ")
    from ckpttool.core.formats.safetensors.header import parse_strictly  # not needed for a tree of `.ckpt` files

    parsed = parse_strictly(text, data_begin=end)
    page = None
    if parsed.entries and not parsed.findings:  # in this case the tensors fill the file from here
        page = max(end, end + parsed.data_bytes - LAST_PAGE_BYTES), end + parsed.data_bytes
    return ParsedHeader(
        text=parsed,
        data_begin=end,
        is_canonical=parsed.canonical and padding < ALIGNMENT and (end - LENGTH_BYTES) % ALIGNMENT == 0,
        requested=requested,
        scalars=plan_scalars(parsed.entries, requested),
        last_page=page,
    )


_Bytes = tuple[bytes, bytes]
"""The bytes of a header before and after the digits of its checksum, including the length."""


class HeaderMemory:
    """Cache of parsed headers by their bytes, which threads may share; the oldest are dropped first."""

    def __init__(self, *, limit: int) -> None:
        """Create a cache of up to `limit` bytes of headers.

        The newest header is always cached. Parsed headers are about ten times as large.
        """
        self.limit = limit
        self._held: dict[int, tuple[_Bytes, ParsedHeader]] = {}
        self._last: tuple[_Bytes, ParsedHeader] | None = None
        """Last request, because the next rank's request is nearly always the same."""
        self._bytes = 0
        self._lock = Lock()

    def get(self, block: bytearray, end: int, hole: tuple[int, int]) -> ParsedHeader | None:
        """Return the cached result for a header; None if it is not in the cache.

        Args:
            block: Bytes that begin with the header.
            end: End of the header.
            hole: Part of the header that is ignored.
        """
        header = self._last
        if header is None or not _are_equal(header[0], block, end, hole):
            header = self._held.get(_fingerprint(block, end, hole))
            # The fingerprint only finds candidates; the bytes themselves decide.
            if header is None or not _are_equal(header[0], block, end, hole):
                return None
            self._last = header
        return header[1]

    def put(self, block: bytearray, end: int, hole: tuple[int, int], parsed: ParsedHeader) -> None:
        """Add the result for a header, and drop the oldest headers if the cache is full."""
        view = memoryview(block)
        key = bytes(view[: hole[0]]), bytes(view[hole[1] : end])
        fingerprint = _fingerprint(block, end, hole)
        with self._lock:
            self._forget(fingerprint)
            self._bytes += len(key[0]) + len(key[1])
            self._held[fingerprint] = (key, parsed)
            while self._bytes > self.limit and len(self._held) > 1:
                self._forget(next(iter(self._held)))

    def _forget(self, fingerprint: int) -> None:
        header = self._held.pop(fingerprint, None)
        if header is not None:
            self._bytes -= len(header[0][0]) + len(header[0][1])
            if header is self._last:
                self._last = None

    def clear(self) -> None:
        """Clear the cache."""
        with self._lock:
            self._held.clear()
            self._last = None
            self._bytes = 0


def _are_equal(cached: _Bytes, block: bytearray, end: int, hole: tuple[int, int]) -> bool:
    before, after = cached
    return (
        (len(before), len(after)) == (hole[0], end - hole[1])
        # Slices would be copies, and memoryviews are compared element by element.
        and block.startswith(before)
        and block.startswith(after, hole[1])
    )


def _fingerprint(block: bytearray, end: int, hole: tuple[int, int]) -> int:
    from xxhash import xxh3_64  # several times as fast as `hash(bytes)`

    view = memoryview(block)
    digest = xxh3_64(view[: hole[0]])
    digest.update(view[hole[1] : end])
    return int(digest.intdigest())


_MEMORY = HeaderMemory(limit=2 * 1024 * 1024)


def forget_headers() -> None:
    """Clear the header cache, so that a benchmark parses each header for the first time."""
    _MEMORY.clear()
