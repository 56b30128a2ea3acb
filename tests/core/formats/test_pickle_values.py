"""A pickle is followed without running it: what it holds comes out as Python itself would make it, calls as notes."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.formats.torch import pickle_values
from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError, Global, Made
from ckpttool.core.formats.torch.pickle_values import read_values
from tests.conftest import FIXTURES

PROTOCOLS = (0, 2, 5)  # 1 writes as 0 and 2 do, 3 and 4 as 5 does

leaves = st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(-(2**63), 2**63), inner)
    ),
    max_leaves=20,
)


@given(values, st.sampled_from(PROTOCOLS))
def test_plain_values_come_out_as_python_makes_them(value: object, protocol: int) -> None:
    assert read_values(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("value", "same"),
    [
        (OrderedDict(a=1, b=[2]), {"a": 1, "b": [2]}),
        (defaultdict(list, {"a": [1]}), {"a": [1]}),
        (Counter("aab"), {"a": 2, "b": 1}),
        (deque([1, 2]), [1, 2]),
        ({1, 2}, [1, 2]),
        (frozenset({3}), [3]),
        ([[], ()], [[], ()]),
        ((1, 2, 3, 4), (1, 2, 3, 4)),
        (300, 300),
        (b"", b""),
        (2**40, 2**40),
        ("x" * 300, "x" * 300),
    ],
)
def test_containers_come_out_as_plain_ones(value: object, same: object, protocol: int) -> None:
    assert read_values(pickle.dumps(value, protocol)) == same


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("number", [np.float64(0.5), np.int64(-3), np.float32(0.25), np.bool_(1), np.int64(0)])
def test_a_number_of_numpy_is_a_number(number: Any, protocol: int) -> None:  # noqa: ANN401  of several types
    assert read_values(pickle.dumps(number, protocol)) == number.item()


class Runs:
    """What a hostile pickle is made of."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/ckpttool-ran",)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_a_pickle_would_run_is_noted_and_not_run(protocol: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle.dumps({"a": Runs()}, protocol)
    monkeypatch.setattr(os, "system", lambda _: pytest.fail("it was run"))
    made = read_values(data)["a"]  # type: ignore[index]
    assert isinstance(made, Made)
    assert (made.by, made.args) == (Global("posix", "system"), ("touch /tmp/ckpttool-ran",))


class Config(dict[str, int]):
    """A class of somebody's own, with keys and attributes."""


class Names(list[str]):
    """The same with values in a row."""


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_an_object_of_an_unknown_list_keeps_its_values(protocol: int) -> None:
    made = read_values(pickle.dumps(Names(["a", "b"]), protocol))
    assert isinstance(made, Made)
    assert made.items == {0: "a", 1: "b"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_object_of_an_unknown_class_keeps_its_attributes_and_items(protocol: int) -> None:
    config = Config(a=1)
    config.extra = 2  # type: ignore[attr-defined]
    made = read_values(pickle.dumps(config, protocol))
    assert isinstance(made, Made)
    assert made.items == {"a": 1} or made.args[2] == {"a": 1}
    assert made.state == {"extra": 2}
    path = read_values(pickle.dumps(PurePosixPath("a/b"), protocol))
    assert isinstance(path, Made)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x80\x04\x95\x03\x00\x00\x00\x00\x00\x00\x00N0K\x01.", 1),
        (b"(K\x01K\x020K\x031K\x04.", 4),  # POP and POP_MARK
        (b"K\x01(0.", 1),  # POP takes a mark away, too
        (b"K\x012\x86.", (1, 1)),
        (b"I01\n.", True),
        (b"I7\n.", 7),
        (b"L7L\n.", 7),
        (b"F0.5\n.", 0.5),
        (b"S'a'\n.", "a"),
        (b"U\x01a.", "a"),
        (b"T\x01\x00\x00\x00a.", "a"),
        (b"\x8d\x01" + bytes(7) + b"a.", "a"),
        (b"\x8e\x01" + bytes(7) + b"a.", b"a"),
        (b"\x96\x01" + bytes(7) + b"a.", b"a"),
        (b"B\x01\x00\x00\x00a.", b"a"),
        (b"C\x01a.", b"a"),
        (b"\x8b\x01\x00\x00\x00\x05.", 5),
        (b"(K\x01K\x02d.", {1: 2}),
        (b"(K\x01l.", [1]),
        (b"}p7\n0g7\n.", {}),
        (b"}r\x07\x00\x00\x000j\x07\x00\x00\x00.", {}),
        (b"\x82\x01.", Global("copyreg", "extension 1")),
        (b"\x83\x01\x00.", Global("copyreg", "extension 1")),
        (b"\x84\x01\x00\x00\x00.", Global("copyreg", "extension 1")),
        (b"(\x91.", []),
        (b"\x97\x98.", None),
        (b"Pplain\n.", None),
        (b"cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\nU\x02f8\x85RU\x08" + bytes(8) + b"\x86R.", 0.0),
        (b"}]K\x01s.", {}),  # a list is no key
        (b"K\x01Nb.", 1),  # and a number has no state
        (b"}\x8a\x09" + bytes(8) + b"\x01Ns.", {}),  # a number that many others share a hash with is no key
        (b"N(K\x01e.", None),  # what is no list takes nothing
    ],
)
def test_an_opcode_that_no_trainer_writes_does_what_python_says(data: bytes, value: object) -> None:
    assert read_values(data) == value


