"""Which chunks of a file differ from its seal, and which tensors lie in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.manifest import CHUNK_BYTES, differing_chunks, tensors_in
from ckpttool.core.domain.shard import TensorEntry
from tests.support.manifests import digest, seal


def entry(name: str, *spans: tuple[int, int]) -> TensorEntry:
    return TensorEntry(name=name, dtype=DType.U8, shape=(1,), spans=spans)


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ((1, 2, 3), ()),
        ((1, 9, 3), (1,)),
        ((9, 2, 9), (0, 2)),
        ((1, 2), (2,)),
        ((1, 2, 3, 4), (3,)),
        ((), (0, 1, 2)),
    ],
)
def test_the_chunks_that_differ_are_named(chunks: tuple[int, ...], expected: tuple[int, ...]) -> None:
    now = tuple(map(digest, chunks))
    assert differing_chunks(seal(chunks=(1, 2, 3)), len(chunks) * CHUNK_BYTES, now) == expected


def test_a_size_that_differs_is_never_called_equal() -> None:
    assert differing_chunks(seal(chunks=(1, 2)), 2 * CHUNK_BYTES - 1, (digest(1), digest(2))) == (1,)
    assert differing_chunks(seal(chunks=(), size=0), 1, ()) == (0,)


@given(st.lists(st.integers(0, 3), max_size=5), st.lists(st.integers(0, 3), max_size=5))
def test_equal_means_none_and_none_means_equal(before: list[int], now: list[int]) -> None:
    found = differing_chunks(seal(chunks=tuple(before)), len(now) * CHUNK_BYTES, tuple(map(digest, now)))
    assert (found == ()) == (before == now)
    assert all(before[at : at + 1] != now[at : at + 1] for at in found)


def test_tensors_are_named_where_they_have_a_byte_in_the_range() -> None:
    entries = [entry("a", (0, 10)), entry("empty", (10, 10)), entry("b", (10, 20), (30, 40)), entry("c", (20, 30))]
    assert tensors_in(entries, 0, 10) == ("a",)
    assert tensors_in(entries, 9, 11) == ("a", "b")
    assert tensors_in(entries, 20, 30) == ("c",)
    assert tensors_in(entries, 35, 99) == ("b",)
    assert tensors_in(entries, 40, 99) == ()
