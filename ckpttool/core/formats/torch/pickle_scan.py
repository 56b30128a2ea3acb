"""Globals that a pickle uses, read from its opcodes without a stack. Nothing is unpickled.

`pickletools` is not used, because it makes a Python object of every argument, so that one opcode could fill the memory.

A name is in the opcode itself (GLOBAL, INST), or consists of the last two strings pushed (STACK_GLOBAL, since protocol
4), each written in full or taken from the memo. No pickler does this differently, so a name in any other form is hidden
on purpose.

A direct call of `getattr` with plain constants is equivalent to a dotted name in newer protocols. To exclude any other
call, such a pickle is read again, and every memo entry is checked.
"""

from __future__ import annotations

import re
from array import array
from contextlib import suppress

from ckpttool.core.formats.torch.pickle_names import Trust, modern, trust
from ckpttool.core.formats.torch.pickle_objects import GETATTR
from ckpttool.core.formats.torch.pickle_opcodes import (
    CAREFUL_RUN,
    COUNTED,
    FIXED,
    FRAME,
    INST,
    LINES,
    LONG_NAME,
    MARK,
    MEMO_IN_BYTES,
    MEMOIZE,
    NAMES,
    NEW_RUN,
    OLD_RUN,
    PROTO,
    SIGNED,
    STACK_GLOBAL,
    STOP,
    Ahead,
    Memo,
    Name,
    OddError,
    PickleNames,
)
from ckpttool.core.storage.base import ByteSource

MOST_BYTES = 64 << 20
"""Maximum number of bytes read, not counting long strings and arrays, which are skipped.

The pickle of 100,000 tensors has 15 MB.
"""
MOST_STEPS = 2_000_000
"""Maximum number of opcodes checked individually; most are skipped in runs."""
_STEPS_A_NAME = 10  # checking a name takes as long as ten opcodes; picklers write each name only once
MOST_NAME_BYTES = 512
"""Maximum length in bytes of the name of a module or an object; real names are far shorter."""
MOST_STORAGES = 200_000
"""Maximum number of storages and memo entries; an archive with more records is not read."""
MOST_PICKLES = 5
"""Maximum number of consecutive pickles, which is the number in a legacy torch file before its raw numbers."""

_WINDOW = 256 << 10
_MARGIN = 64 << 10
"""Number of remaining bytes in memory below which more are read; an opcode that ends beyond them is suspicious."""

_NO_TEXT = -1
_MOST_BORN = 64
_LENGTH_BITS = 10
_LENGTH_MASK = (1 << _LENGTH_BITS) - 1


class _EndError(Exception):
    """The pickle has no further opcode."""


class _AttributeError(Exception):
    """The pickle names `getattr`, so that it must be read again with more checks."""


class _OverLimitError(Exception):
    """The pickle exceeds a limit."""


