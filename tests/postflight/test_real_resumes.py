"""What resumes of Transformers and Lightning showed and the fifteen logs do not, made from their rows."""

from __future__ import annotations

import pytest

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.metrics import StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.postflight.model import Aspect, Comparison, State, Word
from ckpttool.postflight.rules.judge import Resume, compare
from tests.postflight.logged_runs import BEFORE, after, rows_of
from tests.postflight.test_fifteen_logs import compared, metrics, states, words

FIRST = metrics(rows_of(BEFORE))
EXACT = metrics(rows_of(after("exact")))
SAVED = Step(500)


def judged(rows: list[StepMetrics], **known: str) -> Comparison:
    return compare(FIRST, rows, Resume(saved=SAVED, **known))  # type: ignore[arg-type]


def with_rate_of(rows: list[StepMetrics], other: list[StepMetrics], count: int) -> list[StepMetrics]:
    """The rows with the learning rates of other rows in the first ones."""
    rates = [row.learning_rate for row in other[:count]] + [row.learning_rate for row in rows[count:]]
    return [replace(row, learning_rate=rate) for row, rate in zip(rows, rates, strict=True)]


class TestLearningRate:
    def test_a_restored_optimizer_has_the_right_rate_until_a_new_scheduler_sets_it(self) -> None:
        restarted = metrics(rows_of(after("lr_restarted")))
        rows = with_rate_of(restarted, EXACT, 1)
        assert words(judged(rows)) == [Word.LEARNING_RATE]
        assert words(judged(with_rate_of(restarted, EXACT, 2))) == [Word.DIFFERS]

    def test_a_new_optimizer_has_its_own_rate_until_the_restored_scheduler_sets_it(self) -> None:
        comparison = judged(with_rate_of(EXACT, FIRST, 1))
        assert words(comparison) == [Word.OPTIMIZER]
        assert comparison.of(Aspect.UPDATE).why.startswith("step 501 has the learning rate of a new optimizer")
        assert words(judged(with_rate_of(EXACT, FIRST, 2))) == [Word.DIFFERS]


class TestNewEpoch:
    """Right rows up to the end of an epoch, and rows with other data after it."""

    @pytest.mark.parametrize("last", [501, 503, 508, 515, 522])
    def test_the_other_order_of_a_new_epoch_is_no_lost_optimizer(self, last: int) -> None:
        other = metrics(rows_of(after("other_shuffle")))
        rows = [*(row for row in EXACT if row.step <= last), *(row for row in other if row.step > last)]
        comparison = judged(rows)
        assert words(comparison) == []
        assert comparison.of(Aspect.DATA).state is State.NOT_SHOWN
        assert comparison.of(Aspect.WEIGHTS).state is State.PROVEN
        expected = State.PROVEN if last >= 510 else State.NOT_SHOWN
        assert comparison.of(Aspect.UPDATE).state is expected
        assert f"from step {last + 1} on" in comparison.of(Aspect.DATA).why

    @pytest.mark.parametrize("way", ["optimizer_lost", "moments_lost"])
    def test_wrong_updates_are_no_other_data(self, way: str) -> None:
        assert words(compared(way)) == [Word.OPTIMIZER]

    def test_few_rows_do_not_distinguish_them(self) -> None:
        rows = metrics(rows_of(after("optimizer_lost")))
        assert words(judged(rows[:4])) == []
        assert words(judged(rows[:5])) == [Word.OPTIMIZER]


class TestRandomState:
    """A trainer that restores no random-number state."""

    @pytest.mark.parametrize("way", ["rng_lost", "exact"])
    def test_other_masks_are_no_fault(self, way: str) -> None:
        comparison = judged(metrics(rows_of(after(way))), random_state_lost_by="T")
        assert words(comparison) == []
        assert (states(comparison) == [State.PROVEN] * 4) == (way == "exact")

    @pytest.mark.parametrize(
        ("way", "word"),
        [
            ("other_shuffle", Word.DATA_OTHER),
            ("optimizer_lost", Word.OPTIMIZER),
            ("lr_restarted", Word.LEARNING_RATE),
            ("from_scratch", Word.SCRATCH),
        ],
    )
    def test_the_faults_that_are_larger_are_still_named(self, way: str, word: Word) -> None:
        assert words(judged(metrics(rows_of(after(way))), random_state_lost_by="T")) == [word]

    @pytest.mark.parametrize(
        ("way", "higher", "rows", "found"),
        [
            ("rng_lost", 0.1, 30, []),
            ("rng_lost", 0.3, 30, [Word.CHECKPOINT]),
            ("rng_lost", 0.8, 5, []),
            ("rng_lost", 1.5, 5, [Word.DIFFERS]),
            ("lr_restarted", 0.3, 30, [Word.LEARNING_RATE]),
        ],
    )
    def test_a_higher_level_of_the_loss_is_not_that_of_other_masks(
        self, way: str, higher: float, rows: int, found: list[Word]
    ) -> None:
        noise = judged(EXACT).loss_noise or 0
        resumed = [
            replace(row, loss=(row.loss or 0) + (higher * noise if place < rows else 0))
            for place, row in enumerate(metrics(rows_of(after(way))))
        ]
        assert words(judged(resumed, random_state_lost_by="T")) == found


class TestStart:
    """Runs whose step counter begins again."""

    def numbered(self, rows: list[StepMetrics]) -> list[StepMetrics]:
        return [replace(row, step=Step(place)) for place, row in enumerate(rows, 1)]

    def test_fresh_weights_are_named(self) -> None:
        comparison = judged(self.numbered(metrics(rows_of(after("from_scratch")))))
        assert (words(comparison), comparison.loaded) == ([Word.POSITION, Word.SCRATCH], None)
        assert comparison.repeated == ()

    def test_a_repetition_of_the_first_run_has_fresh_weights(self) -> None:
        comparison = compare(FIRST, FIRST[:20], Resume(saved=SAVED))
        assert words(comparison) == [Word.POSITION, Word.SCRATCH]

    def test_trained_weights_without_anything_else_are_no_fresh_ones(self) -> None:
        comparison = judged(self.numbered(EXACT))
        assert words(comparison) == [Word.POSITION]
        assert "only weights may have been loaded" in comparison.of(Aspect.WEIGHTS).why
