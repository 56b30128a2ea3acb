"""Pickle machine for the `.metadata` of torch.distributed.checkpoint, which skips opcodes that repeat per slice.

The record of a large model has half a million slices, so the opcodes of each slice are skipped together if they are
exactly those that torch writes; the rest is executed opcode by opcode.

Source:
    `torch/distributed/checkpoint/{metadata,filesystem}.py` of torch 2.13, as Python 3.11 pickles it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeAlias

from ckpttool.core.formats.torch.pickle_objects import GETATTR, BrokenPickleError, Global, Made
from ckpttool.core.formats.torch.pickle_values import Machine

_MOST_OPCODES = 8_000_000
"""Maximum number of executed opcodes, without skipped ones, because each can use a hundred bytes of memory."""
_MOST_SIZES = 100_000
"""Maximum number of cached encodings of sizes; most slices have the same few sizes."""

_MODULE = "torch.distributed.checkpoint.metadata"
TENSOR, CHUNK, INDEX, PROPERTIES, BYTES, ALL = (
    Global(_MODULE, name)
    for name in (
        "TensorStorageMetadata",
        "ChunkStorageMetadata",
        "MetadataIndex",
        "TensorProperties",
        "BytesStorageMetadata",
        "Metadata",
    )
)
INFO = Global("torch.distributed.checkpoint.filesystem", "_StorageInfo")

Numbers: TypeAlias = "tuple[int, ...]"


class Slice(NamedTuple):
    """A unit that one writer wrote: a tensor, a part of a tensor, or another value."""

    name: str
    """Name of the complete tensor or value, such as `model.layers.0.weight`."""
    path: str
    """File according to the record, relative to the record's folder. The path is untrusted."""
    offset: int
    """First byte in the file."""
    length: int
    """Size in bytes, including the archive around the numbers."""
    is_changed: bool
    """Whether the slice was compressed or encrypted, so that it differs from torch's output."""
    at: Numbers = ()
    """Offsets of the part in its tensor, in elements; empty for a scalar and for a value, and if not recorded."""


class Chunk(NamedTuple):
    """Part of a tensor in a slice, in elements."""

    offsets: Numbers
    sizes: Numbers


def numbers_in(value: object) -> Numbers:
    """Return a size or a position as integers.

    Raises:
        BrokenPickleError: The value is not a sequence of integers.
    """
    if not isinstance(value, tuple) or any(type(item) is not int or item < 0 for item in value):
        raise BrokenPickleError("a size or an offset in it is not a number")
    return value


# The opcodes that torch writes for all slices, parts and tensors except the first of each, in which every repeated
# value is a memo index.
_AGAIN = rb"(h.|j....)"
_NUMBER = rb"(?:K.|M..|J....|\x8a\x05.{5}|\x8a\x06.{6})"
_SIZE = (
    rb"(?:(?:h.|j....)(\((?:"
    + _NUMBER
    + rb"){4,16}t|(?:"
    + _NUMBER
    + rb"){1,3}[\x85-\x87])\x94\x85\x94R\x94|(h.|j....))"
)
_NEW = rb"\)\x81\x94\}\x94\("
_CHUNK_AGAIN = re.compile(_AGAIN + _NEW + _AGAIN + _SIZE + _AGAIN + _SIZE + rb"ub", re.DOTALL)
_TENSOR_AGAIN = re.compile(
    _AGAIN + _NEW + _AGAIN + _AGAIN + rb"\)\x81\x94\(" + _AGAIN + _AGAIN + rb"[\x88\x89]" + _AGAIN
    + rb"[\x88\x89]t\x94b" + _AGAIN + _SIZE + _AGAIN,
    re.DOTALL,
)  # fmt: skip
_TEXT = rb"(?:(h.|j....)|\x8c(.)([^\x94]{0,255})\x94)"
_SLICE_AGAIN = re.compile(
    _AGAIN + _NEW + _AGAIN + _TEXT + _AGAIN + rb"(?:N|" + _NUMBER + rb")(?:" + _AGAIN + _SIZE + rb")?ub"
    + _AGAIN + _NEW + _AGAIN + _TEXT + _AGAIN + rb"(" + _NUMBER + rb")" + _AGAIN + rb"(" + _NUMBER + rb")ub",
    re.DOTALL,
)  # fmt: skip
_KEYS = re.compile(rb"\((?:\x8c.[^\x94]{0,255}\x94|h.|j....){1,16}t\x94", re.DOTALL)
_EACH_KEY = re.compile(rb"\x8c(.)([^\x94]{0,255})\x94|(h.|j....)", re.DOTALL)
_EACH_NUMBER = re.compile(_NUMBER, re.DOTALL)
_MARK = ord("(")
_TUPLE1 = 0x85


