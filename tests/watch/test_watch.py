"""`ckpttool watch`: what it takes, what it prints, and how it ends, whoever ends it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.errors import UsageError
from ckpttool.types import WatchQuestion
from tests.support.commands import MODULE, Said, ask, environment
from tests.support.json_schemas import problems_of
from tests.support.trees import FIXTURES, TreeBuilder, flip

OLD = 1_700_000_000
"""Unix seconds: long at rest."""
LIMIT_SECONDS = 60


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two saves of two ranks that came to rest long ago."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = TreeBuilder(tmp_path).legacy(ranks=2)
    made.save(epoch=1, step=1).save(epoch=2, step=1)
    return rested(made.checkpoint)


def rested(root: Path, at: float = OLD) -> Path:
    for path in root.rglob("*"):
        os.utime(path, (at, at))
    return root


def shard(root: Path, rank: int, epoch: int) -> Path:
    (path,) = (root / f"rank_{rank}").glob(f"*-{epoch}_1.ckpt")
    return path


def flip_weights(path: Path) -> None:
    """Change a byte of which no header tells."""
    flip(path, path.stat().st_size // 3, bits=255)


def events(text: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines()]
    for event in found:
        assert problems_of(event) == []
    return found


@pytest.mark.parametrize(("words", "seconds"), [((), 3600), (("--again", "30"), 1800), (("--again", "2h"), 7200)])
def test_a_good_save_is_read_again_after_an_hour_unless_told_otherwise(
    words: tuple[str, ...], seconds: float, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[WatchQuestion] = []

    def watch(question: WatchQuestion, **_: object) -> None:
        questions.append(question)
        raise UsageError("seen")

    monkeypatch.setattr("ckpttool.watch.verbs.Watch", watch)
    ask("watch", str(tree), "--once", *words)
    assert [question.rule.again for question in questions] == [seconds]


def test_each_event_is_a_line_of_json_that_keeps_to_its_schema(tree: Path) -> None:
    done = ask("watch", str(tree), "--once", "--seal", "--format", "json")
    told = events(done.stdout)
    assert done.code == 0
    assert [(event["event"], event["checkpoint"], event["sealed"]) for event in told] == [
        ("good", "2_1", True),
        ("good", "1_1", True),
    ]
    assert ask("watch", str(tree), "--once", "--seal", "--format", "json").stdout == ""


def test_one_look_at_files_that_were_just_written_says_why_it_ends_with_14(tree: Path) -> None:
    for path in tree.rglob("*"):
        os.utime(path)
    done = ask("watch", str(tree), "--once")
    assert (done.code, done.stdout) == (14, "")
    assert "2_1 was not read: one of its files changed" in done.stderr
    assert "1_1 was not read: one of its files changed" in done.stderr
    quiet = ask("watch", str(tree), "--once", "-q")
    assert (quiet.code, quiet.stdout + quiet.stderr) == (14, "")


def test_one_look_at_a_good_save_and_a_newer_one_that_it_does_not_read_ends_with_14(tree: Path) -> None:
    os.utime(shard(tree, 1, 2))
    done = ask("watch", str(tree), "--once", "--format", "json")
    assert [(event["event"], event["checkpoint"]) for event in events(done.stdout)] == [("good", "1_1")]
    assert "2_1 was not read: one of its files changed" in done.stderr
    assert done.code == 14


def cut(root: Path) -> None:
    path = shard(root, 1, 2)
    path.write_bytes(path.read_bytes()[:40])


@pytest.mark.parametrize(
    ("harm", "at", "code", "told"),
    [
        (cut, OLD, 10, ["bad", "good"]),
        (lambda root: shard(root, 1, 2).unlink(), OLD, 10, ["save-incomplete", "good"]),
        (lambda root: None, OLD, 0, ["good", "good"]),  # noqa: ARG005  the neighbour that is left alone
        (lambda root: None, None, 14, []),  # noqa: ARG005  too young to be judged: nobody knows
    ],
    ids=["cut off", "without a rank", "whole", "young"],
)
def test_one_look_ends_as_verify_does(
    tree: Path, harm: Callable[[Path], object], at: float | None, code: int, told: list[str]
) -> None:
    harm(tree)
    rested(tree, time.time() if at is None else at)
    done = ask("watch", str(tree), "--once", "--world-size", "2", "--format", "json")
    assert [event["event"] for event in events(done.stdout)] == told
    assert done.code == code


@pytest.mark.sample(2)
@pytest.mark.parametrize("level", ["structure", "checksum", "numerics"])
@pytest.mark.parametrize("ranks", [(2,), (2, 3), ()], ids=["one copy", "a tie", "whole"])
def test_a_watch_seals_no_save_that_seal_refuses_for_its_copies_though_nothing_of_the_tree_was_sealed_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, ranks: tuple[int, ...]
) -> None:
    answers = []
    for command in (["seal", "--json"], ["watch", "--once", "--seal", "--level", level, "--format", "json"]):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / command[0] / "state"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / command[0] / "cache"))
        root = Path(shutil.copytree(FIXTURES / "sink2_ckpt/output/checkpoint", tmp_path / command[0] / "checkpoint"))
        for rank in ranks:
            path = root / f"rank_{rank}/llama2_7b_rank_{rank}_1-30_2.ckpt"
            data = path.read_bytes()
            path.write_bytes(data[:1000] + b"X" + data[1001:])
        rested(root)
        done = ask(command[0], str(root), *command[1:])
        answers.append((done.code, done.stdout))
    (seal_code, sealed), (watch_code, watched) = answers
    (save,) = json.loads(sealed)["checkpoints"]
    newest, *older = events(watched)
    assert (watch_code, newest["checkpoint"], newest["sealed"]) == (seal_code, save["name"], save["sealed"])
    assert seal_code == (10 if ranks else 0)
    assert [(each["code"], each["message"]) for each in newest["findings"]] == [
        (each["code"], each["message"]) for each in save["findings"]
    ]
    assert newest["verdict"] == {(2,): "damaged", (2, 3): "suspect"}.get(ranks, newest["verdict"])
    assert [event["sealed"] for event in older] == [True] * 4


@pytest.mark.parametrize("tree_name", ["ds_zero1_2ranks", "ds_zero3_2ranks"])
@pytest.mark.parametrize("harm", ["zeros", "empty", "gone", "none"])
def test_one_look_at_a_damaged_model_file_of_deepspeed_ends_as_seal_and_verify_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tree_name: str, harm: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    root = Path(shutil.copytree(FIXTURES / "layouts" / tree_name, tmp_path / "run"))
    path = min((root / "global_step6").glob("*model_states.pt"))
    if harm == "gone":
        path.unlink()
    elif harm != "none":
        path.write_bytes(bytes(path.stat().st_size if harm == "zeros" else 0))
    rested(root)
    verified = ask("verify", str(root), "--checkpoint", "all")
    watched = ask("watch", str(root), "--once", "--format", "json")
    sealed = ask("seal", str(root), "--checkpoint", "all")
    assert verified.code == watched.code == sealed.code
    assert watched.code == {"none": 0, "gone": 14 if tree_name == "ds_zero1_2ranks" else 10}.get(harm, 10)
    kinds = [event["event"] for event in events(watched.stdout) if event["checkpoint"] == "global_step6"]
    assert (kinds == ["good"]) == (harm == "none")


def test_a_second_look_names_what_is_still_bad_without_another_event(tree: Path) -> None:
    cut(tree)
    rested(tree, OLD)
    assert [event["event"] for event in events(once(tree).stdout)] == ["bad", "good"]
    second = once(tree)
    assert (second.code, second.stdout) == (10, "")
    (still,) = [line for line in second.stderr.splitlines() if "still" in line]
    assert "2_1 is still not good (damaged): rank_1/" in still


def test_one_look_at_a_cut_save_that_may_be_in_progress_says_that_it_is_damaged(tree: Path) -> None:
    cut(tree)
    rested(tree, time.time() - 120)
    done = once(tree)
    assert (done.code, [event["event"] for event in events(done.stdout)]) == (10, ["good"])
    assert "2_1 is not good (damaged): rank_1/" in done.stderr
    assert "was not read" not in done.stderr


def test_one_look_at_what_is_no_tree_says_so(tmp_path: Path, tree: Path) -> None:
    for path, code in [(tmp_path / "nowhere", 12), (tree / "rank_0" / "meta.json", 12)]:
        done = ask("watch", str(path), "--once")
        assert (done.code, done.stderr.count("\n")) == (code, 1), done.stderr


def test_without_a_place_for_the_state_it_does_not_begin(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/state")
    done = ask("watch", str(tree), "--once")
    assert (done.code, done.stderr.count("\n")) == (1, 1)
    assert "cannot make the folder" in done.stderr
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("HOME")
    done = ask("watch", str(tree), "--once")
    assert (done.code, done.stderr.count("\n")) == (2, 1)
    assert "XDG_STATE_HOME" in done.stderr


# As a program.


class Program:
    """A watch that runs until somebody ends it."""

    def __init__(self, tree: Path, *words: str) -> None:
        command = [*MODULE, "watch", str(tree), "--every", "0.05", "--again", "0", "--format", "json", *words]
        self.process = subprocess.Popen(
            command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def event(self) -> dict[str, Any]:
        """Wait for the next event."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read() if self.process.stderr else ""
        (event,) = events(line)
        return event

    def end(self, number: int) -> tuple[int, list[dict[str, Any]], str]:
        """Send a signal, and return the exit code, what else was told, and what was said."""
        self.process.send_signal(number)
        stdout, stderr = self.process.communicate(timeout=LIMIT_SECONDS)
        return self.process.returncode, events(stdout), stderr


