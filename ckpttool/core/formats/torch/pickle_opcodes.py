"""Opcodes of pickles, up to protocol 5: patterns that skip runs of opcodes, and parsers for a few sequences.

Two sequences are parsed: the storage that a tensor refers to, and the attribute that `getattr` requests. Only the plain
forms that picklers write are accepted.

Source:
    Lib/pickletools.py of Python 3.13 for the opcodes and their arguments; `torch/serialization.py` of torch 2.13
    (`persistent_id`), `torch/csrc/jit/serialization/pickler.cpp`, and the output of pickling a bound method or a nested
    class with protocols 2 to 5 of Python 3.11.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ckpttool.core.formats.torch.pickle_names import Trust, modern
from ckpttool.core.formats.torch.pickle_objects import GETATTR

_DULL = rb"\((?![Xhj\x8c])|[)012NRQabdelostu}\]\x81\x85-\x88\x89\x8f-\x92\x97\x98]+|[K\x80].|M..|J....|G.{8}"
"""Pattern of opcodes that refer to no name, whatever their arguments."""
LINES = b"IFLVSPg"
"""Opcodes whose argument is a line of text."""
_TEXT = rb"(?:X(.{4})|\x8c(.))?"
"""Pattern of the length of a string after a run of such opcodes."""
# The length of runs is limited, because `re` stores a backtracking position for each repetition.
OLD_RUN = re.compile(
    rb"(?:" + _DULL + rb"|[hq].|[jr]....|\x95.{8}|[" + LINES + rb"p][^\n]*\n){0,4096}" + _TEXT, re.DOTALL
)
NEW_RUN = re.compile(rb"(?:" + _DULL + rb"|[" + LINES + rb"][^\n]*\n){0,4096}" + _TEXT, re.DOTALL)
CAREFUL_RUN = re.compile(
    rb"(?:" + _DULL + rb"|[" + LINES.replace(b"g", b"") + rb"][^\n]*\n){0,4096}" + _TEXT, re.DOTALL
)
NAMES = re.compile(rb"([^\n]{0,512})\n([^\n]{0,512})\n").match
LONG_NAME = re.compile(rb"([\w.\x80-\xff]{1,512}\n)?[\w.\x80-\xff]{513}").match
PROTO = re.compile(rb"\x80[\x00-\x05]").match
MEMO_IN_BYTES = 4  # the first protocol whose picklers number memo entries implicitly
STOP, STACK_GLOBAL, MEMOIZE, FRAME, MARK, INST = b".\x93\x94\x95(i"
FIXED = {**dict.fromkeys(b"Khq\x80\x82", 1), **dict.fromkeys(b"M\x83", 2), **dict.fromkeys(b"Jjr\x84", 4)}
FIXED |= dict.fromkeys(b"G\x95", 8)
COUNTED = {**dict.fromkeys(b"UC\x8c\x8a", 1), **dict.fromkeys(b"TBX\x8b", 4), **dict.fromkeys(b"\x8d\x8e\x96", 8)}
"""Opcodes with a data length, and the number of bytes of that length."""
SIGNED = frozenset(b"T\x8b")

_GETS, _PUTS, _NUMBERS, _TEXTS = b"hj", b"qr", b"KMJ", b"X\x8c"
_LONG1, _TUPLE2, _NEWOBJ = b"\x8a\x86\x81"
_GLOBAL, _TUPLE, _PERSISTENT, _REDUCE, _EMPTY_TUPLE = b"ctQR)"
_MOST_CHARS = 512
_MOST_DEPTH = 8
"""Maximum depth of nested classes."""

Name = tuple[str, str]

MOST_NAMES = 1_000
"""Maximum number of different names stored per kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageId:
    """A pickle's reference to the record with a tensor's elements."""

    key: str
    """Name of the record in the folder `data`."""
    kind: str
    """Last part of the storage's type; empty if the type is unknown."""
    numel: int


@dataclass(slots=True)
class Memo:
    """Known entries of a pickle's memo."""

    names: dict[int, Name] = field(default_factory=dict)
    texts: Callable[[int], bytes | None] = lambda _: None


class OddError(Exception):
    """The pickle does not have the form that picklers write."""


