"""What each of two processes does that trains under a guard in step with the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from ckpttool.guard import Guard, GuardStop
from ckpttool.guard.buffers import Buffers
from ckpttool.guard.capture.memory import StepMemory
from ckpttool.guard.capture.store import CaptureStore
from ckpttool.guard.checks import ReplicaCheck
from ckpttool.guard.features import FeatureProbe
from ckpttool.guard.files.events import EventFile
from ckpttool.guard.gradients import Losses
from ckpttool.guard.rules.detector import FeatureValueDetector
from ckpttool.guard.rules.guarding import SpikeGuard
from ckpttool.health.policies.base import Policy
from tests.guard.faulty import nth, raising
from tests.guard.loop import INFINITE, SmallNet, Told, batches, bits, loss_of

Seen = dict[str, Any]


def train(
    rank: int,
    *,
    steps: int = 6,
    bad: dict[int, float] | None = None,
    losses: dict[int, float] | None = None,
    spoil: Callable[[int, nn.Module], None] | None = None,
    wrap: Callable[[nn.Module], nn.Module] = DistributedDataParallel,
    slow: float = 0,
    parts: int = 1,
    scale: float | None = None,
    policy: Policy | None = None,
    mode: str = "act",
    count_threshold: int = 10,
    features: str | None = None,
    output: str | None = None,
) -> Seen:
    """Train in step with the other rank; what is bad is rank 1's alone, and in its first part."""
    told = Told()
    model = wrap(SmallNet())
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    guard = Guard(
        model,
        optimizer,
        sinks=[told],
        policy=policy,
        mode=mode,
        count_threshold=count_threshold,
        scaler=scaler,
        features=features,
        output=output,
        replica_every=2,
    )
    applied: list[bool] = []
    weights: list[object] = []
    stopped, norm = None, torch.tensor(0.0)
    for number, batch in enumerate(batches(steps, seed=rank, bad=bad if rank == 1 else None), 1):
        optimizer.zero_grad()
        for last, part in enumerate(reversed(batch.chunk(parts)), 1 - parts):
            apart = isinstance(model, DistributedDataParallel) and last != 0
            with model.no_sync() if apart else nullcontext(), guard.micro(part) as micro:  # type: ignore[operator]
                loss = loss_of(model, part) / parts
                micro.loss(loss + (losses or {}).get(number, 0.0) if rank == 1 else loss)
                scaler.scale(loss).backward()
        if spoil is not None and rank == 1:
            spoil(number, model)
        if slow and rank == 1:
            time.sleep(slow)
        scaler.unscale_(optimizer)
        try:
            norm = guard.clip_(1.0)
        except GuardStop as stop:
            stopped = str(stop)
            break
        scaler.step(optimizer)
        scaler.update()
        applied.append(guard.applied)
        weights.append([bits(whole(weight)) for weight in model.parameters()])
    return {
        "applied": applied,
        "kinds": told.kinds(),
        "events": [(kind.value, step, values) for kind, step, values in told.events],
        "weights": weights,
        "norm": bits(norm),
        "buffers": bits(list(model.buffers())),
        "stopped": stopped,
    }


def whole(weight: Tensor) -> Tensor:
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight


def fault_in(owner: type, name: str, rank: int) -> Seen:
    """Let a part of rank 1 raise whenever it is called, and a batch be bad before and after it is switched off."""
    real = getattr(owner, name)
    with patch.object(owner, name, raising if rank == 1 else real):
        return train(
            rank, bad={2: INFINITE, 6: INFINITE}, steps=7, features="enable:true", output=owner.__name__ + name
        )


def once_in(owner: type, name: str, rank: int) -> Seen:
    """Let a part of rank 1 raise at its second call alone, in a step that is bad."""
    real = getattr(owner, name)
    with patch.object(owner, name, nth(owner, name, 1) if rank == 1 else real):
        return train(rank, bad={2: INFINITE, 4: INFINITE}, features="enable:true", output="once")


def sharded(model: nn.Module) -> nn.Module:
    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)
    return model


def sharded_as_before(model: nn.Module) -> nn.Module:
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)


def by_hand(model: nn.Module) -> nn.Module:
    """Average gradients as a training without a wrapper does."""
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(_average)
    return model


def _average(weight: Tensor) -> None:
    assert weight.grad is not None
    dist.all_reduce(weight.grad)


def one_gradient_differs(number: int, model: nn.Module) -> None:
    weight = next(model.parameters())
    assert weight.grad is not None
    if number in {3, 5}:
        weight.grad[0, 0] += 0.5


def partly_sharded(_rank: int) -> Seen:
    """Clip where torch cannot: it takes no list of both kinds. With one batch for both ranks plain gradients agree."""
    model = SmallNet()
    fully_shard(model.last)
    guard = Guard(model, optim.SGD(model.parameters(), lr=0.0))
    loss_of(model, next(batches(1))).backward()
    gradients = [whole(weight.grad) for weight in model.parameters() if weight.grad is not None]
    expected = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    norm = guard.clip_(0.5)
    clipped = [whole(weight.grad) for weight in model.parameters() if weight.grad is not None]
    return {
        "norm": norm.item(),
        "expected": expected.item(),
        "clipped": torch.cat([one.flatten() for one in clipped]).norm().item(),
    }


PARTS: list[tuple[type, str]] = [
    (Losses, "add"),
    (Losses, "read"),
    (SpikeGuard, "propose"),
    (SpikeGuard, "settle"),
    (Buffers, "take"),
    (Buffers, "restore"),
    (FeatureProbe, "take"),
    (FeatureValueDetector, "take"),
    (StepMemory, "micro"),
    (CaptureStore, "capture"),
    (ReplicaCheck, "hashes"),
    (EventFile, "__init__"),
]
