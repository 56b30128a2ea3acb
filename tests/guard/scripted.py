"""A training script whose captured step is replayed by the script itself: `python scripted.py JSON`.

The gradients of one branch are not finite in the bad step, those of the other are: so equal bits prove something.
Settings: `code` (a guard in the code), `accumulate`, `bf16`, `scaler`, `workers`, `steps`, `bad` (the step), `seed`,
`draws` (how a loop gets its batches: `loader`, `list`, `tensors`), `fault` (a change of the first step: a bit of a
`weight`, the `batch` or its `labels`, or a random number drawn `inside` the model), `width`, `classes` (tensors more in
a batch), `stops` (stop_on_capture), `inside` (the model returns its loss).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

STEPS, BATCH = 6, 8


class Branched(nn.Module):
    """Two branches, of which the second has an infinite slope at a weight of zero."""

    def __init__(self, width: int, *, inside: bool) -> None:
        super().__init__()
        self.main = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2))
        self.out = nn.Linear(width, 1)
        self.side = nn.Linear(8, 1)
        self.inside = inside

    def forward(self, inputs: Tensor, weights: Tensor, *, targets: Tensor | None = None) -> Any:  # noqa: ANN401  both kinds
        main, side = self.out(self.main(inputs)), (self.side(inputs).float() * weights).abs().sqrt()
        if self.inside:
            assert targets is not None
            return {"loss": loss_of(main, side, targets), "main": main}
        return main, side


def loss_of(main: Tensor, side: Tensor, targets: Tensor) -> Tensor:
    return (main.float() - targets).square().mean() + side.mean()


def dataset(settings: dict[str, Any], accumulate: int) -> TensorDataset:
    numbers = torch.Generator().manual_seed(3)
    count = (STEPS + 4) * accumulate * BATCH
    inputs, targets = torch.randn(count, 8, generator=numbers), torch.randn(count, 1, generator=numbers)
    weights = torch.ones(count, 1)
    last = settings.get("bad", 0) * accumulate * BATCH  # the last sample of the last micro-batch of that step
    weights[max(last - 1, 0) : last] = float("nan") if settings.get("scaler") else 0.0
    more = [torch.zeros(count)] if settings.get("classes") else []
    return TensorDataset(inputs, weights, targets, *more)


def batches(settings: dict[str, Any], data: TensorDataset) -> Iterator[Any]:
    draws = settings.get("draws", "loader")
    if draws == "tensors":  # a loop without any data loader
        for begin in range(0, len(data), BATCH):
            yield tuple(tensor[begin : begin + BATCH] for tensor in data.tensors)
        return
    yield from DataLoader(data, batch_size=BATCH, num_workers=settings.get("workers", 0))


def micro_batches(settings: dict[str, Any], drawn: Iterator[Any], accumulate: int) -> Iterator[Any]:
    if settings.get("draws") == "list":
        yield from [next(drawn) for _ in range(accumulate)]
    else:
        for _ in range(accumulate):
            yield next(drawn)


def _seed(*_: object) -> None:
    torch.manual_seed(1)


def harmed(fault: str | None, model: nn.Module, batch: list[Tensor]) -> list[Tensor]:
    """Change the replayed step, after everything was put in place."""
    inputs, weights, targets = batch[:3]
    match fault:
        case "weight":
            next(model.parameters()).data.view(torch.int32).view(-1)[3] ^= 1
        case "inside":
            dropout = next(module for module in model.modules() if isinstance(module, nn.Dropout))
            dropout.register_forward_pre_hook(_seed)
        case "batch":
            inputs = inputs.clone()
            inputs.view(torch.int32)[0, 0] ^= 1
        case "labels":
            targets = targets + 1
        case _:
            pass
    return [inputs, weights, targets]


def train(settings: dict[str, Any]) -> dict[str, Any]:
    """Train, and return what came of it."""
    torch.set_num_threads(1)
    torch.manual_seed(settings.get("seed", 0) + int(os.environ.get("RANK", "0")))
    accumulate = settings.get("accumulate", 1)
    inside = settings.get("inside", False)
    data = dataset(settings, accumulate)
    model: nn.Module = Branched(settings.get("width", 16), inside=inside)
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        data = TensorDataset(*(tensor.roll(int(os.environ["RANK"]), 1) for tensor in data.tensors))
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", enabled=settings.get("scaler", False), init_scale=512.0, growth_interval=2)
    guard = None
    if settings.get("code"):
        from ckpttool.guard import Guard

        guard = Guard(
            model, optimizer, output="output", scaler=scaler, stop_on_capture=settings.get("stops", False),
        )  # fmt: skip
    drawn, evaluated = batches(settings, data), torch.zeros(())
    for step in range(1, settings.get("steps", STEPS) + 1):
        for number, batch in enumerate(micro_batches(settings, drawn, accumulate)):
            harms = settings.get("fault") if step == 1 and number == accumulate - 1 else None
            if guard is None:
                loss = compute(settings, model, harmed(harms, model, batch)) / accumulate
                scaler.scale(loss).backward()
                continue
            with guard.micro(batch) as micro:
                loss = compute(settings, model, harmed(harms, model, batch)) / accumulate
                micro.loss(loss)
                scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if guard is not None:
            guard.clip_(1.0)
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            evaluated = compute(settings, model, [tensor[:4] for tensor in data.tensors])
        model.train()
    return {"finite": bool(torch.isfinite(evaluated)), "steps": settings.get("steps", STEPS)}


def compute(settings: dict[str, Any], model: nn.Module, batch: Any) -> Tensor:  # noqa: ANN401  a batch
    inputs, weights, targets = batch[:3]
    with torch.autocast("cpu", torch.bfloat16, enabled=settings.get("bf16", False)):
        if settings.get("inside"):
            return cast("Tensor", model(inputs, weights, targets=targets)["loss"])
        main, side = model(inputs, weights)
        return loss_of(main, side, targets)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(train(json.loads(sys.argv[1]))) + "\n")
