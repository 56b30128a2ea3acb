"""One digest per tensor, computed while a block is in the CPU cache; if workers share a tensor, the digests are joined.

Hashes cannot be joined, so a large tensor is hashed in pieces, which begin at the same bytes for every worker. If two
workers each read part of a piece, both store the bytes of their part: at most one piece at each end of a worker's
range.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter

from xxhash import xxh3_64, xxh3_64_digest

from ckpttool.core.domain.replicas import PIECE_BYTES, TensorDigests, shared_names
from ckpttool.core.domain.shard import TensorEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPart:
    """The part of a tensor that one pass read."""

    name: str
    nbytes: int
    """Size of the complete tensor."""
    begin: int
    """First byte read, counted from the start of the tensor's data."""
    end: int
    """First byte after the part."""
    head: bytes
    """The bytes up to the first piece border; all bytes if the part reaches no border."""
    pieces: bytes
    """Concatenated digests of the completely read pieces."""
    tail: bytes
    """The bytes after the last border."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorsSeen:
    """The tensor digests of a pass, or of several joined passes. Picklable."""

    complete: tuple[tuple[str, bytes], ...] = ()
    """Name and digest of each completely read tensor, in file order."""
    parts: tuple[TensorPart, ...] = ()
    """Parts of the other tensors."""

    def digests(self) -> TensorDigests:
        """Return the digests of the tensors that were read completely.

        Names that two tensors share are left out.
        """
        by_name = dict(self.complete)
        if len(by_name) < len(self.complete):
            times = Counter(name for name, _ in self.complete)
            by_name = {name: digest for name, digest in by_name.items() if times[name] == 1}
        names = tuple(sorted(by_name))
        if not "".join(names).isascii():
            names = tuple(filter(_is_text, names))
        return TensorDigests(names=shared_names(names), digests=b"".join([by_name[name] for name in names]))


def _is_text(name: str) -> bool:
    """Return whether JSON can represent a name, so that it can be recorded; trainers write no unpaired surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def join_tensors(parts: Sequence[TensorsSeen]) -> TensorsSeen:
    """Return the joined results of passes over consecutive parts of a file; a tensor with a gap stays unknown."""
    complete = [pair for seen_part in parts for pair in seen_part.complete]
    by_name: dict[str, TensorPart] = {}
    for part in sorted((part for seen_part in parts for part in seen_part.parts), key=lambda part: part.begin):
        before = by_name.get(part.name)
        if before is not None and (before.end, before.nbytes) == (part.begin, part.nbytes):
            by_name[part.name] = _joined(before, part)
        elif not part.begin:
            by_name[part.name] = part
    complete += [(part.name, _digest(part.nbytes, part.pieces)) for part in by_name.values() if part.end == part.nbytes]
    return TensorsSeen(complete=tuple(complete))


def _joined(before: TensorPart, after: TensorPart) -> TensorPart:
    """Return the joined results of two consecutive parts of a tensor, the first of which starts at byte 0."""
    middle, tail = before.tail + after.head, after.tail
    pieces = before.pieces
    if middle and (len(middle) == PIECE_BYTES or after.begin + len(after.head) == after.nbytes):
        pieces += xxh3_64_digest(middle)
    elif middle:
        tail = middle
    return replace(before, end=after.end, pieces=pieces + after.pieces, tail=tail)


def _digest(nbytes: int, pieces: bytes | bytearray) -> bytes:
    """Return the digest of a tensor from the digests of its pieces."""
    return bytes(pieces) if nbytes <= PIECE_BYTES else xxh3_64_digest(pieces)


