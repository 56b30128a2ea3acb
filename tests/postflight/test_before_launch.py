"""What preflight and launch say about the next resume: whether the logs will show it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ckpttool.core.domain.settings import StepIntervals
from ckpttool.postflight.before_launch import too_rarely
from tests.conftest import FIXTURES
from tests.support.answers import writable_copy
from tests.support.commands import Said, ask

CODE = "resume-not-provable"
CONFIG = (FIXTURES / "configs" / "pretrain_sink2.yaml").read_text(encoding="utf-8")


def notes(said: Said) -> list[str]:
    document = said.json
    findings = [finding for check in document.get("checks", ()) for finding in check["findings"]]
    findings += document.get("plan", {}).get("findings", ())
    return [finding["message"] for finding in findings if finding["code"] == CODE]


@pytest.mark.parametrize(
    ("logged", "saved", "words"),
    [
        (500, 500, "will not be able to judge a resume of this run, because the loss is logged every 500 steps and"),
        (500, 900, "judge"),
        (50, 100, "it repeats at most 2 logged steps of 10"),
        (10, 99, "it repeats at most 9 logged steps of 10"),
        (10, 100, None),
        (1, 4, None),
        (None, 500, "if an epoch has more than 250 steps, because the loss is logged once per epoch and"),
        (None, None, "because the loss is logged once per epoch, as often as a checkpoint is saved"),
        (50, None, None),
    ],
)
def test_too_few_repeated_rows_are_reported(logged: int | None, saved: int | None, words: str | None) -> None:
    why = too_rarely(StepIntervals(logged=logged, saved=saved, path="x"))
    assert why is None if words is None else why is not None and words in why


def test_a_run_without_logs_is_reported() -> None:
    assert "because no loss is logged" in str(too_rarely(StepIntervals(logged=None, saved=None, path="x", logs=False)))


def test_preflight_and_launch_report_the_intervals_of_a_tree_without_a_config(
    copy_tree: Callable[[str], Path],
) -> None:
    root = copy_tree("layouts/hf_single")
    assert notes(ask("preflight", str(root), "--json")) == notes(ask("launch", str(root), "--json")) == []
    before = ask("preflight", str(root))
    for path in root.glob("checkpoint-*/trainer_state.json"):
        state = json.loads(path.read_text()) | {"logging_steps": 4, "log_history": []}
        path.write_text(json.dumps(state, indent=2, sort_keys=True) + "\n")
    said = ask("preflight", str(root), "--json")
    (message,) = notes(said)
    assert "the loss is logged every 4 steps and a checkpoint is saved every 4: log every step, or " in message
    assert said.code == before.code, "a note stops no launch"
    table = " ".join(ask("preflight", str(root)).stdout.split())
    assert "checkpoint-12/trainer_state.json: postflight will not be able to judge" in table
    assert notes(ask("launch", str(root), "--json")) == [message]
    assert CODE in ask("launch", str(root)).stdout


@pytest.mark.parametrize(("logger", "count"), [("", 0), ("  - type: MFLossMonitor\n", 1)])
def test_preflight_and_launch_report_the_intervals_of_a_config(tmp_path: Path, logger: str, count: int) -> None:
    output = str(writable_copy("sink2_ckpt", tmp_path / "copy"))
    config = tmp_path / "train.yaml"
    config.write_text(CONFIG.replace("callbacks:\n", f"callbacks:\n{logger}"))
    options = ("--config", str(config), "--allow", "start-differs", "--json")
    said = ask("preflight", output, *options)
    assert len(notes(said)) == count
    assert said.code == 0, said.stdout
    launched = ask("launch", output, *options, "--output", str(tmp_path / "resume.yaml"))
    assert launched.code == 0, launched.stdout
    assert len(notes(launched)) == count
