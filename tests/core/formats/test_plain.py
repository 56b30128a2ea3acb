"""Plain values come out of what torch or Python wrote as Python would make them, and nothing is run or imported."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import zipfile
from collections import OrderedDict
from contextlib import suppress
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.formats.torch import plain
from ckpttool.core.formats.torch.part import FilePart
from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError, Global, Made
from ckpttool.core.formats.torch.plain import integer_at, plain_values, text_at, value_at
from tests.conftest import FIXTURES, TESTS
from tests.support.shard_writers import MemorySource

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
STATE = {"step": 700, "names": ["a", "b"], "nested": {"args": (1, None, True)}, 3: 0.5}
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C

numbers = st.booleans() | st.integers(-(2**200), 2**200) | st.floats(allow_nan=False)
leaves = st.none() | numbers | st.text() | st.binary()
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(-9, 9), inner),
    max_leaves=20,
)


def archive(name: str, pickled: bytes, before: tuple[str, ...] = ()) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as written:
        for record in before:
            written.writestr(record, b"x" * 100)
        written.writestr(name, pickled)
        written.writestr("archive/version", "3\n")
    return out.getvalue()


def legacy(pickled: bytes) -> bytes:
    before = (LEGACY_MAGIC, 1001, {"little_endian": True})
    return b"".join(pickle.dumps(value, 2) for value in before) + pickled + pickle.dumps(["0"], 2) + bytes(64)


@given(values, st.sampled_from(PROTOCOLS), st.sampled_from(["zip", "legacy", "pickle"]), st.binary(max_size=9))
def test_values_come_out_as_python_makes_them_wherever_they_lie(
    value: object, protocol: int, form: str, before: bytes
) -> None:
    pickled = pickle.dumps(value, protocol)
    data = {"zip": archive("archive/data.pkl", pickled), "legacy": legacy(pickled), "pickle": pickled}[form]
    source = MemorySource(before + data + b"\0behind")
    assert plain_values(source, len(before), len(before) + len(data)) == value


@pytest.mark.parametrize(
    "data",
    [
        archive("archive/data.pkl", pickle.dumps(STATE)),
        archive("archive/data.pkl", pickle.dumps(STATE), before=("archive/byteorder",)),
        legacy(pickle.dumps(STATE, 2)),
        pickle.dumps(STATE),
        pickle.dumps(STATE, 0),
    ],
)
def test_a_file_says_what_was_saved(data: bytes) -> None:
    assert plain_values(MemorySource(data)) == STATE


def test_a_loops_own_checkpoint_says_its_step() -> None:
    data = (FIXTURES / "torch" / "checkpoint_700.pt").read_bytes()
    tree = plain_values(MemorySource(data))
    assert (integer_at(tree, "step"), integer_at(tree, "epoch")) == (700, 2)
    assert integer_at(tree, "model") is None


@pytest.mark.parametrize(
    "data", [b"", b"PK\x03\x04", archive("archive/other", b"N."), archive("archive/data.pkl", b"}"), b"\x80\x04N", b"X"]
)
def test_what_holds_no_whole_pickle_is_said_to_hold_none(data: bytes) -> None:
    with pytest.raises(BrokenPickleError):
        plain_values(MemorySource(data))


def test_no_more_is_read_than_the_pickle_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "_FIRST_BYTES", 64)
    state = {str(number): number for number in range(100)}
    source = MemorySource(pickle.dumps(state) + bytes(1 << 20))
    assert plain_values(source) == state
    assert sum(length for _, length in source.reads) < 20_000


def test_a_pickle_that_is_larger_than_any_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "_FIRST_BYTES", 64)
    monkeypatch.setattr(plain, "MOST_PLAIN_BYTES", 128)
    with pytest.raises(BrokenPickleError):
        plain_values(MemorySource(pickle.dumps("x" * 1000)))


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_hold_no_pickle(data: bytes) -> None:
    with suppress(BrokenPickleError):
        plain_values(MemorySource(data))


def test_nothing_is_imported_and_nothing_is_called() -> None:
    hostile = b"\x80\x02cturtle\nforward\nK\x01\x85R."
    made = plain_values(MemorySource(hostile))
    assert isinstance(made, Made)
    assert made.by == Global("turtle", "forward")
    assert "turtle" not in sys.modules


BOUNDED = """
import pickle, resource, sys
from contextlib import suppress
from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError
from ckpttool.core.formats.torch.plain import plain_values
from tests.support.shard_writers import MemorySource
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
for name, data in pickle.load(sys.stdin.buffer).items():
    with suppress(BrokenPickleError):
        plain_values(MemorySource(data))
    print(name, flush=True)
