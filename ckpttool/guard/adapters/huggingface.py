"""The guard in Hugging Face's `Trainer`.

No callback receives a batch or an unclipped norm, so two calls are wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from ckpttool.guard.adapters import deepspeed
from ckpttool.guard.capture.compute import LossFunction
from ckpttool.guard.capture.store import CaptureSettings
from ckpttool.guard.step import Guard, GuardStop

_NAME = "CkpttoolGuard"
"""The name under which the trainer stores a callback's state in its checkpoints."""


class Attached:
    """A guard that is attached to a trainer while it trains."""

    def __init__(self, trainer: Trainer, settings: dict[str, Any]) -> None:
        self.guard: Guard | None = None
        """The guard, or None before training starts, because there is no optimizer yet."""
        self.stopped: GuardStop | None = None
        """Why the guard ended the training run, or None if it did not."""
        self.is_automatic = "switched_on" in settings
        """Whether the environment attached the guard, not the training code."""
        self._trainer = trainer
        self._settings = settings

    def begin(self, saved: Any) -> None:
        """Insert the guard between the optimizer and its gradients."""
        trainer, step = self._trainer, self._trainer.state.global_step
        self.stopped = None
        if deepspeed.is_engine(trainer.model_wrapped):
            self._begin_in_engine(saved)
            return
        if self.guard is None or self.guard.optimizer is not getattr(trainer.optimizer, "optimizer", None):
            settings = {"scaler": trainer.accelerator.scaler, "step": step, **self._settings}
            switched_on = settings.pop("switched_on", "code")
            if (capture := settings.pop("capture", CaptureSettings())) is not None and capture.loss_of is None:
                capture = replace(capture, loss_of=self._loss_of(trainer.training_step))
            self.guard = Guard(trainer.model_wrapped, trainer.optimizer, capture=capture, **settings)
            self.guard.on_stop = self._stop
            self.guard.switched_on = switched_on
        if step:
            self.guard.restore(saved)
        self._wrap(self.guard)

    def _begin_in_engine(self, saved: Any) -> None:
        """Attach to DeepSpeed's engine, which drops updates itself because it steps inside `training_step`."""
        self.guard = deepspeed.attach(self._trainer.model_wrapped, **self._settings)
        self.guard.on_stop = self._stop
        if self._trainer.state.global_step:
            self.guard.restore(saved)

    @staticmethod
    def _loss_of(step: Callable[..., Tensor]) -> LossFunction:
        """Return a function that recomputes a micro-batch, forward and backward, as the trainer does."""

        def loss_of(model: nn.Module, batch: Any) -> Tensor:
            inputs = dict(batch)
            items = inputs.pop("num_items_in_batch")
            return step(model, inputs, items)

        return loss_of

    def _stop(self, stopped: GuardStop) -> None:
        self.stopped = stopped

    def _wrap(self, guard: Guard) -> None:
        trainer = self._trainer
        step = trainer.training_step

        def training_step(model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
            batch = {**inputs, "num_items_in_batch": num_items_in_batch}
            with guard.micro(batch) as micro:
                if guard.replays:  # whatever is not a tensor was replaced in the dict
                    inputs, num_items_in_batch = batch, batch.pop("num_items_in_batch")
                return micro.loss(step(model, inputs, num_items_in_batch))

        def clip_grad_norm_(_parameters: Iterable[Tensor], max_norm: float, _norm_type: float = 2) -> Tensor:
            trainer.accelerator.unscale_gradients()
            return guard.clip_(max_norm)

        trainer.training_step, trainer.accelerator.clip_grad_norm_ = training_step, clip_grad_norm_

    def end(self) -> None:
        """Restore the trainer's methods."""
        for holder, name in ((self._trainer, "training_step"), (self._trainer.accelerator, "clip_grad_norm_")):
            vars(holder).pop(name, None)


class _Callback(TrainerCallback, ExportableState):
    """Callback that passes events to the guard and stores its state."""

    attached: Attached

    def __init__(self) -> None:
        self.saved: Any = None  # set by a trainer that restores its callbacks

    def state(self) -> dict[str, Any]:
        guard = self.attached.guard
        return {"args": {}, "attributes": {"saved": None if guard is None else guard.saved()}}

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        # A checkpoint that was saved without a guard has no place for its state, and the next save would fail.
        own_state = state.stateful_callbacks.setdefault(_NAME, self.state())
        self.attached.begin(own_state["attributes"]["saved"])

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self.attached.stopped is not None:
            control.should_training_stop = True

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.attached.end()


def attach(trainer: Trainer, **settings: Any) -> Attached:
    """Drop harmful updates in a trainer. Call it before training.

        trainer = Trainer(model=model, args=arguments, train_dataset=data)
        attach(trainer, output="output", policy=RobustZPolicy())
        trainer.train()

    On a dropped step `global_step` and the learning rate advance. Each checkpoint's `trainer_state.json` includes the
    guard's memory, and `train(resume_from_checkpoint=...)` restores it.

    Args:
        trainer: The trainer. While it trains, its `training_step` and its accelerator's `clip_grad_norm_` are wrapped.
        settings: Arguments of `Guard` except model, optimizer, scaler and step, such as `output`, `policy` and `mode`.

    Returns:
        An object that contains the guard once `train` has started.
    """
    for callback in list(trainer.callback_handler.callbacks):
        if isinstance(callback, _Callback) and callback.attached.is_automatic:  # the training code decides
            trainer.remove_callback(callback)
    attached = Attached(trainer, settings)
    # If a user enables restoring of callbacks, the trainer creates each from its class alone.
    trainer.add_callback(type(_NAME, (_Callback,), {"attached": attached}))
    return attached
