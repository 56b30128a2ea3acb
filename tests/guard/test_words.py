"""The lines of a guarded training: in the words of Ascend and MindFormers, and read back by every command."""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn, optim

import ckpttool
from ckpttool.core.domain.advice import Refusal, Threshold
from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.guarding import GuardEventKind
from ckpttool.core.domain.metrics import LogNote, LogProblem, NoteKind, StepMetrics
from ckpttool.core.domain.question import LogQuestion
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import UsageError
from ckpttool.guard import Guard, SkipPolicy
from ckpttool.guard.files.words import LOGGER, Words, log_embedding
from ckpttool.guard.step import GuardStop
from ckpttool.health.model.asd import AsdEvent, AsdKind
from ckpttool.health.model.events import EventKind
from ckpttool.health.model.questions import HealthQuestion, ReplayQuestion
from ckpttool.health.read.asd_events import detector_events
from ckpttool.health.verbs.asd import check_asd
from ckpttool.health.verbs.replay import calibrate, replay
from ckpttool.trainers.registry import log_reader
from ckpttool.types import TreeQuestion
from tests.guard.faulty import FaultyDevice
from tests.guard.loop import NOT_A_NUMBER, Training, batches
from tests.guard.rank_errors import double
from tests.guard.test_embedding import trained

adamw = partial(optim.AdamW, lr=0.01)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """Log all lines into a file, as a training may."""
    path = tmp_path / "train.log"
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s - %(levelname)s - %(message)s"))
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    path.write_text("a training begins\n", encoding="utf-8")
    yield path
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(logging.NOTSET)
    handler.close()


def lines(log: Path) -> list[str]:
    """Return the lines after the first, without their times."""
    return [line.partition(" - ")[2] or line for line in log.read_text(encoding="utf-8").splitlines()[1:]]


def rows(path: Path) -> list[StepMetrics]:
    items = list(log_reader().read(str(path)))
    assert not [item for item in items if isinstance(item, LogProblem)]
    return [item for item in items if isinstance(item, StepMetrics)]


def notes(path: Path) -> list[LogNote]:
    return [item for item in log_reader().read(str(path)) if isinstance(item, LogNote)]


def test_a_dropped_update_has_mindformers_lines_with_count_and_threshold(log: Path) -> None:
    training = Training(adamw, policy=SkipPolicy(threshold=3.0))
    training.run(batches(8, bad={5: 100.0, 6: 200.0}))
    first, second = [values["value"] for values in training.told.of(GuardEventKind.SKIP)]
    assert lines(log) == [
        "INFO - opt_global_step: 4, skip_data_grad_norm_threshold: 3.0, is_skip: [ True] of step 5",
        f"INFO - Current global norm [{first}] of step 5 has been 1 consecutive times greater than threshold: 3.0",
        "INFO - opt_global_step: 4, skip_data_grad_norm_threshold: 3.0, is_skip: [ True] of step 6",
        f"INFO - Current global norm [{second}] of step 6 has been 2 consecutive times greater than threshold: 3.0",
    ]
    assert [(row.step, row.global_norm, row.skipped) for row in rows(log)] == [(5, first, True), (6, second, True)]
    assert notes(log) == []
    answer = replay(ReplayQuestion(logs=LogQuestion(patterns=(str(log),)), policy="skip", threshold=3.0))
    assert [(event.kind, event.step, event.value, event.count) for event in answer.result.events] == [
        (EventKind.SKIP, 5, first, 1), (EventKind.SKIP, 6, second, 2),
    ]  # fmt: skip
    assert answer.reading.steps == 2


def test_an_update_without_a_threshold_says_why_it_was_dropped(log: Path) -> None:
    Training(adamw).run(batches(4, bad={3: NOT_A_NUMBER}))
    assert lines(log) == [
        "INFO - opt_global_step: 2, skip_data_grad_norm_threshold: None, is_skip: [ True] of step 3",
        (
            "INFO - Current global norm [nan] of step 3 has been 1 consecutive times dropped without a threshold: "
            "the norm is nan"
        ),
    ]
    (row,) = rows(log)
    assert (row.step, str(row.global_norm), row.skipped) == (3, "nan", True)