class SliceMachine(Machine):
    """A machine that skips the opcodes of slices, and stores only the requested data."""

    __slots__ = ("_known", "_numbered", "_passing", "_sizes", "calls", "slices")

    opcodes: ClassVar[Mapping[int, Callable[[Any], object]]]

    def __init__(self, data: bytes) -> None:
        """Create a machine for the complete content of a file."""
        super().__init__(data, most=_MOST_OPCODES)
        self._numbered: list[Any] = []
        """The memo, as a list because picklers number its entries without gaps."""
        self._passing: dict[int, tuple[Global, Callable[[int], bool]]] = {}
        """Function that continues after a memoized class, by the `id` of the class's `Global`."""
        self._sizes: dict[bytes, Numbers] = {}
        self._known: list[tuple[bytes, ...]] = [()] * len(_MEANT)
        """Memo entries of attribute names at the last successful check."""
        self.slices: list[Slice] = []
        self.calls: set[Global] = set()

    def remember(self, place: int | None = None) -> None:
        """Memoize the last value."""
        if place is not None and place != len(self._numbered):
            raise BrokenPickleError(f"at byte {self.at}: entries are not numbered in sequence")
        self._numbered.append(self._stack[-1])

    def recalled(self, width: int) -> None:
        """Push the memo entry whose number has `width` bytes; if the entry begins another slice, skip the slice."""
        at = self.at
        value = self._numbered[self.data[at] if width == 1 else int.from_bytes(self.data[at : at + width], "little")]
        self.at = at + width
        if id(value) not in self._passing or not self._passing[id(value)][1](at - 1):
            self._stack.append(value)
            if isinstance(value, str) and self.data[self.at] == _MARK:
                self._keys_again()

    def short(self) -> None:
        """Push a short text, and memoize it if the next opcode requests it."""
        data, at = self.data, self.at + 1
        end = at + data[at - 1]
        text = data[at:end].decode("utf-8", "surrogatepass")
        self._stack.append(text)
        if data[end] == _MEMOIZE:  # an opcode that would begin after the end does not exist
            self._numbered.append(text)
            end += 1
        self.at = end

    def named(self, module: object, name: object) -> None:
        """Push a name."""
        super().named(module, name)
        top = self._stack[-1]
        if top != GETATTR:  # the result depends on the requested attribute
            self.calls.add(top)
        if top.name == INFO.name:  # a writer of its own may have its own class with the same fields
            self._stack[-1] = top = INFO
        passing = {CHUNK: self._chunk_again, TENSOR: self._tensor_again, INDEX: self._slice_again}.get(top)
        if passing is not None:
            self._passing[id(top)] = top, passing

    def call(self, by: object, args: tuple[Any, ...]) -> None:
        """Record a call; a call that creates an enumeration member in Python up to 3.11.3 counts as a dotted name."""
        if by == GETATTR and len(args) == 2 and isinstance(args[0], Global) and isinstance(args[1], str):  # noqa: PLR2004  class, member
            self.calls.add(Global(args[0].module, f"{args[0].name}.{args[1]}"))
        elif by == GETATTR or any(arg == GETATTR for arg in args):
            self.calls.add(GETATTR)
        super().call(by, args)

    def _keys_again(self) -> None:
        """Skip the keys of a tensor's path in the saved object, which follow its name."""
        match = _KEYS.match(self.data, self.at)
        if match is None:
            return
        key_texts = _EACH_KEY.findall(match[0])
        if any(length and len(text) != length[0] for length, text, _ in key_texts):
            return  # a text contains a terminator, so the opcodes were split in the wrong place
        keys: list[object] = []
        for length, text, recall in key_texts:
            if length:
                self._numbered.append(text.decode("utf-8", "surrogatepass"))
            keys.append(self._numbered[-1] if length else self._at(recall))
        self._numbered.append(tuple(keys))
        self._stack.append(self._numbered[-1])
        self.at = match.end()

    def _at(self, recall: bytes) -> Any:  # noqa: ANN401  any object that the pickle pushed
        return self._numbered[recall[1] if len(recall) == 2 else int.from_bytes(recall[1:], "little")]  # noqa: PLR2004

    def _are(self, recalls: tuple[bytes, ...], kind: int) -> bool:
        """Return whether the memo entries are as expected; entries that the previous call checked are skipped."""
        if self._known[kind] != recalls:
            if any(self._at(recall) != expected for recall, expected in zip(recalls, _MEANT[kind], strict=True)):
                return False
            self._known[kind] = recalls
        return True

    def _size(self, number_bytes: bytes | None, recall: bytes | None) -> Numbers:
        """Return a size, and memoize it at its first occurrence."""
        if number_bytes is None:
            return numbers_in(self._at(recall or b""))
        numbers = self._sizes.get(number_bytes)
        if numbers is None:
            numbers = tuple(map(_number, _EACH_NUMBER.findall(number_bytes, number_bytes[0] == _MARK)))
            if number_bytes[0] != _MARK and len(numbers) != number_bytes[-1] - _TUPLE1 + 1:
                raise BrokenPickleError(f"at byte {self.at}: a size has too many numbers")
            if len(self._sizes) < _MOST_SIZES:
                self._sizes[number_bytes] = numbers
        self._numbered += (numbers, None, numbers)
        return numbers

    def _text(self, recall: bytes | None, text: bytes | None) -> str:
        if text is None:
            recalled = self._at(recall or b"")
            if not isinstance(recalled, str):
                raise BrokenPickleError(f"at byte {self.at}: a name in it is not text")
            return recalled
        decoded = text.decode("utf-8", "surrogatepass")
        self._numbered.append(decoded)
        return decoded

    def _chunk_again(self, begin: int) -> bool:
        """Skip all consecutive parts and push them; return whether there was at least one."""
        data, numbered, match = self.data, self._numbered, _CHUNK_AGAIN.match
        matched = match(data, begin)
        passed = False
        while matched is not None:
            chunk_class, offsets, number_bytes, recall, sizes, last_recall, rest = matched.groups()
            if not self._are((chunk_class, offsets, sizes), _OF_CHUNK):
                break
            place = len(numbered)
            numbered += (None, None)
            chunk = Chunk(self._size(number_bytes, recall), self._size(last_recall, rest))
            numbered[place] = chunk
            self._stack.append(chunk)
            passed, begin = True, matched.end()
            matched = match(data, begin)
        if passed:
            self.at = begin
        return passed

    def _tensor_again(self, begin: int) -> bool:
        match = _TENSOR_AGAIN.match(self.data, begin)
        if match is None:
            return False
        _, properties, kind, dtype, _, _, size, number_bytes, recall, chunks = match.groups()
        if not self._are((properties, kind, size, chunks), _OF_TENSOR):
            return False
        made = Made(TENSOR, ())
        self._numbered += (made, None, None, None)
        # The next opcodes append the parts, and complete the tensor.
        state: dict[object, object] = {}
        self._stack += (made, state)
        self.mark()
        self._stack += ("properties", (self._at(dtype),), "size", self._size(number_bytes, recall), "chunks")
        self.at = match.end()
        return True

    def _slice_again(self, begin: int) -> bool:
        """Skip all consecutive slices and store them; return whether there was at least one."""
        data, numbered, match, keep = self.data, self._numbered, _SLICE_AGAIN.match, self.slices.append
        matched = match(data, begin)
        passed = False
        while matched is not None:
            (
                index_class, fqn, name, name_length, name_text, index, offsets, number_bytes, recall,
                info, path_key, path, path_length, path_text, offset_key, offset, length_key, length,
            ) = matched.groups()  # fmt: skip
            if name_text is not None and len(name_text) != name_length[0]:
                break
            if path_text is not None and len(path_text) != path_length[0]:
                break
            recalls = (index_class, fqn, index, info, path_key, offset_key, length_key)
            if not (
                self._are(recalls, _OF_SLICE) if offsets is None else self._are((*recalls, offsets), _OF_PLACED_SLICE)
            ):
                break
            numbered += (None, None)
            name_read = self._text(name, name_text)
            at = () if offsets is None else self._size(number_bytes, recall)
            numbered += (None, None)
            file = self._text(path, path_text)
            keep(Slice(name_read, file, _number(offset), _number(length), False, at))  # noqa: FBT003  positions are a third faster
            passed, begin = True, matched.end()
            matched = match(data, begin)
        if passed:
            self.at = begin
        return passed


