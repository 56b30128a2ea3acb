"""One digest of each tensor, taken while a block is in the core's cache; of a tensor that workers share they join.

A hash cannot be joined, so a large tensor is hashed in pieces, which begin where they would whoever reads them. Of a
piece that two workers saw a part each, both keep the bytes: at most one at each end of what a worker reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from xxhash import xxh3_64, xxh3_64_digest

from ckpttool.domain.replicas import PIECE_BYTES, TensorDigests, shared_names
from ckpttool.domain.shard import TensorEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPart:
    """What one pass saw of a tensor that it did not see whole."""

    name: str
    nbytes: int
    """Of the whole tensor."""
    begin: int
    """First byte seen, counted in the tensor's own data."""
    end: int
    """First byte after."""
    head: bytes
    """The bytes up to the first border of pieces; all, where the part reaches none."""
    pieces: bytes
    """Digests of the pieces that were seen whole, one after another."""
    tail: bytes
    """The bytes after the last border."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorsSeen:
    """What a pass, or several joined ones, told of the tensors. A picklable value."""

    whole: tuple[tuple[str, bytes], ...] = ()
    """Name and digest of each that was seen whole, in file order."""
    parts: tuple[TensorPart, ...] = ()
    """Of the others."""

    def digests(self) -> TensorDigests:
        """Return the digests of those that were seen whole.

        A name that stands for two tensors tells nothing of either.
        """
        by_name = dict(self.whole)
        if len(by_name) < len(self.whole):
            times = Counter(name for name, _ in self.whole)
            by_name = {name: digest for name, digest in by_name.items() if times[name] == 1}
        by_name = {name: digest for name, digest in by_name.items() if _is_text(name)}
        names = tuple(sorted(by_name))
        return TensorDigests(names=shared_names(names), digests=b"".join([by_name[name] for name in names]))


def _is_text(name: str) -> bool:
    """Tell whether JSON can hold a name, so that it can be recorded: half a character comes from no trainer."""
    return name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name)


def join_tensors(seen: Sequence[TensorsSeen]) -> TensorsSeen:
    """Return what passes over consecutive parts of a file tell together; a tensor with a gap stays unknown."""
    whole = [pair for each in seen for pair in each.whole]
    known: dict[str, TensorPart] = {}
    for part in sorted((part for each in seen for part in each.parts), key=lambda part: part.begin):
        before = known.get(part.name)
        if before is not None and (before.end, before.nbytes) == (part.begin, part.nbytes):
            known[part.name] = _joined(before, part)
        elif not part.begin:
            known[part.name] = part
    whole += [(part.name, _digest(part.nbytes, part.pieces)) for part in known.values() if part.end == part.nbytes]
    return TensorsSeen(whole=tuple(whole))


def _joined(before: TensorPart, after: TensorPart) -> TensorPart:
    """Return what two consecutive parts tell of a tensor, the first from its first byte on."""
    middle, tail = before.tail + after.head, after.tail
    pieces = before.pieces
    if middle and (len(middle) == PIECE_BYTES or after.begin + len(after.head) == after.nbytes):
        pieces += xxh3_64_digest(middle)
    elif middle:
        tail = middle
    return replace(before, end=after.end, pieces=pieces + after.pieces, tail=tail)


def _digest(nbytes: int, pieces: bytes | bytearray) -> bytes:
    """Return the digest of a tensor from those of its pieces."""
    return bytes(pieces) if nbytes <= PIECE_BYTES else xxh3_64_digest(pieces)


class TensorHashes:
    """Takes the digests of tensors whose bytes come with consecutive blocks of a file."""

    __slots__ = ("_at", "_entries", "_open", "_spans", "_stops", "_whole")

    def __init__(self, entries: Iterable[TensorEntry], begin: int, end: int) -> None:
        """Take the tensors, and the range of the file that will come. A tensor without bytes has no digest."""
        self._entries = [entry for entry in entries if entry.spans]
        self._spans = sorted(_spans(self._entries, begin, end))
        self._stops = {index: logical + last - first for first, last, logical, index in self._spans}
        self._at = 0
        self._open: dict[int, _Open] = {}
        self._whole: list[tuple[str, bytes]] = []

    def feed(self, offset: int, block: memoryview) -> None:
        """Take the next block.

        Raises:
            ValueError: A tensor's spans are not in file order.
        """
        end = offset + len(block)
        for at in range(self._at, len(self._spans)):
            span = first, last, _, index = self._spans[at]
            if first >= end:
                self._at = at
                return
            entry = self._entries[index]
            # Nearly all tensors of most files: small, and whole in this block.
            if offset <= first and last <= end and last - first <= PIECE_BYTES and entry.spans == ((first, last),):
                self._whole.append((entry.name, xxh3_64_digest(block[first - offset : last - offset])))
                continue
            self._feed_open(span, offset, block)
            if last > end:
                self._at = at
                return
        self._at = len(self._spans)

    def _feed_open(self, span: _Span, offset: int, block: memoryview) -> None:
        first, last, logical, index = span
        low, high = max(first, offset), min(last, offset + len(block))
        if index not in self._open:
            self._open[index] = _Open(self._entries[index], logical, self._stops[index])
        tensor = self._open[index]
        tensor.feed(logical + low - first, block[low - offset : high - offset])
        if tensor.whole:
            self._whole.append((self._entries[index].name, tensor.digest()))
            del self._open[index]

    def result(self) -> TensorsSeen:
        """Return what the blocks so far told."""
        return TensorsSeen(whole=tuple(self._whole), parts=tuple(tensor.part() for tensor in self._open.values()))


_Span = tuple[int, int, int, int]
"""First byte in the file, first after, the first one's place in the tensor's own data, and which tensor."""


def _spans(entries: Sequence[TensorEntry], begin: int, end: int) -> Iterator[_Span]:
    """Cut the spans of all tensors to the range that is read."""
    for index, entry in enumerate(entries):
        logical = 0
        for first, last in entry.spans:
            low, high = max(first, begin), min(last, end)
            if low < high:
                yield low, high, logical + low - first, index
            logical += last - first


class _Open:
    """A tensor of which more is to come."""

    __slots__ = ("_begin", "_end", "_entry", "_first_border", "_hash", "_head", "_last_border", "_pieces", "_tail")

    def __init__(self, entry: TensorEntry, begin: int, stop: int) -> None:
        """Take the tensor, the first byte of it that is to come, and the first one that is not."""
        self._entry = entry
        self._begin = self._end = begin
        self._first_border = -(-begin // PIECE_BYTES) * PIECE_BYTES
        self._last_border = stop if stop == entry.nbytes else stop // PIECE_BYTES * PIECE_BYTES
        self._head, self._pieces, self._tail = bytearray(), bytearray(), bytearray()
        self._hash = xxh3_64()

    @property
    def whole(self) -> bool:
        """Whether every byte has come."""
        return self._begin == 0 and self._end == self._entry.nbytes

    def feed(self, logical: int, data: memoryview) -> None:
        """Take the next bytes; `logical` is their place in the tensor's data."""
        if logical != self._end:
            raise ValueError(f"{self._entry.name}: spans are not in file order")
        while len(data):
            border = (self._end // PIECE_BYTES + 1) * PIECE_BYTES
            part, data = data[: border - self._end], data[border - self._end :]
            begin, self._end = self._end, self._end + len(part)
            if begin < self._first_border:
                self._head += part
            elif begin >= self._last_border:
                self._tail += part
            else:
                self._hash.update(part)
                if self._end in {border, self._entry.nbytes}:
                    self._pieces += self._hash.digest()
                    self._hash.reset()

    def digest(self) -> bytes:
        """Return the digest of a tensor that has come whole."""
        return _digest(self._entry.nbytes, self._pieces)

    def part(self) -> TensorPart:
        """Return what has come of it."""
        return TensorPart(
            name=self._entry.name,
            nbytes=self._entry.nbytes,
            begin=self._begin,
            end=self._end,
            head=bytes(self._head),
            pieces=bytes(self._pieces),
            tail=bytes(self._tail),
        )
