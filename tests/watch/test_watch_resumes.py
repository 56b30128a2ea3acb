"""A watch of a training that was resumed: one event per run, and what a later watch remembers of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.units import Step
from ckpttool.watch.model import EventKind, KnownResume, Watched
from ckpttool.watch.state import WatchState, read_state, state_bytes
from tests.postflight.logged_runs import BEFORE, Row, after, mindformers_lines, rows_of, up_to, write_rows
from tests.support.commands import Said, ask
from tests.support.trees import TreeBuilder
from tests.watch.test_watch import events, rested

OPTIMIZER = "resume-optimizer-lost"


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TreeBuilder:
    """A tree with saves at steps 450 and 500 that came to rest long ago."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = TreeBuilder(tmp_path).legacy(ranks=1).save(epoch=225, step=2).save(epoch=250, step=2)
    rested(made.checkpoint)
    return made


Log = Callable[..., Path]


@pytest.fixture
def log(built: TreeBuilder) -> Log:
    """Write the log of several starts, as MindFormers appends them to one file."""
    path = built.output / "log" / "rank_0" / "info.log"
    path.parent.mkdir(parents=True)

    def write(*starts: Sequence[Row]) -> Path:
        texts = (mindformers_lines(rows, minutes_later=10 * number) for number, rows in enumerate(starts))
        path.write_text("".join(texts))
        return path

    return write


def once(built: TreeBuilder, *words: str) -> Said:
    return ask("watch", str(built.checkpoint), "--once", "--again", "0", "--format", "json", *words)


def resumes(said: Said) -> list[dict[str, Any]]:
    return [event for event in events(said.stdout) if event["event"].startswith("resume-")]


FIRST = rows_of(BEFORE)


@pytest.mark.parametrize(
    ("way", "code"),
    [
        ("exact", None),
        ("other_arithmetic", None),
        ("optimizer_lost", OPTIMIZER),
        ("lr_restarted", "resume-learning-rate-restarted"),
        ("other_shuffle", "resume-data-other"),
    ],
)
def test_each_resume_has_one_event_and_a_wrong_one_counts_until_the_next(
    built: TreeBuilder, log: Log, way: str, code: str | None
) -> None:
    kind, exit_code = ("resume-proven", 0) if code is None else ("resume-wrong", 10)
    log(FIRST, rows_of(after(way)))
    said = once(built)
    (event,) = resumes(said)
    assert (said.code, event["event"], event["step"], event["checkpoint"]) == (exit_code, kind, 500, "250_2")
    assert [finding["code"] for finding in event["findings"]] == ([] if code is None else [code])
    assert event["summary"].startswith("Resumed from step 500: " if code is None else "The resume is wrong: ")
    assert code is None or f"({code})" in event["summary"]
    assert "still" not in said.stderr
    again = once(built)
    assert (again.code, again.stdout) == (exit_code, "")
    assert ("the resume from step 500 is still wrong" in again.stderr) == (code is not None)
    log(FIRST, rows_of(after(way)), rows_of(after("exact")))
    assert [event["event"] for event in resumes(once(built))] == ["resume-proven"]
    assert once(built).code == 0


@pytest.mark.parametrize("way", ["optimizer_lost", "exact"])
def test_a_resume_is_judged_after_ten_steps_and_not_before(built: TreeBuilder, log: Log, way: str) -> None:
    rows = rows_of(after(way))
    log(FIRST, up_to(rows, 509))
    assert (resumes(once(built)), once(built).code) == ([], 0)
    log(FIRST, up_to(rows, 510))
    assert len(resumes(once(built))) == 1
    log(FIRST, rows)
    assert resumes(once(built)) == []


def test_a_difference_without_a_cause_waits_for_twenty_steps(built: TreeBuilder, log: Log) -> None:
    rows = rows_of(after("older_weights_newer_counter"))
    log(FIRST, up_to(rows, 519))
    assert resumes(once(built)) == []
    log(FIRST, up_to(rows, 520))
    (event,) = resumes(once(built))
    assert event["findings"][0]["code"] == "resume-other-checkpoint"


def test_a_log_that_cannot_show_the_answer_is_unknown_once_and_changes_no_exit_code(
    built: TreeBuilder, log: Log
) -> None:
    first, second = ([row for row in rows if not int(row["step"]) % 5] for rows in (FIRST, rows_of(after("exact"))))
    log(first, up_to(second, 545))
    assert resumes(once(built)) == []
    log(first, second)
    said = once(built)
    (event,) = resumes(said)
    assert (event["event"], said.code) == ("resume-unknown", 0)
    assert "the first run logged 6 steps to repeat, and 10 prove the updates" in event["summary"]
    assert event["findings"][0]["code"] == "resume-not-shown"
    again = once(built)
    assert (again.code, again.stdout, again.stderr) == (0, "", "")


