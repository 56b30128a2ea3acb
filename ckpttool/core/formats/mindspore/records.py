"""Records of a MindSpore `.ckpt`: protobuf `Checkpoint.value` without the tensors' bytes, and the tensors.

A file consists only of such records, one after another:

    0A len { 0A len tag   12 len { (08 dim)* | 0A len dims   12 len type   1A len content } }

Every protobuf library writes fields in this order, so a different order is treated as damage. Extra bytes inside a
record are also damage, because they would be fields that MindSpore does not have. Field 3 instead of 2 is a map
parameter.

MindSpore splits a tensor of more than 512 MiB into consecutive records, all with the dims of the complete tensor; its
loader joins consecutive records with the same name. This module does the same, and checks that the sizes add up.

Source: `checkpoint.proto`; `_exec_save`, `tensor_to_ms_type`, `_write_parameter_bytes_data` and
`_load_ckpt_into_param_dict` in MindSpore's train/serialization.py. The names are `str()` of MindSpore's types, checked
with MindSpore 2.10.
"""

from __future__ import annotations

from typing import NamedTuple

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.finding import Code, Finding, Row, damage, unknown
from ckpttool.core.domain.shard import TensorEntry
from ckpttool.core.formats.base import MAX_DIMS, MAX_NAME_CHARS, over_limit, quoted
from ckpttool.core.formats.protobuf import WireError, varint

MAX_RECORD_HEAD = MAX_NAME_CHARS + 4096
"""Maximum number of bytes before a record's content: a name, MAX_DIMS dims, a type and their lengths."""

_TAG = 0x0A
_TENSOR = 0x12
_MAP_TENSOR = 0x1A
_KINDS = frozenset({_TENSOR, _MAP_TENSOR})
_DIM = 0x08
_PACKED_DIMS = 0x0A
_TYPE = 0x12
_CONTENT = 0x1A
_MAX_TYPE_BYTES = 64
_MAX_KNOWN = 1000
_MAX_INT64 = 2**63 - 1

_DTYPES = {
    b"Bool": DType.BOOL,
    b"Int4": DType.I4X2,
    b"Int8": DType.I8,
    b"Int16": DType.I16,
    b"Int32": DType.I32,
    b"Int64": DType.I64,
    b"UInt8": DType.U8,
    b"UInt16": DType.U16,
    b"UInt32": DType.U32,
    b"UInt64": DType.U64,
    b"Float16": DType.F16,
    b"Float32": DType.F32,
    b"Float64": DType.F64,
    b"BFloat16": DType.BF16,
    b"Float8E4M3FN": DType.F8_E4M3,
    b"Float8E5M2": DType.F8_E5M2,
    b"HiFloat8": DType.HIF8,
    b"Complex64": DType.C64,
    b"Complex128": DType.C128,
    b"str": DType.STRING,
    b"random_op": DType.OPAQUE,
}
_SHAPELESS = frozenset({DType.STRING, DType.OPAQUE})


def dtype_named(name: str) -> DType | None:
    """Return the element type with a name of MindSpore, such as `BFloat16`; None if MindSpore does not have it."""
    return _DTYPES.get(name.encode())


class Record(NamedTuple):
    """One record; its positions are relative to the start of the buffer."""

    tag: bytes
    type: bytes | None
    """Name of the type; None for a map parameter, whose content is not read."""
    dims: tuple[int, ...]
    begin: int
    """First byte of the tensor's content."""
    end: int
    """First byte after the content, which is also the end of the record."""


class BadRecordError(Exception):
    """The bytes are not a record, so that later records cannot be located.

    Each record's length leads to the next record.
    """

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


