"""What differs, put together: the oddest first, by sums in which no order shows."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.units import Rank
from ckpttool.core.domain.verdict import Level
from ckpttool.inspect.model import Difference, Distance
from ckpttool.inspect.rules_difference import Distances, compared
from tests.inspect.test_contents import entry, gathered, opened

sums = st.floats(0, 1e300)


def distance(name: str, far: float, *, squares: float = 1.0, **more: float) -> Distance:
    return Distance(
        name=name, equal=False, squares=squares, other=1.0, dot=1.0, moved=far * far, largest=far,
        found=int(more.get("found", 0)), lost=int(more.get("lost", 0)),
    )  # fmt: skip


def added(*found: Distance, rank: int | None = 0) -> Distances:
    distances = Distances()
    for each in found:
        distances.add(each, None if rank is None else Rank(rank))
    return distances


def of(distances: Distances, *names: str) -> Difference:
    side = gathered(opened(0, *(entry(name, 4) for name in names)))
    return compared(side, side, level=Level.NUMERICS, distances=distances, findings=())


@given(st.lists(st.tuples(sums, sums, sums, sums, st.integers(0, 40)), min_size=1, max_size=12), st.randoms())
def test_the_order_in_which_ranks_come_shows_in_no_digit(
    parts: list[tuple[float, float, float, float, int]], chance: random.Random
) -> None:
    found = [
        (Distance(name="w", equal=False, squares=a, other=b, dot=c, moved=d, largest=d), Rank(rank))
        for a, b, c, d, rank in parts
    ]
    movements = []
    for _ in range(2):
        distances = Distances()
        for each, rank in found:
            distances.add(each, rank)
        movements.append(distances.movements())
        chance.shuffle(found)
    assert movements[0] == movements[1]


def test_the_oddest_stands_first_and_equal_ones_by_name() -> None:
    names = [f"w.{at}" for at in range(12)]
    found = [distance(name, 0.01) for name in names]
    found[7] = distance("w.7", 1.0)
    found[3] = distance("w.3", 0.02)
    found[11] = distance("w.11", 1e-9, lost=1)
    told = of(added(*found), *names)
    assert [change.name for change in told.tensors][:5] == ["w.11", "w.7", "w.3", "w.0", "w.1"]
    assert [change.name for change in told.tensors][-1] == "w.10"
    assert told.tensors[1].movement is not None
    assert told.tensors[1].movement.times_median == pytest.approx(100)


def test_two_tensors_are_too_few_for_a_median() -> None:
    told = of(added(distance("a", 1.0), distance("b", 2.0)), "a", "b")
    assert [change.name for change in told.tensors] == ["b", "a"]
    assert {change.movement and change.movement.times_median for change in told.tensors} == {None}
    assert [group.median for group in told.groups] == [None]


def test_each_kind_has_a_median_of_its_own() -> None:
    names = [*(f"w.{at}" for at in range(3)), *(f"exp_avg.{at}" for at in range(3))]
    told = of(added(*(distance(name, 1.0 if name[0] == "e" else 0.001) for name in names)), *names)
    assert {change.movement and change.movement.times_median for change in told.tensors} == {1.0}
    assert [(group.kind, group.moved) for group in told.groups] == [("exp_avg", 3), ("weights", 3)]


def test_the_largest_change_is_told_with_the_lowest_rank_that_has_it() -> None:
    distances = Distances()
    for rank in (5, 2, 3):
        distances.add(distance("w", 4.0 if rank != 3 else 1.0), Rank(rank))
    assert distances.movements()["w"].largest_rank == 2
    assert added(distance("w", 1.0), rank=None).movements()["w"].largest_rank is None
    assert added(distance("w", 1.0), rank=0).movements()["w"].largest_rank == 0


def test_sums_beyond_a_float_tell_no_distance_and_stop_nothing() -> None:
    movement = added(distance("w", math.inf, squares=math.inf)).movements()["w"]
    assert movement.relative is None
    far = Distance(name="w", equal=False, squares=5e-324, other=1.0, dot=0.0, moved=1e308)
    assert added(far).movements()["w"].relative == math.inf


def test_a_world_of_another_size_is_no_change_of_every_tensor() -> None:
    one = gathered(opened(0, entry("w", 4)))
    two = gathered(opened(0, entry("w", 4)), opened(1, entry("w", 4)))
    lacking = gathered(opened(0, entry("w", 4)), opened(1))
    for a, b, what in ((one, two, []), (two, lacking, [("ranks",)]), (two, two, [])):
        told = compared(a, b, level=Level.STRUCTURE, distances=Distances(), findings=())
        assert [change.what for change in told.tensors] == what


def test_values_that_could_not_be_compared_are_counted_and_single_numbers_are_not() -> None:
    side = gathered(opened(0, entry("w", 4), entry("step"), entry("none", 0), values=(("step", 3),)))
    told = compared(side, side, level=Level.CHECKSUM, distances=Distances(), findings=())
    assert (told.uncompared, told.same) == (1, 2)


def test_a_single_number_that_nobody_told_as_a_scalar_counts_as_a_tensor() -> None:
    side = gathered(opened(0, entry("w_scale")))
    for equal in (True, False):
        distances = Distances()
        distances.add(Distance(name="w_scale", equal=equal), Rank(0))
        told = compared(side, side, level=Level.CHECKSUM, distances=distances, findings=())
        assert [change.what for change in told.tensors] == ([] if equal else [("values",)])


def test_what_was_compared_on_half_of_the_ranks_is_not_called_the_same() -> None:
    both = gathered(opened(0, entry("w", 4)), opened(1, entry("w", 4)))
    half = gathered(opened(0, entry("w", 4)))
    distances = Distances()
    distances.add(Distance(name="w", equal=True), Rank(0))
    for a, b in ((both, half), (half, both)):
        told = compared(a, b, level=Level.CHECKSUM, distances=distances, findings=())
        assert (told.same, told.uncompared, told.tensors) == (0, 1, ())
    told = compared(half, half, level=Level.CHECKSUM, distances=distances, findings=())
    assert (told.same, told.uncompared, told.tensors) == (1, 0, ())


def test_bits_that_differ_on_one_rank_differ() -> None:
    distances = Distances()
    for equal in (True, False, True):
        distances.add(Distance(name="w", equal=equal), Rank(0))
    told = of(distances, "w")
    assert [(change.what, change.movement) for change in told.tensors] == [(("values",), None)]


def test_scalars_that_one_side_lacks_and_those_that_differ_between_ranks_are_told() -> None:
    a = gathered(opened(0, values=(("gone", 1), ("same", 2), ("spread", 3))), opened(1, values=(("spread", 3),)))
    b = gathered(opened(0, values=(("new", 1), ("same", 2), ("spread", 3))), opened(1, values=(("spread", 4),)))
    told = compared(a, b, level=Level.STRUCTURE, distances=Distances(), findings=())
    found = {change.name: (change.before, change.after) for change in told.scalars}
    assert found == {"gone": (1, None), "new": (None, 1), "spread": (3, 3)}


def test_what_one_side_lacks_is_gone_or_added() -> None:
    a, b = gathered(opened(0, entry("a", 4))), gathered(opened(0, entry("b", 4)))
    told = compared(a, b, level=Level.CHECKSUM, distances=Distances(), findings=())
    assert [(change.name, change.what, change.before, change.after) for change in told.tensors] == [
        ("a", ("gone",), (("F32", (4,), (0,)),), ()),
        ("b", ("added",), (), (("F32", (4,), (0,)),)),
    ]


def test_a_tensor_that_is_told_as_a_scalar_is_no_movement() -> None:
    distances = Distances(scalars=frozenset({"step"}))
    for name in ("step", "w"):
        distances.add(distance(name, 1.0), Rank(0))
    assert list(distances.pairs) == ["w"]
