"""OCDBT, the key-value store of JAX's array libraries: a manifest, a B-tree of nodes, and data files.

Manifests and nodes have a length and a CRC-32C; the values in the data files have no checksum. The nodes contain the
position of each value, so the required data files and their minimum sizes are known without reading them.

Source: The storage format as TensorStore documents it (kvstore/ocdbt), and files that TensorStore 0.1.86 wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import NamedTuple, TypeVar

from ckpttool.core.domain.finding import Code, Row
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.formats.crc32c import crc32c

MANIFEST = "manifest.ocdbt"
MOST_NODE_BYTES = 64 << 20
"""Maximum size of a node or a manifest in bytes, compressed or not; TensorStore writes at most 8 MiB."""
_MOST_WINDOW = 64 << 20
"""Maximum memory in bytes that decompression may use in addition."""
MOST_NODES = 100_000
MOST_VALUES = 4_000_000
"""Maximum number of values in a tree; each chunk of an array is a value."""
MOST_BYTES = 2 << 30
"""Maximum size of all decompressed nodes in bytes, because a small node may be referenced any number of times."""
MOST_TEXT = 256 << 20
"""Maximum size of a node's keys or paths in bytes, because each may repeat the previous one completely."""

_MANIFEST_MAGIC = bytes.fromhex("0cdb3a2a")
_NODE_MAGIC = bytes.fromhex("0cdb20de")
_LENGTH_BYTES, _CRC_BYTES, _UUID_BYTES, _LEVEL_BYTES = 8, 4, 16, 4
_ZSTD = 1
_NOWHERE = 2**64 - 1
"""Offset that marks something that does not exist."""
_MOST_VARINT_BITS = 64
_RECORDS = (b"/.zarray", b"/zarr.json")
"""Suffixes of keys whose values describe how an array is split into chunks; each array has one such key."""

T = TypeVar("T")


class BrokenStoreError(Exception):
    """A manifest or a node is inconsistent."""

    def __init__(self, code: Row, path: str, message: str) -> None:
        """Store the code, the path, and the problem."""
        super().__init__(message)
        self.code = code
        self.path = path


class OverLimitError(Exception):
    """The store is larger than any store that a trainer writes."""


class Extent(NamedTuple):
    """Position of a value."""

    path: str
    """Path of the data file, relative to the store. The path is untrusted."""
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Contents of a store's manifest and nodes."""

    least: dict[str, int]
    """Minimum size of each data file in bytes, by path relative to the store. The paths are untrusted."""
    arrays: frozenset[str]
    """Names of the arrays in the store."""
    broken: tuple[BrokenStoreError, ...]
    """Errors of inconsistent nodes, whose descendants are unknown."""


class _Child(NamedTuple):
    """A node, and the common prefix of all keys below it."""

    extent: Extent
    prefix: bytes
    base: str
    """Common prefix of the node's paths."""
    height: int


def read_store(read: Callable[[str, int, int | None], bytes | None]) -> Store:
    """Read a store from its manifest to the position of every value, but not the values.

    Args:
        read: Function that returns a number of bytes of a file in the store from an offset, or all bytes to its end;
            None if the file is missing.

    Raises:
        BrokenStoreError: The manifest is inconsistent.
        OverLimitError: The store is larger than any store that a trainer writes.
        OSError: The disk did not answer.
    """
    walk = _Walk(read)
    walk.run()
    return Store(least=walk.least, arrays=frozenset(walk.arrays), broken=tuple(walk.broken))


