"""The `.metadata` of torch.distributed.checkpoint: which slices lie where, and of what tensors. It is not unpickled.

A large model's has half a million slices, so what is written for each of them is passed over as a whole, wherever it
is spelled as torch spells it; the rest is followed opcode by opcode.

Source:
    `torch/distributed/checkpoint/{metadata,filesystem,planner}.py` of torch 2.13, as Python 3.11 pickles it; others
    keep their plans of the save in it, too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeAlias

from ckpttool.domain.frozen import dataclass
from ckpttool.formats.torch.pickle_objects import BrokenPickleError, Global, Made
from ckpttool.formats.torch.pickle_values import Machine
from ckpttool.storage.base import Storage

MOST_METADATA_BYTES = 256 << 20
"""Of a `.metadata`; that of 512,000 slices has 90 MB."""
_MOST_OPCODES = 8_000_000
"""Besides those that are passed over: each can cost a hundred bytes of memory."""
_MOST_SIZES = 100_000
"""Spellings of sizes that are kept, since most slices have those of others."""

_MODULE = "torch.distributed.checkpoint.metadata"
_TENSOR, _CHUNK, _INDEX, _PROPERTIES, _BYTES, _ALL = (
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
_INFO = Global("torch.distributed.checkpoint.filesystem", "_StorageInfo")

Numbers: TypeAlias = "tuple[int, ...]"


class Slice(NamedTuple):
    """What one writer wrote in one piece: a tensor, a part of one, or a value that is none."""

    name: str
    """Of the tensor or the value, whole: `model.layers.0.weight`."""
    path: str
    """The file, as the record says it: untrusted, relative to the record's folder."""
    offset: int
    """First byte in the file."""
    length: int
    """In bytes, with all that stands around the numbers."""
    is_changed: bool
    """Whether it went through another's hands (compression, encryption), so that it is not as torch writes it."""


class Chunk(NamedTuple):
    """Which part of a tensor a slice holds, in elements."""

    offsets: Numbers
    sizes: Numbers


class SplitTensor(NamedTuple):
    """A tensor, and into which parts it was split."""

    dtype: str | None
    """torch's name of it; None where it is no type."""
    shape: Numbers
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DcpMetadata:
    """What a `.metadata` says."""

    tensors: Mapping[str, SplitTensor]
    """By name, in the order of the file."""
    values: tuple[str, ...]
    """Names of what is no tensor, in the order of the file."""
    slices: tuple[Slice, ...]
    """In the order of the file."""
    calls: tuple[Global, ...]
    """Every class and function that loading it would look up, sorted."""


def read_dcp_metadata(data: bytes) -> DcpMetadata:
    """Return what a `.metadata` says.

    Raises:
        BrokenPickleError: It is no whole one, or none of torch.distributed.checkpoint.
    """
    machine = SliceMachine(data)
    tree = machine.run()
    if not isinstance(tree, Made) or tree.by != _ALL:
        raise BrokenPickleError("it is no metadata of torch.distributed.checkpoint")
    said = tree.held
    declared, stored = said.get("state_dict_metadata"), said.get("storage_data")
    if not isinstance(declared, dict) or not isinstance(stored, dict):
        raise BrokenPickleError("it does not say which slices there are")
    tensors = {name: _tensor(each) for name, each in declared.items() if isinstance(name, str) and not _is_value(each)}
    values = tuple(name for name, each in declared.items() if isinstance(name, str) and _is_value(each))
    first = tuple(_slice(key, info) for key, info in stored.items())
    return DcpMetadata(
        tensors=tensors, values=values, slices=(*first, *machine.slices), calls=tuple(sorted(machine.calls))
    )


def slice_names(storage: Storage, path: str) -> dict[int, str]:
    """Return what the slices of a `.distcp` are called by the record beside it, by their first bytes.

    Of a tensor in several parts each is called by its place among them: `model.weight (part 2 of 8)`.

    Returns:
        Nothing where there is no such record, or it cannot be read.
    """
    folder, _, name = path.rpartition("/")
    record = f"{folder}/.metadata" if folder else ".metadata"
    try:
        found = read_dcp_metadata(storage.small_file(record, limit=MOST_METADATA_BYTES))
    except (OSError, BrokenPickleError):
        return {}
    parts: dict[str, list[Slice]] = defaultdict(list)
    for each in sorted(found.slices):
        parts[each.name].append(each)
    names: dict[int, str] = {}
    for fqn, slices in parts.items():
        for number, each in enumerate(slices, 1):
            if each.path == name:
                names[each.offset] = fqn if len(slices) == 1 else f"{fqn} (part {number} of {len(slices)})"
    return names


