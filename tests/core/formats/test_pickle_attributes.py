"""A pickle may ask for an attribute of a class of somebody's own, and in no other way call getattr."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest
import torch

from tests.core.formats.test_pickles import scanned
from tests.support.shard_writers import torch_file, torch_pickle


class Outer:
    class Inner:
        """One in another."""

        class Second:
            """One more."""

        class Innermost:
            """The last."""

    def method(self) -> None:
        """Do nothing."""


class Net(torch.nn.Module):
    """A model as many are written: it chose its function when it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.chosen = self.way
        self.again = self.way
        self.act = torch.tanh

    def way(self, x: torch.Tensor) -> torch.Tensor:
        return x


def saved(value: object, protocol: int) -> bytes:
    return torch_pickle(torch_file(value, pickle_protocol=protocol))


HEALTHY = {
    "an object of a nested class": Outer.Inner(),
    "a class in a class in a class": [Outer.Inner.Innermost(), Outer.Inner.Innermost, Outer.Inner.Second],
    "models with bound methods": [Net(), Net(), *(Outer.Inner() for _ in range(300))],
    "functions of torch": [torch.relu, torch.tanh, torch.relu],
    "an operation of a group": torch.distributed.ReduceOp.SUM,
    "a method of a builtin class": [str.lower, dict.fromkeys],
}


class TestHealthy:
    @pytest.mark.parametrize("protocol", [2, 5])
    @pytest.mark.parametrize("value", HEALTHY.values(), ids=HEALTHY)
    def test_attributes_as_picklers_write_them_are_no_more_than_unknown(self, value: object, protocol: int) -> None:
        names = scanned(saved(value, protocol))
        assert (names.runs, names.hidden, names.broken) == ([], False, None)
        assert names.unknown

    def test_the_attribute_is_named_with_its_class(self) -> None:
        assert f"{__name__}.Net.way" in scanned(saved(Net(), 2)).unknown
        assert f"{__name__}.Outer.Inner.Innermost" in scanned(saved(Outer.Inner.Innermost(), 2)).unknown

    def test_storages_are_found_in_such_a_pickle_too(self) -> None:
        assert [(one.kind, one.numel) for one in scanned(saved(Net(), 2)).storages.values()] == [
            ("FloatStorage", 4),
            ("FloatStorage", 2),
        ]


GETATTR = b"c__builtin__\ngetattr\n"
NEW = b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93"
OWN = b"cown\nA\n"
FINE = b"\x80\x02" + GETATTR + b"q\0" + OWN + b"q\1X\1\0\0\0bq\2\x86R"
FINE_NEW = NEW + b"\x94\x8c\x03own\x94\x8c\x01A\x94\x93\x94\x8c\x01b\x94\x86\x94R\x94"

TRICKS = {
    "a dunder": b"\x80\x02" + GETATTR + OWN + b"X\x08\0\0\0__dict__\x86R.",
    "a module": b"\x80\x02" + GETATTR + b"ctorch\nserialization\nX\2\0\0\0os\x86R.",
    "a loader": b"\x80\x02" + GETATTR + b"ctorch\nserialization\nX\4\0\0\0load\x86R.",
    "a loader by steps": b"\x80\x02" + GETATTR + b"q\0h\0ctorch\njit\nX\1\0\0\0x\x86RX\4\0\0\0load\x86R.",
    "a file's method": b"\x80\x02" + GETATTR + b"cpathlib\nPath\nX\6\0\0\0unlink\x86R.",
    "of a file": b"\x80\x02cpathlib\nPosixPath\nq\0)\x81q\1" + GETATTR + b"h\1X\6\0\0\0unlink\x86R.",
    "of what was computed": FINE + b")Rq\3h\0h\3X\1\0\0\0b\x86R.",
    "a computed name": FINE + b"q\3h\0h\1h\3\x86R.",
    "a tuple of its own": FINE + b"h\0(h\1h\2tR.",
    "kept for later": FINE + b"h\0q\5X\1\0\0\0b.",
    "kept elsewhere": b"\x80\x02" + GETATTR + b"q\0q\7" + OWN + b"X\1\0\0\0b\x86Rh\7N\x86R.",
    "kept again": FINE + b"h\0q\5h\1X\1\0\0\0b\x86Rh\5N\x86R.",
    "kept again far away": FINE + b"h\0r\5\0\0\0h\1X\1\0\0\0b\x86Rj\5\0\0\0N\x86R.",
    "copied": b"\x80\x02" + GETATTR + b"2" + OWN + b"X\1\0\0\0b\x86R.",
    "a line of the oldest": FINE + b"g0\nN.",
    "a number of the oldest": FINE + b"p0\n.",
    "a number of the newest": FINE + b"\x94.",
    "a number of an older one": FINE_NEW + b"q\0.",
    "a memo that another wrote": FINE + b"q\3Nq\1h\0h\1X\1\0\0\0b\x86R.",
    "a text that another wrote": FINE + b"U\3abcq\2h\0h\1h\2\x86R.",
    "called by INST": b"\x80\x02(" + OWN + b"X\1\0\0\0bi__builtin__\ngetattr\n" + OWN + b"X\1\0\0\0b\x86R.",
    "without end": b"\x80\x02" + (GETATTR + b"q\0") * 30 + OWN + b"X\1\0\0\0b\x86R" * 30 + b".",
    "a part at the end": b"\x80\x02" + GETATTR + b"cown",
    "at the very end": b"\x80\x02" + GETATTR,
    "of a long name": b"\x80\x02" + GETATTR + OWN + b"X\0\4\0\0" + b"a" * 1024 + b"\x86R.",
    "of a hidden one": NEW + b"\x94NN\x93\x8c\1b\x86R.",
    "of a hidden one's memo": NEW + b"\x94h\7h\7\x93\x8c\1b\x86R.",
    "of an unknown one": NEW + b"\x94h\7\x8c\1b\x86R.",
    "handed to a function": b"\x80\x02cfunctools\npartial\n" + GETATTR + b"\x85R.",
}