class _Walk:
    """A pass over the tree of nodes, from the manifest to the values."""

    def __init__(self, read: Callable[[str, int, int | None], bytes | None]) -> None:
        self._read = read
        self._values = self._bytes = 0
        self.least: dict[str, int] = {}
        self.arrays: set[str] = set()
        self.broken: list[BrokenStoreError] = []

    def run(self) -> None:
        data = self._read(MANIFEST, 0, None)
        if data is None:
            raise BrokenStoreError(Code.SHARD_MISSING, MANIFEST, "is missing, and nothing else lists the contents")
        root = _parsed(data, MANIFEST, _MANIFEST_MAGIC, _root)
        waiting = [] if root is None else [root]
        visited = set()
        while waiting:
            child = waiting.pop()
            if child in visited:
                continue
            visited.add(child)
            if len(visited) > MOST_NODES:
                raise OverLimitError(f"has more than {MOST_NODES} nodes")
            try:
                waiting += self._children(child)
            except BrokenStoreError as error:
                self.broken.append(error)

    def _children(self, child: _Child) -> list[_Child]:
        """Add the contents of a node, and return the nodes below it."""
        extent = child.extent
        self._need(extent)
        if extent.length > MOST_NODE_BYTES:
            raise OverLimitError(f"has a node of {extent.length} bytes")
        data = self._read(extent.path, extent.offset, extent.length)
        if data is None or len(data) < extent.length:
            return []  # the file is missing or truncated, which `least` shows
        node = _parsed(data, extent.path, _NODE_MAGIC, lambda body: self._counted(body, child))
        self._values += len(node.keys)
        if self._values > MOST_VALUES:
            raise OverLimitError(f"has more than {MOST_VALUES} values")
        for child_extent in node.extents:
            self._need(child_extent)
        for key in node.keys:
            if key.endswith(_RECORDS):
                self.arrays.add(key.rpartition(b"/")[0].decode("utf-8", "replace"))
        return node.children

    def _counted(self, body: _Body, child: _Child) -> _Node:
        self._bytes += body.length
        if self._bytes > MOST_BYTES:
            raise OverLimitError(f"has nodes of more than {MOST_BYTES} bytes")
        return _node(body, child)

    def _need(self, extent: Extent) -> None:
        self.least[extent.path] = max(self.least.get(extent.path, 0), extent.offset + extent.length)


