"""Resume plans made by hand, for tests of what comes after the decision."""

from __future__ import annotations

from dataclasses import replace

from ckpttool.core.domain.checkpoint import Checkpoint, CommitState, Content, StepSource, Topology
from ckpttool.core.domain.data_position import SkipBatches
from ckpttool.core.domain.plan import ResumePlan, ResumePoint
from ckpttool.core.domain.shard import FormatName, Shard, ShardRole
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.domain.verdict import Level, VerdictWord
from ckpttool.trainers.mindformers.load import LoadKeys, data_settings
from ckpttool.trainers.mindformers.scalars import RULES, EpochStep, TrainState

LEGACY_LOAD = LoadKeys(
    load_checkpoint="output/checkpoint",
    resume_training="llama2_7b_rank_0-15_2.ckpt",
    load_ckpt_format="ckpt",
    use_legacy_format=True,
)
NEWER_LOAD = LoadKeys(
    load_checkpoint="output/checkpoint/iteration_00000030",
    resume_training=True,
    load_ckpt_format="safetensors",
    use_legacy_format=False,
)
AT = EpochStep(epoch=15, step=2)
SCALARS = TrainState(epoch_num=15, step_num=30, global_step=30, global_batch_size=8)


def resume_plan(
    *,
    load: LoadKeys = LEGACY_LOAD,
    batches: int = 30,
    scalars: TrainState = SCALARS,
    ranks: int = 4,
    global_batch_size: int | None = 8,
    sink_size: int | None = None,
) -> ResumePlan:
    """A plan to resume from step 30 of a run on 4 ranks."""
    shards = tuple(
        Shard(
            path=f"rank_{rank}/llama2_7b_rank_{rank}-15_2.ckpt",
            rank=Rank(rank),
            role=ShardRole.FULL,
            format=FormatName.MINDSPORE_CKPT,
        )
        for rank in range(ranks)
    )
    checkpoint = Checkpoint(
        name="15_2",
        prefix="llama2_7b",
        run=0,
        label=str(AT),
        sort_key=AT.sort_key,
        facts=(*AT.facts, ("optimizer_step", scalars.global_step)),
        claims=AT.claims,
        scalars=scalars.scalars,
        rules=RULES,
        step=Step(scalars.step_num or 0),
        step_source=StepSource.CONTENT,
        shards=shards,
        topology=Topology(world_size=ranks or None),
        format=FormatName.MINDSPORE_CKPT,
        commit=CommitState.UNRECORDED,
        content=Content.FULL,
    )
    skip = SkipBatches(
        batches=batches, repeated_samples=0, samples=240, global_batch_size=global_batch_size, sink_size=sink_size
    )
    return ResumePlan(
        root="output/checkpoint",
        point=ResumePoint(
            checkpoint=checkpoint,
            step=Step(scalars.step_num or 0),
            evidence=Level.STRUCTURE,
            verdict=VerdictWord.STRUCT_OK,
            lost_steps=0,
            rejected=(),
            findings=(),
        ),
        load=replace(load.settings(), data=data_settings(skip)),
        data=skip,
        next_step=Step(31),
    )
