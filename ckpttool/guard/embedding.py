"""Health of the training run at a save, from the norm of its embedding's gradient and from applied spikes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpttool.core.domain.guarding import EventValue, GuardEventKind
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import UsageError
from ckpttool.guard.capture.compute import unwrapped
from ckpttool.guard.gradients import sum_of_squares
from ckpttool.guard.nested import is_sharded
from ckpttool.health.rules.timeline import SETTLED_AFTER

if TYPE_CHECKING:
    from torch import Tensor

    from ckpttool.guard.objects import Objects

_APPLIED_ALL_THE_SAME = frozenset({GuardEventKind.SKIP, GuardEventKind.SPIKE, GuardEventKind.NONFINITE})


class EmbeddingHealth:
    """The health to record with a save. If it was not measured, it is unknown, never healthy."""

    def __init__(self, objects: Objects, *, embedding: str | None, threshold: float | None) -> None:
        """Start to measure the embedding, and subscribe to the guard's events.

        Args:
            objects: The objects of the training run.
            embedding: Name of the parameter. If None, nothing is measured.
            threshold: Sum of squares of its gradient at or above which a save is unhealthy.

        Raises:
            UsageError: There is no such parameter, it cannot be measured, or only one of the two was passed.
        """
        if (embedding is None) != (threshold is None):
            raise UsageError(
                "embedding and health_threshold are used together: the embedding is measured against the threshold"
            )
        self._threshold = threshold
        self._guard = objects.guard
        self._scaler = objects.scaler
        self._backward: Tensor | None = None  # the sum of squares after the last backward
        self._applied: Tensor | None = None  # and at the last update
        self._spike: Step | None = None
        if embedding is not None:
            parameters = dict(unwrapped(objects.model).named_parameters())
            if embedding not in parameters:
                raise UsageError(
                    f"the model has no parameter {embedding!r}; its parameters are {', '.join(parameters)}"[:500]
                )
            self._watch(parameters[embedding], embedding, objects)
        if self._guard is not None:
            self._guard.sinks.append(self._listen)

    def of(self, step: Step) -> Health:
        """Return the health of the training run at a step."""
        if self._spike is not None and step <= self._spike + SETTLED_AFTER:
            return Health.UNHEALTHY
        squares = self.squares
        if self._threshold is None or squares is None:
            return Health.UNKNOWN
        return Health.HEALTHY if squares < self._threshold else Health.UNHEALTHY  # NaN is not below the threshold

    @property
    def squares(self) -> float | None:
        """Sum of squares at the last applied update, or None if not measured. A dropped update does not change it."""
        if self._guard is not None:
            return self._guard.embedding.applied
        return None if self._applied is None else self._applied.item()

    def _watch(self, parameter: Tensor, name: str, objects: Objects) -> None:
        if self._guard is not None:
            self._guard.embedding.watch(parameter)
            return
        if is_sharded(parameter):
            raise UsageError(f"{name} is sharded, and without a guard it is not measured over all ranks: pass guard=…")
        if not parameter.requires_grad:
            raise UsageError(f"{name} is not trained, so it has no useful gradient: name a trained parameter")
        # Not in a hook of the optimizer: by then the training has clipped its gradients.
        parameter.register_post_accumulate_grad_hook(self._measure)
        objects.optimizer.register_step_pre_hook(self._apply)

    def _measure(self, parameter: Tensor) -> None:
        scale = getattr(self._scaler, "get_scale", lambda: None)()
        if parameter.grad is not None:
            self._backward = sum_of_squares(parameter.grad, scale)

    def _apply(self, *_: Any) -> None:  # noqa: ANN401  the arguments that an optimizer passes to hooks
        """Use the value of the last backward pass. After an overflow, the loss scaler does not call this."""
        self._applied, self._backward = self._backward, None

    def _listen(self, kind: GuardEventKind, /, *, step: Step, **values: EventValue) -> None:
        if kind in _APPLIED_ALL_THE_SAME and values.get("dropped") is False:
            self._spike = step