class PickleReader:
    """Reader of the opcodes in one file's pickles; the limits apply to all pickles together."""

    __slots__ = (
        "_at", "_base", "_below", "_born", "_careful", "_data", "_end", "_fresh", "_is_new", "_memo", "_name",
        "_named", "_names", "_source", "_steps", "_texts", "_top", "_trusted", "bytes_read",
    )  # fmt: skip

    def __init__(self, source: ByteSource) -> None:
        """Create a reader for an open file."""
        self._source = source
        self._steps = self.bytes_read = 0
        # The part of the file that is in memory.
        self._base = self._at = self._end = 0
        self._data = b""
        # The last strings pushed, and the strings in the memo: position and length, packed into one number.
        self._below = self._top = _NO_TEXT
        self._memo = array("q")
        self._texts: dict[int, int] = {}
        self._trusted = self._is_new = True
        self._names = PickleNames()
        # The last global pushed, and the position in the file at which it or a string is still at the top of the stack.
        self._name: Name | None = None
        self._fresh = 0
        # The position in the file at which an object of a class, or an attribute, will be at the top of the stack.
        self._born: dict[int, Name] = {}
        self._named = Memo(texts=self._remembered)
        self._careful = False

    def names(self, begin: int, end: int, *, pickles: int = 1) -> PickleNames:
        """Return every name that the pickle uses.

        Args:
            begin: First byte of a pickle.
            end: First byte after the last byte that may belong to it.
            pickles: Maximum number of consecutive pickles to read.

        Raises:
            OSError: The disk did not answer.
        """
        self._base, self._at, self._end, self._data = begin, 0, end, b""
        self._names = PickleNames()
        try:
            self._scan()
            for _ in range(1, pickles):
                self._fill()
                if PROTO(self._data, self._at) is None:  # no further pickle begins here
                    break
                self._scan()
        except _OverLimitError:
            self._names.over_limit = True
        except _EndError as error:
            self._names.broken = str(error)
        return self._names

    def _scan(self) -> None:
        """Read one pickle up to its STOP; read it again with more checks if it names `getattr`."""
        begin = self._base + self._at
        try:
            self._pickle(careful=False)
        except _AttributeError:
            self._base, self._at, self._data = begin, 0, b""
            self._pickle(careful=True)

    def _pickle(self, *, careful: bool) -> None:
        self._fill()
        protocol = self._data[self._at + 1] if PROTO(self._data, self._at) else 0
        self._careful, self._is_new = careful, protocol >= MEMO_IN_BYTES
        run = NEW_RUN if self._is_new else OLD_RUN
        if careful:
            run = CAREFUL_RUN
        self._below = self._top = _NO_TEXT
        self._memo, self._trusted = array("q"), self._is_new
        self._texts.clear()
        self._named.names.clear()
        while not self._is_over(run):
            self._steps += 1
            if self._steps > MOST_STEPS:
                raise _OverLimitError

    def _is_over(self, run: re.Pattern[bytes]) -> bool:
        """Read a run of opcodes or a single opcode, and return whether it was STOP."""
        if len(self._data) - self._at < _MARGIN:
            self._fill()
        dull = run.match(self._data, self._at)
        if dull and dull.end() > self._at:
            self._run(dull)
        elif self._at >= len(self._data):
            raise self._unexpected("the end, but a pickle must end with STOP")
        elif self._data[self._at] == MEMOIZE:
            self._at += 1
            self._put(len(self._memo))
            self._memo.append(self._top)
            if self._careful and not self._is_new:
                self._accuse()
        elif self._data[self._at] == MARK:
            self._mark()
        elif self._data[self._at] == STOP:
            self._at += 1
            return True
        else:
            self._read_opcode(self._data[self._at])
        return False

    def _run(self, dull: re.Match[bytes]) -> None:
        """Skip a run of opcodes that refer to no name, and the string after the run."""
        begin, is_digit = dull.end(), False
        header = dull[dull.lastindex] if dull.lastindex else b""
        if begin - len(header) - bool(header) > self._at:
            self._below = self._top = _NO_TEXT
        if header:
            length = int.from_bytes(header, "little")
            if length > self._end - self._base - begin:
                raise self._unexpected("a string that is longer than the remaining data")
            self._push((self._base + begin) << _LENGTH_BITS | length if length <= MOST_NAME_BYTES else _NO_TEXT)
            begin += length
            is_digit = length == 1
            self._name, self._fresh = None, self._base + begin
        self._at = begin
        if is_digit:  # Python has only one object per digit; it may also be a storage's key
            self._keep()

    def _read_opcode(self, opcode: int) -> None:
        if opcode in COUNTED:
            self._counted(opcode)
        elif opcode in b"ci":
            self._global()
        elif opcode == STACK_GLOBAL:
            self._stack_global()
        elif opcode in FIXED:
            self._fixed(opcode)
        elif opcode in LINES + b"p":
            self._line()
        else:
            raise self._unexpected(f"{opcode:02x}, which is not an opcode")

    def _fixed(self, opcode: int) -> None:
        argument = self._data[self._at + 1 : self._at + 1 + FIXED[opcode]]
        if len(argument) < FIXED[opcode]:
            raise self._unexpected(f"{opcode:02x} without all of its argument")
        self._at += 1 + len(argument)
        if opcode == FRAME:
            return
        if opcode in b"hj":
            place = int.from_bytes(argument, "little")
            self._push(self._memo[place] if self._trusted and place < len(self._memo) else _NO_TEXT)
            if self._careful and place in self._named.names:
                self._called_for(self._named.names[place])
            return
        if opcode in b"qr":
            self._trusted = False  # picklers never mix implicit and explicit numbers
            self._put(int.from_bytes(argument, "little"), 1 + len(argument))
            if self._careful and self._is_new:
                self._accuse()
        else:  # EXT has a number instead of a name; all other opcodes are skipped in runs
            self._names.hidden = True
        self._below = self._top = _NO_TEXT

    def _counted(self, opcode: int) -> None:
        """Skip data that are preceded by their length."""
        width = COUNTED[opcode]
        begin = self._at + 1 + width
        length = int.from_bytes(self._data[self._at + 1 : begin], "little", signed=opcode in SIGNED)
        if begin > len(self._data) or not 0 <= length <= self._end - self._base - begin:
            raise self._unexpected(f"{opcode:02x} with more data than remains")
        self._push(_NO_TEXT)
        self._at = begin + length

    def _line(self) -> None:
        """Skip a line longer than the buffer, or put the top of the stack into the memo."""
        self._trusted = False
        self._below = self._top = _NO_TEXT
        if self._careful and self._data[self._at] in b"gp":
            self._accuse()
        while (end := self._data.find(b"\n", self._at)) < 0:
            if self._base + len(self._data) >= self._end:
                raise self._unexpected("an unterminated line")
            self._at = len(self._data)
            self._fill()
            if not self._data:  # the file was truncated in the meantime
                raise self._unexpected("no further byte")
        self._at = end + 1

    def _global(self) -> None:
        """Record a name that is in the opcode itself."""
        lines = NAMES(self._data, self._at + 1)
        self._below = self._top = _NO_TEXT
        if lines is None:
            self._names.hidden |= LONG_NAME(self._data, self._at + 1) is not None
            raise self._unexpected("an unterminated name")
        is_call = self._data[self._at] == INST
        self._at = lines.end()
        self._take(lines[1], lines[2])
        if is_call and modern(lines[1].decode(errors="ignore"), lines[2].decode(errors="ignore")) == GETATTR:
            self._accuse()

    def _stack_global(self) -> None:
        """Record a name that was pushed as two strings."""
        module, name = self._text(self._below), self._text(self._top)
        self._below = self._top = _NO_TEXT
        self._at += 1
        if module is None or name is None:
            self._names.hidden = True
        else:
            self._take(module, name)

    def _take(self, module: bytes, name: bytes) -> None:
        self._steps += _STEPS_A_NAME
        qualified = module.decode(errors="backslashreplace"), name.decode(errors="backslashreplace")
        plain = modern(*qualified)
        self._called_for(plain)
        self._keep()
        if plain != GETATTR:
            self._names.take(trust(*qualified), ".".join(plain))

    def _called_for(self, name: Name) -> None:
        """Record the global at the top of the stack, and parse the opcodes that use it."""
        self._name, self._fresh = name, self._base + self._at
        if name == GETATTR:
            self._attribute()
        elif self._careful:
            with suppress(OddError):
                ahead = self._ahead()
                ahead.made()
                self._expected(ahead, name)

    def _accuse(self) -> None:
        """Record that `getattr` may be called with a computed argument."""
        self._names.take(Trust.RUNS, ".".join(GETATTR))

    def _ahead(self) -> Ahead:
        return Ahead(self._data, self._at, self._named, len(self._memo) if self._is_new else -1)

    def _attribute(self) -> None:
        """Check the arguments of the `getattr` at the top of the stack."""
        if not self._careful:
            raise _AttributeError
        ahead = self._ahead()
        try:
            owner, name = ahead.attribute()
        except OddError:
            self._accuse()
            return
        self._expected(ahead, (owner[0], f"{owner[1]}.{name}"))
        # This is equivalent to a dotted name in newer protocols.
        self._names.take(trust(owner[0], f"{owner[1]}.{name}"), f"{owner[0]}.{owner[1]}.{name}")

    def _expected(self, ahead: Ahead, name: Name) -> None:
        """Record the top of the stack after the opcodes that were parsed in advance."""
        if len(self._born) > _MOST_BORN:
            self._born.clear()
        self._born[self._base + ahead.at] = name

    def _mark(self) -> None:
        """Skip a MARK, which may begin the tuple with a tensor's storage."""
        with suppress(OddError):
            storage = self._ahead().storage()
            if len(self._names.storages) < MOST_STORAGES:
                self._names.storages.setdefault(storage.key, storage)
        self._at += 1
        self._below = self._top = _NO_TEXT

    def _keep(self) -> None:
        """Record a memo entry for the last value, if the next opcode requests it."""
        if self._at < len(self._data):
            place = self._ahead().put()
            if place is not None:
                self._remember(place)

    def _put(self, place: int, length: int = 1) -> None:
        """Record the memo entry that the current opcode of `length` bytes writes."""
        if self._fresh == self._base + self._at - length:
            self._fresh += length
            self._remember(place)
            return
        self._named.names.pop(place, None)
        self._texts.pop(place, None)
        born = self._born.pop(self._base + self._at - length, None)
        if born is not None:
            self._named.names[place] = born

    def _remember(self, place: int) -> None:
        self._named.names.pop(place, None)
        self._texts.pop(place, None)
        if self._name is not None:
            self._named.names[place] = self._name
        elif not self._is_new and len(self._texts) < MOST_STORAGES:
            self._texts[place] = self._top

    def _remembered(self, place: int) -> bytes | None:
        """Return a string from the memo; None if the entry is unknown or not a string."""
        if self._is_new:
            return self._text(self._memo[place]) if self._trusted and place < len(self._memo) else None
        return self._text(self._texts.get(place, _NO_TEXT))

    def _push(self, kind: int) -> None:
        self._below, self._top = self._top, kind

    def _text(self, pushed: int) -> bytes | None:
        """Return a pushed string; None if there was none, or the string is too long for a name."""
        if pushed == _NO_TEXT:
            return None
        return self._source.read(pushed >> _LENGTH_BITS, pushed & _LENGTH_MASK)

    def _fill(self) -> None:
        is_last = self._data and self._base + len(self._data) >= self._end
        if is_last or len(self._data) - self._at >= _MARGIN:
            return
        self._base += self._at
        self._at = 0
        self._data = self._source.read(self._base, min(_WINDOW, self._end - self._base))
        self.bytes_read += len(self._data)
        if self.bytes_read > MOST_BYTES:
            raise _OverLimitError

    def _unexpected(self, reason: str) -> _EndError:
        return _EndError(f"at byte {self._base + self._at} there is {reason}")