def test_a_stop_is_an_error_in_mindformers_words(log: Path) -> None:
    training = Training(adamw, policy=SkipPolicy(threshold=3.0), count_threshold=2)
    with pytest.raises(GuardStop):
        training.run(batches(8, bad={5: 100.0, 6: 200.0}))
    last = lines(log)[-1]
    assert last.startswith("ERROR - Current global norm [")
    assert last.endswith("] of step 6 has been 2 consecutive times greater than threshold 3.0, stop training...")
    assert [(note.kind, note.step, note.count) for note in notes(log)] == [(NoteKind.COUNT_STOP, 6, 2)]
    assert [row.step for row in rows(log)] == [5, 6]


def test_a_guard_that_watches_says_that_it_continues(log: Path) -> None:
    Training(adamw, policy=SkipPolicy(threshold=3.0), mode="watch").run(batches(6, bad={5: 100.0, 6: NOT_A_NUMBER}))
    first, second = lines(log)
    assert first.endswith("of step 5 is still greater or equal than threshold 3.0, continue training.")
    assert second == (
        "INFO - The global norm [nan] of step 6 would be dropped without a threshold: the norm is nan, "
        "continue training."
    )
    assert [(row.step, row.skipped) for row in rows(log)] == [(5, None), (6, None)]


def test_ordinary_steps_log_nothing(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOGGER, "log", pytest.fail)
    Training(adamw, features="enable:true", patrol=2).run(batches(5))
    assert lines(log) == []
    words, step = Words(lambda: 0), Step(1)
    begun = time.perf_counter()
    for _ in range(10_000):
        words(GuardEventKind.STEP, step=step, optimizer_step=1, skipped=False, loss=1.0, global_norm=1.0)
    assert time.perf_counter() - begun < 0.5  # 50 microseconds; on an idle machine it is less than one


# The detector.

FEATURES = "enable:true,with_checksum:true,cooldown:1,grad_sample_interval:1"


