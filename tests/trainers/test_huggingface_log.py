"""Hugging Face's `trainer_state.json` as a log."""

from __future__ import annotations

import math

import pytest

from ckpttool.trainers.huggingface import log as hf_trainer
from ckpttool.trainers.huggingface.log import HfTrainer
from tests.logs.reading import log, problems, read, steps


def test_a_trainer_state_gives_its_training_entries_and_no_evaluations() -> None:
    items = log(HfTrainer(), "trainer_state_made.json")
    rows = steps(items)
    assert [row.step for row in rows] == [10, 20, 30]
    assert (rows[0].global_norm, rows[0].loss) == (1.25, 2.5)
    assert math.isnan(rows[1].global_norm or 0)
    assert rows[2].global_norm is None
    assert problems(items) == []


@pytest.mark.parametrize("data", [b'{"log_history": 3}', b'{"log_history": [', b"[]"])
def test_a_broken_trainer_state_is_one_problem(data: bytes) -> None:
    (problem,) = read(HfTrainer(), data)
    assert problem in problems([problem])


def test_a_trainer_state_over_its_limit_is_one_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_trainer, "STATE_LIMIT", 100)
    assert len(problems(log(HfTrainer(), "trainer_state_made.json"))) == 1