class TestTricks:
    @pytest.mark.parametrize("data", TRICKS.values(), ids=TRICKS)
    def test_whatever_else_is_done_with_getattr_is_refused(self, data: bytes) -> None:
        names = scanned(data)
        assert names.runs or names.hidden

    @pytest.mark.parametrize("data", [FINE, FINE_NEW])
    def test_the_neighbour_of_all_these_tricks_is_unknown(self, data: bytes) -> None:
        for further in (b"", b"q\3" if data is FINE else b"\x94", b"h\0h\1X\1\0\0\0b\x86R" if data is FINE else b"N0"):
            names = scanned(data + further + b".")
            assert (names.runs, names.hidden, names.broken) == ([], False, None)
            assert "own.A.b" in names.unknown

    def test_many_attributes_that_nobody_remembers_are_not_kept(self) -> None:
        once = b"h\0h\1X\1\0\0\0b\x86R"
        names = scanned(FINE + b"q\3" + (once + b"0") * 200 + once + b"q\4h\0h\4X\1\0\0\0c\x86R.")
        assert (names.runs, names.unknown) == ([], ["own.A.b", "own.A", "own.A.b.c"])


class Thing:
    """What the unpickler below makes of all that it is asked for: it knows where it comes from."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, *_: object) -> Thing:
        return Thing("computed")


class Watched(pickle.Unpickler):
    """Python's own, which runs nothing and takes down what getattr is called with."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.calls: list[tuple[object, ...]] = []

    def find_class(self, module: str, name: str) -> object:
        if name == "getattr":
            return self.taken
        if name == "A":
            return type("A", (Thing,), {"__init__": lambda _: None, "path": "own.A"})
        return Thing(f"{module}.{name}")

    def taken(self, *arguments: object) -> Thing:
        self.calls.append(arguments)
        return Thing(f"{getattr(arguments[0], 'path', 'computed')}.{arguments[1]}")


PIECES = [
    *(b"q\0", b"q\1", b"q\2", b"q\3", b"h\0", b"h\1", b"h\2", b"h\3", b"r\1\0\0\0", b"j\1\0\0\0", b"\x94", b"g0\n"),
    *(GETATTR, GETATTR + b"q\0", b"h\0", OWN, OWN + b"q\1", b"h\1)\x81q\3", b"X\1\0\0\0b", b"X\1\0\0\0bq\2"),
    *(b"X\6\0\0\0systemq\2", b"U\6systemq\2", b"U\6system", b"\x86R", b"\x86R", b"\x86", b"R", b"0", b"2", b"N"),
    *(b"h\0h\1h\2\x86R", b"h\0h\3h\2\x86R", b"(", b"t", b"i__builtin__\ngetattr\n", b"cos\npath\nq\1"),
]


def test_getattr_is_never_called_with_anything_but_constants_without_being_refused() -> None:
    chance = Random(7)  # noqa: S311  the same pickles in every run
    allowed = refused = 0
    for _ in range(5_000):
        data = chance.choice([FINE, b"\x80\x02"]) + b"".join(chance.choices(PIECES, k=chance.randrange(1, 12))) + b"."
        watched = Watched(data)
        with suppress(Exception):  # most make no sense to it at some point; what it called before counts
            watched.load()
        called_for = [(*one, None, None, None)[:3] for one in watched.calls]
        plain = all(
            getattr(owner, "path", "").startswith("own.A") and name == "b" and more is None
            for owner, name, more in called_for
        )
        names = scanned(data)
        if not plain:
            refused += 1
            assert names.runs or names.hidden, data
        elif watched.calls and not (names.runs or names.hidden):
            allowed += 1
            assert {f"{getattr(owner, 'path', '')}.b" for owner, *_ in called_for} <= set(names.unknown), data
    assert refused > 50
    assert allowed > 50


def test_what_is_called_is_what_an_unpickler_calls() -> None:
    """The judge of the test above sees a call with something computed."""
    watched = Watched(TRICKS["a computed name"])
    watched.load()
    calls: list[Callable[..., object] | object] = [one[1] for one in watched.calls]
    assert calls[0] == "b"
    assert isinstance(calls[1], Thing)