@pytest.fixture
def minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a minute and a second pass in each step."""
    moments = itertools.count(1_750_000_000, 61)
    clock = SimpleNamespace(time=lambda: float(next(moments)), localtime=time.localtime)
    monkeypatch.setattr("ckpttool.guard.features.time", clock)


def facts(events: tuple[AsdEvent, ...]) -> list[tuple[object, ...]]:
    rows = [
        # A strike is named by its group, the last of which is the value that the event file gives.
        (event.step, event.kind.value, event.group_since_step, event.kind is AsdKind.EVENT and event.name, event.value)
        for event in events
        if event.kind is not AsdKind.ECHO  # torch_npu does not log them
    ]
    return sorted((*row[:4], str(row[4]) if row[3] else "") for row in rows)


@pytest.mark.usefixtures("minutes")
def test_every_step_of_the_detector_has_torch_npus_line(log: Path, tmp_path: Path) -> None:
    bad = {12: NOT_A_NUMBER, 14: NOT_A_NUMBER, 16: NOT_A_NUMBER}
    training = Training(adamw, features=FEATURES, output=tmp_path / "output")
    first, *rest = batches(20, bad=bad)
    training.step(first)
    with FaultyDevice("aten.addmm.default", double, times=1, after=16):
        training.run(rest)
    training.the_guard.close()
    (event,) = [line for line in lines(log) if "A grad-norm spike may happen" in line and "step 12" in line]
    assert event.startswith("INFO - [Event][2025-")
    assert ": A grad-norm spike may happen, param name first.weight, abnormal value nan, previous value 0." in event
    assert event.endswith(", bp time 12, normal count 11 (global step 12).")
    at = [index for index, line in enumerate(lines(log)) if "feature detection detects abnormal results!" in line]
    strike, *group = lines(log)[at[0] : at[0] + 4]
    assert strike.startswith("WARNING - [Warning][2025-")
    assert "(global step 16) 3 abnormal values since 2025-" in strike
    assert [line.split(",")[0] for line in group] == [f"Grad-norm spike: index {index}" for index in range(3)]
    (on,) = [line for line in lines(log) if "checksum is on" in line]
    assert on == "INFO - [Info] Rank 0: feature detection detects abnormal results, checksum is on. (global step 17)"
    assert any(line.startswith("INFO - [Info] Rank 0: checksum is off (global step ") for line in lines(log))
    (wrong,) = [line for line in lines(log) if "The result of Matmul checksum is abnormal" in line]
    assert wrong.startswith("WARNING - [Warning][Rank 0]: The result of Matmul checksum is abnormal! (global step 18)")
    assert "aten.addmm.default in first, forward, batch 0, row" in wrong

    from_log, problems = detector_events([str(log)])
    assert problems == ()
    recorded, _ = detector_events([str(tmp_path / "output/guard/events-00000.jsonl")])
    assert facts(from_log) == facts(recorded)
    answer = replay(ReplayQuestion(logs=LogQuestion(patterns=(str(log),)), policy="features", asd_config=FEATURES))
    strikes = [event for event in answer.result.events if event.kind is EventKind.SDC_STRIKE]
    assert [(event.step, event.rank, event.since_step) for event in strikes] == [(16, 0, 12)]


def test_a_strike_after_a_restart_still_names_its_first_event(log: Path) -> None:
    words = Words(lambda: 3)
    words(
        GuardEventKind.SDC_STRIKE, step=Step(900), rank=3, value=1.0, count=3, since_step=412,
        since_clock=1_740_820_200.0, clock=1_740_844_200.0, message="a strike",
    )  # fmt: skip
    (strike,), _ = detector_events([str(log)])
    assert (strike.kind, strike.step, strike.rank, strike.group_since_step) == (AsdKind.STRIKE, 900, 3, 412)
    assert strike.group_since == 1_740_820_200.0
    assert strike.time == 1_740_844_200.0


@pytest.mark.parametrize("features", ["with_checksum:true", "enabled:true", "enable=true", "enable:true ,cooldwn:5"])
def test_a_setting_that_switches_nothing_on_is_one_alarm(log: Path, features: str) -> None:
    if features.startswith("enable:true "):
        with pytest.raises(UsageError, match="exactly true or false"):
            Training(adamw, features=features)
        return
    training = Training(adamw, features=features).run(batches(3))
    (values,) = training.told.of(GuardEventKind.ALARM)
    (line,) = lines(log)
    assert line == f"WARNING - [Warning][Rank 0]: step 1: config-disagrees: {values['message']}"
    checked = check_asd(line)  # the line that a user copies
    assert (checked.text, checked.check.config.enable) == (features, False)
    problems = [finding.message for finding in checked.check.findings if finding.severity > Severity.NOTE]
    assert all(problem in line for problem in problems)
    assert not problems or checked.exit_code == 10


def test_without_settings_the_environment_decides(monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    def is_on(features: str | None) -> bool:
        return Training(adamw, features=features).the_guard._features.is_on  # noqa: SLF001  it has no other sign

    assert not is_on(None)
    monkeypatch.setenv("NPU_ASD_CONFIG", "enable:true")
    assert is_on(None)
    assert not is_on("")
    monkeypatch.setenv("NPU_ASD_CONFIG", "with_checksum:true")
    Training(adamw).run(batches(2))
    assert [line.rpartition(" ")[2] for line in lines(log)] == ["NPU_ASD_CONFIG=with_checksum:true"]
    monkeypatch.setenv("NPU_ASD_CONFIG", "enable:yes")
    with pytest.raises(UsageError, match=r"NPU_ASD_CONFIG in the environment: .*exactly true or false"):
        is_on(None)
    assert is_on("enable:true")


# Saves.


def test_saves_log_the_embeddings_norm_and_health_reads_it(log: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    trained(output, {1: 100.0, 2: 300.0, 3: 200.0})
    norms = [row.embedding_local_norm for row in rows(log)]
    assert norms == pytest.approx([100.0, 300.0, 200.0])
    assert lines(log) == [f"INFO - embedding_local_norm: {norm} of step {step}" for step, norm in enumerate(norms, 1)]
    (output / "guard/events-00000.jsonl").unlink()
    tree = ckpttool.scan(TreeQuestion(path=str(output)))
    question = HealthQuestion(threshold=150.0, logs=LogQuestion(patterns=(str(log),)))
    report = ckpttool.health(tree, question).report
    assert [(each.health.value, each.source) for each in report.judgements] == [
        ("healthy", "log"), ("unhealthy", "log"), ("unhealthy", "log"),
    ]  # fmt: skip


def test_a_save_after_a_dropped_update_keeps_the_health_of_the_one_before(log: Path, tmp_path: Path) -> None:
    trained(tmp_path / "output", {1: 100.0, 2: 300.0, 3: 100.0}, bad=3)
    shown = rows(log)
    assert [(row.step, row.skipped) for row in shown] == [(1, None), (2, None), (3, True)]
    assert [row.embedding_local_norm for row in shown] == pytest.approx([100.0, 300.0, 300.0])
    tree = ckpttool.scan(TreeQuestion(path=str(tmp_path / "output")))
    question = HealthQuestion(threshold=150.0, logs=LogQuestion(patterns=(str(log),)))
    judgements = ckpttool.health(tree, question).report.judgements
    assert [each.health.value for each in judgements] == ["healthy", "unhealthy", "unhealthy"]


def test_calibrate_uses_the_norms_of_saves_and_of_dropped_updates(log: Path) -> None:
    norms = torch.linspace(90.0, 110.0, 300).tolist()
    for step, norm in enumerate(norms, 1):
        log_embedding(Step(step), norm)
    log_embedding(Step(400), None)
    calibration = calibrate(str(log), warm_up=0).calibration
    assert isinstance(calibration.embedding_local_norm, Threshold)
    assert calibration.embedding_local_norm.points == 300
    assert calibration.embedding_local_norm.highest_normal == norms[-1]
    assert isinstance(calibration.global_norm, Refusal)


# Reading what several ranks wrote, and logging that fails.


def test_lines_of_two_ranks_in_one_file_are_of_their_own_steps(tmp_path: Path) -> None:
    path = tmp_path / "all.log"
    skip = "opt_global_step: 250, skip_data_grad_norm_threshold: 3.0, is_skip: [ True] of step 260\n"
    current = "Current global norm [9.5] of step 260 has been 1 consecutive times greater than threshold: 3.0\n"
    save = "embedding_local_norm: 1.5 of step 250\n"
    path.write_text(save * 2 + skip * 2 + current * 2 + "embedding_local_norm: 1e-05 of step 300\n", encoding="utf-8")
    assert [(row.step, row.skipped, row.global_norm, row.embedding_local_norm) for row in rows(path)] == [
        (250, None, None, 1.5),
        (260, True, 9.5, None),
        (300, None, None, 1e-05),
    ]
    assert notes(path) == []


def test_a_megatron_log_with_lines_of_a_guard_stays_a_megatron_log(tmp_path: Path) -> None:
    path = tmp_path / "megatron.log"
    text = (Path(__file__).parents[2] / "fixtures/logs/megatron_core_made.log").read_text(encoding="utf-8")
    path.write_text("embedding_local_norm: 1.5 of step 250\n" + text, encoding="utf-8")
    reader = log_reader()
    assert len(list(reader.read(str(path)))) > 1
    assert reader.recognised == {"megatron"}


def test_a_handler_that_raises_does_not_end_the_training(log: Path) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError(record)

    broken = Broken()
    LOGGER.addHandler(broken)
    try:
        training = Training(adamw).run(batches(9, bad={2: NOT_A_NUMBER, 4: NOT_A_NUMBER, 6: NOT_A_NUMBER}))
        log_embedding(Step(9), 1.0)
    finally:
        LOGGER.removeHandler(broken)
    assert len(training.told.of(GuardEventKind.NONFINITE)) == 3
    assert len(training.the_guard.sinks) == 2  # it is no sink that failed
    assert len(lines(log)) == 7


def test_without_a_configured_logging_warnings_are_on_stderr() -> None:
    code = (
        "from ckpttool.guard import Guard\nimport torch\n"
        "model = torch.nn.Linear(2, 2)\n"
        "guard = Guard(model, torch.optim.SGD(model.parameters()), features='enabled:true', capture=None)\n"
        "for value in (1.0, float('nan')):\n"
        "    with guard.micro(None):\n"
        "        (model(torch.ones(1, 2)) * value).sum().backward()\n"
        "    guard.clip_(1.0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    assert line.startswith("[Warning][Rank 0]: step 1: config-disagrees: feature values: nothing is detected")


def test_a_guard_logs_its_own_alarms(log: Path) -> None:
    model = nn.Linear(2, 2)
    guard = Guard(model, torch.optim.SGD(model.parameters()), capture=None)
    model(torch.ones(1, 2)).sum().backward()
    guard.clip_(1.0)
    (line,) = lines(log)
    assert line.startswith("WARNING - [Warning][Rank 0]: step 1: no-micro-batch: put guard.micro(batch) around")
