"""Small trainings for the tests of the guard, and what of them can be compared in every bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from ckpttool.core.domain.guarding import EventValue, GuardEventKind
from ckpttool.core.domain.units import Step
from ckpttool.guard import Guard
from ckpttool.health.policies.base import Policy

Updates = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""Makes an optimizer."""

NOT_A_NUMBER, INFINITE = float("nan"), float("inf")


class Told:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[GuardEventKind, int, dict[str, EventValue]]] = []

    def __call__(self, kind: GuardEventKind, /, *, step: Step, **values: EventValue) -> None:
        self.events.append((kind, step, values))

    def of(self, kind: GuardEventKind) -> list[dict[str, EventValue]]:
        return [values for told, _, values in self.events if told is kind]

    def kinds(self) -> list[str]:
        return [kind.value for kind, _, _ in self.events if kind is not GuardEventKind.STEP]


class SmallNet(nn.Module):
    """Two layers with running statistics between them."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(4, 8)
        self.usual = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 2, bias=False)

    def forward(self, batch: Tensor) -> Tensor:
        hidden = self.first(batch)
        out: Tensor = self.last(torch.relu(self.usual(hidden))) + hidden[:, :2]  # of which a spike is not made usual
        return out


def batches(count: int, *, seed: int = 1, bad: Mapping[int, float] | None = None) -> Iterator[Tensor]:
    """Yield batches, the first one number 1; one element of a bad one is what the number says, or all times that."""
    chance = torch.Generator().manual_seed(seed)
    for number in range(1, count + 1):
        batch = torch.randn(6, 4, generator=chance)
        if bad and number in bad:
            value = bad[number]
            if value - value == 0:
                batch *= value
            else:
                batch[2, 1] = value
        yield batch


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    out: Tensor = model(batch)
    return out.square().mean() + out.sum() * 0.01


class Training:
    """A plain loop, guarded or not."""

    def __init__(
        self,
        updates: Updates,
        *,
        accumulate: int = 1,
        clip: float | None = 1.0,
        closure: bool = False,
        scale: float | None = None,
        guarded: bool = True,
        features: str | None = None,
        output: Path | None = None,
        step: int = 0,
        patrol: int = 0,
        policy: Policy | None = None,
        mode: str = "act",
        count_threshold: int = 10,
    ) -> None:
        self.model = SmallNet()
        self.optimizer = updates(list(self.model.parameters()))
        self.accumulate, self.clip, self.closure = accumulate, clip, closure
        self.scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale)
        self.told = Told()
        self.guard = (
            Guard(
                self.model,
                self.optimizer,
                policy=policy,
                mode=mode,
                count_threshold=count_threshold,
                scaler=self.scaler,
                sinks=[self.told],
                features=features,
                output=output,
                step=step,
                patrol=patrol,
            )
            if guarded
            else None
        )

    def step(self, batch: Tensor, *, loss: Callable[[nn.Module, Tensor], Tensor] = loss_of) -> None:
        """Do one optimizer step with the batch in equal parts."""
        if self.closure:
            self.optimizer.step(lambda: self._backward(batch, loss).item())
            return
        self._backward(batch, loss)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    @property
    def the_guard(self) -> Guard:
        assert self.guard is not None
        return self.guard

    def run(self, batches: Iterable[Tensor]) -> Training:
        for batch in batches:
            self.step(batch)
        return self

    def everything(self) -> object:
        """Return weights, buffers and optimizer state, for comparison."""
        return bits([self.model.state_dict(), self.optimizer.state_dict()])

    def _backward(self, batch: Tensor, loss_of: Callable[[nn.Module, Tensor], Tensor]) -> Tensor:
        self.optimizer.zero_grad()
        loss = torch.tensor(0.0)
        for part in batch.chunk(self.accumulate):
            with nullcontext() if self.guard is None else self.guard.micro(part) as micro:
                loss = loss_of(self.model, part) / self.accumulate
                if micro is not None:
                    micro.loss(loss)
                (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self.clip is not None and self.guard is not None:
            self.guard.clip_(self.clip)
        elif self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        return loss


def bits(state: object) -> object:
    """Return what can be compared with `==`, and is equal only where all bits are."""
    if isinstance(state, Tensor):
        flat = state.detach().cpu().contiguous().reshape(-1)
        return state.dtype, tuple(state.shape), bytes(flat.view(torch.uint8).numpy())
    if isinstance(state, Mapping):
        return {key: bits(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [bits(value) for value in state]
    return state
