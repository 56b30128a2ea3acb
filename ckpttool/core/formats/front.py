"""Beginning of a file, and its last page on request; each is read once and rarely copied."""

from __future__ import annotations

from threading import local

from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.storage.base import ByteSource

HEAD_BYTES = 4096
"""Number of bytes to read first, which is enough for every magic number and for a small header."""

_BEHIND_BYTES = 4096
"""Number of bytes to read after a header, because training scalars are the first tensors of many files."""

_KEPT_BYTES = 2 << 20
"""Maximum size in bytes of a buffer that a thread reuses, which is enough for a header of 10,000 tensors."""


class _Cache(local):
    """Buffers that a thread reuses for every file.

    New memory causes a page fault per page at the first write, which would take most of the time of reading a header.
    """

    def __init__(self) -> None:
        self.block = bytearray(HEAD_BYTES)
        self.expected = HEAD_BYTES
        """Number of bytes to read from the next file, because the shards of a run have headers of the same length."""
        self.files = 0
        """Number of files opened so far; the buffer has the bytes of the last file."""


_KEPT = _Cache()


class Front:
    """An open file with its first bytes in memory.

    It is a `ByteSource` that does not read these bytes again. The memory is valid only in this thread, until it opens
    the next file; after that, the file is read again.
    """

    __slots__ = ("_file", "_kept", "_page", "_page_begin", "_source", "block", "length", "stamp")

    def __init__(self, source: ByteSource) -> None:
        """Read the first bytes of a file: as many as the previous file needed.

        Raises:
            OSError: The disk did not answer.
        """
        self._source = source
        self.stamp: FileStamp = source.stamp
        self._kept = front = _KEPT
        front.files = self._file = front.files + 1
        self.block: bytearray = front.block
        """Buffer with the bytes of this file, followed by old bytes of other files."""
        self.length = 0
        """Number of bytes in the buffer that belong to this file."""
        self._page = b""
        self._page_begin = 0
        expected, front.expected = front.expected, HEAD_BYTES
        self.extend(min(expected, self.stamp.size))

    def head(self) -> bytes:
        """Return the first bytes, which identify the format."""
        return bytes(memoryview(self.block)[: min(HEAD_BYTES, self.length)])

    def extend(self, end: int) -> None:
        """Read the file up to byte `end`, exclusive; afterwards, `length` is smaller if the file was too short.

        Raises:
            OSError: The disk did not answer.
        """
        if end <= self.length:
            return
        if end > len(self.block):
            block = bytearray(end)
            block[: self.length] = memoryview(self.block)[: self.length]
            self.block = block
            if end <= _KEPT_BYTES:
                self._kept.block = block
        self.length += self._source.read_into(self.length, memoryview(self.block)[self.length : end])

    def expect_again(self, end: int) -> None:
        """Set the number of bytes to read from the next file: this file's need, with a small margin."""
        self._kept.expected = min(end + _BEHIND_BYTES, _KEPT_BYTES)

    def keep(self, page: tuple[int, int]) -> None:
        """Read the last page into memory, unless it is already there.

        Raises:
            OSError: The disk did not answer.
        """
        begin, end = page
        if end > self.length:
            self._page, self._page_begin = self._source.read(begin, end - begin), begin

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes from `offset`; fewer than `length` only at the end of the file."""
        end = offset + length
        if end <= self.length and self._kept.files == self._file:
            return bytes(memoryview(self.block)[offset:end])
        if self._page_begin <= offset and end <= self._page_begin + len(self._page):
            return self._page[offset - self._page_begin : end - self._page_begin]
        return self._source.read(offset, length)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from `offset` and return the number of bytes read."""
        return self._source.read_into(offset, buffer)
