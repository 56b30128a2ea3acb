"""Directory of a zip archive by `torch.save`: the position of each record, checked against the headers.

`zipfile` is not used, because it reads no local headers, decompresses all data, and takes four times as long. Nothing
here is decompressed, extracted or unpickled.

Source:
    APPNOTE.TXT 6.3.10 of PKWARE, and files written by torch 2.13. All records are stored. Flags are 0x0808, with CRC32
    and sizes zero in the local header and set in a descriptor after the data (16 bytes, or 24 if the record or its
    offset exceeds 4 GiB). An empty record has 0x0800 and no descriptor. The local header's extra field pads the data to
    64 bytes. The zip64 end of the directory always exists. There are no comments and no gaps. `torch.jit.save`
    compresses the records of the folder `code`, and no others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from struct import Struct
from typing import NamedTuple

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.finding import Code, Finding, Row, Severity, damage, suspect, unsafe
from ckpttool.core.domain.shard import TensorEntry
from ckpttool.core.formats.base import MAX_FINDINGS
from ckpttool.core.formats.torch.zip_end import DirectoryPlace, find_directory
from ckpttool.core.storage.base import ByteSource

MAX_DIRECTORY_BYTES = 16 << 20
"""Maximum size of the directory in bytes, because it is read into memory.

It is enough for about 200,000 records, a hundred times as many as large models have.
"""

# Versions, time and date are skipped here, because they are compared as bytes.
_unpack_central = Struct("<L4x2H4x3L4H2xLL").unpack_from
_CENTRAL_BYTES = 46
_CENTRAL_MARK = int.from_bytes(b"PK\x01\x02", "little")
_LOCAL_BYTES = 30
_NO_SIZES = bytes(12)
_SHORT_DESCRIPTOR_BYTES = 16
_LONG_DESCRIPTOR = Struct("<4sLQQ")
_WINDOW_BYTES = 512  # a descriptor, the next header and a few small records; a longer read would include tensor data
_HAS_DESCRIPTOR = 0x0008
_ALLOWED_FLAGS = 0x0808  # a descriptor, and names in UTF-8
_DOS_FOLDER = 0x10
_DEFLATE = 8
_SATURATED = 0xFFFFFFFF
_ZIP64_EXTRA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ZipEntry:
    """One record of an archive."""

    name: str
    crc32: int
    """Recorded CRC32; also 0 if the writer computed no CRC32."""
    begin: int
    """First byte of the record's data in the file."""
    end: int
    """First byte after the record's data."""

    def as_entry(self) -> TensorEntry:
        """Return the record as a byte range, for the pass that computes its CRC32."""
        return TensorEntry(
            name=self.name, dtype=DType.U8, shape=(self.end - self.begin,), spans=((self.begin, self.end),)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Deflated:
    """A compressed record of TorchScript's source."""

    record: ZipEntry
    """The record, whose CRC32 covers the decompressed data."""
    size: int
    """Recorded size of the decompressed data in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZipDirectory:
    """All records of an archive, and every inconsistency in the headers."""

    entries: tuple[ZipEntry, ...]
    """Records in file order, with disjoint data; empty if a finding is worse than suspect."""
    findings: tuple[Finding, ...]
    """Findings without a path, because the caller adds the path."""
    bytes_read: int
    deflated: tuple[Deflated, ...] = ()
    """Compressed records of an archive by `torch.jit.save`, which are not among the entries."""

    @property
    def verifiable(self) -> bool:
        """Whether the writer computed CRC32s.

        After `torch.serialization.set_crc32_options(False)`, all CRC32s are 0.
        """
        return any(entry.crc32 for entry in self.entries)


class _Record(NamedTuple):
    """One entry of the central directory; a tuple, because there can be 100,000."""

    offset: int
    """Offset of the record's local header."""
    name: bytes
    crc32: int
    packed: int
    """Number of bytes in the file; fewer than `size` if the record is compressed."""
    size: int
    least_end: int
    """Earliest possible end of the record's data, if its local header has no extra field."""
    flags: int
    is_deflated: bool
    head: bytes
    """The 24 bytes that the local header repeats: version, flags, method, time, date, CRC32, sizes, and name length."""


class _BadZipError(Exception):
    """An inconsistency in an archive."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def read_zip_directory(source: ByteSource) -> ZipDirectory:
    """Read the directory and all local headers of an archive, but no data.

    The content never causes an exception: damage and refusals are returned as findings.

    Raises:
        OSError: The disk did not answer.
    """
    window = _Window(source)
    place = find_directory(window)
    findings = list(place.findings)
    entries: tuple[ZipEntry | Deflated, ...] = ()
    try:
        if not _grave(findings):
            records = _central_records(window, place, findings)
            if not _grave(findings):
                entries = tuple(_local_entries(window, place, records, findings))
    except _BadZipError as bad:
        findings.append(bad.finding)
    if _grave(findings):
        entries = ()
    return ZipDirectory(
        entries=tuple(entry for entry in entries if isinstance(entry, ZipEntry)),
        deflated=tuple(entry for entry in entries if isinstance(entry, Deflated)),
        findings=tuple(findings[:MAX_FINDINGS]),
        bytes_read=window.bytes_read,
    )


class _Window:
    """Reader of small ranges that are often close together; it reads and caches one page at a time."""

    __slots__ = ("_begin", "_data", "_end", "_source", "bytes_read", "size")

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self.size: int = source.stamp.size
        self.bytes_read = self._begin = self._end = 0
        self._data = b""

    def read(self, offset: int, length: int) -> bytes:
        """Return these bytes from the disk; fewer only at the end of the file."""
        data = self._source.read(offset, length)
        self.bytes_read += len(data)
        return data

    def near(self, offset: int, length: int) -> bytes:
        """Return these bytes, from the cached page if possible."""
        at = offset - self._begin
        if at < 0 or offset + length > self._end:
            self._data = self.read(offset, max(length, _WINDOW_BYTES))
            self._begin, self._end, at = offset, offset + len(self._data), 0
        return self._data[at : at + length]


def _central_records(source: _Window, place: DirectoryPlace, findings: list[Finding]) -> list[_Record]:
    """Parse the central directory, and return its records sorted by offset."""
    if place.end - place.begin > MAX_DIRECTORY_BYTES:
        raise _refused(
            Code.OVER_LIMIT,
            f"The directory has {place.end - place.begin} bytes; ckpttool reads at most {MAX_DIRECTORY_BYTES}.",
        )
    data = source.read(place.begin, place.end - place.begin)
    records = []
    at = 0
    while at < len(data):
        record, at = _central_record(data, at, place.begin)
        records.append(record)
    if len(records) != place.records:
        raise _damaged(
            Code.ENTRIES_MISSING,
            f"The directory has {len(records)} records, but the end of the archive says {place.records}.",
            expected=str(place.records),
            actual=str(len(records)),
        )
    names = [record.name for record in records]
    if len(set(names)) < len(names):
        name, times = Counter(names).most_common(1)[0]
        raise _refused(Code.HEADER_INVALID, f"{times} records are named {_shown(name)}.")
    if not any(name.endswith(b"/constants.pkl") for name in names):
        _refuse_deflated(records)
    records.sort()
    findings.extend(_overlaps(records, place))
    return records


def _central_record(data: bytes, at: int, begin: int) -> tuple[_Record, int]:
    """Parse the record at `at` in the directory, and return it with the position of the next record.

    `begin` is the offset of the directory in the file.
    """
    if len(data) - at < _CENTRAL_BYTES:
        raise _damaged(
            Code.HEADER_INVALID, f"At byte {begin + at} there are {len(data) - at} bytes, but a record has at least 46."
        )
    mark, flags, method, crc, packed, size, names, extras, comments, disk, attributes, offset = _unpack_central(
        data, at
    )
    if mark != _CENTRAL_MARK:
        raise _damaged(Code.HEADER_INVALID, f"There is no directory record at byte {begin + at}, expected 504b0102.")
    name_end = at + _CENTRAL_BYTES + names
    following = name_end + extras + comments
    if following > len(data):
        raise _damaged(Code.HEADER_INVALID, f"The directory record at byte {begin + at} extends beyond the directory.")
    name = data[at + _CENTRAL_BYTES : name_end]
    if _SATURATED in (packed, size, offset):
        packed, size, offset = _zip64(data[name_end : name_end + extras], name, packed, size, offset)
    # TorchScript's source code.
    is_deflated = method == _DEFLATE and name.split(b"/")[1:2] == [b"code"]
    if (method and not is_deflated) or flags & ~_ALLOWED_FLAGS or disk:
        raise _not_stored(name, f"method {method}, flags {flags:#06x}, {packed} bytes for {size}")
    if packed != size and not is_deflated:
        raise _damaged(
            Code.HEADER_INVALID,
            f"The directory gives the uncompressed record {_shown(name)} two sizes: {packed} and {size} bytes.",
            expected=str(packed),
            actual=str(size),
        )
    if attributes & _DOS_FOLDER or name.endswith(b"/"):
        raise _refused(
            Code.HEADER_INVALID,
            f"The record {_shown(name)} is marked as a folder; torch returns uninitialized memory for it.",
        )
    least_end = offset + _LOCAL_BYTES + names + packed
    head = data[at + 6 : at + 30]
    return _Record(offset, name, crc, packed, size, least_end, flags, is_deflated, head), following


def _refuse_deflated(records: list[_Record]) -> None:
    """Raise an error for a compressed record, because torch.load would unpickle an archive that is not TorchScript."""
    for record in records:
        if record.is_deflated:
            raise _not_stored(record.name, f"method {_DEFLATE}, {record.packed} bytes for {record.size}")


def _not_stored(name: bytes, how: str) -> _BadZipError:
    return _refused(
        Code.UNSUPPORTED_FORMAT,
        f"The record {_shown(name)} is compressed or encrypted ({how}); torch stores records unchanged.",
    )


def _zip64(extra: bytes, name: bytes, *fields: int) -> tuple[int, int, int]:
    """Return (packed size, size, offset), with saturated values replaced by those in the zip64 extra field."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = int.from_bytes(extra[at : at + 2], "little"), int.from_bytes(extra[at + 2 : at + 4], "little")
        if kind == _ZIP64_EXTRA:
            body = extra[at + 4 : at + 4 + length]
            wide = iter([int.from_bytes(body[i : i + 8], "little") for i in range(0, len(body) // 8 * 8, 8)])
            packed, size, offset = fields
            # In the extra field the size precedes the packed size.
            size = next(wide, size) if size == _SATURATED else size
            packed = next(wide, packed) if packed == _SATURATED else packed
            offset = next(wide, offset) if offset == _SATURATED else offset
            return packed, size, offset
        at += 4 + length
    raise _damaged(Code.HEADER_INVALID, f"The record {_shown(name)} needs 64-bit sizes and has none.")


def _overlaps(records: list[_Record], place: DirectoryPlace) -> Iterator[Finding]:
    """Report records that overlap each other or the directory.

    Overlaps are one way to build a small file that expands to a large one.
    """
    for record, after in pairwise(records):
        if record.least_end > after.offset:
            yield _refused(
                Code.OFFSETS_NOT_CONTIGUOUS,
                f"The record {_shown(record.name)} ends at byte {record.least_end} or later, "
                f"but {_shown(after.name)} begins at {after.offset}.",
            ).finding
    if records and records[-1].least_end > place.begin:
        last = records[-1]
        yield _damaged(
            Code.OFFSETS_NOT_CONTIGUOUS,
            f"The record {_shown(last.name)} ends at byte {last.least_end} or later, "
            f"but the directory begins at {place.begin}.",
        ).finding


def _local_entries(
    source: _Window, place: DirectoryPlace, records: list[_Record], findings: list[Finding]
) -> Iterator[ZipEntry | Deflated]:
    """Compare every local header and descriptor with the directory, and yield the records with their data's start."""
    expected = 0
    for record, after in zip_longest(records, records[1:]):
        if record.offset != expected:
            findings.append(_gap(expected, record.offset, record.name))
        header = source.near(record.offset, _LOCAL_BYTES + len(record.name))
        _check_local(record, header)
        end = record.least_end + header[28] + (header[29] << 8)
        until = place.begin if after is None else after.offset
        expected = end
        if record.flags & _HAS_DESCRIPTOR and end <= until:
            expected += _check_descriptor(record, source.near(end, min(until - end, _LONG_DESCRIPTOR.size)))
        if expected > until:
            raise _refused(
                Code.OFFSETS_NOT_CONTIGUOUS,
                f"The record {_shown(record.name)} ends at byte {expected}, but the next part begins at {until}.",
            )
        entry = ZipEntry(name=_decoded(record.name), crc32=record.crc32, begin=end - record.packed, end=end)
        yield Deflated(record=entry, size=record.size) if record.is_deflated else entry
    if expected != place.begin:
        findings.append(_gap(expected, place.begin, b"the directory"))


def _check_local(record: _Record, header: bytes) -> None:
    head = record.head
    if header[:4] == b"PK\x03\x04" and header[30:] == record.name:
        if header[4:28] == head:
            return
        # The descriptor has the values that are zero in this header.
        if record.flags & _HAS_DESCRIPTOR and header[4:28] == head[:10] + _NO_SIZES + head[22:]:
            return
    raise _damaged(
        Code.HEADER_INVALID,
        f"The header at byte {record.offset} and the directory disagree about the record {_shown(record.name)}.",
    )


def _check_descriptor(record: _Record, tail: bytes) -> int:
    """Compare the descriptor after a record's data with the directory, and return its length."""
    if tail.startswith(b"PK\x07\x08" + record.head[10:22]):
        return _SHORT_DESCRIPTOR_BYTES
    # The descriptor has 64-bit sizes if the record or its offset exceeds 4 GiB, even if the directory does not.
    descriptor = (b"PK\x07\x08", record.crc32, record.packed, record.size)
    if len(tail) == _LONG_DESCRIPTOR.size and _LONG_DESCRIPTOR.unpack(tail) == descriptor:
        return _LONG_DESCRIPTOR.size
    raise _damaged(
        Code.HEADER_INVALID,
        f"The descriptor after the record {_shown(record.name)} and the directory disagree.",
        expected=f"CRC32 {record.crc32:08x}, {record.size} bytes",
        actual=tail.hex(" "),
    )


def _decoded(name: bytes) -> str:
    """Decode a name in the same way as torch; its bytes have already been compared."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise _damaged(Code.HEADER_INVALID, f"The name {_shown(name)} is not UTF-8.") from None
    if "\0" in text:
        raise _refused(Code.UNSAFE_NAME, f"The name {_shown(name)} contains a NUL: C programs read another name.")
    return text


def _shown(name: bytes) -> str:
    return repr(name[:120].decode(errors="backslashreplace"))


def _grave(findings: list[Finding]) -> bool:
    return any(finding.severity > Severity.SUSPECT for finding in findings)


def _gap(begin: int, end: int, before: bytes) -> Finding:
    return suspect(
        Code.OFFSETS_NOT_CONTIGUOUS,
        f"The bytes from {begin} to {end}, before {_shown(before)}, belong to no record; torch leaves no gaps.",
    )


def _damaged(code: Row, message: str, *, expected: str | None = None, actual: str | None = None) -> _BadZipError:
    return _BadZipError(damage(code, message, expected=expected, actual=actual))


def _refused(code: Row, message: str) -> _BadZipError:
    return _BadZipError(unsafe(code, message))
