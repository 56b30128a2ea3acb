"""Columns say what a tuple of objects would, and take a tenth of its memory."""

from __future__ import annotations

import math
import pickle
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.verdict import TensorStat
from ckpttool.core.verify.checks.numerics import StatColumns, compare_numbers, judge_numbers
from tests.core.verify.checks.test_numerics import stat

FINITE = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
NARROW = st.floats(min_value=0, allow_nan=False, allow_infinity=False, width=32)
COUNTS = st.integers(0, 2)
STATS = st.lists(
    st.builds(
        TensorStat,
        name=st.sampled_from([f"w{number}" for number in range(8)]),
        dtype=st.sampled_from(["F32", "F64"]),
        elements=st.integers(0, 3),
        nans=COUNTS,
        infinities=COUNTS,
        absmax=NARROW | FINITE,
        norm=st.sampled_from([0.0, 1.0, 9.0, 11.0, 1e9, math.inf]) | FINITE,
        denormal_only=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda stat: stat.name,
)


def columns(stats: list[TensorStat]) -> StatColumns:
    return StatColumns(
        [(stat.name, stat.dtype, stat.elements) for stat in stats],
        absmax=[stat.absmax for stat in stats],
        norms=[stat.norm for stat in stats],
        oddities={
            at: (stat.nans, stat.infinities, stat.denormal_only)
            for at, stat in enumerate(stats)
            if stat.nans or stat.infinities or stat.denormal_only
        },
    )


@given(STATS)
def test_every_number_comes_back_to_the_last_bit(stats: list[TensorStat]) -> None:
    found = columns(stats)
    assert list(found) == stats
    assert found == tuple(stats)
    assert (hash(found), repr(found)) == (hash(tuple(stats)), repr(tuple(stats)))
    assert found[1:] == tuple(stats[1:])
    assert found == columns(stats) == pickle.loads(pickle.dumps(found))  # noqa: S301  our own
    assert [found[at] for at in range(-len(stats), 0)] == stats


def test_what_differs_in_one_number_is_not_equal() -> None:
    one = stat(elements=4)
    assert columns([one]) == columns([one])
    for other in (replace(one, norm=1.1), replace(one, absmax=0.1), replace(one, nans=1), replace(one, elements=5)):
        assert columns([one]) != columns([other])
    assert columns([one]) != 1
    with pytest.raises(IndexError):
        _ = columns([one])[1]


@given(STATS, STATS, st.sampled_from([10.0, 1000.0]))
def test_columns_are_judged_and_compared_as_objects_are(
    stats: list[TensorStat], before: list[TensorStat], jump: float
) -> None:
    moved = [replace(one, norm=other.norm) for one, other in zip(stats, [*before, *stats], strict=False)]
    assert judge_numbers("a", columns(stats)) == judge_numbers("a", stats)
    for then in (before, moved):
        expected = compare_numbers("a", stats, then, jump=jump)
        assert compare_numbers("a", columns(stats), columns(then), jump=jump) == expected


def test_thousands_of_ranks_take_a_tenth_of_what_objects_take() -> None:
    def shard(rank: int) -> list[TensorStat]:
        return [
            replace(stat(f"layers.{number}.w", norm=rank + number / 3, elements=64), absmax=1.0 + number / 4)
            for number in range(100)
        ]

    taken = []
    for make in (columns, tuple):
        tracemalloc.start()
        held = [make(shard(rank)) for rank in range(100)]
        taken.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert len(held) == 100
    assert taken[0] * 10 < taken[1]


def test_a_shard_of_very_many_tensors_shares_nothing() -> None:
    stats = [stat(str(number), elements=1) for number in range(10_001)]
    assert compare_numbers("a", columns(stats), columns(stats), jump=10) == ()
    assert list(columns(stats)[-1:]) == stats[-1:]
