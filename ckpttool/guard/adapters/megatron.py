"""The guard in Megatron-core's optimizers, where a dropped update is reported as one with an Inf.

`step` of each optimizer begins with `prepare_grads`, which returns whether an Inf was found. If so, nothing is updated,
and Megatron-LM counts a skipped iteration, in which the learning rate does not advance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn

from ckpttool.core.errors import UsageError
from ckpttool.guard.adapters.engine import EngineScale, begin_at_forward, guard_settings, wrap
from ckpttool.guard.step import GUARDED, Guard


def attach(model: nn.Module | Sequence[nn.Module], optimizer: Any, **settings: Any) -> Guard:
    """Drop harmful updates of a Megatron-core optimizer. Call it after `get_megatron_optimizer`.

        guard = attach(model, optimizer, output="output", policy=RobustZPolicy())

    On a dropped step `optimizer.step()` returns `(False, None, None)` on all ranks. Megatron-core passes no loss to the
    guard. Pass it with `guard.take_loss(loss)`, otherwise only gradients are checked.

    Args:
        model: The model, or the list of its chunks, as `get_model` returns it.
        optimizer: The optimizer, including a `ChainedOptimizer`.
        settings: Arguments of `Guard` except model, optimizer and scaler, such as `output`, `policy` and `mode`.
            `features` has no effect.

    Returns:
        The guard.

    Raises:
        UsageError: The optimizer does not come from Megatron-core, or a setting is invalid.
    """
    if not all(hasattr(optimizer, name) for name in ("prepare_grads", "step_with_ready_grads", "get_grad_norm")):
        raise UsageError(f"{type(optimizer).__name__} is not an optimizer of Megatron-core")
    chunks = [model] if isinstance(model, nn.Module) else [*model]
    whole = chunks[0] if len(chunks) == 1 else nn.ModuleList(chunks)
    arguments, switched_on = guard_settings(settings, "Megatron-core")
    inner = [part.optimizer for part in _parts(optimizer) if part.optimizer is not None]
    if not inner:
        raise UsageError("Megatron-core has no parameters to train on this rank: its updates cannot be guarded")
    scaler = EngineScale(lambda: float(optimizer.get_loss_scale())) if _has_dynamic_scale(optimizer) else None
    guard = Guard(whole, inner[0], scaler=scaler, **arguments)  # type: ignore[arg-type]  # it has both methods
    guard.switched_on = switched_on
    for part in inner:
        GUARDED.add(part)
    for chunk in chunks:
        begin_at_forward(guard, chunk)
    _Update(optimizer, guard).install()
    return guard


def _parts(optimizer: Any) -> Iterator[Any]:
    """Yield the optimizers of a chain that update parameters themselves, including those of nested chains."""
    chained = getattr(optimizer, "chained_optimizers", None)
    if chained is None:
        yield optimizer
        return
    for part in chained:
        yield from _parts(part)


def _has_dynamic_scale(optimizer: Any) -> bool:
    scalers = [getattr(part, "grad_scaler", None) for part in _parts(optimizer)]
    return any(hasattr(scaler, "growth_factor") for scaler in scalers)  # a constant scale cannot recover


class _Update:
    """Wrapper that decides between the gradients and the update of an optimizer."""

    def __init__(self, optimizer: Any, guard: Guard) -> None:
        self._optimizer = optimizer
        self._guard = guard
        self._norm: float | None = None  # of this step

    def install(self) -> None:
        """Wrap the methods of the optimizer."""
        wrap(self._optimizer, "prepare_grads", self._prepare)
        wrap(self._optimizer, "get_grad_norm", self._known_norm)
        wrap(self._optimizer, "step", self._step)

    def _prepare(self, original: Callable[[], bool]) -> bool:
        found_inf = original()
        norm = math.inf if found_inf else float(self._optimizer.get_grad_norm())
        self._norm = None if found_inf else norm
        applied = self._guard.decide(norm)
        for part in _parts(self._optimizer):
            if self._guard.limit is not None:
                limits = (self._guard.limit, part.config.clip_grad)
                part.config.clip_grad = min(limit for limit in limits if limit > 0)
        return found_inf or not applied

    def _known_norm(self, original: Callable[[], Any]) -> Any:
        """Return the known norm of this step, which Megatron-core would compute once more for clipping."""
        return original() if self._norm is None else self._norm

    def _step(self, original: Callable[[], Any]) -> Any:
        usual_clips = [(part.config, part.config.clip_grad) for part in _parts(self._optimizer)]
        self._norm = None
        try:
            return original()
        finally:
            self._norm = None
            for config, clip in usual_clips:
                config.clip_grad = clip
