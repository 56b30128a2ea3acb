"""Tensors and values in a zip archive of `torch.save`. Its pickle is read opcode by opcode and never unpickled.

Source:
    `torch/serialization.py` of torch 2.13: `data.pkl` names each tensor's record in the folder `data`, and `byteorder`
    contains their byte order; `safetensors/torch.py` for the names of types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ckpttool.core.domain.contents import Value
from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.shard import TensorEntry
from ckpttool.core.domain.units import counted
from ckpttool.core.formats.base import ZIP_MAGIC
from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError, Global, Made, Tensor
from ckpttool.core.formats.torch.pickle_values import read_values
from ckpttool.core.storage.base import ByteSource

if TYPE_CHECKING:
    from ckpttool.core.formats.torch.zip_directory import ZipEntry

MOST_PICKLE_BYTES = 32 << 20
"""Maximum size of the pickle in bytes; the pickle of 100,000 tensors has 15 MB."""
_MOST_NODES = 1_000_000
"""Maximum number of values visited in a pickle, because a list may contain itself."""
_MOST_DEPTH = 32
_MOST_KEY_CHARS = 512
_MOST_TEXT_CHARS = 10_000
"""Maximum length of a text in characters, which is enough for a command line or a config.

A longer text is shortened, with the number of omitted characters.
"""
_MOST_NAME_CHARS = 32 << 20
"""Maximum length of all names and texts together, because a few bytes of a pickle can repeat a long text."""
_MOST_PLAIN = 8
"""Maximum number of plain values in a list that is shown as one value; a longer list is shown as a group."""

_BY_STORAGE = {
    "DoubleStorage": DType.F64, "FloatStorage": DType.F32, "HalfStorage": DType.F16, "BFloat16Storage": DType.BF16,
    "LongStorage": DType.I64, "IntStorage": DType.I32, "ShortStorage": DType.I16, "CharStorage": DType.I8,
    "ByteStorage": DType.U8, "BoolStorage": DType.BOOL, "ComplexFloatStorage": DType.C64,
    "ComplexDoubleStorage": DType.C128,
}  # fmt: skip
_BY_NAME = {
    "float64": DType.F64, "float32": DType.F32, "float16": DType.F16, "bfloat16": DType.BF16, "int64": DType.I64,
    "int32": DType.I32, "int16": DType.I16, "int8": DType.I8, "uint8": DType.U8, "bool": DType.BOOL,
    "complex64": DType.C64, "complex128": DType.C128, "uint16": DType.U16, "uint32": DType.U32, "uint64": DType.U64,
    "float8_e4m3fn": DType.F8_E4M3, "float8_e5m2": DType.F8_E5M2, "float8_e8m0fnu": DType.F8_E8M0,
    "float8_e4m3fnuz": DType.F8_E4M3FNUZ, "float8_e5m2fnuz": DType.F8_E5M2FNUZ,
}  # fmt: skip
_PART = "_local_tensor"
"""Key of this rank's part of a tensor that is distributed over ranks (DTensor)."""
_LOCAL_HEAD = 30
"""Size in bytes of a zip's local header before the record's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchContents:
    """Contents of an archive."""

    entries: tuple[TensorEntry, ...] = ()
    """Tensors, sorted by their path in the pickle.

    A tensor has no spans if its elements are not contiguous, or their position is unknown.
    """
    values: tuple[tuple[str, Value], ...] = ()
    """Numbers and texts that are not tensors, by their path in the pickle."""
    unread: int = 0
    """Number of tensors of unsupported kinds: sparse, quantised, or without a device."""
    version: str | None = None
    """Version of the archive format."""


def torch_contents(source: ByteSource, records: Sequence[ZipEntry]) -> TorchContents:
    """Return the contents of an archive.

    Args:
        source: The open file.
        records: All uncompressed records of the archive; empty if its directory is inconsistent. The pickle is at the
            beginning of the file, so the tensors can be listed even then.

    Returns:
        The readable contents; empty if the pickle is truncated, which `verify` reports.

    Raises:
        OSError: The disk did not answer.
    """
    root = records[0].name.partition("/")[0] if records else ""
    by_name = {record.name.lower(): record for record in records}
    main = by_name.get(f"{root}/data.pkl".lower())
    begin, end = (main.begin, main.end) if main is not None else _first_record(source)
    try:
        tree = read_values(source.read(begin, min(end - begin, MOST_PICKLE_BYTES)))
    except BrokenPickleError:
        return TorchContents()
    little = _small(source, by_name.get(f"{root}/byteorder".lower())) in {None, "little"}
    spans = {name.rpartition("/data/")[2]: (record.begin, record.end) for name, record in by_name.items()}
    walk = _Walk(spans if little else {})
    walk.over(tree)
    return TorchContents(
        entries=tuple(walk.entries),
        values=tuple(walk.values),
        unread=walk.unread,
        version=_small(source, by_name.get(f"{root}/version".lower())),
    )


def _first_record(source: ByteSource) -> tuple[int, int]:
    """Return the start and the latest possible end of the first record's data; an empty range if this is not a zip."""
    head = source.read(0, _LOCAL_HEAD)
    if not head.startswith(ZIP_MAGIC):
        return 0, 0
    name, extra = (int.from_bytes(head[at : at + 2], "little") for at in (26, 28))
    begin = _LOCAL_HEAD + name + extra
    return begin, max(begin, source.stamp.size)


