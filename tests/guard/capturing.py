"""A small training with all that makes a step hard to repeat, captured where it is not finite; and what replays it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint

from ckpttool.guard import CaptureSettings, Guard, ReplayTask
from ckpttool.guard.model.capture import RankCapture
from tests.guard.loop import Told

WIDTH = 8
BAD_STEP = 3


class HardNet(nn.Module):
    """Dropout, batch norm, spectral norm, attention and a part that is computed twice."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.first = spectral_norm(nn.Linear(width, width))
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.3)
        self.attention = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True)
        self.second = nn.Linear(width, width)
        self.head = nn.Linear(width, 1)

    def forward(self, items: Tensor) -> Tensor:
        hidden = self.drop(self.norm(torch.relu(self.first(items))))
        hidden = cast("Tensor", checkpoint(self._inner, hidden, use_reentrant=False))
        return cast("Tensor", self.head(hidden)).squeeze(-1)

    def _inner(self, hidden: Tensor) -> Tensor:
        seen, _ = self.attention(hidden[None], hidden[None], hidden[None], need_weights=False)
        return torch.tanh(cast("Tensor", self.second(self.drop(seen[0]))))


def loss_of(model: nn.Module, batch: object, *, bf16: bool = False, accumulate: int = 2) -> Tensor:
    """Return the mean distance to what was wanted, of which the square root has no finite slope at zero."""
    assert isinstance(batch, dict)
    around: AbstractContextManager[object] = torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext()
    with around:
        told = model(batch["items"])
    apart = (told.float() - batch["wanted"]).square() * batch["weight"]
    return cast("Tensor", apart.sqrt().mean() / accumulate)


def batches(steps: int = BAD_STEP, *, accumulate: int = 2) -> list[list[dict[str, Tensor]]]:
    """Make the micro-batches of each step; in the last one a weight is zero, so that its gradient is not finite."""
    chance = torch.Generator().manual_seed(11)
    made = [
        [
            {
                "items": torch.randn(6, WIDTH, generator=chance),
                "wanted": torch.randn(6, generator=chance),
                "weight": torch.ones(6),
            }
            for _ in range(accumulate)
        ]
        for _ in range(steps)
    ]
    made[-1][-1]["weight"][2] = 0
    return made


def train(
    output: Path,
    *,
    model: nn.Module | None = None,
    capture: CaptureSettings | None = None,
    bf16: bool = False,
    steps: int = BAD_STEP,
    made: list[list[dict[str, Tensor]]] | None = None,
    before: Callable[[nn.Module], None] | None = None,
    mode: str = "act",
) -> tuple[Told, nn.Module]:
    """Train until something is not finite, and return what was told, and the model."""
    torch.manual_seed(5)
    model = HardNet() if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    told = Told()
    guard = Guard(model, optimizer, output=output, sinks=[told], capture=capture or CaptureSettings(), mode=mode)
    for micro_batches in batches(steps) if made is None else made:
        for batch in micro_batches:
            with guard.micro(batch) as micro:
                micro.loss(loss := loss_of(model, batch, bf16=bf16, accumulate=len(micro_batches)))
                loss.backward()
        if before is not None:
            before(model)
        guard.clip_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    return told, model


def place(output: Path, step: int = BAD_STEP) -> str:
    """Return the folder of a capture."""
    return str(output / "guard" / "captures" / f"nan-at-{step:08d}")


def replay(_capture: RankCapture) -> ReplayTask:
    model = HardNet()
    return ReplayTask(model=model, loss=lambda batch: loss_of(model, batch))


ADDRESSES: list[int] = []
"""Where the tensors of the batches lay that `replay_noting_addresses` was given."""


def replay_noting_addresses(_capture: RankCapture) -> ReplayTask:
    model = HardNet()

    def noted(batch: dict[str, Tensor]) -> Tensor:
        ADDRESSES.extend(tensor.data_ptr() for tensor in batch.values())
        return loss_of(model, batch)

    return ReplayTask(model=model, loss=noted)


