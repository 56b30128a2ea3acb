"""Where Trainer's data go on: exact only as the real library was seen to be, else unknown, with the condition said.

What each version did is told where the effects are reckoned; the trees are those of `fixtures/layouts`: 10 steps of 4
an epoch, saved at steps 4 and 8 of the first epoch and at step 12, in the second.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.data_position import DataEffect, GoesOn
from ckpttool.core.domain.finding import Code
from ckpttool.trainers.huggingface.record import Epochs, State
from ckpttool.types import ResumeQuestion, TreeQuestion
from tests.support.answers import codes, document, goes_on, plan
from tests.support.trainer_trees import edit_json, healthy, recount

EXACT, UNKNOWN, LOSES, REPEATS, RESTARTS = (
    DataEffect.EXACT,
    DataEffect.UNKNOWN,
    DataEffect.LOSES,
    DataEffect.REPEATS,
    DataEffect.RESTARTS,
)
FIRST, SECOND = "checkpoint-8", "checkpoint-12"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return healthy("hf_single", tmp_path)


def arguments(run: Path, **values: object) -> Path:
    """A file of arguments, as HfArgumentParser reads it."""
    file = run.parent / "args.yaml"
    lines = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "save_steps": 4, **values}
    file.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in lines.items()))
    return file


def accumulate_four(save: Path) -> None:
    """Let the arguments of a save say that a step took four micro batches."""
    recount(save / "training_args.bin", "gradient_accumulation_steps", 1, 4)


def position(run: Path, name: str, config: Path | None = None) -> GoesOn:
    read = None if config is None else ckpttool.library.read_config(str(config))
    tree = TreeQuestion(path=str(run), config=read)
    return goes_on(plan(run, tree=tree, choice=ResumeQuestion(name=name)))


def document_of(run: Path, name: str, *options: str) -> dict[str, object]:
    told: dict[str, object] = document("resolve", str(run), "--checkpoint", name, *options)["position"]
    return told


class TestALaterEpoch:
    """accelerate before 1.15 reads the rest of a later epoch in the first one's order."""

    def test_within_the_first_one_it_is_exact_while_the_sizes_stay(self, run: Path) -> None:
        told = document_of(run, FIRST)
        assert told["effect"] == "exact"
        assert told["exact_if"] == [
            "per_device_train_batch_size, gradient_accumulation_steps and the number of ranks are unchanged"
        ]

    def test_within_the_second_one_it_is_unknown_and_the_version_that_proves_it_is_named(self, run: Path) -> None:
        told = document_of(run, SECOND)
        assert told["effect"] == "unknown"
        assert "accelerate is 1.15 or newer" in told["exact_if"]  # type: ignore[operator]  # JSON
        assert "within epoch 2" in str(told["why"])

    def test_at_the_end_of_one_it_is_exact(self, run: Path) -> None:
        edit_json(run / SECOND / "trainer_state.json", epoch=2.0)
        assert position(run, SECOND).effect is EXACT

    def test_where_nothing_tells_the_epoch_it_is_unknown(self, run: Path) -> None:
        edit_json(run / FIRST / "trainer_state.json", epoch=None)
        told = position(run, FIRST)
        assert told.effect is UNKNOWN
        assert "accelerate is 1.15 or newer" in told.exact_if


class TestTheSameStepSplitOtherwise:
    """Up to transformers 5.1 the loader keeps the micro batch of the state, whatever the arguments say."""

    def version(self, run: Path, told: str | None) -> None:
        for save in (FIRST, SECOND):
            config = run / save / "config.json"
            if told is None:
                config.unlink()
            else:
                edit_json(config, transformers_version=told)

    @pytest.mark.parametrize(
        ("version", "effect"),
        [("4.57.3", LOSES), ("5.1.0", LOSES), ("5.2.0", EXACT), ("5.23.0", EXACT), (None, UNKNOWN), ("x", UNKNOWN)],
    )
    def test_two_by_two_for_four_by_one(self, run: Path, version: str | None, effect: DataEffect) -> None:
        """With 4.57 the loader gives 4 again, twice a step: as many steps pass over twice as many samples."""
        self.version(run, version)
        config = arguments(run, per_device_train_batch_size=2, gradient_accumulation_steps=2)
        told = position(run, FIRST, config)
        assert (told.effect, told.exact_if) == (effect, ("transformers is 5.2 or newer",))

    def test_a_larger_micro_batch_that_old_versions_do_not_take_is_exact_with_those_alone(self, run: Path) -> None:
        config = arguments(run, per_device_train_batch_size=8)
        told = position(run, FIRST, config)
        assert (told.effect, told.exact_if) == (LOSES, ("transformers is older than 5.2",))
        self.version(run, None)
        told = position(run, FIRST, config)
        assert (told.effect, told.exact_if) == (UNKNOWN, ("transformers is older than 5.2",))

    @pytest.mark.parametrize(("micro", "accumulation", "repeated"), [(2, 2, 16), (4, 1, 24)])
    def test_one_by_four_repeats_as_in_the_real_run(
        self, run: Path, micro: int, accumulation: int, repeated: int
    ) -> None:
        """Micro batches of 1 stay: after 8 steps of 4 the loader passes over 8 steps of 2 or 1."""
        self.version(run, "4.57.3")
        for save in (FIRST, SECOND):
            edit_json(run / save / "trainer_state.json", train_batch_size=1)
            accumulate_four(run / save)
        config = arguments(run, per_device_train_batch_size=micro, gradient_accumulation_steps=accumulation)
        told = position(run, FIRST, config)
        assert (told.effect, told.repeated, told.exact_if) == (REPEATS, repeated, ("transformers is 5.2 or newer",))

    def test_devices_that_one_rank_drives_are_no_other_split(self, run: Path) -> None:
        """Two devices of 4 each: the state says 8, the arguments 4."""
        self.version(run, "4.57.3")
        for save in (FIRST, SECOND):
            edit_json(run / save / "trainer_state.json", train_batch_size=8)
        assert position(run, FIRST, arguments(run)).effect is EXACT


