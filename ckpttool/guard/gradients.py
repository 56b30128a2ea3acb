"""The gradients of one optimizer: how to measure their norm, and how to drop them.

Reading the norm is the only time that the guard waits for the device. Without gradients, an optimizer changes neither
the weights nor its own state. With zero gradients, six of seven optimizers still change weights, by momentum and weight
decay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from traceback import walk_stack
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import LBFGS, Optimizer

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.errors import UsageError
from ckpttool.guard.nested import is_sharded, own_part

_CLIPS_ITSELF = "FullyShardedDataParallel"
"""Class name of torch's first sharding API, to avoid an import. Gradients of the second API identify themselves."""

_NEAR = 16
"""Maximum number of calls between a scaler and a hook of the optimizer that it steps; the real number is seven."""


def total_norm(parameters: Sequence[Tensor]) -> Tensor:
    """Return the L2 norm of all gradients, bit for bit the same on all ranks that share sharded parameters.

    The local part of a `DTensor` differs between ranks, so decisions based on it would differ too. With sharded
    parameters this is a collective operation: every rank must call it.
    """
    gradients = [gradient for parameter in parameters if (gradient := parameter.grad) is not None]
    norms = [full(_norm(group)) for group in _by_mesh(gradients)]
    return norms[0] if len(norms) == 1 else get_total_norm(norms)


def clip(parameters: Sequence[Tensor], most: float, norm: Tensor) -> None:
    """Scale all gradients down to the norm `most` in place, as torch does.

    Args:
        parameters: The parameters with the gradients.
        most: The largest norm allowed.
        norm: The current norm of the gradients.
    """
    for group in _by_mesh(parameters):
        clip_grads_with_norm_(group, most, norm)


