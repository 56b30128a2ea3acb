"""The event file: whole lines, in time, from any number of processes, and never a reason to stop."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Event, current_thread, main_thread
from typing import Any

import pytest

from ckpttool.core.domain.guarding import EventValue, GuardEventKind
from ckpttool.core.domain.units import Step
from ckpttool.guard.files import events as module
from ckpttool.guard.files.events import LONGEST_LINE, EventFile

STEP, SKIP, STOP = GuardEventKind.STEP, GuardEventKind.SKIP, GuardEventKind.STOP


@pytest.fixture
def file(tmp_path: Path) -> Iterator[EventFile]:
    events = EventFile(tmp_path / "output", io_timeout=120)
    yield events
    events.close()


def lines(events: EventFile) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=pytest.fail) for line in raw(events).splitlines()]


def raw(events: EventFile) -> bytes:
    return Path(events.path).read_bytes()


def test_the_first_line_says_who_writes_and_every_line_has_its_step(tmp_path: Path) -> None:
    events = EventFile(tmp_path, rank=7, world_size=8, step=40, policy={"name": "zscore"}, versions={"torch": "2.13"})
    assert events.path == str(tmp_path / "guard" / "events-00007.jsonl")
    events.emit(STEP, step=Step(41), global_norm=1.5, skipped=False)
    events.close()
    assert raw(events).startswith(b'{"schema": "ckpttool/events/1", "kind": "run", "step": 40, "rank": 7')
    run, step = lines(events)
    assert run.keys() == {
        *("schema", "kind", "step", "rank", "world_size", "host", "pid", "time", "unix", "versions", "policy"),
        "switched_on",
    }
    assert (run["pid"], run["policy"], run["versions"]) == (os.getpid(), {"name": "zscore"}, {"torch": "2.13"})
    told = step.pop("time")
    assert step == {"kind": "step", "step": 41, "global_norm": 1.5, "skipped": False}
    assert abs(time.mktime(time.strptime(told, "%Y-%m-%d %H:%M:%S")) - time.time()) < 60


def test_what_is_not_finite_is_a_word_and_what_is_finite_keeps_every_bit(file: EventFile) -> None:
    inside: EventValue = {"deep": [float("nan"), 0.1]}
    file.emit(
        STEP, step=Step(1), loss=float("nan"), global_norm=float("inf"), low=float("-inf"), tenth=0.1, inside=inside
    )
    file.flush()
    (_, step) = lines(file)
    assert (step["loss"], step["global_norm"], step["low"], step["tenth"]) == ("nan", "inf", "-inf", 0.1)
    assert step["inside"] == {"deep": ["nan", 0.1]}


def written(events: EventFile, count: int) -> bool:
    """Wait until so many lines are there, far longer than a busy machine takes."""
    begun = time.monotonic()
    while not Path(events.path).exists() or len(raw(events).splitlines()) < count:
        if time.monotonic() - begun > 60:
            return False
        time.sleep(0.005)
    return True


def test_anything_but_a_step_is_written_at_once(file: EventFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BUFFERED_SECONDS", 3600.0)
    is_kept, wait_for = Event(), Condition.wait_for

    def noted(condition: Condition, predicate: Callable[[], Any], timeout: float | None = None) -> Any:  # noqa: ANN401  theirs
        if timeout == 3600.0:
            is_kept.set()
        return wait_for(condition, predicate, timeout)

    monkeypatch.setattr(Condition, "wait_for", noted)
    for step in (1, 2):
        file.emit(STEP, step=Step(step))
        assert is_kept.wait(30), "a step was not kept for what is urgent"
        file.emit(SKIP, step=Step(step))
        assert written(file, 1 + 2 * step)
        is_kept.clear()


@pytest.mark.parametrize("behind_others", [False, True])
def test_a_step_is_written_by_the_clock(
    file: EventFile, monkeypatch: pytest.MonkeyPatch, *, behind_others: bool
) -> None:
    monkeypatch.setattr(module, "_BUFFERED_SECONDS", 0.05)
    if behind_others:
        assert file.flush()
    file.emit(STEP, step=Step(1))
    assert written(file, 2)


def test_steps_that_come_faster_than_the_clock_are_written_by_their_bytes(
    file: EventFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BUFFERED_SECONDS", 3600.0)
    for step in range(1, 1001):
        file.emit(STEP, step=Step(step), note="x" * 100)
    assert written(file, 2)


def test_a_file_that_was_moved_while_the_disk_failed_is_begun_anew(
    file: EventFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.emit(SKIP, step=Step(1))
    file.flush()
    with monkeypatch.context() as patch:

        def failing(*_: object) -> int:
            raise OSError(116, "Stale file handle")

        patch.setattr(os, "write", failing)
        file.emit(SKIP, step=Step(2))
        file.flush()
    Path(file.path).rename(f"{file.path}.old")
    file.emit(SKIP, step=Step(3))
    file.flush()
    assert [(line["step"], line.get("lost")) for line in lines(file)] == [(3, 1)]


def test_a_stop_is_on_the_disk_when_emit_returns_and_a_skip_need_not_be(
    file: EventFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bytes] = []
    file.flush()
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(raw(file)))
    file.emit(SKIP, step=Step(4))
    file.flush()
    assert not synced
    file.emit(STOP, step=Step(5))
    assert [json.loads(text.splitlines()[-1])["kind"] for text in synced] == ["stop"]


def test_a_second_process_goes_on_behind_the_first_and_behind_a_line_that_it_tore(tmp_path: Path) -> None:
    first = EventFile(tmp_path)
    first.emit(SKIP, step=Step(9))
    first.close()
    with Path(first.path).open("ab") as torn:
        torn.write(b'{"kind": "st')
    second = EventFile(tmp_path, step=8)
    second.emit(SKIP, step=Step(9))
    second.close()
    written = raw(second).splitlines()
    assert [json.loads(line)["kind"] for line in (*written[:2], *written[3:])] == ["run", "skip", "run", "skip"]
    assert written[2] == b'{"kind": "st'


def ran(folder: Path, code: str) -> tuple[int, list[int]]:
    """Run code in a process of its own; return how it ended, and the steps that the lines are of."""
    imports = (
        "import os, signal, sys\n"
        "from multiprocessing import get_context\n"
        "from ckpttool.core.domain.guarding import GuardEventKind\n"
        "from ckpttool.guard.files.events import EventFile\n"
    )
    program = (sys.executable, "-W", "ignore", "-c", imports + textwrap.dedent(code), str(folder))
    ended = subprocess.run(program, check=False).returncode
    found = (folder / "guard" / "events-00000.jsonl").read_text().splitlines()
    return ended, [json.loads(line)["step"] for line in found]


def test_a_process_that_is_killed_leaves_whole_lines(tmp_path: Path) -> None:
    code = """
        events = EventFile(sys.argv[1])
        for step in range(1, 200):
            events.emit(GuardEventKind.STEP, step=step, global_norm=1.0)
        events.emit(GuardEventKind.STOP, step=200)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert ran(tmp_path, code) == (-signal.SIGKILL, list(range(201)))