"""

ENDLESS = {
    # A tuple in a tuple in a tuple, a million deep, as a key: its hash alone would end the interpreter.
    "deep": b"})" + b"\x85" * 1_000_000 + b"Ns.",
    # Pairs of the same pair, 60 deep: 2 ** 60 things to hash, to spell, or to call by.
    "wide": b"})" + b"2\x86" * 60 + b"Ns.",
    "name": b")" + b"2\x86" * 60 + b"X\x01\x00\x00\x00a\x93.",
    "storage": b"(X\x07\x00\x00\x00storageN)" + b"2\x86" * 60 + b"NK\x01tQ.",
    "pairs": b"ccollections\nOrderedDict\n])" + b"2\x86" * 60 + b"N\x86a\x85R.",
    "numpy": b"cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\n)" + b"2\x86" * 60 + b"\x85RC\x00\x86R.",
}


def test_a_key_or_a_name_that_would_be_looked_at_for_ever_is_left_alone() -> None:
    """In a process of its own, with half a minute of a processor: what went on for ever would be stopped."""
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED],
        input=pickle.dumps(ENDLESS),
        capture_output=True,
        check=False,
        cwd=TESTS.parent,
    )
    assert (done.returncode, done.stdout.decode().split()) == (0, [*ENDLESS]), done.stderr


def test_a_long_list_that_is_copied_a_thousand_times_is_given_up() -> None:
    copies = b"]q\x00(" + b"N" * 500_000 + b"e0(" + b"cbuiltins\nlist\nh\x00\x85R" * 1000 + b"l."
    with pytest.raises(BrokenPickleError, match="copy more than"):
        plain_values(MemorySource(copies))


def test_a_dictionary_of_tuples_keeps_as_many_as_can_be_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckpttool.core.formats.torch.pickle_values._MOST_TUPLE_KEYS", 3)
    found = plain_values(MemorySource(pickle.dumps({(number, "a"): number for number in range(9)})))
    assert found == {(0, "a"): 0, (1, "a"): 1, (2, "a"): 2}


def test_pairs_make_a_dictionary_as_they_do_in_python() -> None:
    pairs = b"ccollections\nOrderedDict\n]](X\x01\x00\x00\x00aK\x01ea\x85R."
    assert plain_values(MemorySource(pairs)) == OrderedDict(a=1)


class Counters:
    """An object of somebody's own."""

    def __init__(self) -> None:
        self.step = 7
        self.done = True
        self.name = "run"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_path_of_keys_leads_through_dictionaries_lists_and_objects(protocol: int) -> None:
    tree = plain_values(MemorySource(pickle.dumps({"a": [Counters(), PurePosixPath("x")], "b": {"c": "d"}}, protocol)))
    assert integer_at(tree, "a", 0, "step") == 7
    assert integer_at(tree, "a", 0, "done") is None  # a boolean is not a number
    assert text_at(tree, "a", 0, "name") == "run"
    assert text_at(tree, "a", 0, "step") is None
    assert text_at(tree, "b", "c") == "d"
    assert value_at(tree, "b", "c", "d") is None
    assert value_at(tree, "a", 2) is value_at(tree, "a", "b") is value_at(tree, "e", "f") is None
    assert value_at(tree) is tree


def test_a_part_of_a_file_ends_where_it_is_said_to_end() -> None:
    part = FilePart(MemorySource(b"0123456789"), 2, 6)
    assert (part.stamp.size, part.read(0, 99), part.read(3, 9), part.read(9, 9)) == (4, b"2345", b"5", b"")
    buffer = bytearray(9)
    assert (part.read_into(1, memoryview(buffer)), bytes(buffer[:4])) == (3, b"345\0")
    assert FilePart(MemorySource(b"0123"), 2, 6).stamp.size == 2
    assert FilePart(MemorySource(b"0123"), 9, 12).read(0, 9) == b""