def _by_mesh(tensors: Sequence[Tensor]) -> Iterable[Sequence[Tensor]]:
    """Group tensors by device mesh, with plain tensors as one group, because torch does not accept mixed lists."""
    if {*map(type, tensors)} <= {Tensor, nn.Parameter}:
        return (tensors,)
    groups: dict[object, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(getattr(tensor, "device_mesh", None), []).append(tensor)
    return groups.values()


def _norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm as torch's clipping computes it, including for gradients that torch does not support.

    The norm of float16 gradients is computed in float32, because float16 ends at 65504. The norm of a sparse gradient
    is the norm of its elements.
    """
    if any(gradient.dtype is torch.float16 for gradient in gradients):
        gradients = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in gradients]
    if any(gradient.is_sparse for gradient in gradients):
        gradients = [gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in gradients]
    return get_total_norm(gradients)


def full(norm: Tensor) -> Tensor:
    """Return the complete value of a norm that is sharded over ranks. Any other norm is returned unchanged."""
    full_norm: Tensor = norm.full_tensor() if is_sharded(norm) else norm  # type: ignore[attr-defined]  # a DTensor has it
    return full_norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The norm and losses of one step on this rank, as Python numbers."""

    norm: float
    """L2 norm of all gradients, before clipping."""
    loss: float | None
    """Sum of the local losses of the micro-batches, or None if the training run reports no loss."""
    losses_finite: bool
    """Whether each of these losses is finite."""
    embedding: float | None = None
    """Sum of squares of the embedding's gradient, before clipping. None if it is not measured."""


class Losses:
    """Accumulator for the local losses of a step. It stays on the device, so adding a loss does not wait."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        # Zero as long as all are finite; a non-finite loss makes it NaN. None: `_sum` is a single loss and shows it.
        self._taint: Tensor | None = None

    def add(self, loss: Tensor | float) -> None:
        """Add the loss of one micro-batch, of any shape, as passed to `backward`."""
        value = torch.as_tensor(loss).detach()
        value = own_part(value)  # a sharded loss: each rank has all of it, and reading it involves all ranks
        if self._sum is None and not value.dim():
            self._sum = value.clone()  # a compiled training may write its next loss to the same memory
            return
        taint = value * 0
        if value.dim():
            value, taint = value.sum(), taint.sum()
        if self._sum is not None:
            taint = taint + (self._sum * 0 if self._taint is None else self._taint)
            value = self._sum + value
        self._sum, self._taint = value, taint

    def read(self, norm: Tensor | float, embedding: Tensor | None = None) -> Reading:
        """Return the norm, the losses and the embedding's sum of squares, using one transfer from the device."""
        numbers = [number for number in (norm, self._sum, self._taint, embedding) if number is not None]
        if isinstance(norm, Tensor) and not _are_here(*(number for number in numbers if isinstance(number, Tensor))):
            # All fit exactly: float32 represents every bfloat16 and float16, and float64 is unchanged.
            wide = torch.float32 if self._sum is None else torch.promote_types(self._sum.dtype, torch.float32)
            wide = torch.promote_types(norm.dtype, wide)
            scalars = [torch.as_tensor(number).detach().reshape(()).to(norm.device, wide) for number in numbers]
            values = torch.stack(scalars).tolist()
        else:
            values = [float(number) for number in numbers]
        squares = None if embedding is None else values.pop()
        if self._sum is None:
            return Reading(norm=values[0], loss=None, losses_finite=True, embedding=squares)
        are_finite = math.isfinite(values[1]) if self._taint is None else values[2] == 0
        return Reading(norm=values[0], loss=values[1], losses_finite=are_finite, embedding=squares)


def _are_here(*tensors: Tensor) -> bool:
    """Return whether the host can read the tensors without waiting for a device."""
    return all(tensor.device.type == "cpu" for tensor in tensors)


class EmbeddingNorm:
    """Measurement of the embedding's gradient, once per step, before the decision and before any clipping."""

    def __init__(self) -> None:
        self._parameter: Tensor | None = None
        self.applied: float | None = None
        """Sum of squares at the last applied update, or None if it was not measured."""

    @property
    def is_watched(self) -> bool:
        """Whether there is a parameter to measure."""
        return self._parameter is not None

    def watch(self, parameter: Tensor) -> None:
        """Measure this parameter's gradient from the next step on.

        Raises:
            UsageError: Another parameter is already measured.
        """
        if self._parameter is not None and self._parameter is not parameter:
            raise UsageError("this guard measures another embedding for another writer: use one embedding per guard")
        self._parameter = parameter

    def measured(self, scale: Tensor | None = None) -> Tensor | None:
        """Return the sum of squares on the device, or None without a gradient.

        For a sharded gradient this is a collective operation.
        """
        if self._parameter is None or self._parameter.grad is None:
            return None
        return sum_of_squares(self._parameter.grad, scale)


def sum_of_squares(gradient: Tensor, scale: Tensor | float | None = None) -> Tensor:
    """Return the sum of squares of a gradient in float32, after dividing the gradient by `scale`."""
    values = gradient.detach()
    values = values.coalesce().values() if values.is_sparse else values
    norm = full(torch.linalg.vector_norm(values, dtype=torch.float32))
    norm = norm if scale is None else norm / scale
    return norm * norm


class Updated:
    """The parameters that an optimizer updates."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Store the optimizer, and the model, which defines the order of the parameters."""
        self._model = model
        self._optimizer = optimizer
        self._groups: list[int] = []
        self._ordered: list[Tensor] = []
        ordered = self.current()
        self.device = next((parameter.device for parameter in ordered), torch.device("cpu"))
        self.are_sharded = any(is_sharded(parameter) for parameter in ordered)
        """Whether reducing the gradients involves all ranks."""
        self.only_model_clips = any(kind.__name__ == _CLIPS_ITSELF for kind in type(model).__mro__)
        """Whether only the model's wrapper can compute the norm over all ranks, and only while it clips."""

    def current(self) -> list[Tensor]:
        """Return the parameters in the model's order, so that a sum of squares equals the trainer's."""
        groups = [len(group["params"]) for group in self._optimizer.param_groups]
        if groups != self._groups:
            updated = {
                id(parameter): parameter for group in self._optimizer.param_groups for parameter in group["params"]
            }
            parameters = {
                id(parameter): parameter for parameter in self._model.parameters() if id(parameter) in updated
            }
            self._groups, self._ordered = groups, list({**parameters, **updated}.values())
        return self._ordered

    def drop(self) -> bool:
        """Remove the gradients, so that the optimizer does nothing, and return True.

        Call it only immediately before the step: a loss scaler raises an error if it finds no gradients to unscale.
        """
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        return True


def innermost(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer inside all wrappers of the trainer. Only its hooks run."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


def refuse_undroppable(model: nn.Module, optimizer: Optimizer) -> None:
    """Raise an error if the updates of this optimizer cannot be dropped.

    Raises:
        UsageError: The optimizer has no hook before its step, steps inside `backward`, or is LBFGS.
    """
    advice = "its updates cannot be dropped; mode='watch' reports which would have been dropped"
    if not hasattr(optimizer, "register_step_pre_hook"):
        raise UsageError(f"{type(optimizer).__name__} has no hook before its step: {advice}")
    if hasattr(optimizer, "fused_backward") or (hasattr(model, "backward") and hasattr(model, "step")):
        raise UsageError(f"{type(optimizer).__name__} steps inside backward: {advice}")
    if isinstance(optimizer, LBFGS):
        raise UsageError(f"LBFGS uses many gradients in one step: {advice}")


class Scaling:
    """The loss scaler of an optimizer, and whether it skipped the optimizer's step."""

    def __init__(self, scaler: GradScaler | None, optimizer: Optimizer) -> None:
        self.scaler = scaler
        self._optimizer = optimizer
        self.has_looked = scaler is not None
        """Whether the search for a scaler is done: the scaler is known, or does not exist."""
        self._round: Mapping[int, Mapping[str, Any]] = {}

    def use(self, scaler: GradScaler) -> None:
        """Store a scaler, unless one is already known."""
        if self.scaler is None:
            self.scaler, self.has_looked = scaler, True

    @property
    def is_on(self) -> bool:
        """Whether there is an active scaler."""
        return self.scaler is not None and self.scaler.is_enabled()

    def scale(self) -> float | None:
        """Return the loss scale, or None without an active scaler. The host waits for the device."""
        return self.scaler.get_scale() if self.scaler is not None and self.scaler.is_enabled() else None

    def state(self) -> dict[str, Any]:
        """Return the state of the scaler, or an empty dict without an active scaler."""
        return self.scaler.state_dict() if self.scaler is not None and self.scaler.is_enabled() else {}

    def finds(self) -> bool:
        """Search the call stack for the scaler that is calling the optimizer, and return whether one was found.

        Only the first call searches. Later calls return False.
        """
        if self.has_looked:
            return False
        self.has_looked = True
        callers = (frame.f_locals.get("self") for frame, _ in islice(walk_stack(None), _NEAR))
        self.scaler = next(
            (caller for caller in callers if isinstance(caller, GradScaler) and caller.is_enabled()), None
        )
        return self.scaler is not None

    def has_stepped(self) -> bool:
        """Return whether the scaler stepped the optimizer since the last call."""
        if self.scaler is None:
            return False
        # Its action for each optimizer until `update`, which begins a new round. Torch has no public name for it.
        last, self._round = self._round, getattr(self.scaler, "_per_optimizer_states", {})
        stage = last.get(id(self._optimizer), {}).get("stage")
        return getattr(stage, "name", None) == "STEPPED"
