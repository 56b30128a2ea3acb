"""A training that knows nothing of the guard: it prints a digest of weights, optimizer and random numbers."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A net with buffers and random numbers, whose forward pass has keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))

    def forward(self, inputs: Tensor, *, factor: float = 1.0) -> Tensor:
        """Return the predictions."""
        predictions: Tensor = self.body(inputs)
        return predictions * factor


def digest(*states: dict[Any, Any]) -> str:
    """Return a digest of all tensors in states."""
    found = hashlib.sha256()
    for state in states:
        for value in state.values():
            for tensor in value.values() if isinstance(value, dict) else (value,):
                found.update(torch.as_tensor(tensor).numpy().tobytes())
    return found.hexdigest()


def train(settings: dict[str, Any]) -> dict[str, Any]:
    """Train, and return what came of it."""
    torch.manual_seed(settings.get("seed", 0))
    torch.set_num_threads(1)
    accumulate, bad = settings.get("accumulate", 1), settings.get("bad", {})
    data = TensorDataset(torch.randn(400, 8), torch.randn(400, 1))
    loader = iter(DataLoader(data, batch_size=4, num_workers=settings.get("workers", 0)))
    model: nn.Module = Net()
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    others = [torch.optim.SGD(model.parameters(), lr=0.0)] if settings.get("second") else []
    scaler = torch.amp.GradScaler("cpu", enabled=settings.get("scaler", False))
    inputs = torch.randn(4, 8)
    for step in range(1, settings.get("steps", 12) + 1):
        for _ in range(accumulate):
            inputs, targets = next(loader)
            factor = float("inf") if bad.get(str(step)) == "inf" else 1.0
            targets = targets * (1e4 if bad.get(str(step)) == "spike" else 1.0)
            with torch.autocast("cpu", torch.bfloat16, enabled=settings.get("autocast", False)):
                loss = ((model(inputs * factor, factor=1.0) - targets) ** 2).mean() / accumulate
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if settings.get("clip", True):
            clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        for other in others:
            other.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            model(inputs)
        model.train()
    weights = model.state_dict()
    return {
        "digest": digest(weights, optimizer.state_dict()["state"], {"random": torch.randn(1)}),
        "finite": all(bool(torch.isfinite(weight).all()) for weight in weights.values()),
        "wrapped": hasattr(torch.Tensor.backward, "__wrapped__"),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(train(json.loads(sys.argv[1]))) + "\n")