def _small(source: ByteSource, record: ZipEntry | None) -> str | None:
    if record is None:
        return None
    return source.read(record.begin, min(record.end - record.begin, 16)).decode("ascii", "replace").strip()


class _Walk:
    """A pass over the values of a pickle, in the pickle's order."""

    def __init__(self, spans: dict[str, tuple[int, int]]) -> None:
        self._spans = spans
        self._nodes = self._chars = 0
        self.entries: list[TensorEntry] = []
        self.values: list[tuple[str, Value]] = []
        self.unread = 0

    def over(self, tree: object) -> None:
        """Visit all values, depth first."""
        stack: list[Iterator[tuple[str, object]]] = [iter((("", tree),))]
        while stack:
            for path, value in stack[-1]:
                self._nodes += 1
                self._chars += len(path)
                if self._nodes > _MOST_NODES or self._chars > _MOST_NAME_CHARS:
                    return
                inner = self._taken(path, value)
                if inner is not None and len(stack) < _MOST_DEPTH:
                    stack.append(inner)
                    break
            else:
                stack.pop()

    def _taken(self, path: str, value: object) -> Iterator[tuple[str, object]] | None:
        """Visit a value and return its children; None if it has no children."""
        if isinstance(value, Tensor):
            self._take(path, value)
        elif isinstance(value, (bool, int, float, str)):
            self._keep(path, value)
        elif isinstance(value, dict):
            return _inside(path, value.items())
        elif isinstance(value, Made):
            return self._inside_object(path, value)
        elif isinstance(value, (list, tuple)):
            if not all(isinstance(item, (int, float, str)) for item in value):
                return _inside(path, enumerate(value))  # lazily: a list may contain itself a million times
            if 0 < len(value) <= _MOST_PLAIN:
                self._keep(path, f"({', '.join(map(repr, value))})")
        return None

    def _keep(self, path: str, value: Value) -> None:
        if isinstance(value, str):
            self._chars += min(len(value), _MOST_TEXT_CHARS)
            rest = len(value) - _MOST_TEXT_CHARS
            value = value if rest <= 0 else f"{value[:_MOST_TEXT_CHARS]}… and {counted(rest, 'more character')}"
        self.values.append((path, value))

    def _inside_object(self, path: str, value: Made) -> Iterator[tuple[str, object]]:
        """Return the contents of an object; for a distributed tensor, only this rank's part under the tensor's name."""
        contents = value.members
        if isinstance(value.by, Global) and value.by.name.startswith("_rebuild_"):
            part = contents.get(_PART)
            self.unread += not isinstance(part, Tensor)
            return iter(((path, part),))
        return _inside(path, contents.items())

    def _take(self, path: str, tensor: Tensor) -> None:
        dtype = dtype_of(tensor)
        if dtype is None:
            self.unread += 1
            return
        spans = _spans(tensor, dtype.bits // 8, self._spans.get(tensor.storage.key))
        self.entries.append(TensorEntry(name=path, dtype=dtype, shape=tensor.shape, spans=spans))


def dtype_of(tensor: Tensor) -> DType | None:
    """Return the element type of a tensor; None if ckpttool reads no elements of that type."""
    return _BY_STORAGE.get(tensor.storage.kind) if tensor.dtype is None else named_dtype(tensor.dtype)


def named_dtype(name: str) -> DType | None:
    """Return the element type with a name in torch, such as `bfloat16`; None if ckpttool does not read that type."""
    return _BY_NAME.get(name)


def _inside(path: str, members: Iterable[tuple[object, object]]) -> Iterator[tuple[str, object]]:
    dot = "." if path else ""
    return ((f"{path}{dot}{_key(key)}", member) for key, member in members)


def _key(key: object) -> str:
    if isinstance(key, Global):
        return key.name[:_MOST_KEY_CHARS]
    if isinstance(key, tuple):
        return f"({', '.join(map(_key, key[:_MOST_PLAIN]))})"
    return str(key)[:_MOST_KEY_CHARS] if isinstance(key, (str, int, float)) else "?"


def _spans(tensor: Tensor, nbytes: int, record: tuple[int, int] | None) -> tuple[tuple[int, int], ...]:
    """Return the byte ranges of a tensor's elements; empty if they are not contiguous."""
    if record is None or not _is_dense(tensor):
        return ()
    numel = 1
    for dim in tensor.shape:
        numel *= dim
    begin = record[0] + tensor.offset * nbytes
    end = begin + numel * nbytes
    return ((begin, end),) if end <= record[1] else ()


def _is_dense(tensor: Tensor) -> bool:
    """Return whether the elements are contiguous in row-major order, so that two files can be compared."""
    if 0 in tensor.shape:
        return True
    step = 1
    for stride, dim in zip(reversed(tensor.stride), reversed(tensor.shape), strict=True):
        if dim > 1 and stride != step:
            return False
        step *= dim
    return True
