"""Fuzz targets: the headers of shards and zip directories, against plain readers of the same formats."""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import safetensors

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.finding import Finding, Severity
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.formats import read_header
from ckpttool.core.formats.base import MAX_FINDINGS, Header
from ckpttool.core.formats.mindspore.records import BadRecordError
from ckpttool.core.formats.mindspore.shard import read_trailer
from ckpttool.core.formats.safetensors import header
from ckpttool.core.formats.safetensors.header import parse_strictly
from ckpttool.core.formats.safetensors.shard import forget_headers
from ckpttool.core.formats.torch.zip_directory import read_zip_directory
from ckpttool.trainers.mindformers.scalars import FACTS
from tests.support.shard_writers import MemorySource

# The package has no types for it. Returns pairs of a name and a dict of dtype, shape and data.
deserialize: Callable[[bytes], list[tuple[str, dict[str, Any]]]] = safetensors.deserialize

LONGEST_MESSAGE = 4000
"""Characters: 64 dims of 20 digits, a name that was cut, and the words around them."""

_MOST_DATA = 1 << 16


def is_good(findings: Iterable[Finding]) -> bool:
    """Tell whether nothing worse than a note was said."""
    return all(finding.severity is Severity.NOTE for finding in findings)


def assert_modest(findings: Iterable[Finding]) -> None:
    """Whatever a file holds, what is said about it can be read."""
    listed = list(findings)
    assert len(listed) <= 3 * MAX_FINDINGS
    for finding in listed:
        assert 0 < len(finding.message) <= LONGEST_MESSAGE, len(finding.message)
        assert len(finding.expected or "") + len(finding.actual or "") <= LONGEST_MESSAGE


def shard(data: bytes) -> None:
    """Read a header of any format, under either name, from a file that keeps its size, grows or shrinks."""
    for named in (FormatName.SAFETENSORS, FormatName.MINDSPORE_CKPT):
        for size in (len(data), len(data) + 1000, len(data) // 2):
            forget_headers()
            source = MemorySource(data, size)
            first = read_header(source, named=named, facts=FACTS)
            assert all(offset >= 0 and length >= 0 for offset, length in source.reads)
            assert_modest(first.findings)
            # What is remembered of a header must not change the next answer.
            assert read_header(MemorySource(data, size), named=named, facts=FACTS) == first
    header = read_header(MemorySource(data), named=FormatName.SAFETENSORS, facts=FACTS)
    if header.format is FormatName.SAFETENSORS:
        _as_the_package_reads_it(data, header)
    own = read_header(MemorySource(data), named=FormatName.MINDSPORE_CKPT, facts=FACTS)
    if own.format is FormatName.MINDSPORE_CKPT and is_good(own.findings):
        _as_protobuf_reads_it(data, own)


def _as_the_package_reads_it(data: bytes, header: Header) -> None:
    if not is_good(header.findings):
        return
    theirs = {name: (one["dtype"], tuple(one["shape"]), bytes(one["data"])) for name, one in deserialize(data)}
    ours = {
        entry.name: (entry.dtype.value, entry.shape, b"".join(data[begin:end] for begin, end in entry.spans))
        for entry in header.entries
    }
    assert ours == theirs


# --- safetensors, from its JSON alone --------------------------------------------------------------------------------


def safetensors_text(text: bytes) -> None:
    """Put a header into a file that is as long as it says, so that nothing but its text decides."""
    try:
        spelled = text.decode().rstrip(" ")
    except UnicodeDecodeError:
        return
    strict = parse_strictly(spelled, data_begin=8 + len(text))
    assert_modest(strict.findings)
    with mock.patch.object(header, "_USUAL_ENTRY", re.compile("(?!)")):
        assert parse_strictly(spelled, data_begin=8 + len(text)) == strict
    if not strict.findings and strict.data_bytes <= _MOST_DATA and spelled.startswith("{"):
        data = len(text).to_bytes(8, "little") + text + b"\1" * strict.data_bytes
        shard(data)
        _as_json_reads_it(spelled, strict.canonical)


def _as_json_reads_it(text: str, canonical: bool) -> None:
    """A header that safetensors could have written is written the same way by `json`."""
    if canonical:
        assert json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":")) == text


# --- .ckpt, against protobuf as its documentation has it --------------------------------------------------------------

_BITS = {
    b"Bool": 8, b"Int4": 8, b"Int8": 8, b"Int16": 16, b"Int32": 32, b"Int64": 64, b"UInt8": 8, b"UInt16": 16,
    b"UInt32": 32, b"UInt64": 64, b"Float16": 16, b"Float32": 32, b"Float64": 64, b"BFloat16": 16, b"Float8E4M3FN": 8,
    b"Float8E5M2": 8, b"HiFloat8": 8, b"Complex64": 64, b"Complex128": 128,
}  # fmt: skip


