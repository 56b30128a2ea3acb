"""Replacements for the standard library's `dataclass` and `replace`, for frozen values only and ten times as fast.

`dataclasses.dataclass` compiles six methods for each class when the class is made. A short command makes a hundred
classes, which would take longer than reading the disk. Here only `__init__` is compiled, and only if a class has
many instances; all other methods are inherited. Type checkers see the standard library's functions.
`dataclasses.fields` and `dataclasses.replace` work as usual; their first call for a class takes as long as fifty calls
of our `replace`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

_T = TypeVar("_T")

_DEFAULTS: dict[type, dict[str, object]] = {}
"""Defaults of each class."""

_GETTERS: dict[type, Callable[[object], tuple[object, ...]]] = {}
"""Getters for the fields of classes with many instances: reports on thousands of ranks are compared by fields."""

if TYPE_CHECKING:
    from dataclasses import dataclass, replace
else:
    from _thread import RLock  # `threading` takes a millisecond to import
    from functools import partial, total_ordering

    _NOTING = RLock()  # a class may inherit its fields from a class whose fields are not recorded yet

    def dataclass(*, frozen: bool, slots: bool, kw_only: bool, order: bool = False) -> Callable[[type], type]:
        """Return a class decorator for frozen values with slots and keyword arguments only."""
        if not (frozen and slots and kw_only):
            raise TypeError(
                "only frozen=True, slots=True, kw_only=True are supported; otherwise use dataclasses.dataclass"
            )
        shared = _Ordered if order else _Frozen

        def make(plain: type) -> type:
            namespace, bases = vars(plain), [base for base in plain.__bases__ if base is not object]
            fields = [
                name for name, kind in namespace.get("__annotations__", {}).items() if not kind.startswith("ClassVar")
            ]
            names = tuple(dict.fromkeys([*(name for base in bases for name in base.__slots__), *fields]))
            left_out = {"__dict__", "__weakref__", *fields}
            members = {name: value for name, value in namespace.items() if name not in left_out}
            made = {"__slots__": names, "__init__": _Init(), "__dataclass_fields__": _Fields(plain)}
            cls = type(plain)(plain.__name__, (*bases, shared), {**members, **made})
            inherited = {name: value for base in bases for name, value in _DEFAULTS.get(base, {}).items()}
            _DEFAULTS[cls] = {**inherited, **{name: namespace[name] for name in fields if name in namespace}}
            return cls

        return make

    def replace(value: object, /, **changes: object) -> object:
        """Return a copy of the value with some fields replaced."""
        if not isinstance(value, _Frozen):
            raise TypeError(f"{type(value).__name__} is not a frozen value; use dataclasses.replace")
        names = value.__slots__
        if not all(name in names for name in changes):
            raise TypeError(f"{type(value).__name__} has the fields {', '.join(names)}, not {', '.join(changes)}")
        made = object.__new__(value.__class__)
        for name in names:
            object.__setattr__(made, name, changes[name] if name in changes else getattr(value, name))
        return made

    class _Fields:
        """Descriptor for `__dataclass_fields__`, which the standard library computes on first use."""

        def __init__(self, plain: type) -> None:
            self._plain = plain

        def __get__(self, _value: object, cls: type) -> dict[str, object]:
            import dataclasses

            with _NOTING:  # it iterates over the class while it adds to it, so only one thread may run it
                if vars(cls).get("__dataclass_fields__", self) is self:
                    noted = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=True)(self._plain)
                    cls.__dataclass_params__ = noted.__dataclass_params__
                    cls.__dataclass_fields__ = noted.__dataclass_fields__
            return cls.__dataclass_fields__

    class _Init:
        """Descriptor for `__init__`, which is compiled only for classes with several instances.

        A command makes at most one instance of half of its classes.
        """

        def __set_name__(self, cls: type, _name: str) -> None:
            self._cls = cls
            self._made = 0

        def __get__(self, value: object, _kind: type) -> Callable[..., None]:
            self._made += 1
            if value is None or self._made > _FEW:
                return self._compiled(value)
            return partial(self._fill, value)

        def _compiled(self, value: object) -> Callable[..., None]:
            init = self._cls.__init__ = _init_of(self._cls)
            return init if value is None else init.__get__(value)

        def _fill(self, value: object, /, **given: object) -> None:
            values = {**_DEFAULTS[self._cls], **given}
            names, put = self._cls.__slots__, object.__setattr__
            if len(values) == len(names):
                try:
                    for name in names:
                        put(value, name, values[name])
                except KeyError:
                    pass
                else:
                    return
            self._compiled(value)(**given)  # raises an error for a missing or unexpected argument

    _FEW = 16
    """Number of values below which compiling does not pay: it takes as long as making about fifty the slow way."""

    def _init_of(cls: type) -> Callable[..., None]:
        """Compile `__init__`, which sets the slots through descriptors because `__setattr__` raises an error."""
        names_by_value, parameters, lines, given = {}, [], [], _DEFAULTS[cls]
        if len(cls.__slots__) > 1:  # with a single name it would not return a tuple
            _GETTERS[cls] = attrgetter(*cls.__slots__)
        for name in cls.__slots__:
            names_by_value[f"set_{name}"] = getattr(cls, name).__set__
            lines.append(f"    set_{name}(self, {name})")
            if name in given:
                names_by_value[f"default_{name}"] = given[name]
                parameters.append(f"{name}=default_{name}")
            else:
                parameters.append(name)
        head = f"def __init__(self, *, {', '.join(parameters)}):\n"
        exec(head + "\n".join(lines), names_by_value)  # noqa: S102  field names come from our own modules
        init = names_by_value["__init__"]
        init.__qualname__ = f"{cls.__qualname__}.__init__"
        init.__annotations__ = {**cls.__annotations__, "return": None}
        return init

    def _values(self: object) -> tuple[object, ...]:
        getter = _GETTERS.get(self.__class__)
        return getter(self) if getter is not None else tuple([getattr(self, name) for name in self.__slots__])

    class _Frozen:
        """Base class with the methods of all frozen values; a class may override them."""

        __slots__ = ()

        def __repr__(self) -> str:
            fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
            return f"{type(self).__qualname__}({fields})"

        def __eq__(self, other: object) -> bool:
            return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented

        def __hash__(self) -> int:
            return hash(_values(self))

        def __setattr__(self, name: str, value: object) -> None:
            from dataclasses import FrozenInstanceError

            raise FrozenInstanceError(f"cannot assign to field {name!r}")

        def __delattr__(self, name: str) -> None:
            from dataclasses import FrozenInstanceError

            raise FrozenInstanceError(f"cannot delete field {name!r}")

        def __getstate__(self) -> tuple[object, ...]:
            return _values(self)

        def __setstate__(self, values: tuple[object, ...]) -> None:
            for name, value in zip(self.__slots__, values, strict=True):
                object.__setattr__(self, name, value)

    @total_ordering
    class _Ordered(_Frozen):
        """Base class of frozen values that are ordered by their fields."""

        __slots__ = ()

        def __lt__(self, other: object) -> bool:
            return _values(self) < _values(other) if other.__class__ is self.__class__ else NotImplemented


def many(cls: type[_T], count: int, **columns: Sequence[object] | repeat[object]) -> list[_T]:
    """Return many instances of one class, from one column per field.

    This takes half the time of calling the class, because there is no Python call per instance.

    Args:
        cls: A class of frozen values.
        count: Number of instances.
        **columns: `count` values for each field, including fields with defaults; an endless `repeat` for a value that
            all instances share.

    Raises:
        TypeError: Columns are missing, or do not belong to a field.
        ValueError: A column has a different number of values.
    """
    names: tuple[str, ...] = cls.__slots__  # type: ignore[attr-defined]  # each frozen class has them
    if columns.keys() != {*names}:
        raise TypeError(f"{cls.__name__} has the fields {', '.join(names)}, not {', '.join(columns)}")
    if any(not isinstance(column, repeat) and len(column) != count for column in columns.values()):
        raise ValueError(f"{count} of {cls.__name__} take {count} values in each column")
    if len(names) > 1:  # with a single name it would not return a tuple
        _GETTERS[cls] = attrgetter(*names)
    made = list(map(object.__new__, repeat(cls, count)))
    for name, column in columns.items():
        deque(map(getattr(cls, name).__set__, made, column), maxlen=0)
    return made


class Packed(NamedTuple):
    """Many instances of one class, stored by field for transport: a third of the size of their pickle."""

    kind: type
    times: int
    shared: dict[str, object]
    """Fields that have the same value in all instances."""
    own: dict[str, Sequence[object] | Packed]
    """A column for each of the other fields."""


def packed(values: Sequence[object]) -> Packed:
    """Pack one or more instances of one class of frozen values, field by field; `unpacked` restores them."""
    kind = type(values[0])
    shared: dict[str, object] = {}
    columns: dict[str, Sequence[object] | Packed] = {}
    for name in kind.__slots__:  # type: ignore[attr-defined]  # each frozen class has them
        column = list(map(attrgetter(name), values))
        first = column[0]
        if all(value is first for value in column):
            shared[name] = first
        elif is_frozen(type(first)) and all(type(value) is type(first) for value in column):
            columns[name] = packed(column)
        else:
            columns[name] = column
    return Packed(kind, len(values), shared, columns)


def unpacked(values: Packed) -> list[Any]:
    """Return the values that were passed to `packed`."""
    columns = {name: unpacked(column) if isinstance(column, Packed) else column for name, column in values.own.items()}
    return many(values.kind, values.times, **columns, **{name: repeat(value) for name, value in values.shared.items()})


def is_frozen(kind: object) -> bool:
    """Return whether an object is a class of frozen values."""
    return isinstance(kind, type) and kind in _DEFAULTS


def defaults(cls: type) -> Mapping[str, object]:
    """Return the default values of a class of frozen values, by field; fields without a default are left out."""
    return _DEFAULTS[cls]


__all__ = ["Packed", "dataclass", "defaults", "is_frozen", "many", "packed", "replace", "unpacked"]