class TestAutoFindBatchSize:
    """All versions go on with the micro batch that was found, which the state names."""

    @pytest.mark.parametrize("version", ["4.57.3", "5.23.0"])
    def test_a_size_that_was_halved_is_no_other_size(self, run: Path, version: str) -> None:
        edit_json(run / FIRST / "config.json", transformers_version=version)
        config = arguments(run, per_device_train_batch_size=8, auto_find_batch_size=True)
        told = plan(
            run,
            tree=TreeQuestion(path=str(run), config=ckpttool.library.read_config(str(config))),
            choice=ResumeQuestion(name=FIRST),
        )
        assert goes_on(told).effect is EXACT
        assert Code.DATA_MISPLACED not in codes(told.findings)


class TestDataWithoutALength:
    def streamed(self, run: Path, name: str, epoch: float | None) -> GoesOn:
        edit_json(run / name / "trainer_state.json", num_train_epochs=sys.maxsize, max_steps=30, epoch=epoch)
        return position(run, name)

    def test_in_the_first_pass_it_is_exact_while_they_come_in_the_same_order(self, run: Path) -> None:
        told = self.streamed(run, SECOND, 12 / 30)
        assert told.effect is EXACT
        assert "the data, which has no length, comes in the same order again" in told.exact_if

    def test_in_the_second_pass_it_begins_them_anew(self, run: Path) -> None:
        assert self.streamed(run, SECOND, 1 + 12 / 30).effect is RESTARTS


@pytest.mark.parametrize(("told", "effect"), [(True, RESTARTS), (False, EXACT)])
def test_a_config_that_says_whether_data_are_skipped_is_believed(run: Path, told: object, effect: DataEffect) -> None:
    assert position(run, FIRST, arguments(run, ignore_data_skip=told)).effect is effect


class TestShortLastSteps:
    """Of 30 samples an epoch, in micro batches of 2 of which a step takes 4, the last step has 6."""

    def state(self, step: int, epoch: float | None, logged: tuple[int, float] | None = None) -> State:
        return State(step=step, epoch=epoch, micro_batch=2, best=None, logged=logged)

    @pytest.mark.parametrize(
        ("step", "epoch"), [(1, 0.26666666666666666), (3, 0.8), (5, 1.2666666666666666), (11, 2.8)]
    )
    def test_an_epoch_s_length_follows_from_any_place_within_one(self, step: int, epoch: float) -> None:
        assert self.state(step, epoch).epochs(4) == Epochs(steps=4, batches=15)

    def test_at_its_end_the_log_tells(self) -> None:
        assert self.state(12, 3.0, (5, 1.2666666666666666)).epochs(4) == Epochs(steps=4, batches=15)
        assert self.state(12, 3.0).epochs(4) == Epochs(steps=4, batches=None)

    def test_a_fraction_that_fits_no_length_is_rounded_as_it_always_was(self) -> None:
        assert self.state(12, 1.19).epochs(1) == Epochs(steps=10, batches=10)
        assert self.state(12, 1.2).epochs(None) == Epochs(steps=10, batches=None)

    @pytest.mark.parametrize("epoch", [None, 0.0, -1.0, 1e-300, float("inf"), float("nan")])
    def test_an_epoch_that_no_training_counts_tells_nothing(self, epoch: float | None) -> None:
        assert self.state(12, epoch).epochs(1) is None

    def test_samples_are_counted_by_them(self, run: Path) -> None:
        """12 steps of 4, 15 samples an epoch of which a step takes 4 micro batches of 1: 45 samples, not 48."""
        accumulate_four(run / SECOND)
        history = [{"epoch": 1 + 4 / 15, "step": 5}, {"epoch": "x", "step": 6}, 7]
        edit_json(
            run / SECOND / "trainer_state.json", epoch=3.0, train_batch_size=1, log_history=[*history[1:], history[0]]
        )
        told = position(run, SECOND)
        assert (told.samples, told.effect) == (45, EXACT)

    @pytest.mark.parametrize(("name", "is_said"), [(FIRST, False), (SECOND, True)])
    def test_a_last_batch_that_may_be_short_counts_as_a_full_one(
        self,
        run: Path,
        name: str,
        is_said: bool,
    ) -> None:
        assert ("an epoch's last batch is counted as full" in str(position(run, name).why)) is is_said