class RecordReader:
    """Reader of records without their content.

    The tensors of a model have few different shapes, so their encodings are cached.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, tuple[bytes, bytes, tuple[int, ...]]] = {}
        """Cache: length of a tensor -> the bytes before its content, with the type and dims that they encode."""

    def read(self, buffer: bytes, at: int) -> Record:
        """Read the record that begins at `at`, without its content.

        Args:
            buffer: A part of the file; it need not include the content.
            at: Start of the record in the buffer: a byte `RECORD`.

        Raises:
            IndexError: The buffer ends before the content begins.
            BadRecordError: The bytes are not a record.
        """
        try:
            return self._read(buffer, at)
        except WireError:
            raise bad(Code.HEADER_INVALID, "one of its lengths is not a number") from None

    def _read(self, buffer: bytes, at: int) -> Record:
        length, at = varint(buffer, at + 1)
        end = at + length
        if buffer[at] != _TAG:
            raise bad(Code.HEADER_INVALID, f"its tensor's name begins with the unexpected byte {buffer[at]:02x}")
        length, at = varint(buffer, at + 1)
        if length > MAX_NAME_CHARS:
            raise BadRecordError(
                over_limit(f"its tensor's name has {length} bytes, and ckpttool reads at most {MAX_NAME_CHARS}")
            )
        tag, at = _taken(buffer, at, length)
        kind = buffer[at]
        length, at = varint(buffer, at + 1)
        if kind not in _KINDS or at + length != end:
            raise bad(Code.HEADER_INVALID, "its lengths contradict each other")
        if kind == _MAP_TENSOR:
            return Record(tag, None, (), at, end)
        parts = self._known.get(length)
        if parts is not None and buffer.startswith(parts[0], at):
            return Record(tag, parts[1], parts[2], at + len(parts[0]), end)
        type_, dims, begin = _tensor_head(buffer, at, end)
        if len(self._known) < _MAX_KNOWN:
            self._known[length] = (buffer[at:begin], type_, dims)
        return Record(tag, type_, dims, begin, end)


def _tensor_head(buffer: bytes, at: int, end: int) -> tuple[bytes, tuple[int, ...], int]:
    """Return a tensor's type and dims, and the start of its content, which ends at `end`."""
    dims, at = _dims(buffer, at)
    if buffer[at] != _TYPE:
        raise bad(Code.HEADER_INVALID, f"its tensor's type begins with the unexpected byte {buffer[at]:02x}")
    length, at = varint(buffer, at + 1)
    if length > _MAX_TYPE_BYTES:
        raise bad(Code.HEADER_INVALID, f"its tensor's type has {length} bytes")
    type_, at = _taken(buffer, at, length)
    if buffer[at] != _CONTENT:
        raise bad(Code.HEADER_INVALID, f"its tensor's content begins with the unexpected byte {buffer[at]:02x}")
    length, at = varint(buffer, at + 1)
    if at + length != end:
        raise bad(Code.HEADER_INVALID, "its lengths contradict each other")
    return type_, dims, at


def bad(code: Row, message: str, *, expected: str | None = None, actual: str | None = None) -> BadRecordError:
    """Return the exception for a damaged record."""
    return BadRecordError(damage(code, message, expected=expected, actual=actual))


def _taken(buffer: bytes, at: int, length: int) -> tuple[bytes, int]:
    end = at + length
    if end > len(buffer):
        raise IndexError
    return buffer[at:end], end


def _dims(buffer: bytes, at: int) -> tuple[tuple[int, ...], int]:
    dims: list[int] = []
    while buffer[at] == _DIM:
        dim, at = varint(buffer, at + 1)
        dims.append(dim)
    if not dims and buffer[at] == _PACKED_DIMS:
        length, at = varint(buffer, at + 1)
        end = at + length
        while at < end:
            dim, at = varint(buffer, at)
            dims.append(dim)
        if at != end:
            raise bad(Code.HEADER_INVALID, "its lengths contradict each other")
    if len(dims) > MAX_DIMS:
        raise BadRecordError(
            over_limit(f"its tensor has {len(dims)} dimensions or more, and ckpttool reads {MAX_DIMS}")
        )
    if dims and max(dims) > _MAX_INT64:
        raise bad(Code.HEADER_INVALID, "a dimension is negative")
    return tuple(dims), at


