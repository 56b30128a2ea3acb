"""What each of two processes saves and resumes that train together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.tensor import DTensor

import ckpttool
from ckpttool.core.errors import CkptToolError, NothingToResumeError
from tests.guard.loop import SmallNet, batches, loss_of
from tests.guard.resumable import flip


def on_both(rank: int, folder: str, wrap: Any) -> list[Any]:  # noqa: ANN401  a wrapper of torch
    """Train 4 steps and save, then resume in objects of one's own and train 2 more, beside one that went on."""

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = wrap(SmallNet())
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(objects: tuple[nn.Module, torch.optim.Optimizer], data: list[torch.Tensor]) -> None:
        for batch in data:
            objects[1].zero_grad()
            loss_of(objects[0], batch).backward()
            objects[1].step()

    def weights(model: nn.Module) -> list[list[float]]:
        own = (value.to_local() if isinstance(value, DTensor) else value for value in model.state_dict().values())
        return [value.flatten().tolist() for value in own]

    data = list(batches(6, seed=rank))
    first, second = made(), made()
    step(first, data[:4])
    with ckpttool.checkpoint_writer(folder, prefix="run", model=first[0], optimizer=first[1]) as writer:
        name = writer.save(step=4)
    step(first, data[4:])
    distributed.barrier()
    resumed = ckpttool.resume_training(folder, model=second[0], optimizer=second[1])
    step(second, data[4:])
    return [name, resumed.step, resumed.is_checked, weights(first[0]) == weights(second[0])]


def one_start_more(rank: int, folder: str) -> list[Any]:
    """Only rank 1 saved before, so only there the number of this start is told."""
    model = nn.Linear(2, 2)
    old = Path(folder, "checkpoint/rank_1/run_rank_1-1_2.safetensors")
    if rank == 1:
        old.parent.mkdir(parents=True)
        old.write_bytes(b"")
    optimizer = torch.optim.SGD(model.parameters())
    with ckpttool.checkpoint_writer(folder, prefix="run", model=model, optimizer=optimizer) as writer:
        return [writer.save(step=3)]


def flipped(rank: int, folder: str) -> list[Any]:
    """One rank's file is damaged: no rank goes on, and none waits."""
    model = nn.Linear(2, 2)
    objects: dict[str, Any] = {"model": model, "optimizer": torch.optim.SGD(model.parameters())}
    with ckpttool.checkpoint_writer(folder, prefix="run", **objects) as writer:
        writer.save(step=1)
    if rank == 1:
        flip(Path(folder, "checkpoint/rank_1/run_rank_1-1_1.safetensors"))
    distributed.barrier()
    try:
        ckpttool.resume_training(folder, **objects)
    except CkptToolError as error:
        return [type(error).__name__, "differs from the written file" in str(error)]
    return []


def nothing(_rank: int, folder: str) -> list[Any]:
    model = nn.Linear(2, 2)
    objects: dict[str, Any] = {"model": model, "optimizer": torch.optim.SGD(model.parameters())}
    begun = ckpttool.resume_training(f"{folder}/gone", **objects, fresh_ok=True)
    try:
        ckpttool.resume_training(f"{folder}/gone", **objects)
    except NothingToResumeError:
        return [begun.step]
    return []