class Ahead:
    """Parser for opcodes after a position in a pickle; each read advances the position."""

    __slots__ = ("_data", "_getattr", "_memo", "_next", "at")

    def __init__(self, data: bytes, at: int, memo: Memo, following: int) -> None:
        """Start at an opcode; `following` is the number of the next memo entry that MEMOIZE would write."""
        self._data, self.at, self._memo, self._next = data, at, memo, following
        self._getattr: set[int | None] = set()

    def storage(self) -> StorageId:
        """Read the tuple of a tensor's persistent id, starting at its MARK.

        Raises:
            OddError: The opcodes do not have this form.
        """
        self._expect(MARK)
        if self._text() not in {b"storage", None}:
            raise OddError
        name = self._name()
        key = self._text()
        self._text()  # the device
        numel = self._number()
        self._expect(_TUPLE)
        self.put()
        self._expect(_PERSISTENT)
        if key is None or not key.isdigit():
            raise OddError
        return StorageId(key=key.decode(), kind=name[1].rpartition(".")[2] if name else "", numel=numel)

    def made(self) -> None:
        """Skip the opcodes that create an object, without arguments, from the class at the top of the stack.

        Raises:
            OddError: The opcodes do something else.
        """
        self.put()
        self._expect(_EMPTY_TUPLE)
        self._expect(_NEWOBJ)

    def attribute(self, depth: int = 0) -> tuple[Name, str]:
        """Read the arguments of a `getattr` call, up to its REDUCE.

        Returns:
            The global whose attribute is requested, or the class of the object; and the attribute's name, dotted if
            nested.

        Raises:
            OddError: The call is not direct, or its arguments are not plain constants.
        """
        self._getattr.add(self.put())
        owner, within = self._name(), ""
        if owner == GETATTR:
            if depth == _MOST_DEPTH:
                raise OddError
            owner, within = self.attribute(depth + 1)
            self.put()
            within += "."
        name = self._text()
        self._expect(_TUPLE2)
        self.put()
        self._expect(_REDUCE)
        if name is None or owner is None:
            raise OddError
        return owner, within + name.decode(errors="backslashreplace")

    def put(self) -> int | None:
        """Skip an opcode that memoizes the last value, if there is one, and return the entry's number."""
        place = None
        code = self._peek()
        if code in _PUTS:
            place = self._argument()
        elif code == MEMOIZE:
            place, self._next = self._next, self._next + 1
            self.at += 1
        if self.at < len(self._data) and self._data[self.at] == FRAME:  # the last value may be the end of the pickle
            self.at += 9
        return place

    def _name(self) -> Name | None:
        """Read a global, either written in full or from the memo; None if the memo entry is unknown."""
        code, begin = self._peek(), self.at
        if code == _GLOBAL:
            lines = self._data[self.at + 1 : self.at + 2 * _MOST_CHARS].split(b"\n", 2)
            if len(lines) < 3:  # noqa: PLR2004  a module, a name, and the rest
                raise OddError
            self.at += 3 + len(lines[0]) + len(lines[1])
            return self._named(lines[0], lines[1])
        following = self._next
        try:
            module, name = self._text(), self._text()
            self._expect(STACK_GLOBAL)
        except OddError:
            self.at, self._next = begin, following
            if code not in _GETS:
                raise
            place = self._argument()
            return GETATTR if place in self._getattr else self._memo.names.get(place)
        if module is None or name is None:
            raise OddError
        return self._named(module, name)

    def _named(self, module: bytes, name: bytes) -> Name:
        """Record a name that was written in full, and return it."""
        qualified = modern(module.decode(errors="backslashreplace"), name.decode(errors="backslashreplace"))
        self.put()
        return qualified

    def _text(self) -> bytes | None:
        """Read a string, either written in full or from the memo; None if the memo entry is unknown."""
        code = self._peek()
        if code in _GETS:
            return self._memo.texts(self._argument())
        if code not in _TEXTS:
            raise OddError
        begin = self.at + 1 + COUNTED[code]
        length = int.from_bytes(self._data[self.at + 1 : begin], "little")
        if length > _MOST_CHARS:
            raise OddError
        self.at = begin + length
        self.put()
        return self._data[begin : begin + length]

    def _number(self) -> int:
        code = self._peek()
        if code in _NUMBERS:
            return self._argument()
        self._expect(_LONG1)
        length = self._peek()
        self.at += 1 + length
        return int.from_bytes(self._data[self.at - length : self.at], "little")

    def _argument(self) -> int:
        """Read an opcode with a numeric argument of known length, and return the number."""
        begin, end = self.at + 1, self.at + 1 + FIXED[self._peek()]
        self.at = end
        return int.from_bytes(self._data[begin:end], "little")

    def _peek(self) -> int:
        if self.at >= len(self._data):
            raise OddError
        return self._data[self.at]

    def _expect(self, code: int) -> None:
        if self._peek() != code:
            raise OddError
        self.at += 1


@dataclass(slots=True)
class PickleNames:
    """Globals that a pickle uses, with their Python 3 names; escape the names before display."""

    runs: list[str] = field(default_factory=list)
    """Globals that run code, or provide access to code."""
    hidden: bool = False
    """Whether the pickle also uses names that are computed during loading."""
    unknown: list[str] = field(default_factory=list)
    broken: str | None = None
    """Why the first pickle cannot be read to its end; None if it can. Names before that point are known."""
    over_limit: bool = False
    """Whether a limit was exceeded; only the names before that point are known."""
    storages: dict[str, StorageId] = field(default_factory=dict, compare=False)
    """Storages of tensors by key, if the pickle contains the keys in plain form."""

    def take(self, verdict: Trust, name: str) -> None:
        """Record a name that is not known to be harmless."""
        if verdict is Trust.KNOWN:
            return
        names = self.runs if verdict is Trust.RUNS else self.unknown
        if len(names) < MOST_NAMES and name not in names:
            names.append(name)
