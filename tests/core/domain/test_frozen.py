"""Our `dataclass` makes what the standard library's would have made, but faster."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from threading import Barrier
from typing import ClassVar

import pytest

import ckpttool.core.domain
from ckpttool.core.domain.frozen import dataclass, many, packed, replace, unpacked
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.units import ByteCount


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """A value."""

    name: str
    size: int = 0
    parts: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Theirs:
    """A value."""

    name: str
    size: int = 0
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Ordered:
    """A value that has an order."""

    first: int
    second: int


def make_class() -> type[Ours]:
    """Make a class that has no value yet."""
    namespace = {
        "__annotations__": {"name": "str", "size": "int", "parts": "tuple[str, ...]"},
        "__doc__": "A value.",
        "size": 0,
        "parts": (),
    }
    return dataclass(frozen=True, slots=True, kw_only=True)(type("Ours", (), namespace))


def nouns() -> list[type]:
    """Return every class of the domain that is a value."""
    modules = [
        importlib.import_module(f"ckpttool.core.domain.{info.name}")
        for info in pkgutil.iter_modules(ckpttool.core.domain.__path__)
    ]
    found = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    return sorted((one for one in found if dataclasses.is_dataclass(one)), key=lambda one: one.__name__)


@pytest.mark.parametrize("arguments", [{"name": "x"}, {"name": "x", "size": 3, "parts": ("a",)}])
def test_it_holds_what_theirs_holds(arguments: dict[str, object]) -> None:
    make: Callable[..., Ours] = Ours
    made: Callable[..., Theirs] = Theirs
    ours, theirs = make(**arguments), made(**arguments)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert not hasattr(ours, "__dict__")


def test_its_fields_are_of_the_types_that_theirs_are() -> None:
    assert [(one.name, one.type) for one in dataclasses.fields(Ours)] == [
        (one.name, one.type) for one in dataclasses.fields(Theirs)
    ]
    assert Ours.__annotations__ == Theirs.__annotations__ == {"name": "str", "size": "int", "parts": "tuple[str, ...]"}


def test_what_belongs_to_the_class_is_no_field() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Kind:
        made: ClassVar[int] = 3
        name: str

    assert [one.name for one in dataclasses.fields(Kind)] == ["name"]
    assert Kind(name="x").made == Kind.made == 3


def test_it_is_equal_to_its_equal_and_to_nothing_else() -> None:
    assert Ours(name="x") == Ours(name="x", size=0)
    assert hash(Ours(name="x")) == hash(Ours(name="x"))
    assert Ours(name="x") != Ours(name="x", size=1)
    theirs: object = Theirs(name="x")
    assert Ours(name="x") != theirs
    assert len({Ours(name="x"), Ours(name="x"), Ours(name="y")}) == 2


@pytest.mark.parametrize("kind", [Ours, Theirs])
@pytest.mark.parametrize(
    ("positional", "named"), [([], {}), (["x"], {}), ([], {"name": "x", "colour": 1}), ([], {"size": 1})]
)
def test_wrong_arguments_are_refused(
    kind: Callable[..., object], positional: list[str], named: dict[str, object]
) -> None:
    with pytest.raises(TypeError):
        kind(*positional, **named)


def test_the_hundredth_value_is_as_the_first_and_refuses_what_the_first_refuses() -> None:
    made: Callable[..., Ours] = make_class()
    values = [made(name="x", parts=("a",)) for _ in range(100)]
    assert {(value.name, value.size, value.parts) for value in values} == {("x", 0, ("a",))}
    assert len(set(values)) == 1
    for wrong in ({}, {"size": 1}, {"name": "x", "colour": 1}):
        with pytest.raises(TypeError):
            made(**wrong)


@pytest.mark.parametrize("wrong", [{}, {"size": 1}, {"name": "x", "colour": 1}, {"size": 1, "colour": 2}])
def test_the_first_value_of_a_class_is_refused_for_the_reason_that_theirs_is(wrong: dict[str, object]) -> None:
    made: Callable[..., Ours] = make_class()
    theirs: Callable[..., Theirs] = Theirs
    with pytest.raises(TypeError) as said:
        made(**wrong)
    with pytest.raises(TypeError) as expected:
        theirs(**wrong)
    assert str(said.value).partition("() ")[2] == str(expected.value).partition("() ")[2]
    assert made(name="x").size == 0


def test_a_class_has_its_signature_before_it_has_a_value() -> None:
    assert list(inspect.signature(make_class()).parameters) == ["name", "size", "parts"]


def test_nobody_changes_it() -> None:
    value = Ours(name="x")
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'size'"):
        value.size = 1  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'size'"):
        del value.size
    with pytest.raises(AttributeError):
        value.colour = 1  # type: ignore[attr-defined]
    assert value == Ours(name="x")


def test_it_can_be_copied_replaced_and_sent_to_another_process() -> None:
    value = Ours(name="x", parts=("a",))
    assert copy.deepcopy(value) == copy.copy(value) == value
    assert pickle.loads(pickle.dumps(value)) == value  # noqa: S301  our own bytes
    assert dataclasses.replace(value, size=2) == Ours(name="x", size=2, parts=("a",))
    with pytest.raises(TypeError):
        dataclasses.replace(value, colour=1)  # type: ignore[call-arg]


def test_an_order_is_that_of_the_fields() -> None:
    values = [Ordered(first=one, second=two) for one in (2, 1) for two in (2, 1)]
    assert sorted(values) == [Ordered(first=one, second=two) for one in (1, 2) for two in (1, 2)]
    assert Ordered(first=1, second=2) <= Ordered(first=1, second=2) < Ordered(first=1, second=3)
    assert Ordered(first=1, second=2) >= Ordered(first=1, second=1)
    with pytest.raises(TypeError):
        assert Ordered(first=1, second=2) < Ours(name="x")  # type: ignore[operator]
    with pytest.raises(TypeError):
        assert Ours(name="x") < Ours(name="y")  # type: ignore[operator]


@pytest.mark.parametrize("option", ["frozen", "slots", "kw_only"])
def test_what_it_cannot_make_it_refuses(option: str) -> None:
    decorate: Callable[..., object] = dataclass
    with pytest.raises(TypeError, match=r"dataclasses\.dataclass"):
        decorate(**{"frozen": True, "slots": True, "kw_only": True, option: False})


@pytest.mark.parametrize("noun", nouns(), ids=lambda noun: noun.__name__)
def test_every_noun_of_the_domain_is_made_so(noun: type) -> None:
    assert set(noun.__mro__) & set(Ours.__mro__) > {object}
    names = [field.name for field in dataclasses.fields(noun)]
    assert list(inspect.signature(noun).parameters) == names
    assert noun.__doc__


def test_values_of_one_field_and_of_several_compare_and_hash_by_their_fields() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class One:
        a: int

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Two:
        a: int
        b: str = ""

    for _ in range(50):  # few and many
        assert One(a=1) == One(a=1) != One(a=2)
        assert Two(a=1) == Two(a=1, b="") != Two(a=1, b="b")
        assert (hash(One(a=1)), hash(Two(a=1))) == (hash((1,)), hash((1, "")))


def test_many_values_made_at_once_are_those_made_one_by_one() -> None:
    kind = make_class()
    made = many(kind, 3, name=["a", "b", "c"], size=[1, 2, 3], parts=repeat(("x",)))
    alone = [kind(name=name, size=size, parts=("x",)) for name, size in (("a", 1), ("b", 2), ("c", 3))]
    assert made == alone
    assert [repr(one) for one in made] == [repr(one) for one in alone]
    assert [hash(one) for one in made] == [hash(one) for one in alone]
    assert dataclasses.replace(made[0], size=2) == kind(name="a", size=2, parts=("x",))
    with pytest.raises(dataclasses.FrozenInstanceError):
        made[0].size = 5  # type: ignore[misc]


def test_no_value_is_none() -> None:
    assert many(Ours, 0, name=[], size=[], parts=repeat(())) == []


@pytest.mark.parametrize(
    "columns", [{"name": ["a"], "size": [1]}, {"name": ["a"], "size": [1], "parts": [()], "x": [1]}]
)
def test_many_values_need_a_column_for_each_field_and_no_other(columns: dict[str, Sequence[object]]) -> None:
    with pytest.raises(TypeError, match="Ours has the fields name, size, parts, not name, size"):
        many(Ours, 1, **columns)


def test_a_column_that_is_too_short_leaves_no_value_half_made() -> None:
    with pytest.raises(ValueError, match="2 of Ours take 2 values in each column"):
        many(Ours, 2, name=["a"], size=[1, 2], parts=repeat(()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    one: object
    other: object


def stamped(changed_ns: int | None) -> FileStamp:
    return FileStamp(size=ByteCount(1), token=(1, 2), modified_ns=1, changed_ns=changed_ns)


@pytest.mark.parametrize(
    "values",
    [
        [Ours(name="a", size=1)],
        [Ours(name="a", size=number, parts=("x",)) for number in range(3)],
        [Ours(name=name, size=1) for name in ("a", "b")],
        [Ours(name="a", size=True), Ours(name="a", size=1)],  # equal, and not the same
        [Holder(one=stamped(1), other=None), Holder(one=stamped(None), other=stamped(3))],
        [Holder(one=stamped(1), other=stamped(2)), Holder(one=stamped(1), other=Ours(name="x"))],
    ],
)
def test_packed_values_come_back_as_they_were_to_the_last_field(values: list[object]) -> None:
    back = unpacked(pickle.loads(pickle.dumps(packed(values))))  # noqa: S301  what was written a moment ago
    assert [repr(one) for one in back] == [repr(one) for one in values]
    assert [type(one) for one in back] == [type(one) for one in values]


def test_what_all_values_share_is_packed_once() -> None:
    parts = tuple(f"part {number} that all of them have" for number in range(8))
    values = [Ours(name=str(number), size=1, parts=parts) for number in range(64)]
    assert len(pickle.dumps(packed(values))) < 0.6 * len(pickle.dumps(values))


def test_threads_that_ask_for_the_fields_of_a_class_at_once_all_get_them() -> None:
    names = [f"field_{number}" for number in range(40)]
    together = Barrier(4)

    def ask(kind: type) -> list[str]:
        together.wait()
        return [field.name for field in dataclasses.fields(kind)]

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            for _ in range(100):
                made = type("Plain", (), {"__annotations__": dict.fromkeys(names, "int")})
                kind: type = dataclass(frozen=True, slots=True, kw_only=True)(made)
                assert list(threads.map(ask, [kind] * 4)) == [names] * 4
    finally:
        sys.setswitchinterval(usual)


def test_a_replaced_value_is_the_one_that_theirs_would_be_and_leaves_the_old_one() -> None:
    ours, theirs = Ours(name="x", size=3), Theirs(name="x", size=3)
    assert dataclasses.asdict(replace(ours, size=4)) == dataclasses.asdict(dataclasses.replace(theirs, size=4))
    assert ours == Ours(name="x", size=3)
    assert type(replace(ours)) is Ours


def test_only_fields_of_frozen_values_are_replaced() -> None:
    change: Callable[..., object] = replace
    with pytest.raises(TypeError, match="Ours has the fields name, size, parts, not sizes"):
        change(Ours(name="x"), sizes=4)
    with pytest.raises(TypeError, match="Theirs is not a frozen value"):
        change(Theirs(name="x"), size=4)