def _is_value(declared: object) -> bool:
    return isinstance(declared, Made) and declared.by == _BYTES


def _tensor(declared: object) -> SplitTensor:
    said = declared.held if isinstance(declared, Made) and declared.by == _TENSOR else {}
    shape, parts, properties = said.get("size"), said.get("chunks"), said.get("properties")
    if not isinstance(parts, list):
        raise BrokenPickleError("it does not say into which parts a tensor was split")
    chunks = tuple(each if isinstance(each, Chunk) else _chunk(each) for each in parts)
    state = properties.state if isinstance(properties, Made) else properties
    dtype = state[0] if isinstance(state, tuple) and state else None
    return SplitTensor(dtype.name if isinstance(dtype, Global) else None, _numbers(shape), chunks)


def _chunk(made: object) -> Chunk:
    said = made.held if isinstance(made, Made) and made.by == _CHUNK else {}
    return Chunk(_numbers(said.get("offsets")), _numbers(said.get("sizes")))


def _slice(key: object, info: object) -> Slice:
    index = key.held if isinstance(key, Made) and key.by == _INDEX else {}
    place = info.held if isinstance(info, Made) and info.by == _INFO else {}
    name, path = index.get("fqn"), place.get("relative_path")
    if not isinstance(name, str) or not isinstance(path, str):
        raise BrokenPickleError("it does not say where a slice lies")
    offset, length = _numbers((place.get("offset"), place.get("length")))
    return Slice(name, path, offset, length, bool(place.get("transform_descriptors")))


def _numbers(value: object) -> Numbers:
    if not isinstance(value, tuple) or any(type(each) is not int or each < 0 for each in value):
        raise BrokenPickleError("a size or an offset in it is no number")
    return value


# What torch writes for a slice, a part and a tensor after the first of each: everything that stands there again is a
# number in the memo.
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
_EACH_NUMBER = re.compile(_NUMBER, re.DOTALL)
_MARK = ord("(")
_TUPLE1 = 0x85


