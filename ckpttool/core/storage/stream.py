"""Sequential reads of a file, each byte once, in blocks of one reused buffer."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from ckpttool.core.storage.base import ByteSource, ShrankError

BLOCK_BYTES = 512 << 10
"""Size of one read in bytes.

Smaller reads cost more calls; larger reads leave the core's cache (often 1 MiB) before all kernels have used them.
"""
DROP_BYTES = 64 << 20
"""Number of bytes to read before they are dropped from the page cache: rare enough to be cheap, early enough to spare
other files.
"""
SMALLEST_DROP = 1 << 20
"""Minimum size of a range in bytes that is dropped, because smaller ranges are not worth a system call."""
PROBES = 16
"""Number of pages that are checked to find whether a range is cached, spread because the header was just read."""
_PAGE_BYTES = 4096


@runtime_checkable
class Descriptor(Protocol):
    """A source that has a file descriptor, so that the kernel can be given read hints."""

    def fileno(self) -> int:
        """Return the open descriptor."""
        ...


@runtime_checkable
class Foreseeing(Protocol):
    """A source that is faster if the next reads are announced."""

    def expect(self, begin: int, end: int) -> None:
        """Announce that a range will be read sequentially; earlier announcements stay valid."""
        ...


def read_blocks(
    source: ByteSource, begin: int, end: int, *, buffer: memoryview | None = None, size: int | None = None
) -> Iterator[tuple[int, memoryview]]:
    """Yield every byte of a range as (offset in the file, bytes), in order.

    The bytes are valid until the next block is requested: all blocks share one buffer, so a file of any size needs half
    a MiB. Blocks end at multiples of their size, so two workers that meet at such a boundary see exactly the blocks
    that one worker would see.

    Pages that were not in the page cache before are dropped after reading, so that a check does not evict the files of
    a training run on the same machine.

    Args:
        source: An open file.
        begin: First byte.
        end: First byte after the range.
        buffer: Memory to reuse, at least `BLOCK_BYTES`; None to allocate a buffer.
        size: Bytes per block, counted from `begin`, at most `BLOCK_BYTES`; if None, blocks end as described above.

    Raises:
        ShrankError: The file ends inside the range. All blocks before that have been yielded.
        OSError: The disk did not answer.
        ValueError: The range ends before it begins, the buffer is too small, or the block size is impossible.
    """
    if not 0 <= begin <= end:
        raise ValueError(f"not a range of bytes: {begin} to {end}")
    if size is not None and not 0 < size <= BLOCK_BYTES:
        raise ValueError(f"a block has 1 to {BLOCK_BYTES} bytes, not {size}")
    most = min(BLOCK_BYTES, end - begin)  # thousands of tiny files would each pay for memory that they never fill
    view = memoryview(bytearray(most)) if buffer is None else buffer
    if buffer is not None and len(buffer) < BLOCK_BYTES:
        raise ValueError(f"a block has {BLOCK_BYTES} bytes, the buffer only {len(buffer)}")
    if isinstance(source, Foreseeing):
        source.expect(begin, end)
    cache = _PageCache(source, begin, end)
    offset = begin
    try:
        while offset < end:
            stop = min(end, (offset // BLOCK_BYTES + 1) * BLOCK_BYTES if size is None else offset + size)
            got = source.read_into(offset, view[: stop - offset])
            if got < stop - offset:
                raise ShrankError(offset=offset + got, expected_end=end)
            yield offset, view[:got]
            offset = stop
            cache.passed(offset)
    finally:
        cache.close(offset)


def was_cached(descriptor: int, begin: int, end: int) -> bool | None:
    """Return whether most of a range was already in the page cache; None if the file system does not show this.

    This is used by reads that must not wait for the disk. The limit is "most" because the pages of headers have just
    been read. Each call checks different pages, because Linux starts to read uncached pages.
    """
    nowait = getattr(os, "RWF_NOWAIT", None)
    if nowait is None or end <= begin:
        return None
    byte = bytearray(1)
    hits = 0
    stride = max(1, (end - begin) // PROBES)
    first = begin + time.monotonic_ns() % stride
    for offset in range(first, first + PROBES * stride, stride):
        try:
            hits += os.preadv(descriptor, [byte], offset // _PAGE_BYTES * _PAGE_BYTES, nowait)
        except BlockingIOError:
            continue
        except OSError:  # EOPNOTSUPP on many network file systems
            return None
    return hits * 2 > PROBES


class _PageCache:
    """A step after each read that removes pages from the page cache if they were not there before."""

    __slots__ = ("_behind", "_descriptor")

    def __init__(self, source: ByteSource, begin: int, end: int) -> None:
        self._behind = begin
        self._descriptor: int | None = None
        if end - begin < SMALLEST_DROP or not isinstance(source, Descriptor) or not hasattr(os, "posix_fadvise"):
            return
        descriptor = source.fileno()
        # By default nothing is dropped, because a training run may be about to read the file.
        if was_cached(descriptor, begin, end) is False:
            self._descriptor = descriptor
        # This also resets POSIX_FADV_RANDOM, which reading headers sets. POSIX_FADV_WILLNEED is not added: on a device
        # with its own long read-ahead, it took more than twice as long.
        os.posix_fadvise(descriptor, begin, end - begin, os.POSIX_FADV_SEQUENTIAL)

    def passed(self, offset: int) -> None:
        """Drop the pages before `offset` if there are enough of them."""
        if offset - self._behind >= DROP_BYTES:
            self.close(offset)

    def close(self, offset: int) -> None:
        """Drop all pages that were read up to `offset`."""
        if self._descriptor is not None and offset > self._behind:
            os.posix_fadvise(self._descriptor, self._behind, offset - self._behind, os.POSIX_FADV_DONTNEED)
            self._behind = offset
