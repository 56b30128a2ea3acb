"""What each of two processes captures that train together, and what one replays that another process captured."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ckpttool
from ckpttool.guard import CaptureSettings, Guard
from ckpttool.guard.model.capture import NanQuestion
from tests.guard.capturing import HardNet, batches, loss_of
from tests.guard.loop import Told

ENTRY = "tests.guard.capturing:replay"


def wrapped(model: nn.Module, how: str) -> nn.Module:
    return DistributedDataParallel(model) if how == "ddp" else cast("nn.Module", fully_shard(model))


def train(rank: int, *, output: str, again: bool, wrap: str = "ddp") -> list[str]:
    """Train three steps, of which the last has a gradient on rank 1 that is not finite; every loss is finite."""
    torch.manual_seed(5)
    model = wrapped(HardNet(), wrap)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    settings = CaptureSettings(loss_of=loss_of) if again else CaptureSettings()
    told = Told()
    guard = Guard(model, optimizer, output=output, sinks=[told], capture=settings)
    torch.manual_seed(100 + rank)
    made = batches()
    if rank == 0:
        made[-1][-1]["weight"].fill_(1)
    for first, second in made:
        for batch in (first, second):
            batch["items"] += rank
            waits = isinstance(model, DistributedDataParallel) and batch is first
            with model.no_sync() if waits else nullcontext(), guard.micro(batch) as micro:  # type: ignore[operator]
                micro.loss(loss := loss_of(model, batch))
                loss.backward()
        guard.clip_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    weights = [value.full_tensor() if hasattr(value, "full_tensor") else value for value in model.parameters()]
    finite = all(bool(torch.isfinite(weight).all()) for weight in weights)
    return [*told.kinds(), "finite" if finite else "poisoned"]


def replayed_elsewhere(rank: int, *, asked: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """On one rank, replay captures with an entry each, after other random numbers than the process that made them."""
    torch.manual_seed(99)
    asked = asked if rank else []
    return [
        ckpttool.library.replay_nan(NanQuestion(path=path, entry=entry, exact=True)).to_dict() for path, entry in asked
    ]
