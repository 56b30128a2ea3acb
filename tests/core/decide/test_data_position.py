"""The data position is exact: no sample is lost, and no more than needed is seen twice."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.decide.data_position import exact_batches_near, moved_on, next_step, plan_data, skip_seen_data
from ckpttool.core.domain.data_position import BatchSegment, DataEffect, DataQuestion, PastSizes
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import UsageError

SIZES = st.integers(1, 10_000)
SEGMENTS = st.lists(st.builds(BatchSegment, steps=st.integers(0, 10**9), global_batch_size=SIZES), max_size=6)
SINKS = st.none() | st.integers(1, 1000)


def segment(steps: int, batch: int) -> BatchSegment:
    return BatchSegment(steps=steps, global_batch_size=batch)


class TestSkipSeenData:
    @given(SEGMENTS, SIZES, SINKS)
    def test_it_is_the_sum_of_fractions_floored_once(
        self, past: list[BatchSegment], new: int, sink: int | None
    ) -> None:
        unit = new * (sink or 1)
        whole = floor(sum((Fraction(one.steps * one.global_batch_size, unit) for one in past), Fraction(0)))
        assert skip_seen_data(past, new_global_batch=new, sink_size=sink).batches == whole * (sink or 1)

    @given(SEGMENTS, SIZES, SINKS)
    def test_no_sample_is_lost_and_less_than_one_sink_is_seen_twice(
        self, past: list[BatchSegment], new: int, sink: int | None
    ) -> None:
        seen = sum(one.steps * one.global_batch_size for one in past)
        skip = skip_seen_data(past, new_global_batch=new, sink_size=sink)
        assert skip.batches * new <= seen
        assert skip.repeated_samples == seen - skip.batches * new
        assert 0 <= skip.repeated_samples < new * (sink or 1)
        assert skip.batches % (sink or 1) == 0
        assert skip.samples == seen

    @given(SEGMENTS, SEGMENTS, SIZES, SINKS)
    def test_only_the_sum_of_samples_counts_and_not_how_the_past_is_cut_into_segments(
        self, one: list[BatchSegment], other: list[BatchSegment], new: int, sink: int | None
    ) -> None:
        seen = sum(part.steps * part.global_batch_size for part in (*one, *other))
        whole = skip_seen_data([*one, *other], new_global_batch=new, sink_size=sink)
        assert whole == skip_seen_data([*other, *one], new_global_batch=new, sink_size=sink)
        assert whole == skip_seen_data([segment(seen, 1)], new_global_batch=new, sink_size=sink)

    @given(st.integers(0, 10**12), SIZES)
    def test_with_nothing_changed_it_is_the_step(self, step: int, batch: int) -> None:
        skip = skip_seen_data([segment(step, batch)], new_global_batch=batch)
        assert (skip.batches, skip.repeated_samples) == (step, 0)

    @pytest.mark.parametrize(
        ("past", "new", "sink"),
        [
            ([segment(1, 8)], 0, None),
            ([segment(1, 0)], 8, None),
            ([segment(-1, 8)], 8, None),
            ([segment(1, 8)], 8, 0),
        ],
    )
    def test_sizes_below_one_and_negative_steps_are_refused(
        self, past: list[BatchSegment], new: int, sink: int | None
    ) -> None:
        with pytest.raises(ValueError, match="need steps >= 0"):
            skip_seen_data(past, new_global_batch=new, sink_size=sink)

    def test_step_zero_at_size_one_is_not_refused(self) -> None:
        assert skip_seen_data([segment(0, 1)], new_global_batch=1, sink_size=1).batches == 0


class TestPlanData:
    def test_the_same_data_at_the_same_size_skips_the_step(self) -> None:
        plan = plan_data(Step(30), 8, DataQuestion())
        assert (plan.batches, plan.repeated_samples, next_step(Step(30), 8, DataQuestion())) == (30, 0, 31)

    def test_a_larger_batch_skips_fewer_and_tells_what_is_seen_twice(self) -> None:
        question = DataQuestion(new_global_batch=24)
        plan, go_on = plan_data(Step(50), 16, question), next_step(Step(50), 16, question)
        assert (plan.batches, plan.repeated_samples, go_on) == (33, 8, 34)

    def test_sinks_round_the_data_down_but_not_the_step(self) -> None:
        question = DataQuestion(new_global_batch=24, sink_size=2)
        plan, go_on = plan_data(Step(50), 16, question), next_step(Step(50), 16, question)
        assert (plan.batches, plan.repeated_samples, go_on) == (32, 32, 34)

    def test_a_new_data_set_starts_at_its_beginning_by_the_setting_that_does_it(self) -> None:
        question = DataQuestion(new_dataset=True)
        plan, go_on = plan_data(Step(30), 8, question), next_step(Step(30), 8, question)
        assert plan.effect is DataEffect.RESTARTS
        assert (plan.batches, plan.repeated_samples, go_on) == (0, 0, 31)

    def test_a_data_set_that_changed_before_skips_only_what_came_since(self) -> None:
        question = DataQuestion(dataset_changed_at=Step(10))
        plan, go_on = plan_data(Step(30), 8, question), next_step(Step(30), 8, question)
        assert (plan.batches, plan.samples, go_on) == (
            20,
            160,
            31,
        )

    def test_a_data_set_that_changed_just_now_is_a_new_one(self) -> None:
        assert plan_data(Step(30), 8, DataQuestion(dataset_changed_at=Step(30))).batches == 0

    @pytest.mark.parametrize("changed_at", [31, -1])
    @pytest.mark.parametrize("recorded", [8, None])
    def test_a_change_after_the_checkpoint_cannot_be_meant(self, changed_at: int, recorded: int | None) -> None:
        with pytest.raises(UsageError, match="is not between 0 and the checkpoint's step 30"):
            plan_data(Step(30), recorded, DataQuestion(dataset_changed_at=Step(changed_at)))

    def test_segments_tell_what_no_shard_records_and_the_rest_ran_at_the_recorded_size(self) -> None:
        question = DataQuestion(segments=(segment(10, 4),), new_global_batch=4)
        past = PastSizes(batch_sizes=(8,), unrecorded_steps=10)
        assert plan_data(Step(30), 8, question, past).samples == 10 * 4 + 20 * 8
        old = DataQuestion(segments=(segment(10, 4),), new_global_batch=4, old_global_batch=8)
        assert plan_data(Step(30), None, old).samples == 10 * 4 + 20 * 8

    @pytest.mark.parametrize("told", [(segment(6, 2),), (segment(6, 2), segment(15, 4)), (segment(11, 4),)])
    def test_segments_that_contradict_what_the_shards_record_are_refused(self, told: tuple[BatchSegment, ...]) -> None:
        """6 steps of 2 samples, then of 4: at step 21 the training had seen 84 samples, and the record says so."""
        with pytest.raises(UsageError, match=r"step 21 counts batches of 4 .* so 84 samples were read"):
            plan_data(Step(21), 4, DataQuestion(segments=told), PastSizes(batch_sizes=(2, 4), unrecorded_steps=5))
        assert plan_data(Step(21), 4, DataQuestion()).batches == 21

    def test_one_segment_of_all_steps_overrules_a_record_that_is_wrong(self) -> None:
        question = DataQuestion(segments=(segment(30, 2),), new_global_batch=2)
        assert plan_data(Step(30), 8, question).samples == 60

    def test_a_change_of_data_inside_a_segment_drops_the_steps_before_it(self) -> None:
        question = DataQuestion(
            segments=(segment(10, 4), segment(10, 6)), dataset_changed_at=Step(15), old_global_batch=8
        )
        assert plan_data(Step(30), None, question).samples == 5 * 6 + 10 * 8

    def test_a_change_of_data_is_counted_as_the_run_in_which_it_was(self) -> None:
        """27 steps of 2 samples went on as 13 of 4: new data since then are 9 steps, not 22 and not -5."""
        past = PastSizes(batch_sizes=(2, 4))
        told = DataQuestion(dataset_changed_at=Step(27), dataset_changed_batch=2)
        assert plan_data(Step(22), 4, told, past).batches == 9
        same = DataQuestion(dataset_changed_at=Step(13), dataset_changed_batch=4)
        assert plan_data(Step(22), 4, same, past) == plan_data(Step(22), 4, told, past)

    def test_a_change_of_data_that_can_mean_two_places_is_asked_for(self) -> None:
        past = PastSizes(batch_sizes=(2, 4))
        with pytest.raises(UsageError, match=r"pass --dataset-changed-at 13:2 or --dataset-changed-at 13:4$"):
            plan_data(Step(22), 4, DataQuestion(dataset_changed_at=Step(13)), past)
        assert plan_data(Step(22), 4, DataQuestion(dataset_changed_at=Step(0)), past).batches == 22
        alone = PastSizes(batch_sizes=(4,))
        assert plan_data(Step(22), 4, DataQuestion(dataset_changed_at=Step(13)), alone).batches == 9

    def test_a_change_of_data_in_other_batches_needs_the_checkpoints_own(self) -> None:
        told = DataQuestion(dataset_changed_at=Step(13), dataset_changed_batch=4)
        with pytest.raises(UsageError, match="pass --old-gbs"):
            plan_data(Step(22), None, told)
        known = DataQuestion(dataset_changed_at=Step(13), dataset_changed_batch=4, old_global_batch=2)
        assert plan_data(Step(30), None, known).batches == 4

    def test_a_change_of_data_after_the_checkpoint_in_its_own_batches_cannot_be_meant(self) -> None:
        told = DataQuestion(dataset_changed_at=Step(13), dataset_changed_batch=8)
        with pytest.raises(UsageError, match="26 is not between 0 and the checkpoint's step 22"):
            plan_data(Step(22), 4, told)

    def test_segments_do_not_change_the_step_that_mindformers_counts_on_from(self) -> None:
        """It scales by the recorded size alone; the skip is ours, and exact."""
        past = PastSizes(unrecorded_steps=10)
        question = DataQuestion(segments=(segment(10, 4),), new_global_batch=4)
        plan = plan_data(Step(30), 8, question, past)
        assert (plan.batches, next_step(Step(30), 8, DataQuestion(segments=(segment(10, 4),), new_global_batch=4))) == (
            50,
            61,
        )
        told = plan_data(Step(30), None, DataQuestion(segments=(segment(30, 4),), new_global_batch=8))
        assert (
            told.batches,
            next_step(Step(30), None, DataQuestion(segments=(segment(30, 4),), new_global_batch=8)),
        ) == (15, 31)

    def test_segments_that_tell_it_all_need_no_recorded_size(self) -> None:
        question = DataQuestion(segments=(segment(30, 4),), new_global_batch=8)
        assert plan_data(Step(30), None, question).batches == 15

    def test_segments_longer_than_the_past_cannot_be_meant(self) -> None:
        with pytest.raises(UsageError, match="cover 31 steps"):
            plan_data(Step(30), None, DataQuestion(segments=(segment(31, 8),), old_global_batch=8))

    def test_an_unknown_size_is_asked_for_where_it_is_needed(self) -> None:
        with pytest.raises(UsageError, match="pass --old-gbs"):
            plan_data(Step(30), None, DataQuestion(new_global_batch=8))
        told = plan_data(Step(30), None, DataQuestion(new_global_batch=8, old_global_batch=4))
        assert (told.batches, told.samples) == (15, 120)

    def test_why_a_size_is_unknown_is_said_where_the_trainer_tells(self) -> None:
        question = DataQuestion(new_global_batch=8)
        told = PastSizes(why_unrecorded="version 1 wrote none")
        with pytest.raises(UsageError, match=r"its global batch size \(version 1 wrote none\), so 30 steps"):
            plan_data(Step(30), None, question, told)
        with pytest.raises(UsageError, match="its global batch size, so 30 steps"):
            plan_data(Step(30), None, question)

    def test_an_old_size_that_contradicts_the_recorded_one_is_refused_and_not_ignored(self) -> None:
        with pytest.raises(UsageError, match=r"--old-gbs is 4, but the checkpoint records 8 .* --segment 30:4"):
            plan_data(Step(30), 8, DataQuestion(old_global_batch=4))
        assert plan_data(Step(30), 8, DataQuestion(old_global_batch=8)).batches == 30

    def test_an_unknown_size_that_does_not_change_is_not_asked_for(self) -> None:
        plan = plan_data(Step(30), None, DataQuestion())
        assert (plan.batches, plan.samples, plan.global_batch_size) == (30, None, None)
        assert plan.repeated_samples == 0
        assert plan_data(Step(30), None, DataQuestion(dataset_changed_at=Step(10))).batches == 20
        assert plan_data(Step(30), None, DataQuestion(new_dataset=True)).batches == 0

    def test_segments_without_a_new_size_are_not_enough(self) -> None:
        with pytest.raises(UsageError, match="pass --gbs"):
            plan_data(Step(30), None, DataQuestion(segments=(segment(30, 4),)))

    def test_what_sinks_repeat_of_batches_of_unknown_size_is_not_called_nothing(self) -> None:
        odd = plan_data(Step(31), None, DataQuestion(sink_size=2))
        assert (odd.batches, odd.repeated_samples) == (30, None)
        even = plan_data(Step(30), None, DataQuestion(sink_size=2))
        assert (even.batches, even.repeated_samples) == (30, 0)

    @given(st.integers(0, 10**6), SIZES, SIZES, SINKS, st.integers(0, 10**6))
    def test_a_change_of_data_never_makes_the_skip_longer(
        self, step: int, old: int, new: int, sink: int | None, changed: int
    ) -> None:
        question = DataQuestion(new_global_batch=new, sink_size=sink)
        since = DataQuestion(new_global_batch=new, sink_size=sink, dataset_changed_at=Step(min(changed, step)))
        all_of_it, rest = plan_data(Step(step), old, question), plan_data(Step(step), old, since)
        assert rest.batches <= all_of_it.batches
        assert next_step(Step(step), old, since) == next_step(Step(step), old, question)


class TestExactBatchesNear:
    def test_the_neighbours_that_divide_the_samples(self) -> None:
        assert exact_batches_near(800, 24) == (20, 25)

    def test_sinks_must_divide_them_too(self) -> None:
        assert exact_batches_near(800, 24, sink_size=3) == ()
        assert exact_batches_near(800, 24, sink_size=2) == (20, 25)
        assert exact_batches_near(800, 24, sink_size=32) == (5, 25)

    def test_no_larger_one_than_all_samples_or_eight_times_the_wish(self) -> None:
        assert exact_batches_near(7, 7) == (1,)
        assert exact_batches_near(9 * 11, 11) == (9, 33)
        assert exact_batches_near(101, 10) == (1,)

    @given(st.integers(0, 5000), st.integers(1, 300), st.none() | st.integers(1, 8))
    def test_they_are_those_that_trying_every_size_finds(self, samples: int, wish: int, sink: int | None) -> None:
        unit = sink or 1
        smaller = [size for size in range(1, wish) if samples % (size * unit) == 0][-1:]
        larger = [size for size in range(wish + 1, min(samples, 8 * wish) + 1) if samples % (size * unit) == 0][:1]
        assert exact_batches_near(samples, wish, sink_size=sink) == (*smaller, *larger)

    def test_large_numbers_take_no_longer(self) -> None:
        assert exact_batches_near(10**12 * 7, 10**9 + 1) == (10**9, 1_093_750_000)

    @given(st.integers(1, 10**5), st.integers(1, 300), st.none() | st.integers(1, 8))
    def test_none_of_them_repeats_a_sample(self, samples: int, wish: int, sink: int | None) -> None:
        for size in exact_batches_near(samples, wish, sink_size=sink):
            skip = skip_seen_data([segment(samples, 1)], new_global_batch=size, sink_size=sink)
            assert skip.repeated_samples == 0
            assert size != wish


class TestMovedOn:
    HERE = plan_data(Step(30), 8, DataQuestion())

    def test_what_is_gone_around_is_lost(self) -> None:
        further = moved_on(self.HERE, plan_data(Step(50), 8, DataQuestion()))
        assert (further.batches, further.lost_samples) == (50, 160)

    def test_a_sink_that_rounds_down_to_the_checkpoint_loses_nothing(self) -> None:
        assert moved_on(self.HERE, plan_data(Step(31), 8, DataQuestion(sink_size=30))).lost_samples == 0

    def test_without_a_batch_size_nobody_knows_how_much(self) -> None:
        here, further = (plan_data(Step(step), None, DataQuestion()) for step in (30, 50))
        assert moved_on(here, further).lost_samples is None
