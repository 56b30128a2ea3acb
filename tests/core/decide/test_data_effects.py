"""Where a trainer goes on by itself: what becomes of the samples is counted in whole numbers, or said to be unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.decide.data_effects import (
    Consumed,
    against_size,
    batches_read,
    by_samples,
    by_step,
    consumed,
    effect_findings,
    place,
    restarting,
    stray_taken,
)
from ckpttool.core.domain.checkpoint import Inventory
from ckpttool.core.domain.data_position import BatchSegment, DataEffect, DataQuestion, GoesOn, SampleSource
from ckpttool.core.domain.finding import Code, Row, Severity
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.question import AskedSizes
from ckpttool.core.domain.scalars import Scalars
from tests.support.plans import resume_plan

SIZES = st.integers(1, 10_000)
STEPS = st.integers(0, 10**9)
EPOCHS = st.integers(1, 10**6)


def read(samples: int | None, old: int | None, new: int | None) -> Consumed:
    source = None if samples is None else SampleSource.COMPUTED
    return Consumed(samples=samples, source=source, old_batch=old, new_batch=new)


class TestByStep:
    def test_twice_the_batch_loses_what_the_step_now_counts_double(self) -> None:
        """As the trainer that recomputes did it: 12 steps of 4 in 40 samples an epoch, resumed with batches of 8."""
        told = by_step(12, read(48, 4, 8), epoch_steps=10, why="")
        assert (told.effect, told.lost, told.repeated, told.samples, told.batches) == (DataEffect.LOSES, 48, 0, 48, 12)

    def test_half_the_batch_repeats_them(self) -> None:
        told = by_step(12, read(48, 4, 2), epoch_steps=10, why="")
        assert (told.effect, told.lost, told.repeated) == (DataEffect.REPEATS, 0, 24)

    def test_a_last_step_of_an_epoch_that_is_short_counts_what_it_has(self) -> None:
        """As the trainer did it: 30 samples an epoch, steps of 8, of which the fourth has 6."""
        told = by_step(12, read(None, 8, 8), epoch_steps=4, epoch_samples=30, why="")
        assert (told.effect, told.samples) == (DataEffect.EXACT, 90)

    @given(STEPS, SIZES, st.none() | EPOCHS)
    def test_with_the_same_size_nothing_is_repeated_or_lost(self, step: int, batch: int, epoch: int | None) -> None:
        told = by_step(step, read(step * batch, batch, batch), epoch_steps=epoch, why="")
        assert (told.effect, told.lost, told.repeated) == (DataEffect.EXACT, 0, 0)

    @given(STEPS, SIZES, SIZES, st.none() | EPOCHS)
    def test_never_both_and_as_many_as_lie_between_the_two_places(
        self, step: int, old: int, new: int, epoch: int | None
    ) -> None:
        told = by_step(step, read(None, old, new), epoch_steps=epoch, why="")
        assert told.lost is not None
        assert told.repeated is not None
        assert not (told.lost and told.repeated)
        samples = None if epoch is None else epoch * old
        then = place(step, batch=old, epoch_steps=epoch, epoch_samples=samples)
        steps = None if samples is None else -(-samples // new)
        now = place(step, batch=new, epoch_steps=steps, epoch_samples=samples)
        assert told.lost - told.repeated == now - then
        assert told.samples == then

    def test_where_no_size_is_known_it_is_exact_only_while_none_is_asked_for(self) -> None:
        assert by_step(12, read(None, None, None), epoch_steps=None, why="").effect is DataEffect.EXACT
        assert by_step(12, read(None, None, 8), epoch_steps=None, why="").effect is DataEffect.UNKNOWN


class TestPlace:
    @given(STEPS, SIZES, EPOCHS)
    def test_a_step_never_goes_back(self, step: int, batch: int, samples: int) -> None:
        steps = -(-samples // batch)
        here, next_ = (place(each, batch=batch, epoch_steps=steps, epoch_samples=samples) for each in (step, step + 1))
        assert 0 < next_ - here <= batch

    @given(SIZES, EPOCHS, st.integers(0, 1000))
    def test_whole_epochs_are_whole_epochs_whatever_their_last_batch_has(
        self, batch: int, samples: int, epochs: int
    ) -> None:
        steps = -(-samples // batch)
        assert place(epochs * steps, batch=batch, epoch_steps=steps, epoch_samples=samples) == epochs * samples

    @pytest.mark.parametrize(("step", "batch", "epoch"), [(-1, 1, 1), (1, 0, 1), (1, 1, -1)])
    def test_what_is_no_size_is_refused(self, step: int, batch: int, epoch: int) -> None:
        with pytest.raises(ValueError, match="sizes >= 1"):
            place(step, batch=batch, epoch_steps=epoch, epoch_samples=epoch)


class TestBySamples:
    @given(st.integers(0, 10**12), SIZES, SIZES)
    def test_it_is_exact_whatever_the_batches_are(self, samples: int, old: int, new: int) -> None:
        told = by_samples(7, read(samples, old, new), why="")
        assert (told.effect, told.lost, told.repeated, told.samples) == (DataEffect.EXACT, 0, 0, samples)

    def test_where_nobody_counted_them_it_is_unknown_and_not_exact(self) -> None:
        assert by_samples(7, read(None, None, 8), why="").effect is DataEffect.UNKNOWN
        assert by_samples(7, read(80, None, None), why="").batches is None


class TestBatchesRead:
    @pytest.mark.parametrize(("old", "new", "batches"), [(8, 8, 10), (8, 4, 20), (None, 8, 10), (8, None, None)])
    def test_samples_make_so_many_batches_of_the_new_size(
        self, old: int | None, new: int | None, batches: int | None
    ) -> None:
        assert batches_read(10, read(80, old, new)) == batches

    def test_where_the_size_changed_on_the_way_no_number_of_batches_is_told(self) -> None:
        assert batches_read(200, read(4800, 64, 64)) is None
        assert batches_read(75, read(4800, 64, 64)) == 75

    def test_where_nobody_counted_the_samples_none_is_told(self) -> None:
        assert batches_read(200, read(None, 64, 64)) is None


class TestRestarting:
    def test_what_was_read_of_the_epoch_is_read_again_and_as_much_is_never_reached(self) -> None:
        told = restarting(read(48, 4, 4), epoch_samples=40, why="")
        assert (told.effect, told.repeated, told.lost) == (DataEffect.RESTARTS, 8, 8)

    def test_at_the_end_of_an_epoch_nothing_is_read_again(self) -> None:
        assert restarting(read(80, 4, 4), epoch_samples=40, why="").effect is DataEffect.EXACT

    @pytest.mark.parametrize(("samples", "epoch"), [(None, 40), (48, None)])
    def test_how_many_is_unknown_where_one_number_is(self, samples: int | None, epoch: int | None) -> None:
        told = restarting(read(samples, 4, 4), epoch_samples=epoch, why="")
        assert (told.effect, told.repeated) == (DataEffect.RESTARTS, None)


class TestConsumed:
    """From the plan: step 30 of batches of 8."""

    def asked(self, scalars: Scalars, **question: object) -> Consumed:
        plan = resume_plan()
        checkpoint = replace(plan.point.checkpoint, scalars=scalars)
        plan = replace(plan, point=replace(plan.point, checkpoint=checkpoint))
        return consumed(plan, inventory(plan), DataQuestion(**question))  # type: ignore[arg-type]  # as a test gives it

    def test_the_saves_own_count_is_believed_before_step_and_size(self) -> None:
        told = self.asked(Scalars(step=30, samples=200, global_batch_size=8), new_global_batch=4)
        assert told == Consumed(samples=200, source=SampleSource.CONTENT, old_batch=8, new_batch=4)
        assert told.changes

    def test_else_it_is_computed_by_the_size_that_is_recorded_or_told(self) -> None:
        assert self.asked(Scalars(step=30, global_batch_size=8)).samples == 240
        told = self.asked(Scalars(step=30), old_global_batch=4)
        assert (told.samples, told.source, told.new_batch) == (120, SampleSource.COMPUTED, 4)
        assert not told.changes

    def test_a_past_of_several_sizes_is_summed(self) -> None:
        past = (BatchSegment(steps=10, global_batch_size=4), BatchSegment(steps=20, global_batch_size=8))
        assert self.asked(Scalars(step=30), segments=past, new_global_batch=8).samples == 200

    def test_without_a_size_nothing_is_known_and_nothing_is_refused(self) -> None:
        told = self.asked(Scalars(step=30), new_global_batch=16)
        assert told == Consumed(samples=None, source=None, old_batch=None, new_batch=16)
        assert told.changes  # it may be another one, which is never called exact
        assert not self.asked(Scalars(step=30)).changes


def inventory(plan: ResumePlan) -> Inventory:
    return Inventory(root="out", layout="x", checkpoints=(plan.point.checkpoint,), runs=(), findings=())


class TestAsFindings:
    @pytest.mark.parametrize(
        ("effect", "code", "severity"),
        [
            (DataEffect.RESTARTS, Code.DATA_RESTARTS, Severity.SUSPECT),
            (DataEffect.REORDERS, Code.DATA_REORDERED, Severity.NOTE),
            (DataEffect.REFUSES, Code.WORLD_SIZE_REFUSED, Severity.SUSPECT),
        ],
    )
    def test_what_a_reader_must_not_miss_is_one(self, effect: DataEffect, code: Row, severity: Severity) -> None:
        (found,) = effect_findings(GoesOn(effect=effect, why="it is so"), title="Toy", remedy="do this")
        assert (found.code, found.severity, found.remedy) == (code, severity, "do this")
        assert "Toy" in found.message
        assert found.message.endswith(": it is so")

    @pytest.mark.parametrize(
        ("position", "said"),
        [
            (GoesOn(effect=DataEffect.LOSES, lost=48, repeated=0), "Toy skips 48 samples"),
            (GoesOn(effect=DataEffect.REPEATS, lost=0, repeated=1), "Toy reads 1 sample again"),
            (GoesOn(effect=DataEffect.REPEATS), "Toy reads an unknown number of samples again"),
        ],
    )
    def test_samples_that_are_lost_or_repeated_are_counted_in_it(self, position: GoesOn, said: str) -> None:
        (found,) = effect_findings(position, title="Toy")
        assert (found.code, found.severity, found.message) == (Code.DATA_MISPLACED, Severity.SUSPECT, said)

    @pytest.mark.parametrize("effect", [DataEffect.EXACT, DataEffect.UNKNOWN])
    def test_the_rest_stands_in_the_answer_itself(self, effect: DataEffect) -> None:
        assert effect_findings(GoesOn(effect=effect), title="Toy") == ()

    def test_a_stray_is_a_note_and_suspect_where_it_stops_a_start_that_names_a_save(self) -> None:
        weights = [
            stray_taken("step-9.bak", title="Toy", instead="and stop", remedy="move it", stops=stops).severity
            for stops in (False, True)
        ]
        assert weights == [Severity.NOTE, Severity.SUSPECT]


class TestAgainstSize:
    SAVED = AskedSizes(world=4, tensor=2, data=2)

    @pytest.mark.parametrize("asked", [AskedSizes(), AskedSizes(world=4), AskedSizes(tensor=2, pipeline=8)])
    def test_what_nobody_asks_or_the_save_does_not_tell_is_no_other_size(self, asked: AskedSizes) -> None:
        assert against_size(resume_plan().point.checkpoint, asked, saved=self.SAVED, refuses="no") == []

    def test_another_size_is_a_note_where_it_is_cut_anew_and_a_reason_where_it_is_not(self) -> None:
        checkpoint, asked = resume_plan().point.checkpoint, AskedSizes(world=8, tensor=4)
        (told,) = against_size(checkpoint, asked, saved=self.SAVED, refuses=None)
        assert (told.code, told.severity) == (Code.WORLD_SIZE_DIFFERS, Severity.NOTE)
        (refused,) = against_size(checkpoint, asked, saved=self.SAVED, refuses="its optimizer state is cut by rank")
        assert (refused.code, refused.severity) == (Code.WORLD_SIZE_REFUSED, Severity.SUSPECT)
        assert "--world-size 8, not 4 and --tp 4, not 2" in refused.message
        assert refused.remedy == "start with --world-size 4, --tp 2"