class SliceMachine(Machine):
    """A machine that passes over what is written for each slice, and keeps no more of it than is asked for."""

    __slots__ = ("_known", "_numbered", "_passing", "_sizes", "calls", "slices")

    opcodes: ClassVar[Mapping[int, Callable[[Any], object]]]

    def __init__(self, data: bytes) -> None:
        """Take the whole file."""
        super().__init__(data, most=_MOST_OPCODES)
        self._numbered: list[Any] = []
        """What is remembered: picklers number it without a gap."""
        self._passing: dict[int, tuple[Global, Callable[[int], bool]]] = {}
        """How to go on where a class is recalled, by the `id` of what stands for it."""
        self._sizes: dict[bytes, Numbers] = {}
        self._known: dict[tuple[object, ...], tuple[bytes, ...]] = {}
        """How the names of attributes were recalled when it was last looked at whether they are meant."""
        self.slices: list[Slice] = []
        self.calls: set[Global] = set()

    def remember(self, place: int | None = None) -> None:
        """Remember the last value."""
        if place is not None and place != len(self._numbered):
            raise BrokenPickleError(f"at byte {self.at}: things are not numbered in turn")
        self._numbered.append(self._stack[-1])

    def recalled(self, width: int) -> None:
        """Push what is remembered under a number of so many bytes; where that begins another slice, pass over it."""
        begin = self.at - 1
        value = self._numbered[self.number(width)]
        _, passing = self._passing.get(id(value), (None, None))
        if passing is None or not passing(begin):
            self.push(value)

    def named(self, module: object, name: object) -> None:
        """Push a name."""
        super().named(module, name)
        found = self._stack[-1]
        self.calls.add(found)
        passing = {_CHUNK: self._chunk_again, _TENSOR: self._tensor_again, _INDEX: self._slice_again}.get(found)
        if passing is not None:
            self._passing[id(found)] = found, passing

    def _at(self, recall: bytes) -> Any:  # noqa: ANN401  whatever the pickle put there
        return self._numbered[recall[1] if len(recall) == 2 else int.from_bytes(recall[1:], "little")]  # noqa: PLR2004

    def _are(self, recalls: tuple[bytes, ...], meant: tuple[object, ...]) -> bool:
        """Tell whether what is recalled is what is meant: for all slices but the first it was looked at before."""
        if self._known.get(meant) != recalls:
            if any(self._at(recall) != each for recall, each in zip(recalls, meant, strict=True)):
                return False
            self._known[meant] = recalls
        return True

    def _size(self, spelled: bytes | None, recall: bytes | None) -> Numbers:
        """Return a size, and remember it where it stands there for the first time."""
        if spelled is None:
            return _numbers(self._at(recall or b""))
        numbers = self._sizes.get(spelled)
        if numbers is None:
            numbers = tuple(map(_number, _EACH_NUMBER.findall(spelled, spelled[0] == _MARK)))
            if spelled[0] != _MARK and len(numbers) != spelled[-1] - _TUPLE1 + 1:
                raise BrokenPickleError(f"at byte {self.at}: a size has more numbers than are taken")
            if len(self._sizes) < _MOST_SIZES:
                self._sizes[spelled] = numbers
        self._numbered += (numbers, None, numbers)
        return numbers

    def _text(self, recall: bytes | None, length: bytes | None, text: bytes | None) -> str:
        if text is None or length is None:
            found = self._at(recall or b"")
            if not isinstance(found, str):
                raise BrokenPickleError(f"at byte {self.at}: a name in it is no text")
            return found
        said = text.decode("utf-8", "surrogatepass")
        self._numbered.append(said)
        return said

    def _chunk_again(self, begin: int) -> bool:
        match = _CHUNK_AGAIN.match(self.data, begin)
        if match is None:
            return False
        _, offsets, spelled, recall, sizes, other, again = match.groups()
        if not self._are((offsets, sizes), ("offsets", "sizes")):
            return False
        place = len(self._numbered)
        self._numbered += (None, None)
        chunk = Chunk(self._size(spelled, recall), self._size(other, again))
        self._numbered[place] = chunk
        self.push(chunk)
        self.at = match.end()
        return True

    def _tensor_again(self, begin: int) -> bool:
        match = _TENSOR_AGAIN.match(self.data, begin)
        if match is None:
            return False
        _, properties, kind, dtype, _, _, size, spelled, recall, chunks = match.groups()
        if not self._are((properties, kind, size, chunks), ("properties", _PROPERTIES, "size", "chunks")):
            return False
        made = Made(_TENSOR, ())
        self._numbered += (made, None, None, None)
        # What follows puts the parts into it, and ends it.
        state: dict[object, object] = {}
        self._stack += (made, state)
        self.mark()
        self._stack += ("properties", (self._at(dtype),), "size", self._size(spelled, recall), "chunks")
        self.at = match.end()
        return True

    def _slice_again(self, begin: int) -> bool:
        match = _SLICE_AGAIN.match(self.data, begin)
        if match is None:
            return False
        (
            _, fqn, name, name_length, name_text, index, offsets, spelled, recall,
            info, path_key, path, path_length, path_text, offset_key, offset, length_key, length,
        ) = match.groups()  # fmt: skip
        recalls = (fqn, index, info, path_key, offset_key, length_key, *filter(None, (offsets,)))
        is_whole = name_text is None or len(name_text) == name_length[0]
        if not is_whole or (path_text is not None and len(path_text) != path_length[0]):
            return False
        if not self._are(recalls, _SLICE_KEYS if offsets is None else _SLICE_KEYS_AND_OFFSET):
            return False
        self._numbered += (None, None)
        said = self._text(name, name_length, name_text)
        if offsets is not None:
            self._size(spelled, recall)
        self._numbered += (None, None)
        file = self._text(path, path_length, path_text)
        self.slices.append(Slice(said, file, _number(offset), _number(length), is_changed=False))
        self.at = match.end()
        return True


_SLICE_KEYS = ("fqn", "index", _INFO, "relative_path", "offset", "length")
_SLICE_KEYS_AND_OFFSET = (*_SLICE_KEYS, "offset")


def _number(spelled: bytes) -> int:
    found = int.from_bytes(spelled[2:] if spelled[0] == _LONG1 else spelled[1:], "little")
    if spelled[-1] & 0x80 and spelled[0] in _SIGNED:
        raise BrokenPickleError("a size or an offset in it is below zero")
    return found


_LONG1 = 0x8A
_SIGNED = frozenset(b"J\x8a")
SliceMachine.opcodes = {
    **Machine.opcodes,
    ord("g"): lambda machine: machine.push(machine._numbered[int(machine.line())]),  # noqa: SLF001  its own
    ord("h"): lambda machine: machine.recalled(1),
    ord("j"): lambda machine: machine.recalled(4),
    ord("p"): lambda machine: machine.remember(int(machine.line())),
    ord("q"): lambda machine: machine.remember(machine.number(1)),
    ord("r"): lambda machine: machine.remember(machine.number(4)),
    ord("\x94"): SliceMachine.remember,
}
