"""The library's questions about logs, asked without the command line."""

from __future__ import annotations

import gzip
import sys
import time
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.commands import progress
from ckpttool.core.errors import IncompleteError, UsageError
from ckpttool.health.read.asd_events import detector_events
from ckpttool.types import HealthQuestion, LogQuestion, ReplayQuestion, TreeQuestion
from tests.support.training_logs import write_log
from tests.support.trees import TreeBuilder


def logs(*patterns: str) -> LogQuestion:
    return LogQuestion(patterns=patterns)


def test_the_public_verbs_answer_with_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    TreeBuilder(tmp_path).legacy(ranks=2).save(epoch=10, step=2)
    write_log(tmp_path / "train.log", range(1, 41), embeddings={20: 100.0})
    tree = ckpttool.scan(TreeQuestion(path="output"))
    health = ckpttool.health(tree, HealthQuestion(threshold=270.0, logs=logs("train.log")))
    assert health.report.newest_healthy == "10_2"
    replay = ckpttool.replay(ReplayQuestion(logs=logs("train.log"), policy="zscore"), tree=tree)
    assert [mark.state.value for mark in replay.marks or ()] == ["unknown"], "its step is in the warm-up"
    assert ckpttool.calibrate(logs("train.log"), warm_up=0).thresholds == ()


def test_a_policy_that_there_is_not_is_told_with_those_that_there_are(tmp_path: Path) -> None:
    question = ReplayQuestion(logs=logs(str(tmp_path)), policy="spam")
    with pytest.raises(UsageError, match="unknown policy 'spam'; known policies: skip, features"):
        ckpttool.replay(question)


def test_a_detector_s_log_that_is_cut_short_is_a_problem_and_the_others_are_heard(tmp_path: Path) -> None:
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(b"line\n" * 1000)[:-20])
    good = tmp_path / "good.log"
    good.write_text("2025-08-26 10:47:26,100 - SDC 3 strikes and out on rank: 2\n")
    events, problems = detector_events([str(cut), str(good)])
    assert [event.rank for event in events] == [2]
    assert [(problem.source, problem.line) for problem in problems] == [(str(cut), 0)]


@pytest.mark.parametrize(("quiet", "seconds", "shown"), [(False, 0.2, True), (False, 0.0, False), (True, 0.2, False)])
def test_a_spinner_is_for_those_who_wait_and_watch(
    *, quiet: bool, seconds: float, shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with progress.busy("reading the logs", quiet=quiet):
        time.sleep(seconds)
    assert ("reading the logs" in capsys.readouterr().err) is shown


def test_nothing_is_recorded_from_a_log_that_ends_early(tmp_path: Path) -> None:
    TreeBuilder(tmp_path).legacy(ranks=2).save(epoch=10, step=2)
    whole = write_log(tmp_path / "train.log", range(1, 41), embeddings={20: 100.0}).read_bytes()
    (tmp_path / "cut.log.gz").write_bytes(gzip.compress(whole)[:-9])
    tree = ckpttool.scan(TreeQuestion(path=str(tmp_path / "output")))

    def asked(log: str) -> HealthQuestion:
        return HealthQuestion(threshold=270.0, logs=logs(str(tmp_path / log)), write=True)

    with pytest.raises(IncompleteError, match="nothing from the part that was read was recorded"):
        ckpttool.health(tree, asked("cut.log.gz"))
    assert not (tmp_path / "output/health_ckpts.json").exists()
    assert ckpttool.health(tree, asked("train.log")).written
