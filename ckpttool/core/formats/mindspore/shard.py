"""MindSpore's `.ckpt`: consecutive protobuf records, followed by a CRC-32 if `crc_check` was set.

A file that was truncated between two records is still valid, and only other ranks' files can show the loss. This module
reports the damage that a single file shows.

Source: `_exec_save`, `_write_parameter_bytes_data` and `_parse_ckpt_proto` in MindSpore's train/serialization.py.
"""

from __future__ import annotations

from ckpttool.core.domain.finding import Code, Finding, unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.scalars import ShardFacts
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.formats.base import (
    CRC_LIMIT,
    ENCRYPTED,
    MAX_FINDINGS,
    RECORD,
    Checksum,
    Header,
    last_page,
    over_limit,
    schema_hash,
    schema_rows,
    unread_header,
)
from ckpttool.core.formats.mindspore.records import MAX_RECORD_HEAD, BadRecordError, Record, RecordReader, Tensors, bad
from ckpttool.core.formats.scalars import plan_scalars, read_scalars
from ckpttool.core.storage.base import ByteSource

# With `crc_check`, `_exec_save` writes this mark and ten bytes after the last record.
_MARK = b"crc_num"
_TRAILER_BYTES = len(_MARK) + 10

_MAX_RECORDS = 300_000
"""Maximum number of records: fifty times as many as in the largest models, with less than 256 MB of stored data."""

_LOOK_AHEAD = 512
"""Number of bytes per read if tensors are big: nearly always enough for a record without its content."""

_FAR_AHEAD = 64 * 1024
"""Number of bytes per read if tensors are small: enough for many records."""

_BIG = 8 * 1024
"""Size in bytes above which copying a tensor takes longer than another call."""


class MindSporeCkpt:
    """MindSpore's `.ckpt` format."""

    name = FormatName.MINDSPORE_CKPT

    def header(self, source: ByteSource, head: bytes, facts: ShardFacts) -> Header:
        """Read all records in order, but no contents except the requested scalars."""
        if head.startswith(ENCRYPTED):
            return unread_header(self.name, _ENCRYPTED_FILE, bytes_read=len(head))
        walk = _Walk(source, head)
        walk.run()
        entries = walk.tensors.entries
        reading = read_scalars(source, plan_scalars(entries, facts.scalars))
        return Header(
            format=self.name,
            entries=tuple(entries),
            scalars=reading.scalars,
            metadata=(),
            checksum=walk.checksum,
            findings=(*walk.findings, *reading.findings),
            bytes_read=walk.bytes_read + reading.bytes_read,
            schema_hash=schema_hash(schema_rows(entries)) if walk.complete else None,
            last_page=last_page(entries),
        )


_ENCRYPTED_FILE = unknown(
    Code.UNSUPPORTED_FORMAT, "The file is encrypted by MindSpore (enc_key); ckpttool cannot check its content."
)