Start = Callable[..., Program]


@pytest.fixture
def start(tree: Path) -> Iterator[Start]:
    """Start watches, none of which outlives the test."""
    begun: list[Program] = []

    def started(*words: str) -> Program:
        begun.append(Program(tree, *words))
        return begun[-1]

    yield started
    for each in begun:
        each.process.kill()
        each.process.communicate()


def once(tree: Path) -> Said:
    """Look once more, when no other watch runs."""
    return ask("watch", str(tree), "--once", "--again", "0", "--format", "json")


ENDS = [(signal.SIGTERM, 0), (signal.SIGINT, 130)]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("number", "code"), ENDS)
def test_a_signal_ends_it_and_the_next_one_repeats_nothing(start: Start, tree: Path, number: int, code: int) -> None:
    watch = start()
    assert [watch.event()["checkpoint"], watch.event()["checkpoint"]] == ["2_1", "1_1"]
    assert watch.end(number)[:2] == (code, [])
    done = once(tree)
    assert (done.code, done.stdout) == (0, "")


@pytest.mark.sample(1)
@pytest.mark.parametrize(("number", "code"), ENDS)
def test_a_signal_ends_it_while_it_reads_for_hours(
    start: Start, tree: Path, tmp_path: Path, number: int, code: int
) -> None:
    with shard(tree, 0, 2).open("r+b") as file:
        file.truncate(1 << 30)
    rested(tree)
    watch = start("--max-rate", "1K")
    until(lambda: any('"complete"' in state.read_text() for state in (tmp_path / "state").rglob("*.json")))
    got, told, said = watch.end(number)
    assert (got, told) == (code, []), said


