"""What one guard remembers of a step, and makes a capture of."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ckpttool.core.domain.units import Step
from ckpttool.core.formats.strict_json import Json
from ckpttool.guard.buffers import Buffers
from ckpttool.guard.capture.remember import StepMemory
from ckpttool.guard.capture.settings import CaptureBudget, CaptureSettings
from ckpttool.guard.capture.store import CaptureStore, StepFacts
from ckpttool.guard.contain import Containment, Part

if TYPE_CHECKING:
    from torch.optim import Optimizer

FOLDER = "guard"
"""In the training's output folder, for all that a guard writes."""


class Keeping:
    """Remembers the micro-batches of a step, and captures one that was not finite. What fails in it stays in it."""

    def __init__(
        self,
        store: Callable[[], CaptureStore],
        model: nn.Module | None,
        contain: Containment,
        budget: CaptureBudget = CaptureBudget(),
    ) -> None:
        """Take what makes the store when it is needed, what is trained (None: nothing is kept), and what runs parts."""
        self._make = store
        self._contain = contain
        self._memory = (
            None
            if model is None
            else StepMemory(model, host_batches=budget.host_batches, device_batches=budget.device_batches)
        )
        self._store: CaptureStore | None = None

    @classmethod
    def of(
        cls,
        model: nn.Module,
        optimizer: Optimizer,
        output: str | os.PathLike[str] | None,
        settings: CaptureSettings | None,
        contain: Containment,
    ) -> Keeping:
        """Return what keeps steps of a training below its output folder; without a folder or settings it keeps none."""
        folder = os.path.join(os.fspath(output or ""), FOLDER)

        def store() -> CaptureStore:
            met = dist.is_available() and dist.is_initialized()  # ranks may meet only after the guard was made
            return CaptureStore(
                folder,
                model,
                emit=contain.emit,
                rank=dist.get_rank() if met else 0,
                world_size=dist.get_world_size() if met else 1,
                settings=settings or CaptureSettings(),
                optimizer=optimizer,
            )

        if output is None or settings is None:
            return cls(store, None, contain)
        return cls(store, model, contain, settings.budget)

    def micro(self, batch: object, index: int | None) -> None:
        """Remember a micro-batch, right before its forward."""
        if (memory := self._memory) is not None and batch is not None:
            self._contain.run(Part.MEMORY, lambda: memory.micro(batch, index=index))

    def loss(self, loss: Tensor) -> None:
        """Remember its loss."""
        if (memory := self._memory) is not None:
            self._contain.run(Part.MEMORY, lambda: memory.loss(loss))

    def leave(self) -> None:
        """End a micro-batch: nothing of it stays on the model."""
        if self._memory is not None:
            self._contain.run(Part.MEMORY, self._memory.leave, always=True)

    def forget(self) -> None:
        """Let go of a step."""
        if self._memory is not None:
            self._contain.run(Part.MEMORY, self._memory.forget)

    def capture(self, step: Step, applied: int, scaler: torch.amp.GradScaler | None, buffers: Buffers) -> None:
        """Capture the step that is remembered; weights, gradients and buffers are as before when it returns.

        Args:
            step: Its number.
            applied: Updates applied before it.
            scaler: The loss scaler, where there is one.
            buffers: As they were before the step.
        """
        if (memory := self._memory) is None:
            return

        def capture() -> None:
            facts = StepFacts(
                step=step,
                optimizer_step=applied,
                scale=scaler.get_scale() if scaler is not None and scaler.is_enabled() else None,
                buffers_left_out=buffers.left_out,
                restore_buffers=buffers.restore,
            )
            self._own_store().capture(memory, facts)

        # It is no part of what every step costs.
        self._contain.run(Part.CAPTURE, capture, waits=True)

    def saved(self) -> Json:
        """Return what was made: a restart does not get a new budget."""
        return None if self._memory is None else {**self._own_store().saved()}

    def restore(self, saved: Json) -> None:
        """Count on from there."""
        if isinstance(saved, dict) and self._memory is not None:
            self._own_store().restore(saved)

    def _own_store(self) -> CaptureStore:
        if self._store is None:
            self._store = self._make()
        return self._store
