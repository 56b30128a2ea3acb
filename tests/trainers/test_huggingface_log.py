"""Hugging Face's `trainer_state.json` as a log."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ckpttool.trainers.huggingface import log as hf_trainer
from ckpttool.trainers.huggingface.log import HfPrinted, HfTrainer
from ckpttool.trainers.huggingface.places import HfLogs, start_logs
from tests.core.logs.reading import LOGS, log, problems, read, steps
from tests.support.trainer_trees import healthy


def test_a_trainer_state_gives_its_training_entries_and_no_evaluations() -> None:
    items = log(HfTrainer(), "trainer_state_made.json")
    rows = steps(items)
    assert [row.step for row in rows] == [10, 20, 30]
    assert (rows[0].global_norm, rows[0].loss) == (1.25, 2.5)
    assert math.isnan(rows[1].global_norm or 0)
    assert rows[2].global_norm is None
    assert problems(items) == []


def test_who_asks_for_curves_sees_evaluations_and_learning_rates() -> None:
    history = [
        {"step": 10, "loss": 2.5, "learning_rate": 1e-4},
        {"step": 15, "eval_loss": 2.4},
        {"step": 20, "loss": 2.3, "learning_rate": 2e-4},
        {"step": 20, "eval_loss": 2.2},
    ]
    rows = steps(read(HfTrainer(), json.dumps({"log_history": history}).encode(), curves=True))
    shown = [(row.step, row.loss, row.learning_rate, row.validation_loss) for row in rows]
    assert shown == [(10, 2.5, 1e-4, None), (15, None, None, 2.4), (20, 2.3, 2e-4, 2.2)]


@pytest.mark.parametrize("data", [b'{"log_history": 3}', b'{"log_history": [', b"[]"])
def test_a_broken_trainer_state_is_one_problem(data: bytes) -> None:
    (problem,) = read(HfTrainer(), data)
    assert problem in problems([problem])


def test_a_trainer_state_over_its_limit_is_one_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_trainer, "STATE_LIMIT", 100)
    assert len(problems(log(HfTrainer(), "trainer_state_made.json"))) == 1


class TestWhereItLies:
    def test_the_newest_save_that_is_not_cut_off_has_all_of_it(self, tmp_path: Path) -> None:
        root = healthy("hf_single", tmp_path)
        assert HfLogs().near(str(root)) == ((f"{root}/checkpoint-12/trainer_state.json",),)
        state = root / "checkpoint-12/trainer_state.json"
        state.write_bytes(state.read_bytes()[:700])
        assert HfLogs().near(str(root)) == ((f"{root}/checkpoint-8/trainer_state.json",),)
        state.unlink()
        assert HfLogs().near(str(root)) == ((f"{root}/checkpoint-8/trainer_state.json",),)

    def test_where_no_save_is_there_is_none(self, tmp_path: Path) -> None:
        assert HfLogs().near(str(tmp_path)) == ()
        assert HfLogs().near(str(tmp_path / "gone")) == ()
        assert HfLogs().inside(str(tmp_path / "gone")) == HfLogs().inside(str(tmp_path)) == ()
        root = healthy("hf_single", tmp_path)
        assert HfLogs().inside(f"{root}/checkpoint-4") == (f"{root}/checkpoint-4/trainer_state.json",)


def test_each_start_has_its_own_event_file(tmp_path: Path) -> None:
    assert start_logs(str(tmp_path)) == ()
    names = [f"events.out.tfevents.{time}.host.1.0" for time in (1700000900, 1700000100)]
    for folder, name in zip(("Jan01_host", "Feb01_host"), names, strict=True):
        (tmp_path / "runs" / folder).mkdir(parents=True)
        (tmp_path / "runs" / folder / name).write_bytes(b"")
    (tmp_path / "runs" / "Feb01_host" / "notes.txt").write_text("")
    later, earlier = f"{tmp_path}/runs/Jan01_host/{names[0]}", f"{tmp_path}/runs/Feb01_host/{names[1]}"
    assert start_logs(str(tmp_path)) == (earlier, later)


class TestPrinted:
    @pytest.mark.parametrize(
        ("version", "last", "first"),
        [("4.57", 103, (2.6517, 0.4106874465942383, 0.0016234898018587336)), ("5.24", 111, (2.652, 0.4107, 0.001623))],
    )
    def test_the_progress_bar_has_the_step_of_an_entry(self, version: str, last: int, first: tuple[float, ...]) -> None:
        items = read(HfPrinted(), (LOGS / f"hf_printed_{version}.log").read_bytes(), curves=True)
        rows = steps(items)
        assert [row.step for row in rows] == [*range(101, last + 1)], "the last entry has no bar after it yet"
        assert (rows[0].loss, rows[0].global_norm, rows[0].learning_rate) == first
        assert problems(items) == []

    def test_entries_without_a_bar_are_one_problem(self) -> None:
        bar = b"\r 34%%|###  | %d/300 [00:00<00:00, 9.99it/s]"
        entry = b"{'loss': %d.0, 'grad_norm': 1.0, 'epoch': 1.0}\n"
        items = read(HfPrinted(), entry % 1 + entry % 2 + bar % 7 + entry % 3 + entry % 4 + bar % 9)
        assert [(row.step, row.loss) for row in steps(items)] == [(7, 2.0), (9, 4.0)]
        assert [problem.line for problem in problems(items)] == [1]

    def test_evaluations_and_the_summary_are_no_entries(self) -> None:
        bar = b"\r 34%|###  | 8/300 [00:00<00:00, 9.99it/s]"
        text = (
            b"{'eval_loss': 2.0, 'epoch': 1.0}\n" + bar + b"{'train_runtime': 1.0, 'train_loss': 2.0, 'epoch': 1.0}\n"
        )
        assert read(HfPrinted(), text + bar, curves=True) == []
        assert HfPrinted().recognise(text)
        assert not HfPrinted().recognise(b"{\"log_history\": [{'loss': 1, 'epoch': 1}]}")
