"""One pass over a file for all requested results, so that the disk is read once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.manifest import CHUNK_BYTES
from ckpttool.core.domain.shard import TensorEntry
from ckpttool.core.storage.base import ByteSource
from ckpttool.core.storage.stream import BLOCK_BYTES, read_blocks
from ckpttool.core.verify.kernels.crc import crc32
from ckpttool.core.verify.kernels.floats import FLOATS
from ckpttool.core.verify.kernels.fold import NumericFold, Scratch
from ckpttool.core.verify.kernels.hashes import ChunkedDigest
from ckpttool.core.verify.kernels.passes import EntryDigest, PassResult, Wants, file_order
from ckpttool.core.verify.kernels.tensors import TensorHashes

_INTEGERS = frozenset(
    {DType.I8, DType.I16, DType.I32, DType.I64, DType.U8, DType.U16, DType.U32, DType.U64},
)


class PassSink:
    """A sink that feeds consecutive blocks of a file to all requested computations."""

    __slots__ = ("_begin", "_digest", "_offset", "_open_from", "_sha256", "_spans", "_tallies", "_tensors")

    def __init__(self, begin: int, end: int, *, entries: Sequence[TensorEntry], wants: Wants) -> None:
        """Prepare for the bytes from `begin` to `end`, exclusive.

        Raises:
            ValueError: Spans overlap. A header with overlapping spans has no data to check.
        """
        self._begin = self._offset = begin
        single = begin // CHUNK_BYTES == max(begin, end - 1) // CHUNK_BYTES
        hashed = wants.xxh or wants.chunks
        self._digest = None
        if hashed or wants.crc_end is not None:
            self._digest = ChunkedDigest(
                begin, want_xxh=hashed, crc_end=wants.crc_end, single=single, is_whole_file=wants.xxh
            )
        self._sha256 = sha256(usedforsecurity=False) if wants.sha256 else None
        self._tensors = TensorHashes(wants.tensors, begin, end) if wants.tensors else None
        self._tallies: list[_Tally] = []
        self._spans: list[_Span] = []
        if wants.entry_crcs or wants.numerics:
            self._take(entries, wants, begin, end)
        self._open_from = 0

    def _take(self, entries: Sequence[TensorEntry], wants: Wants, begin: int, end: int) -> None:
        scratch = Scratch(BLOCK_BYTES) if wants.numerics else None
        for entry in sorted(entries, key=file_order):
            tally = _Tally(entry, wants, scratch)
            spans = list(_spans(tally, begin, end))
            if spans or not entry.nbytes:
                self._tallies.append(tally)
                self._spans.extend(spans)
        self._spans.sort(key=lambda span: span.begin)
        for before, after in pairwise(self._spans):
            if after.begin < before.end:
                raise ValueError(f"{after.tally.entry.name} overlaps {before.tally.entry.name} at byte {after.begin}")

    def feed(self, offset: int, block: memoryview) -> None:
        """Process the next block.

        Raises:
            ValueError: The block does not follow the previous block, or an entry's spans are not in file order.
        """
        if offset != self._offset:
            raise ValueError(f"blocks must follow one another: expected byte {self._offset}, got {offset}")
        self._offset += len(block)
        if self._digest is not None:
            self._digest.feed(block)
        if self._sha256 is not None:
            self._sha256.update(block)
        if self._tensors is not None:
            self._tensors.feed(offset, block)
        while self._open_from < len(self._spans):
            span = self._spans[self._open_from]
            if span.begin >= self._offset:
                return
            first, last = max(span.begin, offset), min(span.end, self._offset)
            span.tally.feed(span.logical + first - span.begin, block[first - offset : last - offset])
            if span.end > self._offset:
                return
            self._open_from += 1

    def result(self) -> PassResult:
        """Return the results of the blocks so far."""
        digest = self._digest
        return PassResult(
            begin=self._begin,
            end=self._offset,
            chunks=() if digest is None else digest.chunks(),
            xxh128=None if digest is None else digest.xxh128(),
            sha256=None if self._sha256 is None else self._sha256.hexdigest(),
            entries=tuple(tally.digest() for tally in self._tallies),
            tensors=None if self._tensors is None else self._tensors.result(),
        )


def digest_pass(
    source: ByteSource,
    *,
    entries: Sequence[TensorEntry] = (),
    wants: Wants,
    span: tuple[int, int] | None = None,
    passed: Callable[[int], None] | None = None,
) -> PassResult:
    """Read a file, or a part of it, once, and return all requested results.

    Args:
        source: An open file.
        entries: Tensors or zip records, with disjoint spans inside the file. Entries outside the part are skipped.
        wants: The requested results.
        span: First byte of the part and first byte after it; None for the complete file. If parts are to be joined,
            both must be multiples of `CHUNK_BYTES` or the file's size.
        passed: Called after each block with its number of bytes.

    Raises:
        ShrankError: The file became shorter while it was read.
        OSError: The disk did not answer.
        ValueError: Spans overlap, or the spans of an entry are not in file order.
    """
    begin, end = (0, source.stamp.size) if span is None else span
    sink = PassSink(begin, end, entries=entries, wants=wants)
    for offset, block in read_blocks(source, begin, end):
        sink.feed(offset, block)
        if passed is not None:
            passed(len(block))
    return sink.result()


class _Tally:
    """The partial results for one entry."""

    __slots__ = ("_begin", "_crc", "_end", "_fold", "_scalar", "entry")

    def __init__(self, entry: TensorEntry, wants: Wants, scratch: Scratch | None) -> None:
        self.entry = entry
        self._begin: int | None = None
        self._end = 0
        self._crc = 0 if wants.entry_crcs else None
        self._scalar: list[bytes] | None = [] if entry.shape == () and entry.dtype in _INTEGERS else None
        self._fold = NumericFold(entry.dtype, scratch) if scratch is not None and entry.dtype in FLOATS else None

    def feed(self, logical: int, data: memoryview) -> None:
        """Process the entry's next bytes; `logical` is their position in the entry's data."""
        if self._begin is None:
            self._begin = logical
        elif logical != self._end:
            raise ValueError(f"{self.entry.name}: spans are not in file order")
        self._end = logical + len(data)
        if self._crc is not None:
            self._crc = crc32(data, self._crc)
        if self._scalar is not None:
            self._scalar.append(bytes(data))
        if self._fold is not None:
            self._fold.feed(logical, data)

    def digest(self) -> EntryDigest:
        return EntryDigest(
            entry=self.entry,
            begin=self._begin or 0,
            end=self._end,
            crc32=self._crc,
            scalar=b"".join(self._scalar or ()),
            numeric=None if self._fold is None else self._fold.partial(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """A byte range of the file that belongs to an entry."""

    begin: int
    end: int
    logical: int
    """Position of the range's first byte in the entry's data."""
    tally: _Tally


def _spans(tally: _Tally, begin: int, end: int) -> Iterator[_Span]:
    """Yield the spans of an entry, cut to the range that is read."""
    logical = 0
    for first, last in tally.entry.spans:
        low, high = max(first, begin), min(last, end)
        if low < high:
            yield _Span(begin=low, end=high, logical=logical + low - first, tally=tally)
        logical += last - first