class Tensors:
    """Collector of one file's records, which are added in file order."""

    __slots__ = ("_missing", "_names", "_open", "_spans", "entries", "findings")

    def __init__(self) -> None:
        self.entries: list[TensorEntry] = []
        self.findings: list[Finding] = []
        self._names: set[bytes] = set()
        self._open: Record | None = None
        """First record of a tensor that is not complete yet."""
        self._spans: list[tuple[int, int]] = []
        self._missing = 0
        """Number of bytes that this tensor still lacks."""

    def add(self, record: Record, base: int) -> None:
        """Add the next record, whose positions are relative to byte `base` of the file."""
        if self._open is not None:
            if record.tag == self._open.tag and record.type == self._open.type and record.dims == self._open.dims:
                self._extend(record, base)
                return
            self.finish(may_be_cut=False)
        if record.tag in self._names:
            self._reject(record, "occurs twice in the file")
            return
        self._names.add(record.tag)
        content = record.end - record.begin
        dtype = _DTYPES.get(record.type or b"")
        if record.type is None:
            name = _text(record.tag)
            message = f"{quoted(name)} is a map parameter, which ckpttool cannot check."
            self.findings.append(unknown(Code.UNSUPPORTED_FORMAT, message, tensor=name))
        elif dtype is None:
            self._reject(record, f"has the type {quoted(_text(record.type))}, which MindSpore does not have")
        elif (needed := _size(dtype, record.dims, content)) == content:
            self._close(record, dtype, ((base + record.begin, base + record.end),))
        elif needed < content:
            self._reject(record, _contradiction(record, needed, content))
        else:
            self._open = record
            self._spans = [(base + record.begin, base + record.end)]
            self._missing = needed - content

    def finish(self, *, may_be_cut: bool) -> None:
        """Complete the last tensor, because there are no more records.

        Args:
            may_be_cut: Whether the file ends here without an end mark.
        """
        if self._open is None:
            return
        record, self._open = self._open, None
        content = sum(end - begin for begin, end in self._spans)
        self._reject(
            record,
            _contradiction(record, content + self._missing, content),
            code=Code.SHARD_TRUNCATED if may_be_cut and len(self._spans) > 1 else Code.HEADER_INVALID,
        )

    def _extend(self, record: Record, base: int) -> None:
        content = record.end - record.begin
        self._spans.append((base + record.begin, base + record.end))
        self._missing -= content
        if self._missing > 0 and content:
            return
        if self._missing == 0:
            self._close(record, _DTYPES[record.type or b""], tuple(self._spans))
            self._open = None
        else:
            self.finish(may_be_cut=False)

    def _close(self, record: Record, dtype: DType, spans: tuple[tuple[int, int], ...]) -> None:
        try:
            name = record.tag.decode()
        except UnicodeDecodeError:
            self._reject(record, "has a name that is not UTF-8")
            return
        shape = () if dtype in _SHAPELESS or (record.dims == (0,) and spans[0][0] < spans[0][1]) else record.dims
        self.entries.append(TensorEntry(name=name, dtype=dtype, shape=shape, spans=spans))

    def _reject(self, record: Record, why: str, *, code: Row = Code.HEADER_INVALID) -> None:
        name = _text(record.tag)
        self.findings.append(damage(code, f"Tensor {quoted(name)} {why}.", tensor=name))


def _size(dtype: DType, dims: tuple[int, ...], content: int) -> int:
    """Return the number of bytes that a tensor must have."""
    if dtype is DType.OPAQUE:
        return content
    if dtype is DType.STRING:
        return content + -content % 4
    if dims == (0,) and content:  # MindSpore before 2.0 wrote scalars in this form
        dims = ()
    bits = dtype.bits
    for dim in dims:
        bits *= dim
    return bits // 8


def _contradiction(record: Record, needed: int, content: int) -> str:
    return f"of {_text(record.type or b'')} {list(record.dims)} takes {needed} bytes, but has {content}"


def _text(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")