def embedding() -> nn.Embedding:
    return nn.Embedding(5, 3, sparse=True)


def replay_embedding(_capture: RankCapture) -> ReplayTask:
    model = embedding()
    return ReplayTask(model=model, loss=lambda batch: (model(batch["ids"]) * batch["weight"]).sum())


def replay_bf16(_capture: RankCapture) -> ReplayTask:
    model = HardNet()
    return ReplayTask(model=model, loss=lambda batch: loss_of(model, batch, bf16=True))


def other_batch(_capture: RankCapture) -> ReplayTask:
    model = HardNet()

    def changed(batch: dict[str, Tensor]) -> Tensor:
        items = batch["items"].clone()
        items[0, 0] += 1e-3
        return loss_of(model, {**batch, "items": items})

    return ReplayTask(model=model, loss=changed)


def other_weight(_capture: RankCapture) -> ReplayTask:
    model = HardNet()

    def changed(batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            model.head.bias.add_(1e-3)
        return loss_of(model, batch)

    return ReplayTask(model=model, loss=changed)


def other_chance(_capture: RankCapture) -> ReplayTask:
    model = HardNet()

    def changed(batch: dict[str, Tensor]) -> Tensor:
        torch.rand(1)
        return loss_of(model, batch)

    return ReplayTask(model=model, loss=changed)


def mended(_capture: RankCapture) -> ReplayTask:
    """Does what it did, but for what was not finite."""
    model = HardNet()
    return ReplayTask(model=model, loss=lambda batch: loss_of(model, {**batch, "weight": torch.ones(6)}))


def wider(_capture: RankCapture) -> ReplayTask:
    model = HardNet(2 * WIDTH)
    return ReplayTask(model=model, loss=lambda batch: loss_of(model, batch))


def lacking(_capture: RankCapture) -> ReplayTask:
    model = nn.Linear(WIDTH, 1)
    return ReplayTask(model=model, loss=lambda batch: loss_of(model, batch))


def more(_capture: RankCapture) -> ReplayTask:
    model = HardNet()
    model.extra = nn.Linear(2, 2)
    return ReplayTask(model=model, loss=lambda batch: loss_of(model, batch))


def another_buffer(_capture: RankCapture) -> ReplayTask:
    model = HardNet()
    model.register_buffer("extra", torch.ones(1))
    return ReplayTask(model=model, loss=lambda batch: loss_of(model, batch))


def raising(_capture: RankCapture) -> ReplayTask:
    raise KeyError("no such setting")


def no_model(_capture: RankCapture) -> int:
    return 7


def no_loss(_capture: RankCapture) -> ReplayTask:
    model = HardNet()
    return ReplayTask(model=model, loss=lambda _: torch.ones(()))


def halved(_capture: RankCapture) -> ReplayTask:
    model = HardNet().to(torch.float64)
    return ReplayTask(model=model, loss=lambda batch: loss_of(model, batch))


class Spectral(nn.Module):
    """A complex weight, as spectral models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 2, dtype=torch.cfloat))

    def forward(self, signal: Tensor) -> Tensor:
        return (signal.to(torch.cfloat) @ self.weight).abs().mean()


def replay_spectral(_capture: RankCapture) -> ReplayTask:
    model = Spectral()
    return ReplayTask(model=model, loss=model)


class Parted(nn.Module):
    """Never called itself, and neither is its `ModuleDict`: its step calls what lies in that."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.ModuleDict({"down": nn.Sequential(nn.Linear(WIDTH, 4)), "up": nn.Linear(4, WIDTH)})

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        out: Tensor = self.net["up"](self.net["down"](batch))
        loss = (out.float() - batch).square().mean()
        return loss if index < 2 else loss * torch.zeros(()).log()


def replay_parted(_capture: RankCapture) -> nn.Module:
    return Parted()


def replay_spectral_compiled(_capture: RankCapture) -> ReplayTask:
    model = Spectral()
    return ReplayTask(model=model, loss=torch.compile(model, backend="aot_eager"))
