"""The wire format of one record of a MindSpore `.ckpt`: a protobuf `Checkpoint.value`, without its tensor's bytes.

A file is nothing but such records, one after the other:

    0A len { 0A len tag   12 len { (08 dim)* | 0A len dims   12 len type   1A len content } }

Every protobuf library writes fields in this order, so another order is taken for damage. So are spare bytes inside a
record: they would be fields that MindSpore does not have. Field 3 in place of 2 is a map parameter.

Source: `checkpoint.proto` and `_exec_save` in MindSpore's train/serialization.py.
"""

from __future__ import annotations

from typing import NamedTuple

from ckpttool.domain.finding import Code, Finding, damage
from ckpttool.formats.base import MAX_DIMS, MAX_NAME_CHARS, over_limit

RECORD = 0x0A
"""First byte of every record: field 1, length-delimited."""

MAX_RECORD_HEAD = MAX_NAME_CHARS + 4096
"""Bytes from a record's begin to its tensor's content: a name, MAX_DIMS dims, a type and their lengths."""

_TAG = 0x0A
_TENSOR = 0x12
_MAP_TENSOR = 0x1A
_KINDS = frozenset({_TENSOR, _MAP_TENSOR})
_DIM = 0x08
_PACKED_DIMS = 0x0A
_TYPE = 0x12
_CONTENT = 0x1A
_MAX_TYPE_BYTES = 64
_MAX_VARINT_BYTES = 10
_MAX_KNOWN = 1000
_MAX_INT64 = 2**63 - 1


class Record(NamedTuple):
    """One record. Positions count from the begin of the buffer that it was read from."""

    tag: bytes
    type: bytes | None
    """None for a map parameter, whose content is not looked into."""
    dims: tuple[int, ...]
    begin: int
    """First byte of the tensor's content."""
    end: int
    """First byte after the content, and after the record."""


class BadRecordError(Exception):
    """The bytes here are no record, and nothing behind them can be found: lengths lead from one record to the next."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


class RecordReader:
    """Reads the heads of records. The tensors of a model share few shapes, so it remembers how each was spelled."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, tuple[bytes, bytes, tuple[int, ...]]] = {}
        """By the length of a tensor: what precedes its content, and the type and dims that it says."""

    def read(self, buffer: bytes, at: int) -> Record:
        """Read the head of the record that begins at `at`.

        Args:
            buffer: A part of the file; the content itself need not be in it.
            at: Where in the buffer the record begins: a byte `RECORD` stands there.

        Raises:
            IndexError: The buffer ends before the content begins.
            BadRecordError: This is no record.
        """
        length, at = _varint(buffer, at + 1)
        end = at + length
        if buffer[at] != _TAG:
            raise _bad(f"the byte {buffer[at]:02x} stands where its tensor's name should begin")
        length, at = _varint(buffer, at + 1)
        if length > MAX_NAME_CHARS:
            raise BadRecordError(
                over_limit(f"its tensor's name has {length} bytes, and ckpttool reads at most {MAX_NAME_CHARS}")
            )
        tag, at = _taken(buffer, at, length)
        kind = buffer[at]
        length, at = _varint(buffer, at + 1)
        if kind not in _KINDS or at + length != end:
            raise _bad("its lengths contradict each other")
        if kind == _MAP_TENSOR:
            return Record(tag, None, (), at, end)
        known = self._known.get(length)
        if known is not None and buffer.startswith(known[0], at):
            return Record(tag, known[1], known[2], at + len(known[0]), end)
        type_, dims, begin = _tensor_head(buffer, at, end)
        if len(self._known) < _MAX_KNOWN:
            self._known[length] = (buffer[at:begin], type_, dims)
        return Record(tag, type_, dims, begin, end)


def _tensor_head(buffer: bytes, at: int, end: int) -> tuple[bytes, tuple[int, ...], int]:
    """Read a tensor's type and dims, and where its content begins, which goes to `end`."""
    dims, at = _dims(buffer, at)
    if buffer[at] != _TYPE:
        raise _bad(f"the byte {buffer[at]:02x} stands where its tensor's type should begin")
    length, at = _varint(buffer, at + 1)
    if length > _MAX_TYPE_BYTES:
        raise _bad(f"its tensor's type has {length} bytes")
    type_, at = _taken(buffer, at, length)
    if buffer[at] != _CONTENT:
        raise _bad(f"the byte {buffer[at]:02x} stands where its tensor's content should begin")
    length, at = _varint(buffer, at + 1)
    if at + length != end:
        raise _bad("its lengths contradict each other")
    return type_, dims, at


def _bad(why: str) -> BadRecordError:
    return BadRecordError(damage(Code.HEADER_INVALID, why))


def _taken(buffer: bytes, at: int, length: int) -> tuple[bytes, int]:
    end = at + length
    if end > len(buffer):
        raise IndexError
    return buffer[at:end], end


def _dims(buffer: bytes, at: int) -> tuple[tuple[int, ...], int]:
    dims: list[int] = []
    while buffer[at] == _DIM:
        dim, at = _varint(buffer, at + 1)
        dims.append(dim)
    if not dims and buffer[at] == _PACKED_DIMS:
        length, at = _varint(buffer, at + 1)
        end = at + length
        while at < end:
            dim, at = _varint(buffer, at)
            dims.append(dim)
        if at != end:
            raise _bad("its lengths contradict each other")
    if len(dims) > MAX_DIMS:
        raise BadRecordError(
            over_limit(f"its tensor has {len(dims)} dimensions or more, and ckpttool reads {MAX_DIMS}")
        )
    if dims and max(dims) > _MAX_INT64:
        raise _bad("a dimension is negative")
    return tuple(dims), at


def _varint(buffer: bytes, at: int) -> tuple[int, int]:
    """Read a number of seven bits a byte, lowest first; return it and the position after it."""
    value = buffer[at]
    if value < 0x80:  # noqa: PLR2004  (one byte, as nearly always)
        return value, at + 1
    value &= 0x7F
    for place in range(1, _MAX_VARINT_BYTES):
        byte = buffer[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:  # noqa: PLR2004
            if not byte:  # no writer pads a number
                break
            return value, at + place + 1
    raise _bad("one of its lengths is no number")