def test_what_is_told_in_the_last_moment_of_a_process_is_written(tmp_path: Path) -> None:
    code = """
        events = EventFile(sys.argv[1])
        events.emit(GuardEventKind.STEP, step=1)
        if os.fork() == 0:  # as what loads data is; it has no thread of ours
            events.emit(GuardEventKind.STEP, step=2)
            events.flush()
            sys.exit()
        os.wait()
    """
    assert ran(tmp_path, code) == (0, [0, 1])


def test_a_process_that_multiprocessing_forked_writes_what_it_told_last_too(tmp_path: Path) -> None:
    code = """
        def train():  # it ends without what `atexit` knows
            EventFile(sys.argv[1]).emit(GuardEventKind.STEP, step=1)
        child = get_context("fork").Process(target=train)
        child.start()
        child.join()
    """
    assert ran(tmp_path, code) == (0, [0, 1])


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_full_disk_loses_lines_and_the_next_one_that_fits_says_how_many(file: EventFile) -> None:
    file.emit(SKIP, step=Step(1))
    file.flush()
    with full_disk(len(raw(file)) + 20):
        for step in (2, 3):
            file.emit(SKIP, step=Step(step))
            file.flush()
        assert file.lost == 2
    for step in (4, 5):
        file.emit(SKIP, step=Step(step))
    file.flush()
    told = raw(file).splitlines()
    assert json.loads(told[-2])["lost"] == 2
    assert "lost" not in json.loads(told[-1])
    assert len(told) == 5  # run, 1, what was torn, 4, 5
    assert file.lost == 0


def test_of_lines_written_at_once_only_those_without_room_are_counted(file: EventFile) -> None:
    file.flush()
    with full_disk(len(raw(file)) + 500):
        for step in range(2, 42):
            file.emit(STEP, step=Step(step))
        file.flush()
        assert 30 < file.lost < 40, "some had room"
    whole, lost = raw(file).count(b"\n") - 1, file.lost
    assert whole + lost == 40
    file.emit(SKIP, step=Step(42))
    file.flush()
    assert json.loads(raw(file).splitlines()[-1])["lost"] == lost
    assert file.lost == 0


