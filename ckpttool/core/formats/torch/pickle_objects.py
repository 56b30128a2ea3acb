"""Records of the objects that a pickle would create. Names are not imported, and nothing is called.

Source:
    `torch/_utils.py` and `torch/serialization.py` of torch 2.13.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple


class BrokenPickleError(Exception):
    """The pickle violates the rules of pickles, or ends too early."""


class Global(NamedTuple):
    """A name of a class or function that is not imported."""

    module: str
    name: str


GETATTR = Global("builtins", "getattr")


class Made:
    """An object that a call would create."""

    __slots__ = ("args", "by", "items", "state")

    def __init__(self, by: object, args: tuple[object, ...]) -> None:
        """Store the callable's name and the arguments."""
        self.by = by
        self.args = args
        self.state: object = None
        """The state that the object would restore."""
        self.items: dict[object, object] = {}
        """The items that would be set by key."""

    @property
    def members(self) -> dict[object, object]:
        """Return the object's contents, by name or by key."""
        # Slots of an object come after the items of its dictionary.
        parts = self.state if isinstance(self.state, tuple) else (self.state,)
        return {key: value for part in (*parts, self.items) if isinstance(part, dict) for key, value in part.items()}


class Stored(NamedTuple):
    """A reference to data that torch stores outside the pickle, in a separate record."""

    key: str
    kind: str
    """Class of the storage, such as `FloatStorage`."""
    numel: int


class Tensor(NamedTuple):
    """A view of a storage."""

    storage: Stored
    dtype: str | None
    """Name of the type in torch; None if the storage's class defines the type."""
    offset: int
    """Offset in elements."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """Stride of each dimension in elements."""


_VIEWS = frozenset({"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_npu_tensor"})
_WRAPPERS = frozenset({"_rebuild_parameter", "_rebuild_parameter_with_state"})
_FLAGS_AFTER = 6
"""Number of arguments before the flags `neg` and `conj`, which make torch negate or conjugate the stored numbers."""
_OF_TENSORS = frozenset({"torch._utils", "torch_npu.utils.storage"})
_OF_PLAIN = frozenset({"builtins", "__builtin__", "collections", "torch"})
_PLAIN: dict[str, Callable[[Any], object]] = {
    "OrderedDict": dict, "dict": dict, "defaultdict": dict, "Counter": dict,
    "Size": tuple, "tuple": tuple, "list": list, "set": list, "frozenset": list, "deque": list,
    "bytes": bytes,  # or None, as protocols before 3 write it
}  # fmt: skip
_KEYS = (str, int, float, bytes, type(None), Global, Made)
_MOST_KEY_BITS = 64
"""Maximum number of bits of an integer key.

Thousands of larger keys can have the same hash, and a dictionary of them would take hours.
"""
_MOST_KEY_PARTS = 16
_NUMPY = {"f8": "<d", "f4": "<f", "f2": "<e", "i8": "<q", "i4": "<i", "i2": "<h", "u8": "<Q", "u4": "<I", "b1": "<?"}


def called(by: object, args: tuple[Any, ...]) -> object:
    """Return the result of a call if it is a plain value or tensor, and otherwise a record of the call."""
    noted = Made(by, args)
    if not isinstance(by, Global):
        return noted
    if by.module in _OF_TENSORS:
        made: object = noted
        if by.name in _VIEWS:
            made = _view(by.name, args) or noted
        elif by.name in _WRAPPERS:
            made = args[0]
        return made
    if by == ("torch._tensor", "_rebuild_from_type_v2"):
        made = called(args[0], args[2] if isinstance(args[2], tuple) else ())
        if isinstance(made, Made):
            made.state = args[3]
        return made
    if by.module.endswith(".multiarray") and by.name == "scalar":
        number = _numpy_number(args)
        return noted if number is None else number
    if by == ("_codecs", "encode"):  # the form in which protocols before 3 write bytes
        return args[0].encode("latin-1")
    plain = _PLAIN.get(by.name) if by.module in _OF_PLAIN else None
    argument = args[0] if args else ()
    return noted if plain is None or (plain is bytes and args) else _container(plain, argument)


def _container(plain: Callable[[Any], object], values: object) -> object:
    """Return a container with the values; an empty container if the values have no such form."""
    if type(values) not in {dict, list, tuple}:
        values = ()
    if plain is dict and not isinstance(values, dict):
        return {pair[0]: pair[1] for pair in values if is_key(pair[0])}  # type: ignore[attr-defined]  # a list or a tuple
    return plain(values)


def is_key(key: object) -> bool:
    """Return whether an object may be a dictionary key, because hashing a deep or very large object could take hours.

    The hash of a tuple is computed each time from all elements, even if the elements are the same object; and tuples
    nested a million deep crash the interpreter.
    """
    if type(key) is tuple:
        return len(key) <= _MOST_KEY_PARTS and all(type(part) is not tuple and is_key(part) for part in key)
    return (type(key) is not int or key.bit_length() <= _MOST_KEY_BITS) and isinstance(key, _KEYS)


def _view(name: str, args: tuple[Any, ...]) -> Tensor | None:
    """Return the tensor that a call of torch creates; None for any other call."""
    storage, offset, shape, stride = args[:4]
    numbers = (offset, *shape, *stride)
    if not isinstance(storage, Stored) or len(shape) != len(stride):
        return None
    if any(type(number) is not int or number < 0 for number in numbers):
        return None
    flags = args[-1] if len(args) > _FLAGS_AFTER else None
    if isinstance(flags, dict) and any(flags.values()):  # the stored numbers are those before a negation, for example
        return None
    # Version 3 is for types without a storage class, and contains the type's name.
    metadata = args[6] if name == "_rebuild_tensor_v3" and len(args) > 6 else None  # noqa: PLR2004
    return Tensor(storage, metadata.name if isinstance(metadata, Global) else None, offset, tuple(shape), tuple(stride))


def _numpy_number(args: tuple[Any, ...]) -> object:
    """Return the number that a call of numpy creates; None for any other call."""
    kind, data = args
    name = kind.args[0] if isinstance(kind, Made) and kind.args else None
    if isinstance(data, str):  # the form in which protocol 2 writes bytes, before they are encoded
        data = data.encode("latin-1")
    if not isinstance(name, str) or name not in _NUMPY or not isinstance(data, bytes):
        return None
    return struct.unpack(_NUMPY[name], data)[0]
