"""torchtitan's logs: coloured or not, of one rank or of several, with validations and restarts."""

from __future__ import annotations

import math
from pathlib import Path

from ckpttool.core.domain.metrics import NoteKind
from ckpttool.trainers.torchtitan.log import TorchtitanLog
from tests.core.logs.reading import notes, problems, read, read_log, steps

PLAIN = """\
[rank0]:[titan] 2026-11-20 10:00:0{step},123 - root - INFO - step:  {step}  loss:  {loss}  grad_norm:  8.0625  \
memory:  0.50GiB(0.53%)  tps: 20,101  tflops: 1.01  mfu: 0.10%
"""
COLOURED = (
    "[titan] 2026-11-20 10:00:09,123 - root - INFO - \x1b[31mstep:  9  \x1b[32mloss:  4.06968  "
    "\x1b[38;2;180;60;0mgrad_norm:  8.0625  \x1b[36mmemory:  0.50GiB(0.53%)  \x1b[34mtps: 20,101  "
    "\x1b[36mtflops: 1.01  \x1b[35mmfu: 0.10%\x1b[39m\n"
)


def log(*lines: tuple[int, str]) -> bytes:
    return "".join(PLAIN.format(step=step, loss=loss) for step, loss in lines).encode()


def test_a_coloured_line_and_a_plain_one_are_read_alike() -> None:
    (coloured,) = steps(read(TorchtitanLog(), COLOURED.encode()))
    assert (coloured.step, coloured.loss, coloured.global_norm) == (9, 4.06968, 8.0625)
    assert coloured.time == "2026-11-20 10:00:09"
    (plain,) = steps(read(TorchtitanLog(), log((9, " 4.06968"))))
    assert plain == coloured


def test_a_line_of_an_older_version_shows_no_norm() -> None:
    (row,) = steps(read(TorchtitanLog(), b"step: 10  loss:  8.0191  memory:  0.50GiB(0.53%)  tps: 3,000\n"))
    assert (row.step, row.loss, row.global_norm, row.time) == (10, 8.0191, None, None)


def test_the_same_line_from_every_rank_is_one_step() -> None:
    items = read(TorchtitanLog(), log((1, "8.1"), (1, "8.1"), (2, "8.0"), (1, "8.1"), (2, "8.0"), (3, "nan")))
    assert [row.step for row in steps(items)] == [1, 2, 3]
    assert math.isnan(steps(items)[-1].loss or 0)
    assert (notes(items), problems(items)) == ([], [])


def test_a_restart_goes_back_and_a_loss_that_is_no_number_is_told() -> None:
    items = read(TorchtitanLog(), log((1, "8.1"), (2, "8.0"), (1, "8.2"), (2, "8.?")))
    assert [(note.kind, note.step, note.previous_step) for note in notes(items)] == [(NoteKind.REWIND, 1, 2)]
    assert [problem.reason for problem in problems(items)] == ["loss is not a number"]
    assert [row.loss for row in steps(items)] == [8.1, 8.0, 8.2, None]


def test_a_validation_belongs_to_its_step_where_curves_are_asked_for() -> None:
    validation = b"validate step:  2  loss:  7.5000  memory:  0.50GiB(0.53%)  tps: 3,000\n"
    later = validation.replace(b"step:  2", b"step:  4")
    data = log((1, "8.1"), (2, "8.0")) + validation + later + log((5, "7.9"))
    shown = [(row.step, row.loss, row.validation_loss) for row in steps(read(TorchtitanLog(), data, curves=True))]
    assert shown == [(1, 8.1, None), (2, 8.0, 7.5), (4, None, 7.5), (5, 7.9, None)]
    assert [row.step for row in steps(read(TorchtitanLog(), data))] == [1, 2, 5]


def test_a_reader_of_all_logs_knows_it_by_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    path.write_bytes(b"[titan] 2026-11-20 10:00:00,000 - root - INFO - Starting job\n" + log((1, "8.1"), (2, "8.0")))
    assert [row.step for row in steps(read_log(str(path)))] == [1, 2]
