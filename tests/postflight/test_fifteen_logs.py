"""Fifteen resumes of one training with their truth: what each log shows, by the rules alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.postflight.model import Aspect, Comparison, State, Word
from ckpttool.postflight.rules.judge import NothingToCompare, Resume, compare
from tests.postflight.logged_runs import BEFORE, SAVES, TRUTH, Row, after, rows_of

RIGHT = ("exact", "other_arithmetic", "weights_in_bf16")

WORDS = {
    "optimizer_lost": Word.OPTIMIZER,
    "moments_lost": Word.OPTIMIZER,
    "lr_restarted": Word.LEARNING_RATE,
    "data_from_start": Word.DATA_REPEATED,
    "data_one_step_back": Word.DATA_REPEATED,
    "data_skipped_twice": Word.DATA_OTHER,
    "other_shuffle": Word.DATA_OTHER,
    "older_save": Word.POSITION,
    "older_weights_newer_counter": Word.CHECKPOINT,
    "from_scratch": Word.SCRATCH,
}

ALARMS = ("rng_lost",)
"""Something is wrong, and a word is allowed but not required."""

ELSEWHERE = ("batch_doubled",)
"""The rules compare step by step; `test_command.py` compares the losses of the same samples instead."""


def metrics(rows: list[Row]) -> list[StepMetrics]:
    return [
        StepMetrics(
            step=Step(int(row["step"])),
            loss=float(row["loss"]),
            global_norm=float(row["grad_norm"]),
            learning_rate=float(row["lr"]),
        )
        for row in rows
    ]


def compared(way: str, saves: Sequence[int] = SAVES) -> Comparison:
    resume = Resume(saved=Step(TRUTH["save"]), saves=tuple(map(Step, saves)))
    return compare(metrics(rows_of(BEFORE)), metrics(rows_of(after(way))), resume)


def states(comparison: Comparison) -> list[State]:
    return [judged.state for judged in comparison.aspects]


def words(comparison: Comparison) -> list[Word]:
    return [judged.word for judged in comparison.aspects if judged.word is not None]


def test_every_log_is_judged() -> None:
    assert {*RIGHT, *WORDS, *ALARMS, *ELSEWHERE} == {*TRUTH["ways"]}


@pytest.mark.parametrize("way", RIGHT)
def test_a_right_resume_is_proven_in_all_parts(way: str) -> None:
    assert states(compared(way)) == [State.PROVEN] * 4


@pytest.mark.parametrize("way", WORDS)
def test_a_fault_has_its_word(way: str) -> None:
    comparison = compared(way)
    assert WORDS[way] in words(comparison)
    assert State.CONTRADICTED in states(comparison)
    assert comparison.loaded == TRUTH["ways"][way]["loaded"] or way == "older_weights_newer_counter"


@pytest.mark.parametrize("way", ALARMS)
def test_a_fault_without_a_sure_word_raises_an_alarm(way: str) -> None:
    comparison = compared(way)
    assert State.CONTRADICTED in states(comparison)
    assert words(comparison)[0] in {Word.RANDOM, Word.DIFFERS}


@pytest.mark.parametrize("way", ["optimizer_lost", "lr_restarted"])
def test_a_fault_of_the_update_leaves_data_and_weights_proven(way: str) -> None:
    comparison = compared(way)
    assert comparison.of(Aspect.DATA).state is comparison.of(Aspect.WEIGHTS).state is State.PROVEN
    assert comparison.of(Aspect.UPDATE).state is State.CONTRADICTED


@pytest.mark.parametrize("saves", [SAVES, (), (50, 100)], ids=["in the tree", "unknown", "deleted"])
def test_an_older_save_is_compared_from_its_own_step_on(saves: Sequence[int]) -> None:
    comparison = compared("older_save", saves)
    assert (comparison.loaded, comparison.first, words(comparison)) == (450, 451, [Word.POSITION])
    assert states(comparison)[1:] == [State.PROVEN] * 3
    assert comparison.repeated[0].step == 451


def test_a_sparse_log_does_not_show_which_older_save_was_loaded() -> None:
    rows = [row for row in rows_of(BEFORE) if not int(row["step"]) % 10]
    later = [row for row in rows_of(after("older_save")) if not int(row["step"]) % 10]
    comparison = compare(metrics(rows), metrics(later), Resume(saved=Step(500)))
    assert (comparison.loaded, words(comparison)) == (None, [Word.POSITION])
    assert compare(metrics(rows), metrics(later), Resume(saved=Step(500), saves=(Step(450),))).loaded == 450


def test_weights_that_cannot_be_judged_name_other_data_only_if_the_log_shows_them() -> None:
    assert compared("other_shuffle").of(Aspect.WEIGHTS).why == "the data differ"
    rows = metrics(rows_of(after("other_shuffle")))[:2]
    comparison = compare(metrics(rows_of(BEFORE)), rows, Resume(saved=Step(500)))
    assert comparison.of(Aspect.DATA).state is State.NOT_SHOWN
    assert comparison.of(Aspect.WEIGHTS).why == "it is not shown that the data are the same"


def test_nothing_is_compared_without_a_step_before_the_save() -> None:
    rows = metrics(rows_of(after("exact")))
    with pytest.raises(NothingToCompare, match="no step before the save"):
        compare(rows, rows, Resume(saved=Step(500)))
    with pytest.raises(NothingToCompare, match="not logged a step yet"):
        compare(rows, [], Resume(saved=Step(500)))
