"""Which names a pickle calls for, read from its opcodes. Nothing is unpickled, and no stack is kept.

Not `pickletools`: it makes a Python object of every argument, so one opcode could fill the memory.

A name stands in the opcode itself (GLOBAL, INST), or is the two strings that were pushed last (STACK_GLOBAL, since
protocol 4), each spelled out or taken from the memo. No pickler does it in another way, so a name that is come by
otherwise is a hidden one.

Source:
    Lib/pickletools.py of Python 3.13 for the opcodes and their arguments, up to protocol 5.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field

from ckpttool.read.formats.pickle_names import Trust, trust
from ckpttool.read.storage import ByteSource

MOST_BYTES = 64 << 20
"""Read at most. The pickle of 100,000 tensors has 15 MB; long strings and arrays are passed over, and not counted."""
MOST_STEPS = 2_000_000
"""Opcodes that are looked at one by one; of most a whole run is passed over at once."""
_STEPS_A_NAME = 10  # to judge one takes so much longer; picklers write each once
MOST_NAME_BYTES = 512
"""Of a module or of a name in it; no real one comes near."""
MOST_NAMES = 1_000
"""Different names that are kept of each sort."""
MOST_PICKLES = 5
"""That stand one behind another: as many as a legacy file of torch has before its raw numbers."""

_WINDOW = 256 << 10
_MARGIN = 64 << 10
"""Where fewer bytes are left in memory the next are read, so an opcode that ends beyond is odd."""

_DULL = rb"[()012NRQabdelostu}\]\x81\x85-\x88\x89\x8f-\x92\x97\x98]+|[K\x80].|M..|J....|G.{8}"
"""Opcodes that name nothing, whatever their arguments."""
_LINES = b"IFLVSPg"
"""Those whose argument is a line."""
_TEXT = rb"(?:X(.{4})|\x8c(.))?"
"""A string that follows a run of them; its length."""
# Runs are limited: `re` keeps a place to go back to for each turn.
_OLD_RUN = re.compile(
    rb"(?:" + _DULL + rb"|[hq].|[jr]....|\x95.{8}|[" + _LINES + rb"p][^\n]*\n){0,4096}" + _TEXT, re.DOTALL
)
_NEW_RUN = re.compile(rb"(?:" + _DULL + rb"|[" + _LINES + rb"][^\n]*\n){0,4096}" + _TEXT, re.DOTALL)
_NAMES = re.compile(rb"([^\n]{0,512})\n([^\n]{0,512})\n").match
_LONG_NAME = re.compile(rb"([\w.\x80-\xff]{1,512}\n)?[\w.\x80-\xff]{513}").match
_PROTO = re.compile(rb"\x80[\x00-\x05]").match
_MEMO_IN_BYTES = 4  # the first protocol whose picklers number what they remember by themselves
_STOP, _STACK_GLOBAL, _MEMOIZE, _FRAME = b".\x93\x94\x95"
_NO_TEXT = -1
_LENGTH_BITS = 10
_LENGTH_MASK = (1 << _LENGTH_BITS) - 1
_FIXED = {**dict.fromkeys(b"Khq\x80\x82", 1), **dict.fromkeys(b"M\x83", 2), **dict.fromkeys(b"Jjr\x84", 4)}
_FIXED |= dict.fromkeys(b"G\x95", 8)
_COUNTED = {**dict.fromkeys(b"UC\x8c\x8a", 1), **dict.fromkeys(b"TBX\x8b", 4), **dict.fromkeys(b"\x8d\x8e\x96", 8)}
"""Bytes of the length that stands before the data."""
_SIGNED = frozenset(b"T\x8b")


@dataclass(slots=True)
class PickleNames:
    """What a pickle calls for. Names are kept as the pickle spells them: show them escaped."""

    runs: list[str] = field(default_factory=list)
    """Known to run code, or to reach what does."""
    hidden: bool = False
    """Also some that are put together while it is loaded."""
    unknown: list[str] = field(default_factory=list)
    broken: str | None = None
    """Why the first pickle cannot be read to its end; names before that are known."""
    over_limit: bool = False
    """There is more than anybody looks at; names in what was seen are known."""


class _EndError(Exception):
    """There is no next opcode."""


class _OverLimitError(Exception):
    """It goes on for too long."""


class PickleReader:
    """Reads the opcodes of one file's pickles. What may be read at most is counted over all of them."""

    __slots__ = (
        "_at", "_base", "_below", "_data", "_end", "_memo", "_names", "_source", "_steps", "_top", "_trusted",
        "bytes_read",
    )  # fmt: skip

    def __init__(self, source: ByteSource) -> None:
        """Take the open file."""
        self._source = source
        self._steps = self.bytes_read = 0
        # A window that moves over the file.
        self._base = self._at = self._end = 0
        self._data = b""
        # The strings that were pushed last, and those in the memo: where they lie and how long they are, in one number.
        self._below = self._top = _NO_TEXT
        self._memo = array("q")
        self._trusted = True
        self._names = PickleNames()

    def names(self, begin: int, end: int, *, pickles: int = 1) -> PickleNames:
        """Find every name that is called for.

        Args:
            begin: First byte of a pickle.
            end: First byte after the last that may belong to it.
            pickles: How many to read at most, one behind another.

        Raises:
            OSError: The disk did not answer.
        """
        self._base, self._at, self._end, self._data = begin, 0, end, b""
        self._names = PickleNames()
        try:
            self._scan()
            for _ in range(1, pickles):
                if not self._another():
                    break
                self._scan()
        except _OverLimitError:
            self._names.over_limit = True
        except _EndError as error:
            self._names.broken = str(error)
        return self._names

    def _another(self) -> bool:
        """Tell whether a further pickle begins here."""
        self._fill()
        return _PROTO(self._data, self._at) is not None

    def _scan(self) -> None:
        """Read one pickle to its STOP."""
        self._fill()
        protocol = self._data[self._at + 1] if _PROTO(self._data, self._at) else 0
        is_new = protocol >= _MEMO_IN_BYTES
        run = _NEW_RUN if is_new else _OLD_RUN
        self._below = self._top = _NO_TEXT
        self._memo, self._trusted = array("q"), is_new
        while not self._is_over(run):
            self._steps += 1
            if self._steps > MOST_STEPS:
                raise _OverLimitError

    def _is_over(self, run: re.Pattern[bytes]) -> bool:
        """Read a run of opcodes that name nothing, or one opcode; tell whether it was STOP."""
        if len(self._data) - self._at < _MARGIN:
            self._fill()
        dull = run.match(self._data, self._at)
        if dull and dull.end() > self._at:
            self._run(dull)
        elif self._at >= len(self._data):
            raise self._odd("the end, where a pickle must say STOP,")
        elif self._data[self._at] == _MEMOIZE:
            self._memo.append(self._top)
            self._at += 1
        elif self._data[self._at] == _STOP:
            self._at += 1
            return True
        else:
            self._one(self._data[self._at])
        return False

    def _run(self, dull: re.Match[bytes]) -> None:
        """Pass over a run, and over the string behind it."""
        begin = dull.end()
        header = dull[dull.lastindex] if dull.lastindex else b""
        if begin - len(header) - bool(header) > self._at:
            self._below = self._top = _NO_TEXT
        if header:
            length = int.from_bytes(header, "little")
            if length > self._end - self._base - begin:
                raise self._odd("a string that is longer than what is left")
            self._push((self._base + begin) << _LENGTH_BITS | length if length <= MOST_NAME_BYTES else _NO_TEXT)
            begin += length
        self._at = begin

    def _one(self, opcode: int) -> None:
        """Read an opcode that is not passed over in a run."""
        if opcode in _COUNTED:
            self._counted(opcode)
        elif opcode in b"ci":
            self._global()
        elif opcode == _STACK_GLOBAL:
            self._stack_global()
        elif opcode in _FIXED:
            self._fixed(opcode)
        elif opcode in _LINES + b"p":
            self._line()
        else:
            raise self._odd(f"{opcode:02x}, which is no opcode,")

    def _fixed(self, opcode: int) -> None:
        """Read an opcode whose argument always has the same length."""
        argument = self._data[self._at + 1 : self._at + 1 + _FIXED[opcode]]
        if len(argument) < _FIXED[opcode]:
            raise self._odd(f"{opcode:02x} without all of its argument")
        self._at += 1 + len(argument)
        if opcode == _FRAME:
            return
        if opcode in b"hj":
            place = int.from_bytes(argument, "little")
            self._push(self._memo[place] if self._trusted and place < len(self._memo) else _NO_TEXT)
            return
        if opcode in b"qr":
            self._trusted = False  # picklers that number by themselves do not mix
        else:  # EXT: a number instead of a name; all others are passed over in runs
            self._names.hidden = True
        self._below = self._top = _NO_TEXT

    def _counted(self, opcode: int) -> None:
        """Pass over data that stand behind their length."""
        width = _COUNTED[opcode]
        begin = self._at + 1 + width
        length = int.from_bytes(self._data[self._at + 1 : begin], "little", signed=opcode in _SIGNED)
        if begin > len(self._data) or not 0 <= length <= self._end - self._base - begin:
            raise self._odd(f"{opcode:02x} with more data than there are")
        self._push(_NO_TEXT)
        self._at = begin + length

    def _line(self) -> None:
        """Pass over a line that is longer than all that is in memory; or put what is on the stack into the memo."""
        self._trusted = False
        self._below = self._top = _NO_TEXT
        while (end := self._data.find(b"\n", self._at)) < 0:
            if self._base + len(self._data) >= self._end:
                raise self._odd("a line without an end")
            self._at = len(self._data)
            self._fill()
            if not self._data:  # cut meanwhile
                raise self._odd("no further byte")
        self._at = end + 1

    def _global(self) -> None:
        """Take a name that stands in the opcode."""
        lines = _NAMES(self._data, self._at + 1)
        self._below = self._top = _NO_TEXT
        if lines is None:
            self._names.hidden = _LONG_NAME(self._data, self._at + 1) is not None
            raise self._odd("a name that has no end")
        self._at = lines.end()
        self._take(lines[1], lines[2])

    def _stack_global(self) -> None:
        """Take a name that was pushed as two strings."""
        module, name = self._text(self._below), self._text(self._top)
        self._below = self._top = _NO_TEXT
        self._at += 1
        if module is None or name is None:
            self._names.hidden = True
        else:
            self._take(module, name)

    def _take(self, module: bytes, name: bytes) -> None:
        self._steps += _STEPS_A_NAME
        spelled = module.decode(errors="backslashreplace"), name.decode(errors="backslashreplace")
        verdict = trust(*spelled)
        if verdict is Trust.KNOWN:
            return
        kept = self._names.runs if verdict is Trust.RUNS else self._names.unknown
        if len(kept) < MOST_NAMES and (full := ".".join(spelled)) not in kept:
            kept.append(full)

    def _push(self, what: int) -> None:
        self._below, self._top = self._top, what

    def _text(self, pushed: int) -> bytes | None:
        """Return a string that was pushed; None where there was none, or one too long for a name."""
        if pushed == _NO_TEXT:
            return None
        return self._source.read(pushed >> _LENGTH_BITS, pushed & _LENGTH_MASK)

    def _fill(self) -> None:
        """Read on where few bytes are left in memory."""
        is_last = self._data and self._base + len(self._data) >= self._end
        if is_last or len(self._data) - self._at >= _MARGIN:
            return
        self._base += self._at
        self._at = 0
        self._data = self._source.read(self._base, min(_WINDOW, self._end - self._base))
        self.bytes_read += len(self._data)
        if self.bytes_read > MOST_BYTES:
            raise _OverLimitError

    def _odd(self, what: str) -> _EndError:
        return _EndError(f"at byte {self._base + self._at} there is {what}")
