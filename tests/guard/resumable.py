"""A training that can be killed at any moment: all that a resume must bring back is in it, and it tells what it did."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from xxhash import xxh3_128_hexdigest

import ckpttool
from ckpttool.guard import Guard
from ckpttool.guard.resume import Resumed
from ckpttool.guard.writer import CheckpointWriter
from ckpttool.health.policies.robust_z import RobustZPolicy

EPOCH = 7


class Net(nn.Module):
    """Convolution, running statistics, dropout, and weights that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.conv = nn.Conv1d(6, 6, 3, padding=1)
        self.usual = nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, letters: Tensor) -> Tensor:
        hidden = self.usual(self.conv(self.embed(letters).transpose(1, 2))).transpose(1, 2)
        out: Tensor = self.head(self.dropout(torch.relu(hidden)))
        return out


class Shuffled:
    """Epochs in random order, as a loader that knows where it is: making its iterator draws from torch's generator."""

    def __init__(self) -> None:
        self._order: list[int] = []
        self._at = 0
        self._goes_on = False

    def __iter__(self) -> Iterator[Tensor]:
        if not self._goes_on:
            self._order, self._at = torch.randperm(EPOCH).tolist(), 0
        torch.rand(3)  # what workers are seeded with
        self._goes_on = False
        return self._batches()

    def _batches(self) -> Iterator[Tensor]:
        while self._at < EPOCH:
            self._at += 1
            chance = torch.Generator().manual_seed(self._order[self._at - 1])
            yield torch.randint(11, (4, 9), generator=chance)

    def state_dict(self) -> dict[str, Any]:
        return {"order": list(self._order), "at": self._at}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self._order, self._at, self._goes_on = state["order"], state["at"], True


class Training:
    """Everything afresh, as a new process makes it."""

    def __init__(self, *, bad_at: int | None = 5) -> None:
        torch.manual_seed(3)
        random.seed(3)
        self.bad_at = bad_at
        self.model = Net()
        bias = [parameter for name, parameter in self.model.named_parameters() if name.endswith("bias")]
        rest = [parameter for name, parameter in self.model.named_parameters() if not name.endswith("bias")]
        groups: list[dict[str, Any]] = [{"params": bias, "weight_decay": 0.0}, {"params": rest}]
        self.optimizer = torch.optim.AdamW(groups, lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + step / 10))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
        self.loader = Shuffled()
        self.guard = Guard(self.model, self.optimizer, policy=RobustZPolicy(), scaler=self.scaler)
        self.extra: dict[str, Any] = {"seen": 0}
        self.order: list[str] = []

    @property
    def objects(self) -> dict[str, Any]:
        names = ("model", "optimizer", "scheduler", "scaler", "loader", "guard", "extra")
        return {name: getattr(self, name) for name in names}

    def writer(
        self, output: Path, *, embedding: str | None = None, health_threshold: float | None = None
    ) -> CheckpointWriter:
        return ckpttool.checkpoint_writer(
            str(output),
            prefix="run",
            **self.objects,
            steps_per_epoch=EPOCH,
            global_batch_size=4,
            embedding=embedding,
            health_threshold=health_threshold,
        )

    def resume(self, output: Path, *, fresh_ok: bool = False) -> Resumed:
        return ckpttool.resume_training(str(output), **self.objects, fresh_ok=fresh_ok)

    def steps(self, resumed: Resumed, until: int) -> Iterator[int]:
        """Train, and yield each step when it is done."""
        while self.guard.step < until:
            for batch in resumed.batches(self.loader):
                self.step(batch)
                yield self.guard.step
                if self.guard.step == until:
                    return

    def step(self, batch: Tensor) -> None:
        self.order.append(f"{self.guard.step + 1} {xxh3_128_hexdigest(batch.numpy().tobytes())}")
        with self.guard.micro(batch) as micro, torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(self.model(batch).flatten(0, 1), batch.flatten())
            if self.guard.step + 1 == self.bad_at:
                loss = loss * float("nan")
            loss = loss * random.uniform(0.9, 1.1)  # noqa: S311  what a training draws from Python's own generator
            micro.loss(loss)
            self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        self.guard.clip_(1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.extra["seen"] += batch.numel()

    def bits(self) -> dict[str, str]:
        """All that is remembered, as digests."""
        found = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for index, parameter in enumerate(self.model.parameters()):
            found |= {f"optimizer.{index}.{key}": value for key, value in self.optimizer.state[parameter].items()}
        digests = {name: xxh3_128_hexdigest(value.contiguous().numpy().tobytes()) for name, value in found.items()}
        rest = {
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "loader": self.loader.state_dict(),
            "guard": self.guard.saved(),
            "extra": self.extra,
            "next": (torch.rand(1).item(), random.random()),  # noqa: S311
        }
        return digests | {name: repr(value) for name, value in rest.items()}


def flip(path: Path) -> None:
    """Change one bit of a shard's last tensor."""
    data = bytearray(path.read_bytes())
    data[-9] ^= 4
    path.write_bytes(data)


def train(
    output: Path, until: int, *, every: int = 2, told: Path | None = None, stepped: Callable[[], object] = lambda: None
) -> Training:
    """Train to a step from wherever the output folder has come; every other save is written in the background."""
    training = Training()
    resumed = training.resume(output, fresh_ok=True)
    with training.writer(output, embedding="embed.weight", health_threshold=1e9) as writer:
        for step in training.steps(resumed, until):
            if told is not None:
                with told.open("a", encoding="utf-8") as file:
                    file.write(f"{training.order[-1]}\n")
            stepped()
            if step % every == 0:
                writer.save(background=step % (2 * every) == 0)
    return training
