"""Logs of real MindFormers training runs that were killed and resumed: rightly, and with a fault.

MindFormers restores no random-number state, so after a right resume a model with dropout draws other masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import ExitCode
from ckpttool.core.logs.merge import merge
from ckpttool.postflight.model import Aspect, Comparison, State, Word
from ckpttool.postflight.rules.judge import Resume, compare
from ckpttool.trainers.registry import log_reader
from tests.conftest import FIXTURES
from tests.postflight.logged_runs import BEFORE, SAVES, TRUTH, after, rows_of
from tests.postflight.test_fifteen_logs import metrics, words
from tests.support.commands import Said, ask

LOGS = FIXTURES / "mindformers_resumes"
SAVED = 120
NO_RANDOM_STATE = "MindFormers"


def read(path: Path) -> Sequence[StepMetrics]:
    return merge([(str(path), log_reader(None, curves=True).read(str(path)))]).metrics


def judged(trainer: str, way: str) -> Said:
    logs = ("--before", str(LOGS / f"{trainer}_before.log"), "--after", str(LOGS / f"{trainer}_{way}.log"))
    return ask("postflight", *logs, "--from-step", str(SAVED), "--json")


@pytest.mark.parametrize(
    ("way", "code", "findings"),
    [
        ("right", ExitCode.OK, []),
        ("optimizer_dropped", ExitCode.DAMAGE, ["resume-optimizer-lost"]),
        ("data_not_skipped", ExitCode.DAMAGE, ["resume-data-repeated"]),
    ],
)
def test_a_resume_of_the_static_trainer(way: str, code: ExitCode, findings: list[str]) -> None:
    said = judged("static", way)
    assert (said.code, [finding["code"] for finding in said.json["findings"]]) == (code, findings)


def test_a_right_resume_with_dropout_is_not_accused_even_if_its_first_loss_is_equal_by_luck() -> None:
    said = judged("pynative_dropout", "right")
    assert (said.code, said.json["outcome"]) == (ExitCode.INCOMPLETE, "unknown")
    assert "MindFormers restores no random-number state" in said.json["missing"]


def test_the_same_log_of_a_trainer_that_restores_the_random_numbers_is_wrong() -> None:
    before, second = (read(LOGS / f"pynative_dropout_{name}.log") for name in ("before", "right"))
    assert words(compare(before, second, Resume(saved=Step(SAVED))))
    assert not words(compare(before, second, Resume(saved=Step(SAVED), random_state_lost_by=NO_RANDOM_STATE)))


def compared(way: str, *, rows: int = 30, shift: float = 0.0) -> Comparison:
    """Compare a log of `resumed_runs` as one of a trainer that restores no random numbers."""
    second = [replace(row, loss=(row.loss or 0.0) + shift) for row in metrics(rows_of(after(way)))[:rows]]
    resume = Resume(saved=Step(TRUTH["save"]), saves=tuple(map(Step, SAVES)), random_state_lost_by=NO_RANDOM_STATE)
    return compare(metrics(rows_of(BEFORE)), second, resume)


@pytest.mark.parametrize("rows", [1, 12, 30])
def test_other_random_numbers_are_no_fault(rows: int) -> None:
    assert words(compared("rng_lost", rows=rows)) == []


@pytest.mark.parametrize(
    ("way", "word"),
    [
        ("optimizer_lost", Word.OPTIMIZER),
        ("moments_lost", Word.OPTIMIZER),
        ("from_scratch", Word.SCRATCH),
        ("lr_restarted", Word.LEARNING_RATE),
        ("other_shuffle", Word.DATA_OTHER),
    ],
)
def test_the_other_faults_are_still_found(way: str, word: Word) -> None:
    assert word in words(compared(way))


@pytest.mark.parametrize(("rows", "word"), [(30, Word.CHECKPOINT), (12, Word.DIFFERS)])
def test_a_higher_level_is_not_dropout(rows: int, word: Word) -> None:
    seen = compared("rng_lost", rows=rows, shift=0.3)
    assert (seen.of(Aspect.DATA).state, words(seen)) == (State.PROVEN, [word])


def test_losses_near_the_start_of_the_run_are_not_said_to_be_of_another_checkpoint() -> None:
    assert words(compared("rng_lost", shift=2.0)) == [Word.DIFFERS]
