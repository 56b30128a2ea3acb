"""A watch that has looked ten thousand times, and one that has seen a thousand saves."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest

from ckpttool.core.domain.verdict import Level
from tests.support.watched_trainings import Trainer, Watching, assert_told_and_nothing_else, course

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="watches ten thousand times: --nightly")

SOME_BYTES = 64 << 10
"""What a watch may hold more after ten thousand polls: a list that grows by one item each holds 80 KiB."""


def test_ten_thousand_polls_and_a_save_now_and_then_let_nothing_grow(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, seed=1)
    watching = Watching(trainer.root, tmp_path / "state")
    for _ in range(10):  # more than the watch remembers
        trainer.begin()
        watching.poll(trainer, times=20)
    sizes, held = [], []
    tracemalloc.start()
    for _ in range(2):
        for _ in range(10):
            trainer.begin()
            watching.poll(trainer, times=500)
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0])
        sizes.append(next((tmp_path / "state").rglob("*.json")).stat().st_size)
        watching.told.clear()
    tracemalloc.stop()
    assert held[1] - held[0] < SOME_BYTES
    assert abs(sizes[1] - sizes[0]) < 200
    assert watching.notes == []


def test_a_thousand_saves_and_two_hundred_kills_raise_no_false_alarm(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, seed=5)
    watching = Watching(trainer.root, tmp_path / "state", level=Level.CHECKSUM, seal=True)
    course(trainer, watching, saves=1000, kills=200)
    assert_told_and_nothing_else(trainer, watching)
