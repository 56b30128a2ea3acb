"""Part of a file that is read like a separate file, because a slice of a `.distcp` is a complete archive."""

from __future__ import annotations

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.storage.base import ByteSource


class FilePart:
    """The bytes from `begin` to `end` of an open file; bytes outside this range cannot be read."""

    __slots__ = ("_begin", "_source", "stamp")

    def __init__(self, source: ByteSource, begin: int, end: int) -> None:
        """Wrap the open file; if the file ends before `end`, the part ends there too."""
        self._source, self._begin = source, begin
        size = max(0, min(end, source.stamp.size) - begin)
        self.stamp = replace(source.stamp, size=ByteCount(size))

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes from `offset` in the part; fewer than `length` only at the end of the part."""
        return self._source.read(self._begin + offset, max(0, min(length, self.stamp.size - offset)))

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from `offset` in the part and return the number of bytes read."""
        length = max(0, min(len(buffer), self.stamp.size - offset))
        return self._source.read_into(self._begin + offset, buffer[:length])
