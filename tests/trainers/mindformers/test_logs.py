"""Every form of MindFormers' lines is read as it stands, and what cannot be read is told, never guessed."""

from __future__ import annotations

import io
import math
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.metrics import LogItem, NoteKind, StepMetrics
from ckpttool.core.logs.base import BLOCK_BYTES, LONGEST_LINE, LogSource
from ckpttool.trainers.mindformers.logs.text import MindFormers
from tests.core.logs.reading import LOGS, Dribble, notes, problems, read, steps


def log(name: str) -> list[LogItem]:
    return read(MindFormers(), (LOGS / name).read_bytes())


def usual(step: int, norm: str = "1.5", *, prefix: str = "2025-04-07 10:00:01,000 - ", epoch: int = 1) -> bytes:
    return (
        f"{prefix}{{ Epoch:[{epoch:3d}/  9], step:[{step:5d}/  100], loss: 2.500, per_step_time: 9ms, lr: 1e-05, "
        f"overflow cond: False, loss_scale: 1.0, global_norm: [{norm}], train_throughput_per_npu: 1.0T\n"
    ).encode()


def test_the_documented_skip_log_tells_norms_skips_and_the_stop() -> None:
    items = log("mindformers_skip_stage0_made.log")
    first, second = steps(items)
    assert first == StepMetrics(
        step=first.step,
        loss=None,
        global_norm=44.313248,
        overflow=False,
        skipped=True,
        time="2024-11-20 09:02:46",
    )
    assert (second.step, second.global_norm, second.skipped) == (2, 47.329006, True)
    (stop,) = notes(items)
    assert (stop.kind, stop.step, stop.count, stop.value, stop.line) == (NoteKind.COUNT_STOP, 2, 2, 47.329006, 9)
    assert problems(items) == []


def test_the_documented_health_log_tells_the_embedding_norms_without_times() -> None:
    items = log("mindformers_health_stage0_made.log")
    assert [(row.step, row.embedding_local_norm, row.time) for row in steps(items)] == [
        (1, 251.79117, None),
        (2, 291.3603, None),
    ]
    assert problems(items) == []


def test_every_form_of_the_step_line_is_read() -> None:
    items = log("mindformers_every_form_made.log")
    rows = {int(row.step): row for row in steps(items)}
    assert sorted(rows) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert (rows[1].global_norm, rows[1].loss, rows[1].time) == (None, 10.649, "2025-04-07 15:34:27")
    assert (rows[2].global_norm, rows[2].loss, rows[2].overflow) == (10.579812, 10.633, True)
    assert rows[2].time == "2025-04-07 15:34:29"
    assert math.isnan(rows[3].global_norm or 0)
    assert rows[3].loss == 9.673
    assert math.isnan(rows[4].loss or 0)
    assert (rows[4].global_norm, rows[4].overflow) == (math.inf, True)
    assert rows[5].global_norm == 1.2e5
    assert (rows[6].global_norm, rows[7].global_norm) == (None, None)
    assert (rows[8].global_norm, rows[8].loss) == (2.5, 9.2)
    assert rows[9].loss == 9.1


def test_a_norm_without_its_point_and_a_line_cut_short_are_told_with_their_lines() -> None:
    found = problems(log("mindformers_every_form_made.log"))
    assert [(problem.line, problem.reason) for problem in found] == [
        (2, "global_norm has lost its decimal point or a digit"),
        (12, "the step line is truncated"),
    ]
    assert "1 31049" in found[0].text


def test_stops_are_noted_at_the_step_before_them() -> None:
    found = notes(log("mindformers_every_form_made.log"))
    assert [(note.kind, note.step, note.line) for note in found] == [
        (NoteKind.NAN_STOP, 4, 6),
        (NoteKind.NORM_STOP, 8, 11),
    ]