# It notes that it has begun, and ends when its test lets it.
SLOW_HOOK = (
    f'{sys.executable} -c \'import os, sys, time; open(sys.argv[1], "a").write("began\\n")\n'
    "while not os.path.exists(sys.argv[2]): time.sleep(0.02)' {} {}"
)


def until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("number", "code"), ENDS)
def test_a_signal_while_a_hook_runs_lets_it_end_and_begins_no_other(
    start: Start, tree: Path, tmp_path: Path, number: int, code: int
) -> None:
    heard = tmp_path / "heard"
    watch = start("--on-event", SLOW_HOOK.format(heard, tmp_path / "released"))
    until(heard.exists)
    watch.process.send_signal(number)
    (tmp_path / "released").touch()
    watch.process.communicate(timeout=LIMIT_SECONDS)
    assert watch.process.returncode == code
    assert heard.read_text() == "began\n"
    assert [event["checkpoint"] for event in events(once(tree).stdout)] == ["1_1"]


def test_ctrl_c_twice_while_a_hook_runs_ends_both_and_the_event_is_told_again(
    start: Start, tree: Path, tmp_path: Path
) -> None:
    heard = tmp_path / "heard"
    watch = start("--on-event", SLOW_HOOK.format(heard, tmp_path / "never"))
    until(heard.exists)
    while watch.process.poll() is None:
        watch.process.send_signal(signal.SIGINT)  # again and again: two at once are one
        time.sleep(0.1)
    assert watch.process.returncode == 130
    assert [event["checkpoint"] for event in events(once(tree).stdout)] == ["2_1", "1_1"]


