"""Write a file of any size durably, and hash it at the same time, to detect later changes on the disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.manifest import CHUNK_BYTES
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.errors import NotDurableError, UnsafeError, WriteFailedError
from ckpttool.core.write.files import close

if TYPE_CHECKING:
    from xxhash import xxh3_128

Block: TypeAlias = "bytes | bytearray | memoryview"

_WRITE_BYTES = 8 << 20
"""Bytes per write: enough to keep a disk busy, and still in the CPU cache for hashing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """The size and digests of the written data, in the form of a seal."""

    size: ByteCount
    xxh3_128: str
    """Hash of the complete file, 32 hexadecimal digits."""
    chunks: tuple[str, ...]
    """Hash of each `CHUNK_BYTES`, in file order; the last chunk may be shorter. Empty for an empty file."""


class FileDigest:
    """The digests of a complete file, computed from consecutive blocks, in the form of a seal."""

    __slots__ = ("_chunk", "_chunks", "_size", "_whole")

    def __init__(self) -> None:
        self._size = 0
        self._whole = _hash()
        self._chunk = _hash()
        self._chunks: list[str] = []

    def feed(self, block: memoryview) -> None:
        """Process the next bytes."""
        while block:
            part = block[: CHUNK_BYTES - self._size % CHUNK_BYTES]
            self._whole.update(part)
            self._chunk.update(part)
            self._size += len(part)
            if not self._size % CHUNK_BYTES:
                self._chunks.append(self._chunk.hexdigest())
                self._chunk = _hash()
            block = block[len(part) :]

    def streamed(self) -> Streamed:
        """Return the digests of the data so far."""
        last = [self._chunk.hexdigest()] if self._size % CHUNK_BYTES else []
        digest = self._whole.hexdigest()
        chunks = (*self._chunks, *last)
        return Streamed(size=ByteCount(self._size), xxh3_128=digest, chunks=chunks)


def stream(path: str, blocks: Iterable[Block], *, size: ByteCount, temporary: str) -> Streamed:
    """Write blocks to `path` so that a reader always sees all of them or the old file, even after a power failure.

    The digests are of the bytes sent to the disk, not of bytes read back. Free space is checked first, because a disk
    that fills up during a save stops every process that writes to it. Space is not reserved, because some C libraries
    emulate a reservation by writing everything twice.

    Args:
        path: The file. Its folder must exist; an existing regular file is replaced.
        blocks: The content, in order.
        size: Total bytes of all blocks.
        temporary: Temporary name in the same folder. An existing file with this name was left by a killed writer and is
            replaced, because no other process may use the name.

    Raises:
        UnsafeError, WriteFailedError: Nothing was changed. UnsafeError means that a link, a FIFO or a device is in the
            way.
        NotDurableError: The file is in place, but the folder could not be synced to the disk.
        ValueError: The blocks had a different total size.
    """
    folder, name = os.path.split(path)
    try:
        folder_fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _failed(path, error) from error
    try:
        try:
            assert_room(folder_fd, path, size)
            _assert_regular(folder_fd, path, name)
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder_fd)
            streamed = _write(folder_fd, temporary, name, blocks, size)
        except OSError as error:
            raise _failed(path, error) from error
        try:
            os.fsync(folder_fd)
        except OSError as error:
            raise NotDurableError(
                f"{path!r} was written, but its folder could not be flushed to disk ({error.strerror}): a power "
                f"failure may still undo it; check the disk, then save again"
            ) from error
    finally:
        close(folder_fd)
    return streamed


def _write(folder_fd: int, temporary: str, name: str, blocks: Iterable[Block], size: ByteCount) -> Streamed:
    """Write to the temporary name, flush it to the disk, and rename it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o666, dir_fd=folder_fd)
    try:
        digest = FileDigest()
        try:
            for block in blocks:
                write_block(fd, memoryview(block).cast("B"), digest)
            streamed = digest.streamed()
            if streamed.size != size:
                raise ValueError(f"{name}: {size} bytes were announced, but {streamed.size} were written")
            os.fsync(fd)
        finally:
            os.close(fd)  # NFS reports a full disk only here; it must stop us like a failed write
        os.replace(temporary, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder_fd)
        raise
    return streamed


def write_block(fd: int, block: memoryview, digest: FileDigest) -> None:
    """Write a block to the disk, and digest it.

    Raises:
        OSError: The write failed.
    """
    while block:
        part = block[:_WRITE_BYTES]
        digest.feed(part)
        while part:
            written = os.write(fd, part)
            part, block = part[written:], block[written:]


def assert_room(folder_fd: int, path: str, size: int) -> None:
    """Check that the disk has room for a file.

    Raises:
        WriteFailedError: The disk does not have room.
    """
    disk = os.fstatvfs(folder_fd)
    free = disk.f_bavail * disk.f_frsize
    if disk.f_blocks and free < size:  # some network file systems do not report blocks
        raise WriteFailedError(
            f"cannot write {path!r}: it needs {size} bytes and the disk has {free} free; nothing was changed"
        )


def _assert_regular(folder_fd: int, path: str, name: str) -> None:
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode):
            raise UnsafeError(f"cannot write {path!r}: a folder, a link or a device has its name; nothing was changed")


def _failed(path: str, error: OSError) -> WriteFailedError:
    return WriteFailedError(f"cannot write {path!r}: {error.strerror or error}; nothing was changed")


def _hash() -> xxh3_128:
    import xxhash  # saves other starts half a millisecond

    return xxhash.xxh3_128()
