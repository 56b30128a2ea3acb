"""Records of a MindSpore `.ckpt`, put together to tensors.

MindSpore cuts a tensor of more than 512 MiB into several records that follow each other, all with the dims of the
whole tensor; its loader joins neighbours of one name. So do we, and we check that they add up.

Source: `tensor_to_ms_type`, `_write_parameter_bytes_data` and `_load_ckpt_into_param_dict` in MindSpore's
train/serialization.py; the names are `str()` of MindSpore's types, tried out with MindSpore 2.10.
"""

from __future__ import annotations

from ckpttool.domain.dtype import DType
from ckpttool.domain.finding import Code, Finding, damage, unknown
from ckpttool.domain.shard import TensorEntry
from ckpttool.formats.base import quoted
from ckpttool.formats.mindspore.wire import Record

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


class Tensors:
    """Collects the records of one file, in file order."""

    __slots__ = ("_missing", "_names", "_open", "_spans", "entries", "findings")

    def __init__(self) -> None:
        self.entries: list[TensorEntry] = []
        self.findings: list[Finding] = []
        self._names: set[bytes] = set()
        self._open: Record | None = None
        """First record of a tensor of which bytes are still missing."""
        self._spans: list[tuple[int, int]] = []
        self._missing = 0
        """Bytes that the open tensor still lacks."""

    def add(self, record: Record, base: int) -> None:
        """Take the next record, whose positions count from `base` in the file."""
        if self._open is not None:
            if record.tag == self._open.tag and record.type == self._open.type and record.dims == self._open.dims:
                self._extend(record, base)
                return
            self.finish(may_be_cut=False)
        if record.tag in self._names:
            self._reject(record, "stands in the file twice")
            return
        self._names.add(record.tag)
        content = record.end - record.begin
        dtype = _DTYPES.get(record.type or b"")
        if record.type is None:
            self.findings.append(_map_parameter(record))
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
        """Take note that the tensor begun last gets no further record.

        Args:
            may_be_cut: Whether the file ends here without a mark that it ends here.
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
            self._reject(record, "has a name that is no UTF-8")
            return
        shape = () if dtype in _SHAPELESS or (record.dims == (0,) and spans[0][0] < spans[0][1]) else record.dims
        self.entries.append(TensorEntry(name=name, dtype=dtype, shape=shape, spans=spans))

    def _reject(self, record: Record, why: str, *, code: Code = Code.HEADER_INVALID) -> None:
        name = _text(record.tag)
        self.findings.append(damage(code, f"Tensor {quoted(name)} {why}.", tensor=name))


def _size(dtype: DType, dims: tuple[int, ...], content: int) -> int:
    """Bytes that a tensor must have."""
    if dtype is DType.OPAQUE:
        return content
    if dtype is DType.STRING:
        return content + -content % 4
    if dims == (0,) and content:  # how MindSpore before 2.0 spells a scalar
        dims = ()
    bits = dtype.bits
    for dim in dims:
        bits *= dim
    return bits // 8


def _contradiction(record: Record, needed: int, content: int) -> str:
    return f"of {_text(record.type or b'')} {list(record.dims)} takes {needed} bytes, but has {content}"


def _text(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")


def _map_parameter(record: Record) -> Finding:
    name = _text(record.tag)
    return unknown(
        Code.UNSUPPORTED_FORMAT, f"{quoted(name)} is a map parameter, which ckpttool cannot look into.", tensor=name
    )
