"""Contents of a pickle, built from its opcodes: plain values, and a record of the call for everything else.

Nothing is imported or called: a class or a function remains a name, and an object becomes a `Made`. No code of the
pickle runs, so its values are known only if they consist of plain values and tensors.

Source:
    Lib/pickletools.py of Python 3.13.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError, Global, Made, Stored, called, is_key

MOST_OPCODES = 2_000_000
"""Maximum number of opcodes. A tensor takes about thirty; each can use a hundred bytes of memory."""

_MOST_INT_BYTES = 64
"""Maximum size of an integer in bytes; a counter needs eight."""
_MOST_LINE = 4096
"""Maximum length of an argument that ends at the end of the line, a form that only protocol 0 has."""
MOST_COPIED = 64 << 20
"""Maximum number of characters and elements that calls copy, because a few bytes can copy a long list many times."""
_MOST_TUPLE_KEYS = 10_000
"""Maximum number of tuple keys in all dictionaries, because any number of tuples can have the same hash."""


def read_values(data: bytes, *, trailing: int = 0) -> object:
    """Return the contents of a pickle.

    Args:
        data: Bytes that begin with the pickle, or with other pickles before it.
        trailing: Number of pickles before that pickle.

    Raises:
        BrokenPickleError: The bytes are not a pickle, end early, or are implausibly large.
    """
    machine = Machine(data)
    for _ in range(trailing):
        machine.run()
    return machine.run()


class Machine:
    """A pickle machine, with its stack and memo."""

    __slots__ = ("_copied", "_left", "_marks", "_memo", "_most", "_stack", "_tuple_keys", "at", "data")

    opcodes: ClassVar[Mapping[int, Callable[[Any], object]]]
    """Method for each opcode."""

    def __init__(self, data: bytes, *, most: int | None = None) -> None:
        """Create a machine for bytes that begin with a pickle.

        `most` is the maximum number of opcodes; None for the default.
        """
        self.data = data
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._copied = self._tuple_keys = 0
        self._left = self._most = MOST_OPCODES if most is None else most
        self.at = 0

    def run(self) -> object:
        """Execute the opcodes up to the next STOP, and return the top of the stack.

        Raises:
            BrokenPickleError: The pickle ends before a STOP, or is too long.
        """
        self._stack, self._marks, self._memo = [], [], {}
        try:
            return self._followed()
        except (IndexError, KeyError, TypeError, ValueError, struct.error, AttributeError, RecursionError) as error:
            raise BrokenPickleError(f"at byte {self.at}: {type(error).__name__}") from None

    def _followed(self) -> object:
        data, opcodes = self.data, self.opcodes
        while self._left:
            self._left -= 1
            opcode = data[self.at]
            self.at += 1
            if opcode == ord("."):
                return self._stack.pop()
            opcodes[opcode](self)
        raise BrokenPickleError(f"more than {self._most} opcodes")

    # Methods that read the arguments of opcodes.

    def take(self, length: int) -> bytes:
        """Return the next bytes."""
        end = self.at + length
        if not 0 <= length <= len(self.data) - self.at:
            raise BrokenPickleError(f"at byte {self.at}: {length} bytes are announced, but the pickle ends earlier")
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def number(self, width: int, *, signed: bool = False) -> int:
        """Return the next bytes as a number."""
        return int.from_bytes(self.take(width), "little", signed=signed)

    def counted(self, width: int) -> bytes:
        """Return the bytes that follow a count of `width` bytes."""
        return self.take(self.number(width))

    def line(self, codec: str = "utf-8") -> str:
        """Return the rest of the line."""
        end = self.data.index(b"\n", self.at, self.at + _MOST_LINE)
        line = self.data[self.at : end]
        self.at = end + 1
        return line.decode(codec, "surrogateescape" if codec == "utf-8" else "strict")

    # Methods that execute opcodes.

    def push(self, value: object) -> None:
        """Push a value."""
        self._stack.append(value)

    def pop(self) -> Any:  # noqa: ANN401  any object that the pickle pushed
        """Pop the last value."""
        return self._stack.pop()

    def mark(self) -> None:
        """Push a mark."""
        self._marks.append(len(self._stack))

    def since_mark(self) -> list[Any]:
        """Pop all values since the last mark."""
        begin = self._marks.pop()
        values = self._stack[begin:]
        del self._stack[begin:]
        return values

    def drop(self) -> None:
        """Discard the last value or the last mark."""
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._stack.pop()

    def duplicate(self) -> None:
        """Push the last value again."""
        self._stack.append(self._stack[-1])

    def pack(self, count: int) -> None:
        """Combine the last `count` values into a tuple."""
        items = tuple(self._stack[len(self._stack) - count :])
        del self._stack[len(self._stack) - count :]
        self.push(items)

    def recall(self, place: int) -> None:
        """Push the value of a memo entry."""
        self.push(self._memo[place])

    def keep(self, place: int | None = None) -> None:
        """Memoize the last value; without `place`, under the next number."""
        self._memo[len(self._memo) if place is None else place] = self._stack[-1]

    def integer(self, data: bytes) -> None:
        """Push an integer."""
        if len(data) > _MOST_INT_BYTES:
            raise BrokenPickleError(f"a number of {len(data)} bytes")
        self.push(int.from_bytes(data, "little", signed=True))

    def put(self, pairs: list[Any]) -> None:
        """Add keys and values to the container at the top of the stack."""
        target = self._stack[-1]
        into = target.items if isinstance(target, Made) else target
        for key, value in zip(pairs[::2], pairs[1::2], strict=False):
            self._tuple_keys += type(key) is tuple
            if is_key(key) and self._tuple_keys <= _MOST_TUPLE_KEYS:  # other keys cannot be used
                with suppress(TypeError):  # the object is not a container with keys
                    into[key] = value

    def extend(self, values: list[Any]) -> None:
        """Add values to the container at the top of the stack."""
        target = self._stack[-1]
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, Made):
            target.items.update(enumerate(values, len(target.items)))

    def reduce(self) -> None:
        """Execute a call if it creates a tensor or a plain value, and otherwise record it."""
        args = self.pop()
        self.call(self.pop(), args if isinstance(args, tuple) else ())

    def new(self, taken: int) -> None:
        """Record the creation of an object; the first of the `taken` popped values is its class."""
        values = [self.pop() for _ in range(taken)][::-1]
        args = values[1] if isinstance(values[1], tuple) else ()
        self.call(values[0], args)

    def build(self) -> None:
        """Record the state that an object would restore."""
        state = self.pop()
        if isinstance(self._stack[-1], Made):
            self._stack[-1].state = state

    def named(self, module: object, name: object) -> None:
        """Push the name of a class or function."""
        self.push(Global(module if isinstance(module, str) else "", name if isinstance(name, str) else ""))

    def instance(self) -> None:
        """Record the creation of an object in the form of protocol 0."""
        name = Global(self.line(), self.line())
        self.call(name, tuple(self.since_mark()))

    def made(self) -> None:
        """Record the creation of an object in the form of protocol 1."""
        by, *args = self.since_mark()
        self.call(by, tuple(args))

    def call(self, by: object, args: tuple[Any, ...]) -> None:
        """Push the result of a call, or a record of the call."""
        self._copied += sum(len(value) for value in args if isinstance(value, (str, list, tuple, dict)))
        if self._copied > MOST_COPIED:
            raise BrokenPickleError(f"at byte {self.at}: calls copy more than {MOST_COPIED} elements")
        self.push(called(by, args))

    def stored(self, ident: object) -> None:
        """Push a reference to data that torch stores outside the pickle."""
        storage: object = None
        if isinstance(ident, tuple) and len(ident) >= 5 and ident[0] == "storage":  # noqa: PLR2004  with its key, kind and size
            kind = ident[1].name.rpartition(".")[2] if isinstance(ident[1], Global) else ""
            if isinstance(ident[2], str) and type(ident[4]) is int and ident[4] >= 0:
                storage = Stored(ident[2], kind, ident[4])
        self.push(storage)


def _line_number(machine: Machine) -> None:
    text = machine.line()
    machine.push(text == "01" if text in {"00", "01"} else int(text.rstrip("L")))


def _dict(machine: Machine) -> None:
    pairs = machine.since_mark()
    machine.push({})
    machine.put(pairs)


def _extension(machine: Machine, width: int) -> None:
    machine.named("copyreg", f"extension {machine.number(width)}")


_Act = Callable[[Machine], object]


def _pushing(take: Callable[[Machine], object]) -> _Act:
    return lambda machine: machine.push(take(machine))


_PUSHED: dict[str, Callable[[Machine], object]] = {
    "F": lambda machine: float(machine.line()),
    "J": lambda machine: machine.number(4, signed=True),
    "K": lambda machine: machine.number(1),
    "M": lambda machine: machine.number(2),
    "S": lambda machine: machine.line()[1:-1],
    "T": lambda machine: machine.counted(4).decode("latin-1"),
    "U": lambda machine: machine.counted(1).decode("latin-1"),
    "V": lambda machine: machine.line("raw-unicode-escape"),
    "X": lambda machine: machine.counted(4).decode("utf-8", "surrogatepass"),
    "\x8c": lambda machine: machine.counted(1).decode("utf-8", "surrogatepass"),
    "\x8d": lambda machine: machine.counted(8).decode("utf-8", "surrogatepass"),
    "}": lambda _: {},
    "]": lambda _: [],
    "\x8f": lambda _: [],
    "l": Machine.since_mark,
    "\x91": Machine.since_mark,
    "t": lambda machine: tuple(machine.since_mark()),
    "G": lambda machine: struct.unpack(">d", machine.take(8))[0],
    "B": lambda machine: machine.counted(4),
    "C": lambda machine: machine.counted(1),
    "\x8e": lambda machine: machine.counted(8),
    "\x96": lambda machine: machine.counted(8),
    **dict.fromkeys("N\x97", lambda _: None),
    ")": lambda _: (),
    "\x88": lambda _: True,
    "\x89": lambda _: False,
}
Machine.opcodes = {ord(opcode): _pushing(take) for opcode, take in _PUSHED.items()} | {
    ord(opcode): act
    for opcode, act in {
        "(": Machine.mark,
        "0": Machine.drop,
        "1": Machine.since_mark,
        "2": Machine.duplicate,
        **dict.fromkeys("IL", _line_number),
        "P": lambda machine: machine.stored(machine.line()),
        "Q": lambda machine: machine.stored(machine.pop()),
        "R": Machine.reduce,
        "a": lambda machine: machine.extend([machine.pop()]),
        "b": Machine.build,
        "c": lambda machine: machine.named(machine.line(), machine.line()),
        "d": _dict,
        **dict.fromkeys("e\x90", lambda machine: machine.extend(machine.since_mark())),
        "g": lambda machine: machine.recall(int(machine.line())),
        "h": lambda machine: machine.recall(machine.number(1)),
        "i": Machine.instance,
        "j": lambda machine: machine.recall(machine.number(4)),
        "o": Machine.made,
        "p": lambda machine: machine.keep(int(machine.line())),
        "q": lambda machine: machine.keep(machine.number(1)),
        "r": lambda machine: machine.keep(machine.number(4)),
        "s": lambda machine: machine.put([machine.pop(), machine.pop()][::-1]),
        "u": lambda machine: machine.put(machine.since_mark()),
        "\x80": lambda machine: machine.take(1),
        "\x81": lambda machine: machine.new(2),
        "\x82": lambda machine: _extension(machine, 1),
        "\x83": lambda machine: _extension(machine, 2),
        "\x84": lambda machine: _extension(machine, 4),
        "\x85": lambda machine: machine.pack(1),
        "\x86": lambda machine: machine.pack(2),
        "\x87": lambda machine: machine.pack(3),
        "\x8a": lambda machine: machine.integer(machine.counted(1)),
        "\x8b": lambda machine: machine.integer(machine.counted(4)),
        "\x92": lambda machine: machine.new(3),
        "\x93": lambda machine: machine.named(*[machine.pop(), machine.pop()][::-1]),
        "\x94": Machine.keep,
        "\x95": lambda machine: machine.take(8),
        "\x98": lambda _: None,
    }.items()
}
