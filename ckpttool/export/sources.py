"""The files that an export reads: they must not change, and the CRC-32 of each record that is read must be right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ckpttool.core.domain.contents import elements_in
from ckpttool.core.domain.finding import Code, damage, unknown
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.weights import NotExportableError, Piece, Record, Target
from ckpttool.core.storage.base import ByteSource, Storage, unreadable
from ckpttool.core.verify.kernels.crc import crc32
from ckpttool.export.cover import is_dense

if TYPE_CHECKING:
    from typing_extensions import Self

_BLOCK_BYTES = 8 << 20
_MOST_OPEN = 64
"""Maximum number of source files that are open at the same time."""


class Sources:
    """The source files of an export, and the proof of the records that were read."""

    def __init__(self, storage: Storage, stamps: Mapping[str, FileStamp], targets: Iterable[Target]) -> None:
        """Store the files' stamps, and count the readers of each record.

        Args:
            storage: The tree.
            stamps: Stamp of each file when its header was read; the file must not change until the end.
            targets: All tensors that will be read.
        """
        self._storage, self._stamps = storage, stamps
        self._readers = Counter(piece.record for target in targets for piece in target.pieces)
        self._proven: set[Record] = set()
        self._open: dict[str, ByteSource] = {}
        self._stack = ExitStack()

    @property
    def proven(self) -> int:
        """Number of records whose CRC-32 was compared with their data."""
        return len(self._proven)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def prove(self, record: Record) -> None:
        """Compare the CRC-32 of a record with its data, unless this was done before.

        Raises:
            NotExportableError: The data are damaged, or the file has changed.
        """
        if record in self._proven or record.crc32 is None:
            return
        buffer = memoryview(bytearray(min(record.length, _BLOCK_BYTES)))
        value, at = 0, 0
        while at < record.length:
            part = buffer[: record.length - at]
            self.fill(record.path, record.begin + at, part)
            value = crc32(part, value)
            at += len(part)
        self.judge(record, value)

    def judge(self, record: Record, value: int) -> None:
        """Compare the CRC-32 of a record with the computed one."""
        if value != record.crc32:
            message = (
                f"The data at byte {record.begin} do not match their CRC-32: recorded {record.crc32:08x}, "
                f"computed {value:08x}."
            )
            raise NotExportableError(
                damage(
                    Code.CHECKSUM_MISMATCH, message, path=record.path, expected=f"{record.crc32:08x}",
                    actual=f"{value:08x}", remedy="restore the file from a copy, or export another checkpoint",
                )
            )  # fmt: skip
        self._proven.add(record)

    def reader(self, piece: Piece) -> Callable[[int, memoryview], None]:
        """Return a function that fills a buffer from an absolute byte of a piece, which proves the piece's record.

        If a piece is the only reader of its record and reads it in order, the CRC-32 is computed during the copy;
        otherwise the record is read once more, before.
        """
        record = piece.record
        if record is None or record.crc32 is None or record in self._proven:
            return lambda begin, buffer: self.fill(piece.path, begin, buffer)
        nbytes = elements_in(piece.shape) * (piece.dtype.bits // 8)
        is_all = (piece.begin, nbytes) == (record.begin, record.length) and is_dense(piece.shape, piece.stride)
        if self._readers[record] > 1 or not is_all:
            self.prove(record)
            return lambda begin, buffer: self.fill(piece.path, begin, buffer)
        return _InOrder(self, piece, record).fill

    def fill(self, path: str, begin: int, buffer: memoryview) -> None:
        """Fill a buffer from a file.

        Raises:
            NotExportableError: The file cannot be read, has changed, or ends too early.
        """
        try:
            source = self._open.get(path) or self._opened(path)
            have = source.read_into(begin, buffer)
        except OSError as error:  # an error of the source, not of the disk that is written to
            raise NotExportableError(unreadable(path, error)) from error
        if have < len(buffer):
            message = f"The file ends at byte {begin + have}, but a weight is recorded up to {begin + len(buffer)}."
            raise NotExportableError(
                damage(Code.SHARD_TRUNCATED, message, path=path, remedy="restore the file from a copy")
            )

    def assert_unchanged(self) -> None:
        """Check after the last read that every record was proven, and that no file has changed since it was listed.

        Raises:
            NotExportableError: A record is damaged, or a file has changed or can no longer be checked.
        """
        for record in self._readers:
            if record is not None:
                self.prove(record)  # nothing is left to do, unless a part of a record was not needed
        for path, stamp in self._stamps.items():
            try:
                is_same = self._storage.stamp(path) == stamp
            except OSError as error:
                raise NotExportableError(unreadable(path, error)) from error
            if not is_same:
                raise changed(path)

    def _opened(self, path: str) -> ByteSource:
        if len(self._open) >= _MOST_OPEN:
            self._stack.close()
            self._open.clear()
        source = self._stack.enter_context(self._storage.open(path))
        if source.stamp != self._stamps.get(path, source.stamp):
            raise changed(path)
        self._open[path] = source
        return source


def changed(path: str) -> NotExportableError:
    """Return the error for a file that was changed during the export."""
    message = "The file was changed during the export, so nothing was written."
    remedy = "wait until the training or the copy is finished, then export again"
    return NotExportableError(unknown(Code.CHANGED_WHILE_READING, message, path=path, remedy=remedy))


class _InOrder:
    """A reader of one record from its first to its last byte, which computes the CRC-32."""

    def __init__(self, sources: Sources, piece: Piece, record: Record) -> None:
        self._sources, self._record, self._path = sources, record, piece.path
        self._at = record.begin
        self._value = 0

    def fill(self, begin: int, buffer: memoryview) -> None:
        """Fill the buffer with the next bytes.

        Raises:
            AssertionError: The bytes are not the next ones.
        """
        if begin != self._at:
            raise AssertionError(f"byte {begin} of {self._path} was read before byte {self._at}")
        self._sources.fill(self._path, begin, buffer)
        self._value = crc32(buffer, self._value)
        self._at += len(buffer)
        if self._at == self._record.begin + self._record.length:
            self._sources.judge(self._record, self._value)