def test_a_second_watch_is_refused_and_the_lock_of_a_dead_one_is_none(start: Start, tree: Path) -> None:
    watch = start()
    watch.event()
    second = once(tree)
    assert (second.code, second.stderr.count("\n")) == (13, 1)
    assert "watched already" in second.stderr
    watch.process.kill()
    watch.process.wait()
    assert once(tree).code == 0


def told_with_norms(tree: Path, norms: dict[int, str], *more: str) -> tuple[int, dict[str, str], list[dict[str, Any]]]:
    """Watch once with a log of embedding norms; return the code, what is told of each save, and the events."""
    log = tree.parent / "train.csv"
    lines = [f"{step},2.0,1.0,{norm}" for step, norm in norms.items()]
    log.write_text("\n".join(["step,loss,global_norm,embedding_local_norm", *lines]) + "\n")
    done = ask("watch", str(tree), "--once", "--threshold", "270", "--log", str(log), "--format", "json", *more)
    told = events(done.stdout)
    return done.code, {event["checkpoint"]: event["event"] for event in told}, told


def test_a_save_whose_norm_is_at_the_threshold_is_bad_and_one_below_it_is_good(tree: Path) -> None:
    code, kinds, told = told_with_norms(tree, {1: "269.9", 2: "270"}, "--seal")
    assert (code, kinds) == (10, {"2_1": "bad", "1_1": "good"})
    assert (told[0]["verdict"], told[0]["findings"][0]["code"]) == ("suspect", "norm-above-threshold")
    assert told[0]["sealed"] is True  # what the trainer meant, all the same
    assert told_with_norms(tree, {1: "269.9", 2: "270"}, "--seal") == (10, {}, [])


def test_a_save_of_which_no_log_tells_is_not_good_until_one_does(tree: Path) -> None:
    code, kinds, told = told_with_norms(tree, {1: "1"})
    assert (code, kinds) == (14, {"2_1": "health-unknown", "1_1": "good"})
    assert (told[0]["verdict"], [each["code"] for each in told[0]["findings"]]) == ("unreadable", ["health-unknown"])
    assert told_with_norms(tree, {1: "1"}, "--patience", "0")[:2] == (14, {})
    assert told_with_norms(tree, {1: "1", 2: "2"}, "--patience", "0")[:2] == (0, {"2_1": "good"})


def test_a_save_that_the_trainer_recorded_as_unhealthy_is_bad_without_any_log(tree: Path) -> None:
    named = [{"ckpt_name": shard(tree, 0, epoch).name, "is_health": int(epoch == 2)} for epoch in (1, 2)]
    (tree.parent / "health_ckpts.json").write_text(json.dumps(named))
    done = ask("watch", str(tree), "--once", "--format", "json")
    assert (done.code, [event["event"] for event in events(done.stdout)]) == (10, ["bad", "good"])


def test_a_machine_writes_its_part_and_a_watch_of_the_folder_tells(tree: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    watch = ["watch", str(tree), "--once", "--level", "structure", "--part-out", str(parts)]
    done = ask(*watch, "--part", "1/1")
    assert (done.code, done.stdout) == (0, "")
    assert [path.name for path in parts.iterdir()] == ["watch.00001-of-00001.ckptpart"]
    done = ask("watch", str(parts), "--once", "--level", "structure", "--format", "json", "--world-size", "2")
    assert done.code == 0
    assert [(event["event"], event["checkpoint"]) for event in events(done.stdout)] == [
        ("good", "2_1"),
        ("good", "1_1"),
    ]
