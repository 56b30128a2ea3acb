"""Records of captured steps, made up."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ckpttool.core.domain.units import ByteCount, Rank, Step
from ckpttool.guard.files.capture import shard_name
from ckpttool.guard.model.capture import (
    CaptureLevel,
    GradientFacts,
    LossBits,
    MicroBatch,
    RankCapture,
    Rerun,
    ShardFile,
)

DIGEST = "0123456789abcdef" * 2


def loss(value: float) -> LossBits:
    return LossBits(value=value, dtype="float32", bits=struct.pack("<f", value).hex())


def micro_batch(value: float | None) -> MicroBatch:
    return MicroBatch(
        loss=None if value is None else loss(value),
        changed=False,
        left_out=None,
        index=None,
        outer_autocast=(),
        inner_autocast=(("cpu", "bfloat16"),),
    )


def gradient(
    name: str, *, nan: int = 0, digest: str = DIGEST, norm: float = 1.0, shape: tuple[int, ...] = (3,)
) -> GradientFacts:
    return GradientFacts(
        name=name,
        shape=shape,
        xxh3_128=digest,
        norm=norm,
        nan=nan,
        positive_inf=0,
        negative_inf=0,
        first=(0,) if nan else None,
    )


def rank_capture(
    rank: int,
    *,
    world: int = 1,
    losses: Sequence[float | None] = (1.0,),
    gradients: Sequence[GradientFacts] = (),
    rerun: Rerun | None = None,
    device: str = "cpu",
) -> RankCapture:
    return RankCapture(
        rank=Rank(rank),
        world_size=world,
        step=Step(7),
        optimizer_step=6,
        level=CaptureLevel.FULL,
        host="node1",
        device=device,
        micro_batches=tuple(map(micro_batch, losses)),
        gradients=tuple(gradients),
        rerun=rerun,
        weights=(),
        evaluating=("drop",),
        buffers_left_out=(),
        scale=None,
        environment=(("torch", "2.13.0"), ("threads", 2), ("deterministic", False), ("cuda", None)),
        model_config=None,
        run_config={"lr": 0.1},
        data_position=None,
        content={"dict": {}},
        shard=ShardFile(name=shard_name(rank), size=ByteCount(10), xxh3_128=DIGEST),
    )