@pytest.mark.parametrize("in_the_way", ["file", "link"])
def test_a_folder_that_cannot_be_made_stops_nobody(tmp_path: Path, in_the_way: str) -> None:
    guard = tmp_path / "guard"
    (guard.write_text("") if in_the_way == "file" else guard.symlink_to(tmp_path))
    events = EventFile(tmp_path, io_timeout=5)
    events.emit(STOP, step=Step(1))
    events.flush()
    assert events.lost == 2
    guard.unlink()
    events.emit(STOP, step=Step(2))
    events.close()
    assert [line["lost"] for line in lines(events)] == [2]


def test_a_disk_that_does_not_answer_is_waited_for_once_and_not_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Event()
    write = os.write

    def hung(handle: int, data: bytes) -> int:
        answers.wait(30)
        return write(handle, data)

    events = EventFile(tmp_path, io_timeout=0.2)
    monkeypatch.setattr(os, "write", hung)
    waited: list[float | None] = []
    wait_for = Condition.wait_for

    def noted(condition: Condition, predicate: Callable[[], Any], timeout: float | None = None) -> Any:  # noqa: ANN401  theirs
        if current_thread() is main_thread():
            waited.append(timeout)
        return wait_for(condition, predicate, timeout)

    monkeypatch.setattr(Condition, "wait_for", noted)
    for step in range(1, 30):
        events.emit(STOP, step=Step(step))
    assert waited == [0.2] + 28 * [0]
    answers.set()
    while not events.flush():
        time.sleep(0.01)
    events.close()
    assert [line["step"] for line in lines(events)] == list(range(30))


def test_what_waits_for_a_disk_is_bounded_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING", 5000)
    answers = Event()
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: answers.wait(30) and write(handle, data))
    events = EventFile(tmp_path, io_timeout=10)
    events.emit(SKIP, step=Step(1))
    for step in range(2, 300):
        events.emit(SKIP, step=Step(step), message="x" * 100)
    answers.set()
    events.flush()
    events.emit(SKIP, step=Step(300))
    events.close()
    found = lines(events)
    lost = sum(line.get("lost", 0) for line in found)
    assert lost > 200
    assert len(found) + lost == 301


def test_a_line_that_is_too_long_is_cut_and_stays_one_write(file: EventFile) -> None:
    file.emit(SKIP, step=Step(1), message="é" * 5000, value=2.5)
    file.emit(SKIP, step=Step(2), kind="x", ranks=[*range(5000)], table={str(n): n for n in range(999)})
    file.emit(SKIP, step=Step(3), **{f"value{n}": n for n in range(2000)})
    file.emit(SKIP, step=Step(4), message="x" * 3900)
    file.flush()
    assert max(map(len, raw(file).splitlines(keepends=True))) <= LONGEST_LINE
    _, text, deep, many, whole = lines(file)
    assert (text["value"], text["cut"], set(text["message"])) == (2.5, True, {"é"})
    assert (deep["step"], deep["table"], deep["ranks"][:3]) == (2, None, [0, 1, 2])
    assert many.keys() == {"kind", "step", "time", "cut"}
    assert "cut" not in whole


def test_a_value_that_cannot_be_spelled_is_shown_and_one_that_fails_is_lost_alone(file: EventFile) -> None:
    class Failing:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    file.emit(SKIP, step=Step(1), message=Path("x"))  # type: ignore[arg-type]
    file.emit(SKIP, step=Step(2), message=Failing())  # type: ignore[arg-type]
    file.emit(SKIP, step=Step(3))
    file.flush()
    file.emit(SKIP, step=Step(4))
    file.flush()
    assert [line["step"] for line in lines(file)] == [0, 1, 3, 4]
    assert "Path" in lines(file)[1]["message"]
    assert sum(line.get("lost", 0) for line in lines(file)) == 1


def test_a_large_file_is_put_aside_and_both_say_who_wrote_them(tmp_path: Path) -> None:
    events = EventFile(tmp_path, rotate_at=2000)
    for step in range(1, 41):
        events.emit(STEP, step=Step(step))
    events.close()
    aside = Path(f"{events.path}.1")
    assert aside.stat().st_size <= 2000
    old, new = ([json.loads(line) for line in path.read_text().splitlines()] for path in (aside, Path(events.path)))
    assert old[0]["kind"] == new[0]["kind"] == "run"
    assert (old[0].get("rotated"), new[0]["rotated"]) == (None, True)
    steps = [line["step"] for line in (*old, *new) if line["kind"] == "step"]
    assert steps == list(range(1, 41))


def test_after_the_end_nothing_is_heard_and_nothing_raised(file: EventFile) -> None:
    file.emit(STEP, step=Step(1))
    file.close()
    file.close()
    file.emit(STOP, step=Step(2))
    assert [line["step"] for line in lines(file)] == [0, 1]