class TensorHashes:
    """The digests of tensors whose bytes arrive with consecutive blocks of a file.

    A file may have thousands of tensors so small that hashing one takes no longer than a line of Python. Therefore one
    expression computes the digests of all tensors that are completely inside a block.
    """

    __slots__ = ("_at", "_hash", "_lasts", "_odd", "_open", "_spans", "_whole")

    def __init__(self, entries: Iterable[TensorEntry], begin: int, end: int) -> None:
        """Prepare for the tensors, and the range of the file to be read. A tensor without bytes has no digest.

        Raises:
            ValueError: A tensor's spans are not in file order, or two tensors overlap.
        """
        self._open: list[_Open] = []
        self._spans = sorted(self._cut(entries, begin, end), key=itemgetter(0))
        self._lasts = [span[1] for span in self._spans]
        self._odd = [at for at, span in enumerate(self._spans) if span[3] is not None]
        if any(first < last for (first, *_), last in zip(self._spans[1:], self._lasts, strict=False)):
            raise ValueError("tensors overlap")
        self._at = 0
        self._hash = xxh3_64()
        """Hash of the small tensor that began in the previous block."""
        self._whole: list[tuple[str, bytes]] = []

    def _cut(self, entries: Iterable[TensorEntry], begin: int, end: int) -> Iterator[_Span]:
        """Clip the spans of all tensors to the range that is read."""
        for entry in entries:
            spans = entry.spans
            if len(spans) == 1:  # nearly all tensors
                first, last = spans[0]
                if last <= begin or end <= first:
                    continue
                if begin <= first < last <= end and last - first <= PIECE_BYTES:
                    yield first, last, entry.name, None, 0
                    continue
            logical, cut = 0, []
            for first, last in spans:
                low, high = max(first, begin), min(last, end)
                if low < high:
                    cut.append((low, high, logical + low - first))
                logical += last - first
            if cut:
                tensor = _Open(entry.name, logical, cut[0][2], cut[-1][2] + cut[-1][1] - cut[-1][0])
                self._open.append(tensor)
                if any(before[1] > after[0] for before, after in pairwise(cut)):
                    raise ValueError(f"{entry.name}: spans are not in file order")
                yield from ((low, high, entry.name, tensor, place) for low, high, place in cut)

    def feed(self, offset: int, block: memoryview) -> None:
        """Process the next block."""
        end = offset + len(block)
        at, spans = self._at, self._spans
        while at < len(spans):
            first, last, name, tensor, logical = spans[at]
            if first >= end:
                break
            if tensor is not None:
                low = max(first, offset)
                tensor.feed(logical + low - first, block[low - offset : last - offset])
                if last <= end and tensor.is_complete:
                    self._whole.append((name, tensor.digest()))
            elif first < offset or last > end:
                self._hash.update(block[max(0, first - offset) : last - offset])
                if last <= end:
                    self._whole.append((name, self._hash.digest()))
                    self._hash.reset()
            else:
                index = bisect_left(self._odd, at)
                stop = bisect_right(self._lasts, end, at, self._odd[index] if index < len(self._odd) else len(spans))
                self._whole += [
                    (name, xxh3_64_digest(block[first - offset : last - offset]))
                    for first, last, name, _, _ in spans[at:stop]
                ]
                at = stop
                continue
            if last > end:
                break
            at += 1
        self._at = at

    def result(self) -> TensorsSeen:
        """Return the results of the blocks so far."""
        parts = (tensor.part() for tensor in self._open if tensor.has_begun and not tensor.is_complete)
        return TensorsSeen(complete=tuple(self._whole), parts=tuple(parts))


class _Open:
    """A tensor of several pieces, spans or readers."""

    __slots__ = (
        "_begin",
        "_border",
        "_end",
        "_first_border",
        "_hash",
        "_head",
        "_last_border",
        "_pieces",
        "_tail",
        "name",
        "nbytes",
    )

    def __init__(self, name: str, nbytes: int, begin: int, stop: int) -> None:
        """Store the tensor's name and size, and the expected range of its bytes."""
        self.name, self.nbytes = name, nbytes
        self._begin = self._end = begin
        self._first_border = -(-begin // PIECE_BYTES) * PIECE_BYTES
        last_border = stop if stop == nbytes else stop // PIECE_BYTES * PIECE_BYTES
        self._last_border = max(self._first_border, last_border)
        self._border = min(self._first_border + PIECE_BYTES, nbytes)
        """End of the piece that is being hashed."""
        self._head, self._pieces, self._tail = bytearray(), bytearray(), bytearray()
        self._hash = xxh3_64()

    @property
    def has_begun(self) -> bool:
        return self._end > self._begin

    @property
    def is_complete(self) -> bool:
        return self._begin == 0 and self._end == self.nbytes

    def feed(self, logical: int, data: memoryview) -> None:
        """Process the next bytes; `logical` is their position in the tensor's data."""
        self._end = stop = logical + len(data)
        at = logical
        if at < self._first_border or stop > self._last_border:  # at the ends of the reader's range
            self._head += data[: max(0, self._first_border - logical)]
            self._tail += data[max(0, self._last_border - logical) :]
            at, stop = max(at, self._first_border), min(stop, self._last_border)
        while self._border <= stop and at < stop:
            self._hash.update(data[at - logical : self._border - logical])
            self._pieces += self._hash.digest()
            self._hash.reset()
            at = self._border
            self._border = min(at + PIECE_BYTES, self.nbytes)
        if at < stop:
            self._hash.update(data[at - logical : stop - logical])

    def digest(self) -> bytes:
        """Return the digest of a completely read tensor."""
        return _digest(self.nbytes, self._pieces)

    def part(self) -> TensorPart:
        """Return the part that has been read."""
        return TensorPart(
            name=self.name,
            nbytes=self.nbytes,
            begin=self._begin,
            end=self._end,
            head=bytes(self._head),
            pieces=bytes(self._pieces),
            tail=bytes(self._tail),
        )


_Span = tuple[int, int, str, _Open | None, int]
"""First byte in the file, first byte after the end, and tensor name; for a tensor that is large or split between
blocks, also its state, and the offset of the first byte in the tensor's data."""
