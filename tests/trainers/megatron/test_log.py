"""Megatron-LM's logs: real ones, cut ones, and one that goes back."""

from __future__ import annotations

import math

from ckpttool.domain.metrics import NoteKind
from ckpttool.trainers.megatron.log import Megatron
from tests.decide.rows import BLOOM
from tests.logs.reading import LOGS, log, notes, problems, read, steps


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


def test_a_real_megatron_benchmark_log_is_read_without_a_problem() -> None:
    items = log(Megatron(), "megatron_gpt2_n16_ds_off.log")
    assert len(steps(items)) == 62
    assert len(items) == 62
    assert steps(items)[-1].global_norm == 8.017


def test_megatron_core_tells_times_skips_nan_and_a_rewind() -> None:
    items = log(Megatron(), "megatron_core_made.log")
    first, second, third = steps(items)
    assert (first.time, first.skipped) == ("2025-04-07 10:00:02", False)
    assert (second.skipped, second.loss) == (True, None)
    assert math.isnan(second.global_norm or 0)
    assert third.global_norm is None
    (problem,) = problems(items)
    assert (problem.line, problem.reason) == (3, "grad norm is no number")
    (rewind,) = notes(items)
    assert (rewind.kind, rewind.step, rewind.previous_step, rewind.line) == (NoteKind.REWIND, 150, 200, 3)


def test_megatron_passes_over_a_line_that_is_too_long() -> None:
    line = (LOGS / "megatron_core_made.log").read_bytes().splitlines(keepends=True)[0]
    items = read(Megatron(), b"x" * (3 << 20) + b"\n" + line)
    assert (len(problems(items)), len(steps(items))) == (1, 1)