class _Walk:
    """One pass over the records of a file."""

    __slots__ = (
        "_base",
        "_data",
        "_reader",
        "_size",
        "_source",
        "bytes_read",
        "checksum",
        "complete",
        "findings",
        "tensors",
    )

    def __init__(self, source: ByteSource, head: bytes) -> None:
        self._source = source
        self._size = source.stamp.size
        self._data = head
        self._base = 0
        self._reader = RecordReader()
        self.bytes_read = len(head)
        self.tensors = Tensors()
        self.checksum: Checksum | None = None
        self.findings: list[Finding] = []
        self.complete = False
        """Whether the pass reached the end of the records."""

    def run(self) -> None:
        """Read records to the end of the file, or to the first unreadable record."""
        try:
            end = self._records()
            if end < self._size:
                self._load(end, MAX_RECORD_HEAD)
                self.checksum = read_trailer(self._data, offset=end, size=self._size)
            self.tensors.finish(may_be_cut=self.checksum is None)
            self.complete = True
        except BadRecordError as error:
            self.findings.append(error.finding)
        self.findings = [*self.tensors.findings, *self.findings]

    def _records(self) -> int:
        """Collect the records, and return the end of the last one, where the file ends or other content begins.

        Raises:
            BadRecordError: The next record cannot be located.
        """
        offset = 0
        for _ in range(_MAX_RECORDS):
            if offset >= self._size or (record := self._record(offset)) is None:
                return offset
            end = self._base + record.end
            if end > self._size:
                raise _cut(offset, end, self._size)
            self.tensors.add(record, self._base)
            if len(self.tensors.findings) >= MAX_FINDINGS:
                raise bad(Code.HEADER_INVALID, f"The records after byte {end} were not checked.")
            offset = end
        raise BadRecordError(
            over_limit(f"The file has more than {_MAX_RECORDS} records, the most that ckpttool reads.")
        )

    def _record(self, offset: int) -> Record | None:
        """Return the record at `offset`; None if there is other content."""
        if offset >= self._base + len(self._data):
            self._load(offset, _LOOK_AHEAD)
        try:
            return self._parse(offset)
        except IndexError:
            self._load(offset, MAX_RECORD_HEAD)
        try:
            return self._parse(offset)
        except IndexError:
            raise _cut(offset, None, self._size) from None

    def _parse(self, offset: int) -> Record | None:
        at = offset - self._base
        if self._data[at] != RECORD:
            return None
        try:
            return self._reader.read(self._data, at)
        except BadRecordError as error:
            message = f"The record at byte {offset} cannot be read: {error.finding.message}."
            raise BadRecordError(replace(error.finding, message=message)) from error

    def _load(self, offset: int, need: int) -> None:
        """Read from `offset`: a long range if records are small, only the needed bytes if they are big."""
        gap = offset - self._base - len(self._data)
        length = need if gap >= _BIG else max(need, _FAR_AHEAD)
        self._data = self._source.read(offset, min(length, self._size - offset))
        self._base = offset
        self.bytes_read += len(self._data)


def _cut(begin: int, end: int | None, size: int) -> BadRecordError:
    ends = "does not even contain its tensor's name and shape" if end is None else f"would end at {end}"
    return bad(
        Code.SHARD_TRUNCATED,
        f"The file ends at byte {size}, but the record that begins at byte {begin} {ends}.",
        expected=None if end is None else str(end),
        actual=str(size),
    )


def read_trailer(rest: bytes, *, offset: int, size: int) -> Checksum:
    """Read the checksum after the last record.

    Args:
        rest: The bytes of the file from `offset`, or at least enough of them for any record without its content.
        offset: End of the last record.
        size: Size of the file in bytes.

    Raises:
        BadRecordError: The content is not a checksum.
    """
    if not rest.startswith(_MARK[: len(rest)]):
        raise _misplaced(rest, offset, size)
    if size - offset < _TRAILER_BYTES:
        raise bad(
            Code.SHARD_TRUNCATED,
            f"The file ends at byte {size}, inside the checksum that begins at byte {offset}.",
            expected=str(offset + _TRAILER_BYTES),
            actual=str(size),
        )
    if size - offset > _TRAILER_BYTES:
        end = offset + _TRAILER_BYTES
        raise bad(
            Code.TRAILING_BYTES,
            f"The checksum ends at byte {end}, but the file continues to {size}.",
            expected=str(end),
            actual=str(size),
        )
    value = int.from_bytes(rest[len(_MARK) :], "big")
    if value >= CRC_LIMIT:
        raise bad(
            Code.HEADER_INVALID,
            f"The checksum after the last record is {value}, which is not a CRC-32.",
            expected="below 2^32",
            actual=str(value),
        )
    return Checksum(algorithm="crc32-file", value=value, end=offset)


def _misplaced(rest: bytes, offset: int, size: int) -> BadRecordError:
    """Return an error for bytes that are not a record, a checksum or the end of the file."""
    if not rest.strip(b"\0"):
        return bad(
            Code.ZERO_TAIL,
            f"From byte {offset} on, at least {len(rest)} bytes are zero; the file has {size}.",
            expected="a record or the end of the file",
            actual="zeros",
        )
    first = f"{rest[0]:02x}"
    try:
        # This is a complete record except for its first byte, so only that byte was damaged.
        RecordReader().read(bytes([RECORD]) + rest[1:], 0)
    except (BadRecordError, IndexError):
        return bad(
            Code.TRAILING_BYTES,
            f"The last record ends at byte {offset}, but the file continues to {size}, beginning with {first}.",
            expected=str(offset),
            actual=str(size),
        )
    return bad(
        Code.HEADER_INVALID,
        f"The record at byte {offset} begins with {first}, not with {RECORD:02x}.",
        expected=f"{RECORD:02x}",
        actual=first,
    )
