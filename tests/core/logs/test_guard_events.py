"""Event files are read like any log: steps, dropped or not, restarts and stops."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.metrics import NoteKind
from ckpttool.core.errors import UsageError
from ckpttool.core.logs.base import LogSource
from ckpttool.core.logs.columns import JsonLines
from ckpttool.core.logs.guard_events import EventLine, GuardEvents, GuardFiles, event_lines
from ckpttool.guard.model.guarding import GuardMode
from ckpttool.health.policies.skip import SkipPolicy
from ckpttool.trainers.registry import log_reader
from tests.core.logs.reading import Dribble, notes, problems, read, read_log, steps
from tests.support.guard_events import train

RUN = b'{"schema": "ckpttool/events/1", "kind": "run", "step": 0, "rank": 0, "pid": 1}\n'
SKIP = SkipPolicy(threshold=3.0)


def line(kind: str, step: object, **values: object) -> bytes:
    return json.dumps({"kind": kind, "step": step, **values}).encode() + b"\n"


def test_every_step_is_read_back_as_it_was_written_dropped_or_not(tmp_path: Path) -> None:
    norms = [1.0, 5.0, 0.1 + 0.2, math.nan, math.inf, 1e-300]
    found = list(read_log(str(train(tmp_path, norms, policy=SKIP))))
    assert (problems(found), notes(found)) == ([], [])
    assert repr([row.global_norm for row in steps(found)]) == repr(norms)
    assert [row.skipped for row in steps(found)] == [False, True, False, True, True, False]
    assert [row.step for row in steps(found)] == list(range(1, 7))
    assert repr([row.loss for row in steps(found)]) == repr([2.5, 2.5, 2.5, math.nan, 2.5, 2.5])
    assert all(row.time for row in steps(found))


def test_it_stands_before_json_lines_which_a_file_without_our_first_line_still_is() -> None:
    formats = log_reader().formats
    names = [format_.name for format_ in formats]
    assert names.index("guard-events") < names.index("json-lines")
    assert GuardEvents().recognise(RUN + line("step", 1))
    other = line("step", 1, global_norm=2.0, loss=1.0)
    assert not GuardEvents().recognise(other)
    assert [row.global_norm for row in steps(read(JsonLines(), other))] == [2.0]
    for head in (b"", b"{", b"[]\n", b'{"schema": "ckpttool/events/2"}\n', b'{"schema": 1}\n', b"\xff\xfe\n"):
        assert not GuardEvents().recognise(head)


def test_a_step_whose_own_line_was_lost_is_still_known_to_be_dropped() -> None:
    found = read(
        GuardEvents(), RUN + line("step", 4, global_norm=1.0) + line("nonfinite", 5, value="nan", dropped=True)
    )
    assert [(row.step, row.skipped) for row in steps(found)] == [(4, None), (5, True)]
    watched = line("spike", 5, value=9.0, dropped=False)  # it was not dropped, so this says nothing new
    assert [row.step for row in steps(read(GuardEvents(), RUN + line("step", 4) + watched))] == [4]


def test_what_a_loss_scaler_drops_is_dropped_where_the_guard_only_watches_too() -> None:
    for overflow in (True, False):
        found = read(GuardEvents(), RUN + line("step", 1, global_norm="inf", overflow=overflow, skipped=False))
        assert [(row.overflow, row.skipped) for row in steps(found)] == [(overflow, overflow)]


def test_a_torn_line_is_a_note_where_its_writer_ended_and_a_problem_anywhere_else() -> None:
    whole = RUN + line("step", 1, global_norm=1.0)
    torn = b'{"kind": "step", "st'
    at_the_end = read(GuardEvents(), whole + torn)
    assert problems(at_the_end) == []
    assert [(note.kind, note.line) for note in notes(at_the_end)] == [(NoteKind.CUT, 3)]
    killed = read(GuardEvents(), whole + torn + b"\n" + RUN + line("step", 2, global_norm=2.0))
    assert (len(steps(killed)), problems(killed)) == (2, [])
    assert [(note.kind, note.line) for note in notes(killed)] == [(NoteKind.CUT, 3)]
    within = read(GuardEvents(), whole + torn + b"\n" + line("step", 2, global_norm=2.0))
    assert [problem.line for problem in problems(within)] == [3]
    assert (len(steps(within)), notes(within)) == (2, [])


def test_a_second_process_that_goes_back_is_a_restart_and_one_that_goes_on_is_none(tmp_path: Path) -> None:
    path = train(tmp_path, [1.0] * 10)
    train(tmp_path, [2.0] * 5, first=11)
    assert notes(read_log(str(path))) == []
    train(tmp_path, [3.0] * 5, first=13)
    (note,) = notes(read_log(str(path)))
    assert (note.kind, note.step, note.previous_step) == (NoteKind.REWIND, 13, 15)
    log = log_reader().merged([str(path)])
    assert log is not None
    assert [row.global_norm for row in log.metrics][9:] == [1.0, 2.0, 2.0, *[3.0] * 5]


def test_a_process_that_does_the_last_step_again_went_back_to_it(tmp_path: Path) -> None:
    path = train(tmp_path, [1.0] * 3)
    train(tmp_path, [7.0, 1.0], first=3)
    found = list(read_log(str(path)))
    assert [row.global_norm for row in steps(found)] == [1.0, 1.0, 1.0, 7.0, 1.0]
    assert [(note.step, note.previous_step) for note in notes(found)] == [(3, 3)]


def test_a_file_that_was_put_aside_is_no_other_process() -> None:
    first = RUN + line("step", 1, global_norm=1.0)
    rotated = RUN.replace(b'"pid"', b'"rotated": true, "pid"') + line("skip", 1, value=1.0, dropped=True)
    assert notes(read(GuardEvents(), first + rotated)) == []
    (row,) = steps(read(GuardEvents(), first + rotated))
    assert (row.global_norm, row.skipped) == (1.0, True)


def test_a_stop_is_told_unless_nothing_was_done(tmp_path: Path) -> None:
    path = train(tmp_path / "act", [1.0] * 5 + [9.0] * 20, policy=SKIP)
    (note,) = notes(read_log(str(path)))
    assert (note.kind, note.step, note.count) == (NoteKind.COUNT_STOP, 15, 10)
    watched = train(tmp_path / "watch", [1.0] * 5 + [9.0] * 20, policy=SKIP, mode=GuardMode.WATCH)
    assert notes(read_log(str(watched))) == []
    odd = read(GuardEvents(), RUN + line("step", 1) + line("stop", 1, count="10"))
    assert [note.count for note in notes(odd)] == [None]


@pytest.mark.parametrize(
    "broken",
    [
        b"[1]",
        b'{"kind": "step"}',
        b'{"kind": "step", "step": true}',
        b'{"kind": "step", "step": -1}',
        b'{"kind": "step", "step": 1.0}',
        b'{"kind": 7, "step": 1}',
        b'{"kind": "step", "step": 1, "step": 2}',
        b'{"kind": "step", "step": 1, "loss": NaN}',
        b'{"schema": "ckpttool/events/9", "kind": "run", "step": 0}',
        b"[" * 5000,
        b'{"kind": "step", "step": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda text: text[:50].decode(),
)
def test_a_line_that_nobody_may_believe_is_told_and_the_next_one_read(broken: bytes) -> None:
    found = read(GuardEvents(), RUN + broken + b"\n" + line("step", 8, global_norm=1.0))
    assert [problem.line for problem in problems(found)] == [2]
    assert [row.step for row in steps(found)] == [8]


def test_a_number_that_is_none_is_told_and_no_number_is_guessed() -> None:
    found = read(
        GuardEvents(), RUN + line("step", 1, loss=[1, 2], global_norm=1.0) + line("step", 2, global_norm="1 2")
    )
    assert len(problems(found)) == 2
    assert [(row.loss, row.global_norm) for row in steps(found)] == [(None, 1.0), (None, None)]


def test_an_endless_line_takes_no_memory_and_the_rest_is_read() -> None:
    stream = Dribble(RUN + b"x" * (3 << 20) + b"\n" + line("step", 1, global_norm=1.0), 1 << 16)
    found = list(GuardEvents().read(LogSource(name="log", stream=stream)))
    assert [problem.reason for problem in problems(found)] == ["the line is too long for a log"]
    assert len(steps(found)) == 1


@given(st.lists(st.binary(max_size=80)), st.integers(min_value=1, max_value=50))
def test_whatever_stands_in_a_file_is_read_without_an_error(garbage: list[bytes], size: int) -> None:
    data = RUN + b"\n".join(garbage) + b"\n" + line("skip", 3, dropped=True)
    found = list(event_lines(LogSource(name="log", stream=Dribble(data, size))))
    assert isinstance(found[0], EventLine)
    list(GuardEvents().read(LogSource(name="log", stream=Dribble(data, size))))


def test_two_ranks_are_one_training(tmp_path: Path) -> None:
    norms = [1.0] * 20 + [9.0, math.nan] + [1.0] * 5
    for rank in range(2):
        train(tmp_path, norms, policy=SKIP, rank=rank, world_size=2)
    log = log_reader().merged([str(tmp_path / "guard")])
    assert log is not None
    assert log.sources == tuple(str(tmp_path / f"guard/events-0000{rank}.jsonl") for rank in range(2))
    assert [row.step for row in log.metrics if row.skipped] == [21, 22]
    assert (len(log.metrics), log.notes, len(log.attempts or ())) == (27, (), 1)


def test_files_are_found_beside_and_below_a_folder_what_was_put_aside_first(tmp_path: Path) -> None:
    path = train(tmp_path / "output", [1.0] * 3)
    train(tmp_path / "output", [1.0] * 3, rank=11)
    (path.parent / "events-00000.jsonl.1").write_bytes(RUN)
    for stray in ("events-0.jsonl", "events-00000.jsonl.bak", "old-events-00000.jsonl", "events-00001.jsonl.2"):
        (path.parent / stray).write_bytes(RUN)
    (tmp_path / "output" / "checkpoint").mkdir()
    ranks = ((f"{path}.1", str(path)), (str(path.with_name("events-00011.jsonl")),))
    for root in ("output", "output/checkpoint"):
        assert GuardFiles().near(str(tmp_path / root)) == ranks
    for folder in ("output", "output/guard"):
        assert GuardFiles().inside(str(tmp_path / folder)) == (*ranks[0], *ranks[1])
    assert GuardFiles().near(str(tmp_path / "other" / "checkpoint")) == ()
    with pytest.raises(UsageError, match=r"guard/events-N\.jsonl"):
        log_reader().expand([str(tmp_path)])
