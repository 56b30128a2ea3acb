"""Writers of single shards that can make every fault: each field of each format is a parameter.

`tests/support/trees.py` builds whole trees of healthy files; these bytes are for tests that need a wrong one.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ckpttool.core.domain.shard import FileStamp


@dataclass(slots=True)
class MemorySource:
    """A `ByteSource` over bytes, which remembers what was read. It claims the size that it is given."""

    data: bytes
    size: int | None = None
    reads: list[tuple[int, int]] = field(default_factory=list)

    @property
    def stamp(self) -> FileStamp:
        return FileStamp.on_disk(size=len(self.data) if self.size is None else self.size, mtime_ns=0, inode=0)

    def read(self, offset: int, length: int) -> bytes:
        self.reads.append((offset, length))
        return self.data[offset : offset + length]

    def read_into(self, offset: int, buffer: memoryview) -> int:
        part = self.read(offset, len(buffer))
        buffer[: len(part)] = part
        return len(part)


# --- MindSpore .ckpt -------------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def delimited(key: int, body: bytes) -> bytes:
    return bytes([key]) + varint(len(body)) + body


def tensor_body(dims: Sequence[int], type_: bytes, content: bytes, *, packed: bool = False) -> bytes:
    key = b"" if packed else b"\x08"
    spelled = b"".join(key + varint(dim) for dim in dims)
    if packed:
        spelled = delimited(0x0A, spelled)
    return spelled + delimited(0x12, type_) + delimited(0x1A, content)


def record(tag: str | bytes, dims: Sequence[int], type_: str, content: bytes, *, packed: bool = False) -> bytes:
    name = tag.encode() if isinstance(tag, str) else tag
    body = tensor_body(dims, type_.encode(), content, packed=packed)
    return delimited(0x0A, delimited(0x0A, name) + delimited(0x12, body))


def map_record(tag: str) -> bytes:
    tensor = delimited(0x0A, tensor_body([1], b"Float32", b"1234"))
    return delimited(0x0A, delimited(0x0A, tag.encode()) + delimited(0x1A, tensor))


def crc_trailer(body: bytes) -> bytes:
    return b"crc_num" + zlib.crc32(body).to_bytes(10, "big")


def number(name: str, value: int, *, type_: str = "Int64", dims: Sequence[int] = ()) -> bytes:
    """Write a training scalar as MindFormers does."""
    width = {"Int64": 8, "Int32": 4}[type_]
    return record(name, dims, type_, value.to_bytes(width, "little", signed=True))


# --- safetensors -----------------------------------------------------------------------------------------------------


def entries_json(tensors: Iterable[tuple[str, str, Sequence[int], int]]) -> dict[str, object]:
    """Lay tensors (name, dtype, shape, bytes) one after the other."""
    entries: dict[str, object] = {}
    begin = 0
    for name, dtype, shape, size in tensors:
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, begin + size]}
        begin += size
    return entries


def compact(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def safetensors_file(header: Mapping[str, object] | bytes, data: bytes = b"", *, pad: bool = True) -> bytes:
    """Write a header, padded to a multiple of 8 as safetensors does it, and the data."""
    raw = header if isinstance(header, bytes) else compact(header)
    if pad:
        raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw + data


# --- torch -----------------------------------------------------------------------------------------------------------


def torch_file(value: object, **how: Any) -> bytes:  # noqa: ANN401  as `torch.save` takes it
    """Return what torch saves of a value."""
    import torch

    file = io.BytesIO()
    torch.save(value, file, **how)
    return file.getvalue()


def torch_pickle(archive: bytes) -> bytes:
    """Return the pickle in an archive of torch's."""
    with zipfile.ZipFile(io.BytesIO(archive)) as records:
        return records.read(next(name for name in records.namelist() if name.endswith("/data.pkl")))