_PLACE = (INDEX, "fqn", "index", INFO, "relative_path", "offset", "length")
_MEANT = (
    (CHUNK, "offsets", "sizes"),
    ("properties", PROPERTIES, "size", "chunks"),
    _PLACE,
    (*_PLACE, "offset"),
)
"""Expected memo entries for a part, a tensor, and a slice without and with its part's position in the tensor."""
_OF_CHUNK, _OF_TENSOR, _OF_SLICE, _OF_PLACED_SLICE = range(4)


def _number(number_bytes: bytes) -> int:
    number = int.from_bytes(number_bytes[2:] if number_bytes[0] == _LONG1 else number_bytes[1:], "little")
    if number_bytes[-1] & 0x80 and number_bytes[0] in _SIGNED:
        raise BrokenPickleError("a size or an offset in it is below zero")
    return number


_LONG1, _MEMOIZE = b"\x8a\x94"
_SIGNED = frozenset(b"J\x8a")
SliceMachine.opcodes = {
    **Machine.opcodes,
    ord("g"): lambda machine: machine.push(machine._numbered[int(machine.line())]),  # noqa: SLF001  the class is in this module
    ord("h"): lambda machine: machine.recalled(1),
    ord("j"): lambda machine: machine.recalled(4),
    ord("p"): lambda machine: machine.remember(int(machine.line())),
    ord("q"): lambda machine: machine.remember(machine.number(1)),
    ord("r"): lambda machine: machine.remember(machine.number(4)),
    ord("\x8c"): SliceMachine.short,
    _MEMOIZE: SliceMachine.remember,
}