class _Tensor(NamedTuple):
    name: str
    kind: bytes
    dims: tuple[int, ...]
    content: bytes


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 0x80:
            return value, at


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _number(data, at)
        value, at = _number(data, at)
        if key & 7 == 0:
            yield key >> 3, value
        else:
            assert key & 7 == 2, "a wire type that no checkpoint has"
            assert at + value <= len(data), "a field goes beyond its message"
            yield key >> 3, data[at : at + value]
            at += value


def _one(fields: Iterable[tuple[int, int | bytes]], number: int) -> bytes:
    (value,) = (value for key, value in fields if key == number)
    assert isinstance(value, bytes)
    return value


def _tensors(data: bytes) -> Iterator[_Tensor]:
    for number, value in _fields(data):
        assert number == 1
        assert isinstance(value, bytes)
        record = list(_fields(value))
        tensor = list(_fields(_one(record, 2)))
        dims: list[int] = []
        for key, dim in tensor:
            if key == 1 and isinstance(dim, int):
                dims.append(dim)
            elif key == 1 and isinstance(dim, bytes):
                at = 0
                while at < len(dim):
                    one, at = _number(dim, at)
                    dims.append(one)
        yield _Tensor(_one(record, 1).decode(), _one(tensor, 2), tuple(dims), _one(tensor, 3))


def _joined(records: Iterable[_Tensor]) -> list[_Tensor]:
    tensors: list[_Tensor] = []
    for record in records:
        if tensors and tensors[-1].name == record.name:
            tensors[-1] = tensors[-1]._replace(content=tensors[-1].content + record.content)
        else:
            tensors.append(record)
    return tensors


def _as_protobuf_reads_it(data: bytes, header: Header) -> None:
    """What was called whole is a sequence of messages to its last byte, with as many bytes as each shape needs."""
    end = len(data) if header.checksum is None else header.checksum.end
    if header.checksum is not None:
        assert data[end:] == b"crc_num" + header.checksum.value.to_bytes(10, "big")
    tensors = _joined(_tensors(data[:end]))
    assert [tensor.name for tensor in tensors] == [entry.name for entry in header.entries]
    assert len({tensor.name for tensor in tensors}) == len(tensors)
    for tensor, entry in zip(tensors, header.entries, strict=True):
        assert b"".join(data[begin:until] for begin, until in entry.spans) == tensor.content
        if entry.dtype in {DType.STRING, DType.OPAQUE}:
            assert tensor.kind in {b"str", b"random_op"}
            continue
        # A scalar was once spelled as the shape (0,).
        assert entry.shape == tensor.dims or (entry.shape, tensor.dims) == ((), (0,))
        assert math.prod(entry.shape) * _BITS[tensor.kind] == 8 * len(tensor.content)


_TRAILER_BYTES = 17


def ckpt_trailer(data: bytes) -> None:
    """Read what stands behind the last record of a file."""
    if not data:
        return
    for offset, more in ((0, 0), (3000, 0), (3000, 5)):
        if more and len(data) < _TRAILER_BYTES:
            continue  # as much of the file as there is comes in
        try:
            found = read_trailer(data, offset=offset, size=offset + len(data) + more)
        except BadRecordError as error:
            assert_modest([error.finding])
        else:
            assert data == b"crc_num" + found.value.to_bytes(10, "big")
            assert (found.end, more) == (offset, 0)


# --- zip, against zipfile --------------------------------------------------------------------------------------------


def zip_directory(data: bytes) -> None:
    """Read a directory; where nothing is said against it, it is the one that Python's own reader finds."""
    for size in (len(data) + 1000, len(data) // 2):
        assert_modest(read_zip_directory(MemorySource(data, size)).findings)
    found = read_zip_directory(MemorySource(data))
    assert_modest(found.findings)
    if any(finding.severity > Severity.SUSPECT for finding in found.findings):
        assert found.entries == ()
        return
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        theirs = sorted(archive.infolist(), key=lambda info: info.header_offset)
        assert len(theirs) == len(found.entries)
        end = 0
        for info, entry in zip(theirs, found.entries, strict=True):
            assert end <= entry.begin <= entry.end <= len(data)
            end = entry.end
            assert (info.CRC, info.file_size) == (entry.crc32, entry.end - entry.begin)
            content = data[entry.begin : entry.end]
            if zlib.crc32(content) == entry.crc32:
                assert archive.read(info) == content
