"""Recomputation of a suspicious step on the same device, to see whether it gives the same result twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.guard.capture.compute import LossFunction, Recompute, compute_again, facts_of, loss_bits, named_gradients
from ckpttool.guard.contain import one_line
from ckpttool.guard.model.capture import Rerun
from ckpttool.guard.nested import is_sharded

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from ckpttool.guard.capture.memory import Remembered, StepMemory

_ADVICE = "CaptureSettings(loss_of=...) lets the guard recompute it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """The result of recomputing a step."""

    rerun: Rerun | None = None
    """The recomputed values, or None if the step was not recomputed."""
    why_not: str | None = None
    """Why the step was not recomputed, as one clause. None if it was."""


class CannotRecompute(Exception):  # noqa: N818  a reason, not an error
    """Error for a micro-batch whose loss cannot be recomputed. The message is the reason."""


class Recomputation:
    """Recomputation of the steps of one rank, at most as often per run as the budget allows."""

    def __init__(self, model: nn.Module, loss_of: LossFunction | None, most: int) -> None:
        """Store the model and the settings.

        Args:
            model: The trained model without a wrapper.
            loss_of: Returns the loss of a micro-batch from model and batch. If None, the trainer's own function is
                used.
            most: Maximum number of steps to recompute.
        """
        self._model = model
        self._loss_of = loss_of
        self._most = most
        self.count = 0
        """Number of steps recomputed in this run."""

    def run(
        self,
        memory: StepMemory,
        *,
        of_trainer: Recompute | None,
        scale: float | None,
        restore_buffers: Callable[[], None],
        is_suspicious: Callable[[Rerun], bool],
    ) -> Again:
        """Recompute a step. If the result differs, recompute it again, to see whether the step is deterministic.

        Args:
            memory: The micro-batches of the step.
            of_trainer: The trainer's own function of a micro-batch, or None if it has none.
            scale: Loss scale, or None without a scaler.
            restore_buffers: Restores the buffers to their state before the step.
            is_suspicious: Returns whether a recomputation has the suspicious result again.
        """
        loss_of = of_trainer if self._loss_of is None else _of_batch(self._loss_of)
        why_not = self._why_not(memory, loss_of)
        if loss_of is None or why_not is not None:
            return Again(why_not=why_not)

        def compute() -> Rerun:
            return compute_again(
                self._model, memory.micro_batches, loss_of, scale=scale, restore_buffers=restore_buffers
            )

        self.count += 1
        try:
            rerun = compute()
            if not is_suspicious(rerun):
                rerun = replace(rerun, repeats=compute().equals(rerun))
        except CannotRecompute as error:
            return Again(why_not=str(error))
        except torch.OutOfMemoryError:
            return Again(why_not="the device has too little free memory to recompute it")
        except Exception as error:  # noqa: BLE001  code of the training may raise anything
            return Again(why_not=f"recomputing it raised {one_line(error)}")
        return Again(rerun=rerun)

    def _why_not(self, memory: StepMemory, loss_of: Recompute | None) -> str | None:
        if loss_of is None:
            return f"the loss function is unknown; {_ADVICE}"
        if any(is_sharded(parameter) for parameter in self._model.parameters()):
            return "its weights are sharded over ranks"
        if not memory.micro_batches:
            return "its batches were not passed to the guard"
        if not memory.holds_all:
            return "its batches exceed the budget CaptureBudget(host_batches=...)"
        if self.count >= self._most:
            return f"CaptureBudget(reruns={self._most}) allows no more recomputations in this run"
        return None


def original(model: nn.Module, memory: StepMemory) -> Rerun:
    """Return the step's own losses and gradients, in the form of a recomputation."""
    losses = tuple(loss_bits(micro.loss) for micro in memory.micro_batches if micro.loss is not None)
    return Rerun(losses=losses, gradients=tuple(facts_of(named_gradients(model))))


def _of_batch(loss_of: LossFunction) -> Recompute:
    def of_micro_batch(model: nn.Module, micro: Remembered) -> Tensor:
        return loss_of(model, micro.batch)

    return of_micro_batch
