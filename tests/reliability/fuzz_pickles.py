"""Fuzz target: the names that a pickle calls for, against Python's own unpickler, which is given nothing that runs."""

from __future__ import annotations

import io
import pickle
from contextlib import suppress

from ckpttool.core.formats.torch.pickle_names import Trust, modern, trust
from ckpttool.core.formats.torch.pickle_objects import GETATTR
from ckpttool.core.formats.torch.pickle_opcodes import Name
from ckpttool.core.formats.torch.pickle_scan import MOST_NAME_BYTES, PickleReader
from tests.support.shard_writers import MemorySource

_TUPLES = (b"t", b"\x85", b"\x86", b"\x87")
_MOST_TUPLES = 20
"""Tuples of tuples of the same tuple take for ever to be hashed."""
_BYTEARRAY8 = b"\x96"
"""Python takes the memory for as many bytes as it says before it looks for them."""


def pickle_names(data: bytes) -> None:
    """Whatever an unpickler would ask for is found, and so is what `getattr` would be called with; or it is refused."""
    names = PickleReader(MemorySource(data)).names(0, len(data))
    assert names == PickleReader(MemorySource(data)).names(0, len(data))
    if names.hidden or names.over_limit or sum(map(data.count, _TUPLES)) > _MOST_TUPLES or _BYTEARRAY8 in data:
        return
    asked = _Asked(data)
    with suppress(Exception):  # most make no sense to it at some point; what it asked for before counts
        asked.load()
    found = {*names.runs, *names.unknown}
    called = {name for name in asked.names if name != GETATTR and trust(*name) is not Trust.KNOWN}
    assert all(".".join(name) in found for name in called if "".join(name).isascii()), called
    assert names.runs or not asked.computed
    taken = {name for name in asked.taken if trust(*name) is not Trust.KNOWN}
    assert names.runs or all(".".join(name) in found for name in taken if "".join(name).isascii()), taken


class _Lines(io.BytesIO):
    """A file whose last line has an end, or is none: so Python's unpickler in C has it."""

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        if not line.endswith(b"\n"):
            raise EOFError
        return line


class _Computed:
    """What a call returns."""

    def __call__(self, *_: object) -> object:
        return _Computed()


class _Stand(type):
    """What stands for a global: a class, of which an object can be made, and that computes something when called."""

    name: Name

    def __call__(cls, *_: object) -> object:
        return _Computed()


class _Asked(pickle._Unpickler):  # noqa: SLF001  Python's own in Python: its memo is a dict, no array
    """Takes down what it is asked for, and what `getattr` is called with."""

    def __init__(self, data: bytes) -> None:
        super().__init__(_Lines(data))
        self.names: set[Name] = set()
        self.taken: set[Name] = set()
        self.computed = False

    def find_class(self, module: str, name: str) -> object:
        if max(len(module), len(name)) > MOST_NAME_BYTES:
            raise ImportError  # there is no such module
        called = modern(module, name)
        self.names.add(called)
        return self._getattr if called == GETATTR else _stand(called)

    def _getattr(self, *arguments: object) -> object:
        owner, name, *default = arguments
        kind: object = owner if isinstance(owner, _Stand) else type(owner)
        if not isinstance(kind, _Stand) or not isinstance(name, str) or default:
            self.computed = True
            return _Computed()
        taken = kind.name[0], f"{kind.name[1]}.{name}"
        self.taken.add(taken)
        return _stand(taken)


def _stand(name: Name) -> _Stand:
    made = _Stand("_Stand", (), {})
    made.name = name
    return made
