"""The guard in DeepSpeed's engine with ZeRO 1, 2 or 3, where a dropped update is handled like an overflow.

ZeRO owns the gradients, so removing them does not drop an update. Each ZeRO optimizer updates its loss scale between
computing the norm and applying the update. The guard decides at that point, and turns the update into an overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from ckpttool.core.domain.units import Step
from ckpttool.core.errors import UsageError
from ckpttool.guard.adapters.engine import EngineScale, begin_at_forward, guard_settings, wrap
from ckpttool.guard.step import GUARDED, Guard

_GUARDS: WeakKeyDictionary[nn.Module, Guard] = WeakKeyDictionary()
_UNPARTITIONED = 2
"""Highest ZeRO stage at which each rank has all weights."""


def is_engine(model: object) -> bool:
    """Return whether a model is DeepSpeed's engine, without importing DeepSpeed."""
    return any(kind.__name__ == "DeepSpeedEngine" for kind in type(model).__mro__)


def attach(engine: nn.Module, **settings: Any) -> Guard:
    """Drop harmful updates of a DeepSpeed engine. Call it after `deepspeed.initialize`.

        engine, *_ = deepspeed.initialize(model=model, config=config)
        guard = attach(engine, output="output", policy=RobustZPolicy())

    On a dropped step all ranks do what DeepSpeed does at an overflow: `skipped_steps` counts it, a dynamic loss scale
    decreases, and the learning rate of DeepSpeed's own schedule does not advance.

    Args:
        engine: The engine, with ZeRO stage 1, 2 or 3.
        settings: Arguments of `Guard` except model, optimizer, scaler and step, such as `output`, `policy` and `mode`.
            `features` has no effect.

    Returns:
        The guard. If the engine already has a guard, that guard.

    Raises:
        UsageError: The engine does not use ZeRO, or a setting is invalid.
    """
    if (guard := _GUARDS.get(engine)) is not None:
        return guard
    zero = _zero_optimizer(engine)
    arguments, switched_on = guard_settings(settings, "DeepSpeed")
    if _stage(engine) > _UNPARTITIONED:
        arguments["capture"] = None  # no rank has complete weights
    scaler = EngineScale(lambda: zero.loss_scale) if zero.loss_scaler.dynamic else None
    guard = Guard(engine, zero.optimizer, scaler=scaler, **arguments)  # type: ignore[arg-type]  # it has both methods
    guard.switched_on = switched_on
    _GUARDS[engine] = guard
    engine.register_forward_pre_hook(lambda *_: _count_as(engine, guard))
    begin_at_forward(guard, engine)
    wrap(engine, "backward", _Backward(engine, guard))
    _Update(engine, guard).install()
    return guard


def _count_as(engine: Any, guard: Guard) -> None:
    """Count steps as the engine does, including after it loaded a checkpoint."""
    guard.step = Step(engine.global_steps)


def _stage(engine: Any) -> int:
    return int(engine.zero_optimization_stage())


def _zero_optimizer(engine: Any) -> Any:
    """Return the ZeRO optimizer of an engine.

    Raises:
        UsageError: The engine has no ZeRO optimizer, or one of an unknown form.
    """
    zero = getattr(engine, "optimizer", None)
    if zero is None or not _stage(engine):
        raise UsageError(
            "DeepSpeed without ZeRO: its updates cannot be dropped; use ZeRO stage 1, 2 or 3, or "
            "Guard(engine, optimizer, mode='watch')"
        )
    if not all(hasattr(zero, name) for name in ("_update_scale", "loss_scaler", "overflow", "optimizer")):
        raise UsageError(
            f"{type(zero).__name__} has no overflow path that ckpttool knows: its updates cannot be dropped"
        )
    return zero


class _Backward:
    """Wrapper that passes the loss of each micro-batch to the guard, divided as the engine divides it."""

    def __init__(self, engine: Any, guard: Guard) -> None:
        self._engine = engine
        self._guard = guard

    def __call__(self, original: Callable[..., Any], loss: Tensor, *args: Any, **kwargs: Any) -> Any:
        divisor = self._engine.gradient_accumulation_steps() if kwargs.get("scale_wrt_gas", True) else 1
        self._guard.take_loss(loss.detach() / divisor)
        result = original(loss, *args, **kwargs)
        self._guard.end()
        return result


class _Update:
    """Wrapper that decides between the norm and the update of a ZeRO optimizer."""

    def __init__(self, engine: Any, guard: Guard) -> None:
        zero = engine.optimizer
        self._engine = engine
        self._zero = zero
        self._guard = guard
        self._norms: list[float] | None = None  # scaled norms of this step's groups, or None if not computed
        self._usual_clip = zero.clip_grad
        GUARDED.add(zero.optimizer)

    def install(self) -> None:
        """Wrap the methods of the optimizer."""
        norm = "_get_norm_groups" if hasattr(self._zero, "_get_norm_groups") else "scaled_global_norm"
        wrap(self._zero, norm, self._remember)
        wrap(self._zero, "_update_scale", self._decide)
        wrap(self._zero, "step", self._step)

    def _remember(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        norms = original(*args, **kwargs)
        self._norms = [float(norm) for norm in (norms if isinstance(norms, (list, tuple)) else [norms])]
        return norms

    def _norm(self) -> float:
        """Return the unscaled norm over all ranks, or infinity if DeepSpeed found an overflow before computing it."""
        if self._zero.overflow and self._norms is None:
            return math.inf
        if self._norms is None:  # the config has `compute_grad_norm: false`
            self._zero.scaled_global_norm()
        norms = self._norms or [0.0]
        is_valid = all(math.isfinite(norm) and norm >= 0 for norm in norms)  # it replaces a non-finite norm by -1
        return math.hypot(*norms) / float(self._zero.loss_scale) if is_valid else math.inf

    def _decide(self, original: Callable[..., Any], has_overflow: bool = False) -> Any:  # noqa: FBT001, FBT002  its form
        _count_as(self._engine, self._guard)
        applied = self._guard.decide(self._norm())
        if has_overflow or applied:
            if self._guard.limit is not None:
                limits = (self._guard.limit, self._usual_clip)
                self._zero.clip_grad = min(limit for limit in limits if limit > 0)
            return original(has_overflow)
        self._zero.overflow = True
        return original(not self._is_at_minimum())

    def _is_at_minimum(self) -> bool:
        """Return whether DeepSpeed would end the training run instead of decreasing the loss scale."""
        scaler = self._zero.loss_scaler
        return bool(scaler.dynamic) and scaler.cur_scale <= getattr(scaler, "min_scale", 0)

    def _step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._norms, self._usual_clip = None, self._zero.clip_grad
        try:
            return original(*args, **kwargs)
        finally:
            self._zero.clip_grad = self._usual_clip
