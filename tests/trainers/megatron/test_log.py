"""Megatron-LM's logs: real ones, cut ones, and one that goes back."""

from __future__ import annotations

import math

from ckpttool.core.domain.metrics import NoteKind
from ckpttool.trainers.megatron.log import Megatron
from tests.core.logs.reading import LOGS, log, notes, problems, read, steps
from tests.support.log_rows import BLOOM


def test_blooms_real_log_is_read_and_its_cut_lines_are_told() -> None:
    items = log(Megatron(), "bloom176b_chronicles.log")
    rows = steps(items)
    assert tuple((row.step, row.global_norm) for row in rows if 31214 <= row.step <= 31251) == BLOOM
    spike = next(row for row in rows if row.step == 31219)
    assert (spike.loss, spike.consumed_samples) == (5.098124, 47_778_736)
    assert spike.skipped is False
    assert [problem.line for problem in problems(items)] == [13, 14, 15, 16, 17]
    cut = next(row for row in rows if row.step == 42780)
    assert (cut.global_norm, cut.consumed_samples) == (None, 71_455_664)


def test_megatron_core_tells_times_skips_nan_and_a_rewind() -> None:
    items = log(Megatron(), "megatron_core_made.log")
    first, second, third = steps(items)
    assert (first.time, first.skipped) == ("2025-04-07 10:00:02", False)
    assert (second.skipped, second.loss) == (True, None)
    assert math.isnan(second.global_norm or 0)
    assert third.global_norm is None
    (problem,) = problems(items)
    assert (problem.line, problem.reason) == (3, "grad norm is not a number")
    (rewind,) = notes(items)
    assert (rewind.kind, rewind.step, rewind.previous_step, rewind.line) == (NoteKind.REWIND, 150, 200, 3)


def test_megatron_passes_over_a_line_that_is_too_long() -> None:
    line = (LOGS / "megatron_core_made.log").read_bytes().splitlines(keepends=True)[0]
    items = read(Megatron(), b"x" * (3 << 20) + b"\n" + line)
    assert (len(problems(items)), len(steps(items))) == (1, 1)


VALIDATED = b"""\
 iteration      900/  500000 | consumed samples:       230400 | learning rate: 1.500E-04 | lm loss: 3.2E+00 |
 iteration     1000/  500000 | consumed samples:       256000 | learning rate: 1.500E-04 | lm loss: 3.147666E+00 |
 validation loss at iteration 1000 | lm loss value: 3.846950E+00 | lm loss PPL: 4.685000E+01 |\x20
 validation loss at iteration 1050 on validation set | mtp_1 loss value: 1.0E+00 | lm loss value: 3.5E+00 |\x20
 validation loss at iteration 1050 on test set | lm loss value: 9.0E+00 |\x20
 iteration     1100/  500000 | consumed samples:       281600 | learning rate: 1.500E-04 | lm loss: 3.1E+00 |
"""


def test_a_validation_belongs_to_its_iteration_and_one_of_the_test_set_to_none() -> None:
    rows = steps(read(Megatron(), VALIDATED, curves=True))
    shown = [(row.step, row.loss, row.validation_loss) for row in rows]
    assert shown == [(900, 3.2, None), (1000, 3.147666, 3.84695), (1050, None, 3.5), (1100, 3.1, None)]
    assert {row.learning_rate for row in rows} == {1.5e-4, None}
    assert notes(read(Megatron(), VALIDATED, curves=True)) == []


def test_a_validation_loss_that_is_no_number_is_told() -> None:
    items = read(Megatron(), VALIDATED.replace(b"3.846950E+00", b"3.84x"), curves=True)
    assert [problem.reason for problem in problems(items)] == ["validation loss is not a number"]
    assert [row.validation_loss for row in steps(items)] == [None, None, 3.5, None]


def test_a_log_of_validations_alone_is_megatrons_and_a_curve() -> None:
    alone = b"".join(line for line in VALIDATED.splitlines(keepends=True) if b"validation loss" in line)
    assert Megatron().recognise(alone)
    rows = steps(read(Megatron(), alone, curves=True))
    assert [(row.step, row.validation_loss) for row in rows] == [(1000, 3.84695), (1050, 3.5)]
