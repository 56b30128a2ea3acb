"""safetensors: eight bytes of length, a JSON header, and the tensors' bytes without a gap.

Source: the format section of the safetensors README, and what MindSpore's `save_checkpoint` writes into it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from threading import Lock

from ckpttool.domain.finding import Code, Finding, Severity
from ckpttool.domain.shard import FormatName, Scalars
from ckpttool.read.formats.base import Checksum, Header, damage, failed_header, over_limit
from ckpttool.read.formats.safetensors_header import HeaderText, parse_strictly
from ckpttool.read.formats.safetensors_quick import parse_quickly
from ckpttool.read.formats.scalars import ScalarReading, read_scalars, scalar_entries
from ckpttool.read.storage import ByteSource

_LENGTH_BYTES = 8
_FORMAT_LIMIT = 100_000_000
"""The format itself allows no longer header."""
_OUR_LIMIT = 16 * 1024 * 1024
"""Room for some 100,000 tensors; parsing a longer header takes more memory than a checker should."""
_WIDE_LIMIT = 4 * 1024 * 1024
"""The same where it is not ASCII: one character that needs four bytes makes all of them need four."""
_ALIGNMENT = 8
"""safetensors pads the header with the fewest spaces that make its length a multiple of this."""


class Safetensors:
    """The format that MindSpore writes as `.safetensors`."""

    name = FormatName.SAFETENSORS

    def recognise(self, head: bytes) -> bool:
        """Tell by the brace after the length: the header MUST begin with it."""
        return head[_LENGTH_BYTES : _LENGTH_BYTES + 1] == b"{"

    def header(self, source: ByteSource, head: bytes) -> Header:
        """Read and check the header, the size of the file, and the training scalars."""
        length = int.from_bytes(head[:_LENGTH_BYTES], "little")
        data_begin = _LENGTH_BYTES + length
        if refusal := _refuse_length(length, source.stamp.size):
            return failed_header(self.name, refusal, bytes_read=len(head))
        raw = head[_LENGTH_BYTES:data_begin]
        if data_begin > len(head):
            raw += source.read(len(head), data_begin - len(head))
        bytes_read = max(len(head), _LENGTH_BYTES + len(raw))
        if len(raw) < length:  # cut since it was opened
            finding = _truncated(data_begin, _LENGTH_BYTES + len(raw), "its header")
            return failed_header(self.name, finding, bytes_read=bytes_read)
        if length > _WIDE_LIMIT and not raw.isascii():
            finding = over_limit(
                f"The header has {length} bytes and is not ASCII; ckpttool reads {_WIDE_LIMIT} of such."
            )
            return failed_header(self.name, finding, bytes_read=bytes_read)
        try:
            parsed = _parse(raw, data_begin)
        except UnicodeDecodeError as error:
            finding = damage(Code.HEADER_INVALID, f"The header is no UTF-8: {error.reason} at its byte {error.start}.")
            return failed_header(self.name, finding, bytes_read=bytes_read)
        return _checked(source, parsed, raw, bytes_read)


def _checked(source: ByteSource, parsed: HeaderText, raw: bytes, bytes_read: int) -> Header:
    """Add to what the header says what the rest of the file says."""
    data_begin = _LENGTH_BYTES + len(raw)
    checksum, crc_findings = _checksum(parsed, source.stamp.size)
    findings = [*parsed.findings, *crc_findings]
    if parsed.schema_hash is not None:
        findings += _wrong_size(source.stamp.size, data_begin + parsed.data_bytes)
    if not parsed.findings and not (parsed.canonical and _is_padded_canonically(raw)):
        findings.append(_NOT_CANONICAL)
    reading = ScalarReading(scalars=Scalars(), findings=(), bytes_read=0)
    if parsed.schema_hash is not None:
        reading = read_scalars(source, scalar_entries(parsed.entries))
    return Header(
        format=FormatName.SAFETENSORS,
        entries=parsed.entries,
        scalars=reading.scalars,
        metadata=parsed.metadata,
        checksum=checksum,
        findings=(*findings, *reading.findings),
        bytes_read=bytes_read + reading.bytes_read,
        schema_hash=parsed.schema_hash,
    )


_NOT_CANONICAL = Finding(
    code=Code.HEADER_NOT_CANONICAL,
    severity=Severity.NOTE,
    message="The header is valid, but safetensors and MindSpore spell or order it otherwise: another tool wrote it, "
    "or a bit of it has flipped.",
)


def _refuse_length(length: int, size: int) -> Finding | None:
    """Tell why a header of this length is not even read, if it is not."""
    if length > _FORMAT_LIMIT:
        return damage(
            Code.HEADER_INVALID,
            f"The file declares a header of {length} bytes; the format allows {_FORMAT_LIMIT}.",
            expected=f"<= {_FORMAT_LIMIT}",
            actual=str(length),
        )
    if _LENGTH_BYTES + length > size:
        return _truncated(_LENGTH_BYTES + length, size, "its header")
    if length > _OUR_LIMIT:
        return over_limit(f"The header has {length} bytes; ckpttool reads at most {_OUR_LIMIT}.")
    return None


def _wrong_size(size: int, end: int) -> list[Finding]:
    if size < end:
        return [_truncated(end, size, "the last tensor")]
    if size > end:
        return [
            damage(
                Code.TRAILING_BYTES,
                f"The last tensor ends at byte {end}, but the file goes on to {size}.",
                expected=str(end),
                actual=str(size),
            )
        ]
    return []


def _truncated(expected: int, actual: int, what: str) -> Finding:
    return damage(
        Code.SHARD_TRUNCATED,
        f"The file ends at byte {actual}, but {what} ends at {expected}.",
        expected=str(expected),
        actual=str(actual),
    )


def _is_padded_canonically(raw: bytes) -> bool:
    return len(raw) % _ALIGNMENT == 0 and len(raw) - len(raw.rstrip(b" ")) < _ALIGNMENT


# --- checksum --------------------------------------------------------------------------------------------------------

_CRC_KEY = "crc_num"
_CRC_LIMIT = 2**32


def _checksum(parsed: HeaderText, size: int) -> tuple[Checksum | None, list[Finding]]:
    """Recognise the CRC-32 that MindSpore adds with `crc_check`."""
    text = dict(parsed.metadata).get(_CRC_KEY)
    if text is None:
        return None, []
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_CRC_LIMIT)) and int(text) < _CRC_LIMIT):
        return None, [
            damage(
                Code.HEADER_INVALID,
                f"The metadata's {_CRC_KEY} is no CRC-32: {text[:40]!r}.",
                expected="a number below 2^32",
                actual=text[:40],
            )
        ]
    return Checksum(algorithm="crc32-entries", value=int(text), end=size), []


# --- headers repeat --------------------------------------------------------------------------------------------------

# Where the digits of a checksum stand in a header that safetensors wrote. No brace and no backslash before them: so
# they lie inside `__metadata__`, and in a string.
_CRC_DIGITS = re.compile(rb'\{"__metadata__":\{[^{}\\]*"crc_num":"([0-9]*)"')


def _parse(raw: bytes, data_begin: int) -> HeaderText:
    """Parse a header, or remember it: data-parallel ranks and successive steps have the same one.

    Raises:
        UnicodeDecodeError: It is no UTF-8.
    """
    digits = _CRC_DIGITS.match(raw)
    if digits is None:
        return _remembered(raw, raw, data_begin)
    begin, end = digits.span(1)
    parsed = _remembered(raw[:begin] + raw[end:], raw, data_begin)
    if parsed.findings:
        return parsed
    metadata = {**dict(parsed.metadata), _CRC_KEY: digits[1].decode()}
    return replace(parsed, metadata=tuple(sorted(metadata.items())))


def _remembered(key: bytes, raw: bytes, data_begin: int) -> HeaderText:
    if known := _MEMORY.get(key, data_begin):
        return known
    text = raw.decode().rstrip(" ")
    parsed = parse_quickly(text, data_begin=data_begin) or parse_strictly(text, data_begin=data_begin)
    if not parsed.findings:
        _MEMORY.put(key, data_begin, parsed)
    return parsed


class HeaderMemory:
    """Parsed headers by their bytes, oldest out first. Safe to share between threads."""

    def __init__(self, *, limit: int) -> None:
        """Keep headers of `limit` bytes in total; what they parse to takes some ten times as much."""
        self._limit = limit
        self._held: dict[int, tuple[bytes, int, HeaderText]] = {}
        self._bytes = 0
        self._lock = Lock()

    def get(self, key: bytes, data_begin: int) -> HeaderText | None:
        """Return what a header parsed to, if it is still known."""
        known = self._held.get(_fingerprint(key))
        # The fingerprint only finds; the bytes themselves decide.
        return known[2] if known and known[1] == data_begin and known[0] == key else None

    def put(self, key: bytes, data_begin: int, parsed: HeaderText) -> None:
        """Keep what a header parsed to, and forget the oldest where that is too much."""
        if len(key) > self._limit:
            return
        with self._lock:
            replaced = self._held.pop(_fingerprint(key), None)
            self._bytes += len(key) - (len(replaced[0]) if replaced else 0)
            self._held[_fingerprint(key)] = (key, data_begin, parsed)
            while self._bytes > self._limit:
                oldest = next(iter(self._held))
                self._bytes -= len(self._held.pop(oldest)[0])

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._held.clear()
            self._bytes = 0


def _fingerprint(key: bytes) -> int:
    from xxhash import xxh3_64_intdigest  # several times as fast as `hash(bytes)`

    return xxh3_64_intdigest(key)


_MEMORY = HeaderMemory(limit=2 * 1024 * 1024)


def forget_headers() -> None:
    """Forget every header, so that a benchmark can see each for the first time."""
    _MEMORY.clear()