class _Body:
    """Sequential reader of the decompressed body of a manifest or node."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def length(self) -> int:
        return len(self._data)

    def take(self, length: int) -> bytes:
        begin, self._at = self._at, self._at + length
        if self._at > len(self._data):
            raise ValueError("it ends too early")
        return self._data[begin : self._at]

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)

    def varint(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004  the bit that marks a further byte
                return value
            shift += 7
            if shift >= _MOST_VARINT_BITS:
                raise ValueError("a number has more than 64 bits")

    def varints(self, count: int) -> list[int]:
        if count > len(self._data):  # each entry takes at least one byte
            raise ValueError("it counts more entries than it contains")
        return [self.varint() for _ in range(count)]

    def texts(self, *, other_columns: int = 0) -> tuple[list[bytes], list[list[int]]]:
        """Return texts, stored without the prefix shared with the previous text, and the columns after them."""
        count = self.varint()
        shared = [0, *self.varints(count - 1)] if count else []
        lengths = self.varints(count)
        columns = [self.varints(count) for _ in range(other_columns)]
        texts: list[bytes] = []
        total = 0
        for common, length in zip(shared, lengths, strict=True):
            texts.append((texts[-1][:common] if texts else b"") + self.take(length))
            total += len(texts[-1])
            if total > MOST_TEXT:
                raise OverLimitError(f"has a node whose names take more than {MOST_TEXT} bytes")
        return texts, columns

    def files(self, base: str) -> list[tuple[str, str]]:
        """Return the path of each numbered file, and the prefix of the paths that it contains."""
        paths, (lengths,) = self.texts(other_columns=1)
        pairs = zip(paths, lengths, strict=True)
        return [(base + _text(path), base + _text(path[:length])) for path, length in pairs]


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _parsed(data: bytes, path: str, magic: bytes, parse: Callable[[_Body], T]) -> T:
    """Return the parsed manifest or node.

    Raises:
        BrokenStoreError: The manifest or node is inconsistent.
        OverLimitError: The manifest or node is larger than any that TensorStore writes.
    """
    if len(data) < _CRC_BYTES or crc32c(data[:-_CRC_BYTES]) != int.from_bytes(data[-_CRC_BYTES:], "little"):
        message = "its CRC-32C does not match: the content was changed after it was saved, or truncated"
        raise BrokenStoreError(Code.CHECKSUM_MISMATCH, path, message)
    try:
        return parse(_framed(_Body(data[:-_CRC_BYTES]), magic, len(data)))
    except (ValueError, IndexError) as error:
        message = f"it is inconsistent, although its CRC-32C matches: {error}"
        raise BrokenStoreError(Code.HEADER_INVALID, path, message) from None


def _framed(body: _Body, magic: bytes, length: int) -> _Body:
    """Return the body of a manifest or node, after checking its magic number, length and checksum.

    Raises:
        ValueError: The data have a different form.
    """
    if body.take(len(magic)) != magic or int.from_bytes(body.take(_LENGTH_BYTES), "little") != length:
        raise ValueError("it does not begin with the expected bytes")
    version, packing = body.varints(2)
    if version or packing > _ZSTD:
        raise ValueError(f"version {version} with compression {packing} is not supported")
    return _Body(_unpacked(body.rest())) if packing else body


def _unpacked(data: bytes) -> bytes:
    from zstandard import ZstdDecompressor, ZstdError  # most commands do not need it

    try:
        unpacked: bytes = (
            ZstdDecompressor(max_window_size=_MOST_WINDOW).stream_reader(BytesIO(data)).read(MOST_NODE_BYTES + 1)
        )
    except ZstdError as error:
        raise ValueError(str(error)) from None
    if len(unpacked) > MOST_NODE_BYTES:
        raise OverLimitError(f"has a node of more than {MOST_NODE_BYTES} bytes")
    return unpacked


def _root(body: _Body) -> _Child | None:
    """Return the root node of the manifest's newest version; None if the store is empty."""
    body.take(_UUID_BYTES)
    if body.varint():
        raise ValueError("the manifest is in several files, which ckpttool does not read")
    body.varints(2)  # size limits for values in nodes, and for nodes
    body.take(1)
    if body.varint() == _ZSTD:
        body.take(_LEVEL_BYTES)
    files = body.files("")
    versions = body.varint()
    body.varints(versions)  # version numbers, ascending
    heights = body.take(versions)
    numbers, offsets, lengths = (body.varints(versions) for _ in range(3))
    if not versions or offsets[-1] == _NOWHERE:
        return None
    path, base = files[numbers[-1]]
    return _Child(Extent(path, offsets[-1], lengths[-1]), b"", base, heights[-1])


class _Node(NamedTuple):
    """Contents of a node."""

    children: list[_Child]
    extents: list[Extent]
    """Positions of values outside the node."""
    keys: list[bytes]
    """The keys of all values of the node."""


def _node(body: _Body, place: _Child) -> _Node:
    (height,) = body.take(1)
    if height != place.height:
        raise ValueError(f"it is at height {height}, but its parent says {place.height}")
    files = body.files(place.base)
    if height:
        keys, (shared,) = body.texts(other_columns=1)
        numbers, offsets, lengths = (body.varints(len(keys)) for _ in range(3))
        children = [
            _Child(Extent(files[number][0], offset, length), place.prefix + key[:common], files[number][1], height - 1)
            for key, common, number, offset, length in zip(keys, shared, numbers, offsets, lengths, strict=True)
        ]
        return _Node(children, [], [])
    keys, _ = body.texts()
    lengths = body.varints(len(keys))
    outside = [length for length, kind in zip(lengths, body.varints(len(keys)), strict=True) if kind]
    numbers, offsets = (body.varints(len(outside)) for _ in range(2))
    extents = [
        Extent(files[number][0], offset, length)
        for number, offset, length in zip(numbers, offsets, outside, strict=True)
    ]
    return _Node([], extents, [place.prefix + key for key in keys])