def test_a_repeated_fault_is_not_taken_for_a_right_resume(built: TreeBuilder, log: Log) -> None:
    wrong = rows_of(after("optimizer_lost"))
    log(FIRST, wrong, wrong)
    (event,) = resumes(once(built))
    assert (event["event"], event["findings"][0]["code"]) == ("resume-wrong", OPTIMIZER)


def test_one_run_is_no_resume(built: TreeBuilder, log: Log) -> None:
    log(FIRST)
    assert (resumes(once(built)), once(built).code) == ([], 0)


def test_a_log_of_one_run_after_the_other_is_named_file_by_file(built: TreeBuilder, tmp_path: Path) -> None:
    write_rows(tmp_path / "run-9.csv", FIRST)
    write_rows(tmp_path / "run-10.csv", rows_of(after("exact")))
    (event,) = resumes(once(built, "--log", str(tmp_path / "run-*.csv")))
    assert event["event"] == "resume-proven"


def test_the_logs_of_two_ranks_show_no_resume(built: TreeBuilder, tmp_path: Path) -> None:
    write_rows(tmp_path / "rank-0.csv", FIRST)
    write_rows(tmp_path / "rank-1.csv", FIRST)
    said = once(built, "--log", str(tmp_path / "rank-*.csv"))
    assert (resumes(said), said.code) == ([], 0)


def test_an_accepted_fault_is_not_wrong(built: TreeBuilder, log: Log) -> None:
    log(FIRST, rows_of(after("optimizer_lost")))
    assert once(built).code == 10
    accepted = once(built, "--allow", OPTIMIZER)
    assert (accepted.code, accepted.stdout, accepted.stderr) == (0, "", "")
    assert once(built, "--allow", "resume-differs").code == 0, "it was accepted before"
    log(FIRST, rows_of(after("optimizer_lost")), rows_of(after("lr_restarted")))
    assert once(built, "--allow", OPTIMIZER).code == 10
    said = once(built, "--allow", "shard-truncated")
    assert (said.code, said.stderr.count("\n")) == (2, 1)


def test_a_log_that_is_missing_or_not_a_log_is_named(built: TreeBuilder, log: Log, tmp_path: Path) -> None:
    assert once(built, "--log", str(tmp_path / "absent.csv")).code == 2
    log(FIRST).write_text("no step\n" * 100)
    said = once(built)
    assert said.code == 0
    assert "the logs do not show whether the training resumed as planned: " in said.stderr


def test_the_hook_gets_the_event(built: TreeBuilder, log: Log, tmp_path: Path) -> None:
    log(FIRST, rows_of(after("optimizer_lost")))
    script = tmp_path / "hook.sh"
    script.write_text(f'[ "$CKPTTOOL_EVENT" = resume-wrong ] && cat > {tmp_path}/event.json; true\n')
    once(built, "--on-event", f"sh {script}")
    assert json.loads((tmp_path / "event.json").read_text())["findings"][0]["code"] == OPTIMIZER


def test_metrics_have_the_last_resume(built: TreeBuilder, log: Log, tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    file = tmp_path / "watch.prom"
    seen, starts = [], [FIRST, rows_of(after("optimizer_lost")), rows_of(after("exact"))]
    for count in (1, 2, 3):
        log(*starts[:count])
        once(built, "--metrics", str(file))
        lines = [line for line in file.read_text().splitlines() if line.startswith("ckpttool_resume_wrong{")]
        seen.append([line.rpartition(" ")[2] for line in lines])
    assert seen == [[], ["1.0"], ["0.0"]]


@pytest.mark.parametrize("is_wrong", [True, False, None])
@pytest.mark.parametrize("step", [Step(500), None])
def test_the_state_keeps_the_last_resume(tmp_path: Path, is_wrong: bool | None, step: Step | None) -> None:
    resume = KnownResume(start="ab", step=step, is_wrong=is_wrong, codes=(OPTIMIZER,), why="wrong \udcff")
    state = WatchState(watched=Watched(resume=resume), boot="", seconds=1.0, wall=2.0)
    (tmp_path / "state.json").write_bytes(state_bytes(state))
    assert read_state(str(tmp_path / "state.json")) == state
    older = replace(state, watched=Watched())
    (tmp_path / "state.json").write_bytes(state_bytes(older).replace(b', "resume": null', b""))
    assert read_state(str(tmp_path / "state.json")) is None, "its checksum is that of the whole state"


def test_the_kinds_are_those_of_the_outcomes() -> None:
    from ckpttool.postflight.model.answers import Outcome
    from ckpttool.watch.rules_resumes import _KINDS

    assert {*_KINDS} == {*Outcome}
    assert all(kind in EventKind for kind in _KINDS.values())