@pytest.mark.parametrize("opcode", [b"i", b"o"])
def test_an_object_of_an_old_class_is_a_note(opcode: bytes) -> None:
    data = b"(cposix\nsystem\nK\x01o." if opcode == b"o" else b"(K\x01iposix\nsystem\n."
    made = read_values(data)
    assert isinstance(made, Made)
    assert (made.by, made.args) == (Global("posix", "system"), (1,))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"K",
        b"\xff",
        b"X\xff\xff\xff\xffa.",
        b"\x8a\x41" + bytes(65) + b".",
        b"h\x05.",
        b"\x93.",
        b"Fnan of some sort\n.",
        b"ctorch._tensor\n_rebuild_from_type_v2\n)R.",
        b"c" + b"a" * 5000 + b"\nb\n.",
        b"(K\x01e.",
    ],
)
def test_what_is_no_pickle_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(BrokenPickleError):
        read_values(data)


def test_a_pickle_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle_values, "MOST_OPCODES", 10)
    with pytest.raises(BrokenPickleError, match="more than 10 opcodes"):
        read_values(b"N0" * 20 + b"N.")


@pytest.mark.parametrize(
    "call",
    [
        b"ctorch._utils\n_rebuild_tensor_v2\n(NK\x00))tR.",  # no storage
        b"ctorch._utils\n_rebuild_qtensor\n)R.",
        b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storageNU\x010U\x03cpuI-4\ntQK\x00))tR.",  # -4 numbers
        b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storageNU\x010U\x03cpuK\x04tQI-1\n))tR.",  # at -1
        b"cnumpy.core.multiarray\nscalar\n(NC\x08\x00\x00\x00\x00\x00\x00\x00\x00tR.",
        b"ccollections\nChainMap\n)R.",
        b"(K\x01tK\x02R.",
        b"cbuiltins\nlist\nK\x01\x85\x81.",
        b"ca\nb\nNN\x92.",
    ],
)
def test_a_call_that_is_not_as_torch_writes_it_stays_a_note(call: bytes) -> None:
    found = read_values(call)
    assert isinstance(found, Made) or found == []


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_no_pickle(data: bytes) -> None:
    with suppress(BrokenPickleError):
        read_values(data)


@given(st.data())
def test_a_real_pickle_that_was_damaged_does_no_more_either(data: st.DataObject) -> None:
    with zipfile.ZipFile(FIXTURES / "torch" / "fsdp2_rank_0.pt") as archive:
        whole = bytearray(archive.read("model_world_size_2_rank_0/data.pkl"))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BrokenPickleError):
        read_values(bytes(whole))
