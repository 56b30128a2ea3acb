"""States of generators that are read only if they were used."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpttool.guard import randomness
from ckpttool.guard.randomness import StatesReader
from tests.guard.loop import bits

legacy: Any = np.random
"""Numpy's global generator, which is what this module reads."""

USES: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "python": random.random,
    "python's pair": lambda: random.gauss(0, 1),
    "python's seed": lambda: random.seed(3),
    "python's own state": lambda: random.setstate(random.getstate()),
    "numpy": legacy.rand,
    "numpy's pair": legacy.randn,
    "numpy's seed": lambda: legacy.seed(3),
    "numpy's own state": lambda: legacy.set_state(legacy.get_state()),
    "torch": lambda: torch.rand(1),
    "torch's seed": lambda: torch.manual_seed(3),
}


@pytest.fixture(autouse=True)
def _own_states() -> Iterator[None]:
    before = randomness.states()
    yield
    randomness.restore(before)


def comparable(states: randomness.States) -> object:
    numpy = states["numpy"]
    assert isinstance(numpy, tuple)
    return bits({**states, "numpy": [*numpy[:1], torch.from_numpy(numpy[1].copy()), *numpy[2:]]})


@given(st.lists(st.sampled_from([*USES]), max_size=12))
@settings(max_examples=60, deadline=None)
def test_every_state_is_what_a_full_reading_returns(uses: list[str]) -> None:
    reader = StatesReader()
    for use in uses:
        USES[use]()
        assert comparable(reader.states()) == comparable(randomness.states()), use


def test_states_of_generators_that_were_not_used_are_the_same_objects() -> None:
    reader = StatesReader()
    legacy.seed(3)
    first = reader.states()
    torch.rand(1)
    second = reader.states()
    assert all(first[name] is second[name] for name in ("python", "numpy"))
    assert not torch.equal(first["torch"], second["torch"])  # type: ignore[arg-type]
    random.random()  # noqa: S311
    legacy.rand()
    third = reader.states()
    assert all(second[name] is not third[name] for name in ("python", "numpy"))


def test_the_second_number_of_a_pair_is_not_missed_although_no_word_of_numpy_changes() -> None:
    reader = StatesReader()
    legacy.seed(3)
    legacy.randn()
    before = reader.states()
    second = legacy.randn()
    after = reader.states()
    randomness.restore(before)
    assert legacy.randn() == second
    randomness.restore(after)
    assert legacy.randn() != second


def test_another_generator_of_numpy_is_read_in_full() -> None:
    reader = StatesReader()
    usual = legacy.get_bit_generator()
    reader.states()
    legacy.set_bit_generator(legacy.PCG64(3))
    try:
        for _ in range(3):
            legacy.rand()
            assert repr(reader.states()["numpy"]) == repr(legacy.get_state(legacy=False))
    finally:
        legacy.set_bit_generator(usual)
    assert comparable(reader.states()) == comparable(randomness.states())


def test_a_python_that_hides_the_words_of_its_generator_is_read_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(randomness, "_memory_of", lambda _: b"always the same")
    reader = StatesReader()
    reader.states()
    random.random()  # noqa: S311
    assert reader.states()["python"] == random.getstate()
