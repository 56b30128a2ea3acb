"""Whether the training was well at a save: the gradient of its embedding, and spikes that were applied."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ckpttool.decide.timeline import SETTLED_AFTER
from ckpttool.domain.guarding import EventValue, GuardEventKind
from ckpttool.domain.health import Health
from ckpttool.domain.units import Step
from ckpttool.errors import UsageError
from ckpttool.guard.capture.facts import unwrapped
from ckpttool.guard.norm import full
from ckpttool.guard.objects import Objects

_APPLIED_ALL_THE_SAME = frozenset({GuardEventKind.SKIP, GuardEventKind.SPIKE, GuardEventKind.NONFINITE})


class EmbeddingHealth:
    """What is recorded of a save's health. Not measured is unknown, never healthy."""

    def __init__(self, objects: Objects, *, embedding: str | None, threshold: float | None) -> None:
        """Measure before each update, and listen to the guard.

        Args:
            objects: Of the training.
            embedding: Name of the parameter; None: nothing is measured.
            threshold: Sum of squares of its gradient at or above which a save is unhealthy.

        Raises:
            UsageError: There is no such parameter, or one of the two is given without the other.
        """
        if (embedding is None) != (threshold is None):
            raise UsageError("embedding and health_threshold go together: the one says what is measured by the other")
        self._threshold = threshold
        self._squares: Tensor | None = None
        self._spike: Step | None = None
        if embedding is not None:
            parameters = dict(unwrapped(objects.model).named_parameters())
            if embedding not in parameters:
                raise UsageError(f"the model has no parameter {embedding!r}; there are {', '.join(parameters)}"[:500])
            self._parameter = parameters[embedding]
            objects.optimizer.register_step_pre_hook(self._measure)
        if objects.guard is not None:
            objects.guard.sinks.append(self._listen)

    def of(self, step: Step) -> Health:
        """Say how the training is at a step."""
        if self._spike is not None and step <= self._spike + SETTLED_AFTER:
            return Health.UNHEALTHY
        if self._threshold is None or self._squares is None:
            return Health.UNKNOWN
        return Health.HEALTHY if self._squares.item() < self._threshold else Health.UNHEALTHY  # NaN is below nothing

    def _measure(self, *_: Any) -> None:  # noqa: ANN401  what an optimizer hands its hooks
        """Take the sum of squares, on the device. A dropped update leaves what the last applied one showed."""
        gradient = self._parameter.grad
        if gradient is not None:
            norm = full(torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32))
            self._squares = norm * norm

    def _listen(self, kind: GuardEventKind, /, *, step: Step, **values: EventValue) -> None:
        if kind in _APPLIED_ALL_THE_SAME and values.get("dropped") is False:
            self._spike = step
