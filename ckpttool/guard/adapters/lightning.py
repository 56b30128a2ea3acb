"""The guard in Lightning: a callback that forwards events to the guard, which makes all decisions."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from ckpttool.guard.adapters import deepspeed
from ckpttool.guard.capture.again import CannotRecompute
from ckpttool.guard.capture.memory import Remembered
from ckpttool.guard.gradients import innermost
from ckpttool.guard.step import GUARDED, Guard, GuardStop, MicroBatch
from ckpttool.guard.switch import VARIABLE

_UNHEARD = 3
"""Number of consecutive stops after which training ends with an error.

`should_stop` has no effect before `min_steps`.
"""

_LOGGING = ("log", "log_dict", "print")


class LightningGuard(Callback):
    """Callback that drops harmful updates in a `Trainer`.

        Trainer(callbacks=[LightningGuard(output="output", policy=RobustZPolicy())], gradient_clip_val=1.0)

    The gradients are checked after unscaling and before clipping. On a dropped step `global_step` and the learning rate
    advance, as in Lightning after an overflow. Each checkpoint includes the guard's memory, and `fit(ckpt_path=...)`
    restores it.
    """

    def __init__(self, **settings: Any) -> None:
        """Store the arguments of `Guard` except model, optimizer, scaler and step, such as `output` and `policy`."""
        self.guards: tuple[Guard, ...] = ()
        """One guard per optimizer, once `fit` has started."""
        self._settings = settings
        self._engine: Guard | None = None  # the only guard, if DeepSpeed's engine calls it
        self._saved: list[Any] = []
        self._micros: list[MicroBatch] = []
        self._unheard = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Insert a guard between each optimizer and its gradients.

        Raises:
            UsageError: The training run cannot be guarded, or a setting is invalid.
        """
        if [guard.optimizer for guard in self.guards] != [innermost(optimizer) for optimizer in trainer.optimizers]:
            self.guards = tuple(self._guard(trainer, optimizer) for optimizer in trainer.optimizers)
        if trainer.global_step:
            for guard, saved in zip_longest(self.guards, self._saved[: len(self.guards)]):
                guard.restore(saved)
        self._saved = []
        if any(guard.replays for guard in self.guards):
            self._renumber(pl_module)

    def _renumber(self, pl_module: LightningModule) -> None:
        """Pass the number of a captured batch to the module's training step."""
        step = pl_module.training_step

        @functools.wraps(step)
        def training_step(batch: Any, *rest: Any) -> Any:
            index = next((guard.replayed_index for guard in self.guards if guard.replayed_index is not None), None)
            return step(batch, *rest) if index is None or not rest else step(batch, index, *rest[1:])

        pl_module.training_step = training_step

    def _guard(self, trainer: Trainer, optimizer: Optimizer) -> Guard:
        model = trainer.strategy.model
        if deepspeed.is_engine(model):
            guard = self._engine = deepspeed.attach(model, **self._settings)
        else:
            guard = Guard(model, optimizer, scaler=_scaler(trainer), step=trainer.global_step, **self._settings)

        def stop(stopped: GuardStop) -> None:
            trainer.should_stop = True
            self._unheard += 1
            if self._unheard >= _UNHEARD:
                raise stopped

        guard.on_stop = stop
        if trainer.lightning_module.automatic_optimization:
            guard.recheck.recompute = functools.partial(_loss_again, trainer)
        return guard

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin a micro-batch, with the batch as the model receives it: on its device, and augmented."""
        called = [guard for guard in self.guards if guard is not self._engine]
        self._micros = [guard.micro(batch, index=batch_idx) for guard in called]
        for micro in self._micros:
            micro.__enter__()

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Record the loss of this rank, which is already divided by the number of accumulated batches."""
        if (scaler := _scaler(trainer)) is not None:
            loss = loss / scaler.scale(torch.ones((), device=loss.device))  # it is already scaled
        for micro in self._micros:
            micro.loss(loss)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Decide on the update. A drop takes effect when the optimizer begins its step."""
        for guard in self.guards:
            if guard is not self._engine and guard.optimizer is getattr(optimizer, "optimizer", optimizer):
                guard.clip_(math.inf)
                self._unheard *= not guard.applied

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the micro-batch. A module with manual optimization may run several backward passes."""
        if pl_module.automatic_optimization:
            self._end_micro_batch()

    def on_train_batch_end(self, *_: Any) -> None:
        """End the micro-batch if there was no backward pass."""
        self._end_micro_batch()

    def on_exception(self, *_: Any) -> None:
        """Clean up everything that is active during a micro-batch."""
        self._end_micro_batch()

    def _end_micro_batch(self) -> None:
        micros, self._micros = self._micros, []
        for micro in micros:
            micro.__exit__(None, None, None)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the guards, in plain types."""
        return {"guards": [guard.saved() for guard in self.guards]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Store the state until the optimizers exist."""
        self._saved = state_dict["guards"]


class AutomaticLightningGuard(LightningGuard):
    """The guard that the environment switches on. It does nothing if the training code has a guard."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._is_only_guard = False

    @property
    def state_key(self) -> str:
        """Key of the state in checkpoints. It equals that of `LightningGuard`, unless the training code has a guard."""
        return "LightningGuard" if self._is_only_guard else "AutomaticLightningGuard"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check whether the training code has a guard, because Lightning rejects two equal state keys."""
        self._is_only_guard = sum(isinstance(callback, LightningGuard) for callback in trainer.callbacks) == 1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Guard the optimizers, unless the training code guards one of them."""
        if all(innermost(optimizer) not in GUARDED for optimizer in trainer.optimizers) or self.guards:
            super().on_train_start(trainer, pl_module)

    def _guard(self, trainer: Trainer, optimizer: Optimizer) -> Guard:
        guard = super()._guard(trainer, optimizer)
        guard.switched_on = VARIABLE
        return guard


def _loss_again(trainer: Trainer, model: Module, micro: Remembered) -> Tensor:
    """Recompute the loss of a micro-batch, as Lightning passes it to `backward`, without logging any value.

    Raises:
        CannotRecompute: The module returned no loss.
    """
    module = cast("LightningModule", model)
    arguments = [micro.batch]
    if len(inspect.signature(module.training_step).parameters) > 1:
        arguments.append(micro.index)
    with _muted(module), trainer.precision_plugin.train_step_context():
        result = module.training_step(*arguments)
    loss = result.get("loss") if isinstance(result, Mapping) else result
    if not isinstance(loss, Tensor):
        raise CannotRecompute("training_step returned no loss")
    divided: Tensor = loss / trainer.accumulate_grad_batches
    return divided


@contextmanager
def _muted(module: LightningModule) -> Iterator[None]:
    """Suppress the module's logging, because its values were logged when the step was first computed."""
    attributes = vars(module)
    before = {name: attributes[name] for name in _LOGGING if name in attributes}
    attributes.update(dict.fromkeys(_LOGGING, lambda *_, **__: None))
    try:
        yield
    finally:
        for name in _LOGGING:
            del attributes[name]
        attributes.update(before)


def _scaler(trainer: Trainer) -> torch.amp.GradScaler | None:
    return getattr(trainer.precision_plugin, "scaler", None)
