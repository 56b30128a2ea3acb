"""Where the data go on after a resume, on trees that real trainers wrote, compared with what these then read.

A trainer's trees are tried from the day on which its layout stands in the registry.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.domain.data_position import DataEffect, SampleSource, effect_of
from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.question import AskedSizes
from ckpttool.trainers import registry
from ckpttool.types import DataQuestion, ResumeQuestion
from tests.support.answers import codes, goes_on, plan, refusal
from tests.support.trainer_trees import LAYOUTS, layout_of_tree, truths

HF = ("hf_ddp2", "hf_lora", "hf_sharded_index", "hf_single")
HF_LATER = ("hf_ddp2", "hf_single")
"""Saved within the second epoch, where accelerate's version decides, which no save tells."""
HF_IN_SLICES = "hf_fsdp2ranks"
"""Sharded saves hold no training_args.bin, which alone tells the batches that are accumulated."""

DEEPSPEED = ("ds_zero1_2ranks", "ds_zero3_2ranks")
MEGATRON = ("mcore_dist_tp2dp2", "mcore_legacy_tp2dp2")

AS_IT_WAS = AskedSizes()


def tried(*cases: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Leave out trees, which stand first, of trainers that are not read yet."""
    return [case for case in cases if layout_of_tree(case[0]) in registry.LAYOUT_NAMES]


def resumed(root: Path, *, gbs: int | None = None, old: int | None = None, sizes: AskedSizes = AS_IT_WAS) -> ResumePlan:
    data = DataQuestion(new_global_batch=gbs, old_global_batch=old)
    return plan(root, choice=ResumeQuestion(sizes=sizes), data=data)


NOTHING_CHANGED = tried(
    ("titan_4ranks", DataEffect.EXACT),
    *((tree, DataEffect.EXACT) for tree in ("hf_lora", "hf_sharded_index", HF_IN_SLICES)),
    *((tree, DataEffect.UNKNOWN) for tree in HF_LATER),
    ("light_single", DataEffect.RESTARTS),
    ("light_ddp2_accum", DataEffect.RESTARTS),
    ("light_modelparallel2", DataEffect.RESTARTS),
    ("ds_zero1_2ranks", DataEffect.UNKNOWN),
    ("ds_zero3_2ranks", DataEffect.UNKNOWN),
    ("mcore_dist_tp2dp2", DataEffect.EXACT),
    ("mcore_legacy_tp2dp2", DataEffect.EXACT),
    ("verl_2ranks", DataEffect.UNKNOWN),
    ("verl_sft", DataEffect.EXACT),
    ("skyrl_2ranks", DataEffect.EXACT),
    ("dcp_fsdp2_4ranks", DataEffect.UNKNOWN),
    ("dcp_plain_2ranks", DataEffect.UNKNOWN),
    ("accel_ddp2", DataEffect.UNKNOWN),
    ("orbax_standard", DataEffect.UNKNOWN),
    ("olmo_2ranks", DataEffect.EXACT),
    ("automodel_2ranks", DataEffect.UNKNOWN),
)


@pytest.mark.parametrize(("tree", "effect"), NOTHING_CHANGED)
def test_with_nothing_changed_it_is_what_the_trainer_was_seen_to_do(tree: str, effect: DataEffect) -> None:
    assert effect_of(resumed(LAYOUTS / tree).data) is effect


OTHER_BATCH = tried(
    ("titan_4ranks", 16, DataEffect.REORDERS),
    ("light_single", 8, DataEffect.RESTARTS),
    ("ds_zero1_2ranks", 8, DataEffect.UNKNOWN),
    ("verl_2ranks", 16, DataEffect.REORDERS),
    ("verl_sft", 8, DataEffect.UNKNOWN),
    ("skyrl_2ranks", 8, DataEffect.UNKNOWN),
    ("dcp_fsdp2_4ranks", 16, DataEffect.UNKNOWN),
    ("accel_ddp2", 8, DataEffect.UNKNOWN),
    (HF_IN_SLICES, 8, DataEffect.UNKNOWN),
    ("orbax_standard", 8, DataEffect.UNKNOWN),
    ("olmo_2ranks", 16, DataEffect.REPEATS),
    ("automodel_2ranks", 16, DataEffect.UNKNOWN),
    *((tree, 2 * truths()[tree]["global_batch_size"]["value"], DataEffect.LOSES) for tree in HF),
    *((tree, truths()[tree]["global_batch_size"]["value"] // 2, DataEffect.REPEATS) for tree in HF),
)


@pytest.mark.parametrize(("tree", "gbs", "effect"), OTHER_BATCH)
def test_with_another_batch_size_it_is_not_called_exact(tree: str, gbs: int, effect: DataEffect) -> None:
    assert effect_of(resumed(LAYOUTS / tree, gbs=gbs).data) is effect


COUNTED = tried(
    *((tree, truths()[tree]["checkpoints"][-1]["consumed_samples"], SampleSource.COMPUTED) for tree in HF),
    ("ds_zero1_2ranks", 24, SampleSource.CONTENT),
    ("ds_zero3_2ranks", 48, SampleSource.CONTENT),
    ("mcore_dist_tp2dp2", 24, SampleSource.CONTENT),
    ("mcore_legacy_tp2dp2", 24, SampleSource.CONTENT),
    ("dcp_fsdp2_4ranks", 120, SampleSource.CONTENT),
)


@pytest.mark.parametrize(("tree", "samples", "source"), COUNTED)
def test_the_samples_that_were_read_are_told_and_by_what(tree: str, samples: int, source: SampleSource) -> None:
    position = goes_on(resumed(LAYOUTS / tree))
    assert (position.samples, position.source) == (samples, source)


@pytest.mark.parametrize("tree", HF)
class TestRecomputedFromTheStep:
    """The trainer passes over as many batches of the new size as steps were done, epoch by epoch."""

    def test_twice_the_batch_goes_on_where_the_trainer_went_on(self, tree: str) -> None:
        truth = truths()[tree]
        old = truth["global_batch_size"]["value"]
        position = goes_on(resumed(LAYOUTS / tree, gbs=2 * old))
        assert position.samples is not None
        assert position.lost is not None
        there = position.samples + position.lost
        epoch = truth["position"]["epoch_length"]
        step = truth["checkpoints"][-1]["step"]
        assert divmod(there, epoch) == (step // -(-epoch // (2 * old)), step % -(-epoch // (2 * old)) * 2 * old)
        known = truths()["hf_single"]["position"]
        if old == 4 and there == known["samples"]:  # the same order of the data: what it then read is known
            read = [sample for batch in known["next_batches"] for sample in batch]
            assert truth["library_resumes"]["double_micro"]["first_batch_read"] == read

    def test_other_ranks_at_the_same_batch_size_read_the_same_only_where_the_version_is_told(self, tree: str) -> None:
        """A rank's batch is another one then, which the loader takes from the arguments since transformers 5.2."""
        old = truths()[tree]["global_batch_size"]["value"]
        position = goes_on(resumed(LAYOUTS / tree, gbs=old, sizes=AskedSizes(world=4)))
        assert "transformers is 5.2 or newer" in position.exact_if
        tells_version = (LAYOUTS / tree / truths()[tree]["should_resume"] / "config.json").exists()
        expected = DataEffect.EXACT if tells_version and tree not in HF_LATER else DataEffect.UNKNOWN
        assert position.effect is expected


class TestRestarting:
    """Lightning with a loader that keeps no place: the epoch begins again while the counters go on."""

    @pytest.mark.parametrize(("tree", "old", "again"), tried(("light_single", 4, 8), ("light_ddp2_accum", 8, 8)))
    def test_what_was_read_of_the_epoch_is_read_again(self, tree: str, old: int, again: int) -> None:
        told = resumed(LAYOUTS / tree, old=old)
        position = goes_on(told)
        assert (position.effect, position.repeated, position.lost) == (DataEffect.RESTARTS, again, again)
        assert Code.DATA_RESTARTS in codes(told.findings)


class TestOtherRanks:
    REFUSING = tried(
        *(("titan_4ranks", asked) for asked in (AskedSizes(data=2), AskedSizes(data=8))),
        *(("titan_4ranks", AskedSizes(world=world)) for world in (2, 6)),
        *((tree, asked) for tree in DEEPSPEED for asked in (AskedSizes(world=1), AskedSizes(data=4))),
        *((tree, AskedSizes(tensor=2)) for tree in DEEPSPEED),
        ("verl_2ranks", AskedSizes(world=4)),
        ("automodel_2ranks", AskedSizes(world=4)),
        *((tree, AskedSizes(tensor=1)) for tree in MEGATRON),
        *((tree, asked) for tree in MEGATRON for asked in (AskedSizes(tensor=1, data=4), AskedSizes(pipeline=2))),
    )

    @pytest.mark.sample(9)
    @pytest.mark.parametrize(("tree", "asked"), REFUSING)
    def test_what_the_trainer_stops_at_is_refused_and_no_damage(self, tree: str, asked: AskedSizes) -> None:
        answer = refusal(LAYOUTS / tree, choice=ResumeQuestion(sizes=asked))
        for rejection in answer.rejected:
            assert codes(rejection.reasons) == {Code.WORLD_SIZE_REFUSED}

    TAKING = tried(
        *(("titan_4ranks", asked) for asked in (AskedSizes(data=4), AskedSizes(data=4, world=8))),
        *(("titan_4ranks", AskedSizes(world=world)) for world in (4, 8)),
        *((tree, AskedSizes(world=2, data=2, tensor=1)) for tree in DEEPSPEED),
        *((tree, AskedSizes(world=2)) for tree in ("ds_zero1_2ranks", "verl_2ranks", "dcp_fsdp2_4ranks")),
        *((tree, AskedSizes(world=2, tensor=2)) for tree in MEGATRON),
        *((tree, AskedSizes(world=4)) for tree in ("hf_ddp2", "light_ddp2_accum", "accel_ddp2", "orbax_standard")),
        ("olmo_2ranks", AskedSizes(world=1)),
        ("automodel_2ranks", AskedSizes(world=1)),
    )

    @pytest.mark.sample(8)
    @pytest.mark.parametrize(("tree", "asked"), TAKING)
    def test_what_it_loads_is_taken(self, tree: str, asked: AskedSizes) -> None:
        told = resumed(LAYOUTS / tree, sizes=asked)
        assert told.point.checkpoint.name == truths()[tree]["should_resume"]


@pytest.mark.parametrize("tree", MEGATRON)
def test_counted_samples_are_where_megatron_goes_on_whatever_the_batch_is(tree: str) -> None:
    """But another batch size shuffles anew where the run is given in iterations."""
    as_it_was, told = resumed(LAYOUTS / tree), resumed(LAYOUTS / tree, gbs=8)
    assert (goes_on(as_it_was).effect, goes_on(as_it_was).samples, goes_on(as_it_was).batches) == (
        DataEffect.EXACT,
        24,
        6,
    )
    assert (goes_on(told).effect, goes_on(told).samples, goes_on(told).batches) == (DataEffect.REORDERS, 24, 3)
    assert Code.DATA_REORDERED in codes(told.findings)