def test_a_resumed_run_repeats_steps_and_the_rewind_is_told() -> None:
    items = log("mindformers_resumed_made.log")
    assert [(row.step, row.global_norm) for row in steps(items)] == [(1, 1.5), (2, 1.6), (3, 9.9), (3, 1.7), (4, 1.8)]
    (rewind,) = notes(items)
    assert (rewind.kind, rewind.step, rewind.previous_step, rewind.line) == (NoteKind.REWIND, 3, 3, 5)


def test_what_monitors_say_of_steps_that_are_not_printed_is_not_given_to_printed_ones() -> None:
    rows = steps(log("mindformers_steps_not_printed_made.log"))
    assert [(row.step, row.global_norm, row.skipped, row.embedding_local_norm) for row in rows] == [
        (12, 1.6, None, 100.5),
        (13, 8.5, True, None),
        (14, 1.7, False, None),
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"{ Epoch:[  1/  2], step:[\n",
        b"Epoch:[x/ 2], step:[ 1/ 2], loss: 1.0, per_step_time: 1ms\n",
        usual(1, "abc"),
        b"opt_global_step: 3, skip_data_grad_norm_threshold: 3.0, is_skip: [maybe]\n",
        usual(1) + b"embedding_local_norm: oops\n",
        usual(1) + b"Current global norm [1 5] of step 1 has been 1 consecutive times greater than threshold: 3.0\n",
        usual(1) + b"Current global norm [1 5] is greater equal than threshold 1.0, stop training...\n",
    ],
)
def test_what_cannot_be_read_is_one_problem_with_its_line(line: bytes) -> None:
    (problem,) = problems(read(MindFormers(), b"noise\n" + line))
    assert problem.line == 1 + line.count(b"\n")
    assert problem.source == "log"


def test_the_same_line_from_another_rank_is_one_step() -> None:
    data = b"".join(usual(step, prefix=f"[default{rank}]:") for step in (1, 2) for rank in range(8))
    items = read(MindFormers(), data)
    assert [row.step for row in steps(items)] == [1, 2]
    assert notes(items) == []


@pytest.mark.parametrize("size", [1, 300, 1 << 20])
def test_of_two_ranks_in_one_log_each_step_keeps_the_first_embedding_norm(size: int) -> None:
    data = b"".join(
        usual(step) + usual(step) + f"embedding_local_norm: {step}.5\nembedding_local_norm: 99.5\n".encode()
        for step in (1, 2, 3)
    )
    items = list(MindFormers().read(LogSource(name="log", stream=Dribble(data, size))))
    assert [(row.step, row.embedding_local_norm) for row in steps(items)] == [(1, 1.5), (2, 2.5), (3, 3.5)]
    slower = usual(1) + b"embedding_local_norm: 1.5\n" + usual(1) + b"embedding_local_norm: 99.5\n"
    (step,) = steps(MindFormers().read(LogSource(name="log", stream=Dribble(slower, size))))
    assert step.embedding_local_norm == 1.5


def test_each_step_has_the_time_of_its_own_line_whatever_stands_before_the_block_s_others() -> None:
    """The first block sets how far a time stamp stands before its step; in the second one, one line differs."""
    first = usual(1, prefix="2025-04-07 10:00:01,000 - ")
    prefixes = ["2025-04-07 10:00:02,000 - ", "2025-04-07 10:00:03 - ", "", "\n2025 - ", "2025-04-07 10:00:04,00x - "]
    for odd in prefixes:
        second = b"".join(usual(step, prefix=f"2025-04-07 11:00:{step:02d},000 - ") for step in (2, 3))
        block = second + usual(4, prefix=odd) + usual(5, prefix="2025-04-07 11:00:05,000 - ")
        stream = io.BytesIO(first + b"x" * BLOCK_BYTES + b"\n" + block)
        rows = steps(list(MindFormers().read(LogSource(name="log", stream=stream))))
        found = [row.time for row in rows if row.step != 4]
        assert found == ["2025-04-07 10:00:01", *(f"2025-04-07 11:00:0{step}" for step in (2, 3, 5))]
        own = next(row.time for row in rows if row.step == 4)
        assert own == (odd[:19] if odd.startswith("2025-04-07") else None)


