"""Logs of the PyNative trainer under both headers, as its readers see them."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from ckpttool.core.domain.metrics import LogItem, LogNote, LogProblem, NoteKind, StepMetrics
from ckpttool.core.logs.base import LogSource
from ckpttool.core.logs.merge import merge
from ckpttool.health.rules.runs import course
from ckpttool.trainers.mindformers.logs.text import MindFormers
from ckpttool.trainers.mindformers.pynative.log import PyNativeLog
from tests.support.answers import cli
from tests.trainers.mindformers.pynative.support import PYNATIVE, tree_of

FILE = "[INFO] 2026-11-28 18:15:12,972 [mindformers/pynative/callback/loss_callback.py:337] _print_log: "
STDOUT = "2026-11-28 18:15:12,972 - mindformers./out[mindformers/pynative/callback/loss_callback.py:337] - INFO - "
USUAL = (
    "{ step:[   15/   40], consumed_samples: 120, global_batch_size: 8, loss:   0.990607, per_step_time:    267ms, "
    "lr: 2.500000e-03, grad_norm:   0.707630, throughput:   0.00T }"
)
SKIPPED = (
    "[WARNING] 2026-11-28 18:15:12,900 [mindformers/pynative/trainer/trainer.py:1966] _skip_step_on_nan: "
    "[SkipStepOnNaN] Global gradient norm is nan at step 15, skipping the optimizer update (consecutive skipped: 1, "
    "total skipped: 1).\n"
)


def read(text: str, *, curves: bool = False) -> list[LogItem]:
    source = LogSource(name="info.log", stream=io.BytesIO(text.encode()), curves=curves)
    return list(PyNativeLog().read(source))


def only(text: str, *, curves: bool = False) -> StepMetrics:
    (item,) = read(text, curves=curves)
    assert isinstance(item, StepMetrics)
    return item


@pytest.mark.parametrize("header", [FILE, STDOUT])
def test_a_step_is_read_under_both_headers(header: str) -> None:
    found = only(header + USUAL + "\n", curves=True)
    assert found == StepMetrics(
        step=found.step,
        loss=0.990607,
        global_norm=0.70763,
        time="2026-11-28 18:15:12",
        consumed_samples=120,
        learning_rate=0.0025,
    )
    assert found.step == 15
    assert PyNativeLog().recognise((header + USUAL).encode())
    assert only(header + USUAL + "\n").learning_rate is None


def test_a_line_of_1_9_has_no_samples() -> None:
    found = only(FILE + USUAL.replace("consumed_samples: 120, global_batch_size: 8, ", "") + "\n")
    assert (found.step, found.consumed_samples, found.loss) == (15, None, 0.990607)


def test_a_stage_without_a_loss_has_only_its_step() -> None:
    line = (
        "{ step:[   15/   40], consumed_samples: None, global_batch_size: None, loss: N/A (non-last PP stage, refer to "
        "last stage for real loss), per_step_time:    267ms, grad_norm: NaN }"
    )
    found = only(FILE + line + "\n")
    assert found == StepMetrics(step=found.step, time="2026-11-28 18:15:12")
    assert found.step == 15


def test_other_losses_are_not_the_loss() -> None:
    others = "load_balancing_loss:   9.000000, indexer_loss:   8.000000, mtp_1_loss:   7.000000, lr:"
    text = USUAL.replace("lr:", others)
    assert only(FILE + text + "\n").loss == 0.990607


def test_a_nan_is_a_value_and_its_skip_is_said() -> None:
    nan = USUAL.replace("0.990607", "     nan").replace("0.707630", "     nan")
    found = only(SKIPPED + FILE + nan + "\n")
    assert (str(found.loss), str(found.global_norm), found.skipped) == ("nan", "nan", True)
    assert only(FILE + nan + "\n").skipped is None
    unprinted, usual = read(SKIPPED.replace("step 15", "step 14") + FILE + USUAL + "\n")
    assert isinstance(unprinted, StepMetrics)
    assert isinstance(usual, StepMetrics)
    assert (unprinted.step, unprinted.skipped, str(unprinted.global_norm)) == (14, True, "nan")
    assert (usual.step, usual.skipped) == (15, None)


def test_1_9_prints_another_nan_for_an_update_that_it_left_out() -> None:
    nan = USUAL.replace("0.990607", "     nan").replace("consumed_samples: 120, global_batch_size: 8, ", "")
    found = only(FILE + nan.replace("  0.707630", "NaN") + "\n")
    assert (str(found.global_norm), found.skipped) == ("nan", True)
    assert only(FILE + nan.replace("0.707630", "     nan") + "\n").skipped is None


def test_ranks_in_one_log_print_a_step_twice() -> None:
    slower = USUAL.replace("267ms", "271ms")
    assert only(f"{STDOUT}{USUAL}\n{STDOUT}{slower}\n").step == 15
    assert only(f"{SKIPPED}{SKIPPED}").skipped
    other = [type(item) for item in read(f"{STDOUT}{USUAL}\n{STDOUT}{slower.replace('0.707630', '0.707631')}\n")]
    assert other == [StepMetrics, LogNote, StepMetrics]


def test_the_limit_of_skips_is_a_stop() -> None:
    stop = (
        "RuntimeError: [SkipStepOnNaN] The global gradient norm has been NaN/Inf for 2 consecutive steps, which "
        "reaches training.max_consecutive_skipped_steps=2. Training is making no progress\n"
    )
    step, note = read(SKIPPED + stop)[::-1]
    assert isinstance(step, StepMetrics)
    assert isinstance(note, LogNote)
    assert (note.kind, note.step, note.count, note.line) == (NoteKind.NAN_STOP, 15, 2, 2)


def test_a_resumed_run_goes_back_and_a_rank_repeats() -> None:
    again = USUAL.replace("   15/", "    9/")
    items = read(f"{FILE}{USUAL}\n{FILE}{USUAL}\n{FILE}{again}\n")
    assert [type(item) for item in items] == [StepMetrics, LogNote, StepMetrics]
    (note,) = (item for item in items if isinstance(item, LogNote))
    assert (note.kind, note.previous_step, note.step, note.line) == (NoteKind.REWIND, 15, 9, 3)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (USUAL.partition("grad_norm")[0], "truncated"),
        (USUAL.replace("0.990607", "0.99o607"), "loss"),
        (USUAL.replace("consumed_samples: 120", "consumed_samples: nan"), "consumed_samples"),
        (USUAL.replace("consumed_samples: 120", "consumed_samples: 1e400"), "consumed_samples"),
    ],
)
def test_a_damaged_line_is_a_problem(text: str, reason: str) -> None:
    problems = [item for item in read(FILE + text + "\n") if isinstance(item, LogProblem)]
    assert len(problems) == 1
    assert reason in problems[0].reason


STATIC = (
    "2026-11-28 18:15:12,972 - mindformers[mindformers/core/callback/callback.py:560] - INFO - { Epoch:[  1/  2], "
    "step:[    1/   40], loss: 0.990, per_step_time: 267ms, lr: 2.5e-05, overflow cond: False, loss_scale: 1.0, "
    "global_norm: [0.707]\n"
)


@pytest.mark.parametrize("name", ["one_rank_killed_34", "one_rank_batch_8_to_16", "one_rank_1.9.0"])
def test_each_trainer_of_mindformers_recognizes_its_own_log(name: str) -> None:
    for header in ("", FILE.replace("callback", "trainer")):
        log = (header + (PYNATIVE / name / "info_rank_0.log").read_text()).encode()
        assert (PyNativeLog().recognise(log), MindFormers().recognise(log)) == (True, False)
    layers = "2026-11-28 18:15:12,972 - mindformers[mindformers/pynative/layers/activation.py:9] - WARNING - slow\n"
    static = (layers + STATIC).encode()
    assert (PyNativeLog().recognise(static), MindFormers().recognise(static)) == (False, True)


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [("one_rank_killed_34", 1, 34), ("one_rank_batch_8_to_16", 16, 40), ("one_rank_1.9.0", 1, 34)],
)
def test_a_real_log_is_read_without_a_problem(name: str, first: int, last: int) -> None:
    items = read((PYNATIVE / name / "info_rank_0.log").read_text())
    steps = [item.step for item in items if isinstance(item, StepMetrics)]
    assert (len(items), steps[0], steps[-1]) == (last - first + 1, first, last)


def spiked(line: str) -> str:
    """Repeat a line for 399 steps, whose norms are too high from step 300 on."""
    norms = ((step, "90.00000" if step >= 300 else f"0.70{step:04}") for step in range(1, 400))
    return "".join(f"{line}\n".replace("STEP", str(step)).replace("NORM", norm) for step, norm in norms)


class TestReaders:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        """Make a log beside a tree, where the trainer writes it."""
        tree_of("one_rank_killed_34", tmp_path)
        log = tmp_path / "output" / "log" / "rank_0" / "info.log"
        log.parent.mkdir(parents=True)
        log.write_text((PYNATIVE / "one_rank_killed_34" / "info_rank_0.log").read_text())
        return log

    def test_replay_and_calibrate_read_it(self, log: Path) -> None:
        said = cli("log", "replay", str(log), "--policy", "skip", "--threshold", "5")
        assert "34 logged" in said.output
        assert "went back" not in said.output
        assert "31 values after the warm-up" in cli("log", "calibrate", str(log)).output

    def test_it_is_found_beside_the_tree(self, log: Path) -> None:
        said = cli("health", str(log.parents[2] / "checkpoint"), "--threshold", "270")
        assert str(log) in said.output.replace("\n", "")

    def test_a_way_around_a_spike_names_no_setting(self, log: Path) -> None:
        lines = [f"{FILE}{USUAL}\n".replace("   15/", f"{step:5}/") for step in range(1, 35)]
        lines[24] = lines[24].replace("0.707630", "90.00000")
        log.write_text("".join(lines))
        tree = str(log.parents[2] / "checkpoint")
        said = cli("resolve", tree, "--around-spike", "25", "--spike-threshold", "5")
        assert "batches" in said.output, said.output
        assert "data_skip_steps" not in said.output

    def test_an_advice_without_a_tree_names_no_setting(self, log: Path) -> None:
        log.write_text(spiked(FILE + USUAL.replace("   15/", "STEP/").replace("0.707630", "NORM")))
        wish = ("--policy", "skip", "--threshold", "5", "--count", "999", "--around-spike", "last", "--every", "100")
        said = cli("log", "replay", str(log), *wish)
        assert "data_skip_steps" not in said.output
        assert "no setting skips these batches" in said.output
        calibrated = cli("log", "calibrate", str(log))
        assert "use_skip_data_by_global_norm" not in calibrated.output
        assert "reads no threshold" in calibrated.output
        log.write_text(spiked(STATIC.replace("    1/   40", "STEP/400").replace("0.707", "NORM").rstrip()))
        assert "data_skip_steps" in cli("log", "replay", str(log), *wish).output
        assert "use_skip_data_by_global_norm" in cli("log", "calibrate", str(log)).output

    def test_a_tree_without_such_a_log_is_enough(self, log: Path) -> None:
        rows = "".join(f"{step},{90 if step >= 25 else 0.7}\n" for step in range(1, 35))
        (log.parent / "norms.csv").write_text(f"step,grad_norm\n{rows}")
        wish = ("--policy", "skip", "--threshold", "5", "--count", "5", "--around-spike", "last")
        csv, tree = str(log.parent / "norms.csv"), str(log.parents[2] / "checkpoint")
        assert "data_skip_steps" not in cli("log", "replay", csv, *wish, "--tree", tree).output
        assert "data_skip_steps" in cli("log", "replay", csv, *wish, "--every", "10").output

    def test_after_a_stop_at_nan_the_data_go_on(self, log: Path) -> None:
        worker = log.parents[2] / "msrun_log" / "worker_0.log"
        worker.parent.mkdir()
        worker.write_text((PYNATIVE / "one_rank_nan_stop" / "worker_0.log").read_text())
        log.unlink()
        said = cli("resolve", str(log.parents[2] / "checkpoint"), "--around-spike", "last")
        assert "Resume after the stop at step 16" in said.output
        assert "steps 15 to 16, whose updates changed no weight\n" in said.output
        worker.write_text((PYNATIVE / "one_rank_killed_34" / "info_rank_0.log").read_text())
        healthy = cli("resolve", str(log.parents[2] / "checkpoint"), "--around-spike", "last")
        assert "Resume after the stop" not in healthy.output

    def test_the_norms_are_those_of_the_last_pipeline_stage(self, log: Path) -> None:
        last = log.parents[1] / "rank_1" / "info.log"
        last.parent.mkdir()
        last.write_text(log.read_text())
        text = re.sub(r"loss: +[\d.]+,", "loss: N/A (non-last PP stage, refer to last stage),", log.read_text())
        text = re.sub(r"(consumed_samples|global_batch_size): \d+", r"\1: None", text)
        log.write_text(re.sub(r"lr: .*grad_norm: +[\d.]+, .*}", "grad_norm: NaN }", text))
        tree = str(log.parents[2] / "checkpoint")
        wish = ("--around-spike", "last", "--spike-threshold", "0.719")
        assert "from step 2, over at step 3" in cli("resolve", tree, *wish).output
        last.unlink()
        alone = cli("resolve", tree, *wish)
        assert "from step 2" not in alone.output


def written(name: str, *spike: int) -> str:
    """Return a log that the trainer wrote, with a norm of 90 at some steps."""
    text = (PYNATIVE / name / "info_rank_0.log").read_text()
    for step in spike:
        text, count = re.subn(rf"(step:\[ *{step}/.*grad_norm: +)[\d.]+", r"\g<1>90.000000", text)
        assert count == 1
    return text


def rows_behind_the_last(text: str) -> tuple[list[tuple[int, int | None]], int | None]:
    """Return the step and the samples of each row in the weights at the end, and from where steps count lower."""
    attempts = merge([("info.log", read(text))]).attempts
    assert attempts is not None
    rows, lower_from = course(attempts, len(attempts) - 1)
    return [(row.step, row.consumed_samples) for row in rows], lower_from


def test_a_start_with_a_larger_batch_size_continues_from_all_samples_before_it() -> None:
    rows, lower_from = rows_behind_the_last(written("one_rank_killed_34") + written("one_rank_batch_8_to_16"))
    assert [samples for _, samples in rows] == [*range(8, 241, 8), *range(256, 641, 16)]
    assert [step for step, _ in rows] == list(range(-14, 41))
    assert lower_from == 16


@pytest.mark.parametrize("lacking", ["consumed_samples: 256, ", "consumed_samples: 264, "])
def test_a_line_without_its_samples_hides_no_step(lacking: str) -> None:
    text = written("one_rank_killed_34") + written("one_rank_batch_8_to_16")
    rows, lower_from = rows_behind_the_last(text.replace(lacking, ""))
    assert (len(rows), lower_from) == (55, 16)


@pytest.mark.parametrize("skipped_samples", [0, 400])
def test_a_start_with_the_same_batch_size_goes_back_even_if_it_leaves_out_data(skipped_samples: int) -> None:
    first = written("one_rank_killed_34")
    again = "".join(line for line in first.splitlines(keepends=True) if int(only(line).step) > 30)
    again = re.sub(r"samples: (\d+)", lambda samples: f"samples: {int(samples[1]) + skipped_samples}", again)
    again = again.replace("18:17:", "18:19:")
    rows, lower_from = rows_behind_the_last(first + re.sub(r"(norm: +0\.5)\d", r"\g<1>0", again))
    assert [samples for _, samples in rows] == [
        *range(8, 241, 8),
        *range(248 + skipped_samples, 273 + skipped_samples, 8),
    ]
    assert [step for step, _ in rows] == list(range(1, 35))
    assert lower_from is None


@pytest.mark.parametrize("around", ["last", "25"])
def test_a_spike_whose_steps_are_counted_again_is_not_passed_over(tmp_path: Path, around: str) -> None:
    tree, log = tree_of("one_rank_batch_8_to_16", tmp_path), tmp_path / "info.log"
    log.write_text(written("one_rank_killed_34", 25) + written("one_rank_batch_8_to_16"))
    resolved = cli("resolve", str(tree), "--log", str(log), "--around-spike", around, "--spike-threshold", "5")
    replayed = cli("log", "replay", str(log), "--tree", str(tree), "--around-spike", around, "--threshold", "5")
    for answer in (resolved, replayed):
        assert answer.code == 14
        assert "lower, from 16 on" in answer.stderr


def test_a_later_spike_is_passed_with_a_save_from_before_it(tmp_path: Path) -> None:
    tree, log = tree_of("one_rank_batch_8_to_16", tmp_path), tmp_path / "info.log"
    log.write_text(written("one_rank_killed_34") + written("one_rank_batch_8_to_16", 38, 39, 40))
    options = ("--around-spike", "last", "--spike-threshold", "5", "--format", "json")
    answer = cli("resolve", str(tree), "--log", str(log), *options)
    assert answer.json["resume"]["name"] == "iteration_00000035"


def test_a_spike_in_steps_that_were_left_is_none(tmp_path: Path) -> None:
    tree, log = tree_of("one_rank_batch_8_to_16", tmp_path), tmp_path / "info.log"
    log.write_text(written("one_rank_killed_34", 33) + written("one_rank_batch_8_to_16"))
    answer = cli("resolve", str(tree), "--log", str(log), "--around-spike", "last", "--spike-threshold", "5")
    assert answer.code == 2
    assert "no step of the log has a global norm of 5 or more" in answer.stderr


def test_a_spike_that_lasts_over_the_change_of_the_batch_size_is_named_by_it(tmp_path: Path) -> None:
    tree, log = tree_of("one_rank_batch_8_to_16", tmp_path), tmp_path / "info.log"
    log.write_text(written("one_rank_killed_34", *range(28, 31)) + written("one_rank_batch_8_to_16", *range(16, 37)))
    answer = cli("log", "replay", str(log), "--tree", str(tree), "--threshold", "5", "--count", "99")
    assert "saved in a spike from before step 16, where the batch size became larger" in " ".join(answer.stdout.split())