def test_epochs_that_change_within_a_block_are_each_their_own_and_epoch_0_is_told() -> None:
    lines = [usual(99), usual(100), usual(1, epoch=2), usual(2, epoch=0), usual(3, epoch=2)]
    items = read(MindFormers(), b"".join(lines))
    assert [row.step for row in steps(items)] == [99, 100, 101, 103]
    assert [(one.line, one.reason) for one in problems(items)] == [(4, "epoch 0, but epochs count from 1")]


@given(st.integers(min_value=1, max_value=400), st.data())
def test_where_the_blocks_are_cut_changes_nothing(size: int, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(path.name for path in LOGS.glob("mindformers_*.log"))))
    content = (LOGS / name).read_bytes()
    whole = read(MindFormers(), content)
    dribbled = list(MindFormers().read(LogSource(name="log", stream=Dribble(content, size))))
    assert list(map(repr, dribbled)) == list(map(repr, whole))  # by their text, for NaN is not equal to itself


@given(st.binary(max_size=400))
def test_no_bytes_break_the_reader(noise: bytes) -> None:
    items = read(MindFormers(), usual(1) + noise + b"\n" + usual(2))
    assert {1, 2} <= {row.step for row in steps(items)}


class _Endless:
    """A log of so many bytes, made while it is read."""

    def __init__(self, size: int, piece: bytes) -> None:
        self._left = size
        self._piece = piece

    def read(self, size: int, /) -> bytes:
        if self._left <= 0:
            return b""
        count = min(size, self._left) // len(self._piece) + 1
        self._left -= count * len(self._piece)
        return self._piece * count


def test_a_large_log_takes_no_more_memory_than_a_small_one() -> None:
    noise = b"2025-04-07 10:00:01,000 - mindformers - INFO - local_norm/layer: 1.0\n" * 50
    tracemalloc.start()
    try:
        found = sum(1 for _ in MindFormers().read(LogSource(name="log", stream=_Endless(24 << 20, noise + usual(1)))))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert found == 1  # the same step over and over


def test_a_file_without_line_ends_is_passed_over_in_bounded_memory() -> None:
    data = b"x" * (LONGEST_LINE + 3 * BLOCK_BYTES) + b"\n" + usual(1)
    items = list(MindFormers().read(LogSource(name="log", stream=io.BytesIO(data))))
    (problem,) = problems(items)
    assert (problem.line, "too long" in problem.reason) == (1, True)
    assert [row.step for row in steps(items)] == [1]
    unending = list(MindFormers().read(LogSource(name="log", stream=io.BytesIO(b"x" * (3 * LONGEST_LINE)))))
    assert len(unending) == 1


def test_who_holds_runs_against_each_other_sees_the_loss_of_the_language_model_alone_and_the_learning_rate() -> None:
    balanced = usual(2).replace(b"loss: 2.500, ", b"loss: 2.500, lm_loss: 2.100, load_balancing_loss: 0.400, ")
    odd = balanced.replace(b"step:[    2", b"step:[    3").replace(b"[1.5]", b"None")
    rows = steps(read(MindFormers(), usual(1) + balanced + odd, curves=True))
    assert [(row.loss, row.learning_rate) for row in rows] == [(2.5, 1e-5), (2.1, 1e-5), (2.1, 1e-5)]
    assert [row.loss for row in steps(read(MindFormers(), usual(1) + balanced + odd))] == [2.5, 2.5, 2.5]
    assert {row.learning_rate for row in steps(read(MindFormers(), usual(1)))} == {None}
    unscheduled = usual(1).replace(b"lr: 1e-05, ", b"")
    assert {row.learning_rate for row in steps(read(MindFormers(), unscheduled, curves=True))} == {None}
