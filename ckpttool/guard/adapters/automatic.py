"""The guard without code changes: torch hooks find the model, the batches, the losses and the clipping.

The first optimizer of each model is guarded from its first forward pass on. Of the first step, only the loss of the
first micro-batch is known, so that batch cannot be captured. Trainers that have an adapter use it instead.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ckpttool.core.errors import CkptToolError
from ckpttool.guard.adapters.loaders import Loaders
from ckpttool.guard.adapters.own_loss import OwnLoss
from ckpttool.guard.step import GUARDED, Guard
from ckpttool.guard.switch import REPLAY_VARIABLE, VARIABLE, Switch, report

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from ckpttool.guard.replay.script import Session

_MOST_TRIED = 10_000
"""Number of forward passes after which the search for an optimizer's model ends, because it slows each pass."""


class Automatic:
    """The hooks, and the guards that they created."""

    def __init__(self, switch: Switch) -> None:
        self._switch = switch
        self._waiting: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._guards: list[Guard] = []
        self._own_losses: dict[int, OwnLoss] = {}  # by the guard's identity
        self._search: RemovableHandle | _EachCall | None = None
        self._tried = 0
        self._scaled: tuple[weakref.ref[Tensor], Tensor] | None = None
        self._session: Session | None = None  # None: the environment requests no replay
        if os.environ.get(REPLAY_VARIABLE):
            from ckpttool.guard.replay.script import session

            self._session = session()

    # Optimizers, and the models that they train.

    def made(self, optimizer: Optimizer) -> None:
        """Search for the model of a new optimizer at the next forward pass."""
        self._waiting.add(optimizer)
        self._tried = 0
        if self._session is not None:
            self._session.expect()
        if self._search is None:
            # A replay needs the arguments of the very first call, too, which a hook for all modules does not get.
            is_ordinary = self._session is None
            self._search = register_module_forward_pre_hook(self._called) if is_ordinary else _EachCall(self._called)

    def _called(self, module: nn.Module, _inputs: object) -> None:
        """Guard the optimizer of a module that is called for training. The outermost module is called first."""
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not module.training:
            return
        self._tried += 1
        optimizer = self._optimizer_of(module)
        if optimizer is not None:
            self._guard(module, optimizer)
        if self._tried >= _MOST_TRIED or not self._waiting:
            self._end_search()

    def _optimizer_of(self, module: nn.Module) -> Optimizer | None:
        parameters = {id(parameter) for parameter in module.parameters()}
        for optimizer in list(self._waiting):
            updated = _updated_by(optimizer)
            if optimizer in GUARDED:
                self._waiting.discard(optimizer)
            elif updated and updated <= parameters:
                return optimizer
        return None

    def _guard(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._waiting.discard(optimizer)
        name = f"{type(optimizer).__name__} of {type(model).__name__}"
        updated = _updated_by(optimizer)
        if any(updated & {*map(id, guard.model.parameters())} for guard in self._guards):
            report(f"{name} is not guarded: another optimizer of the same model is")
            return
        arguments = self._switch.arguments()
        if self._guards:  # each guard writes a separate event file
            arguments["output"] = f"{self._switch.output}/model-{len(self._guards) + 1}"
        try:
            guard = Guard(model, optimizer, **arguments)
        except CkptToolError as error:
            report(f"{name} is not guarded: {error}")
            return
        guard.switched_on = VARIABLE
        self._guards.append(guard)
        model.register_forward_pre_hook(functools.partial(self._forward, guard), with_kwargs=True)
        if guard.replays:
            return
        guard.begin(None)
        own_loss = OwnLoss()
        model.register_forward_hook(own_loss.returned)
        guard.recheck.recompute = own_loss.recompute
        self._own_losses[id(guard)] = own_loss
        report(f"{name} is guarded, by {VARIABLE}; events: {arguments['output']}/guard")

    def _end_search(self) -> None:
        if self._search is not None:
            self._search.remove()
            self._search = None
        for optimizer in self._waiting:
            report(f"{type(optimizer).__name__} is not guarded: no module that was called contains its parameters")
        self._waiting.clear()

    # The parts of a step.

    @staticmethod
    def _forward(guard: Guard, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin a micro-batch, unless the forward pass is an evaluation."""
        if torch.is_grad_enabled() and model.training and not torch.compiler.is_compiling():
            guard.begin({"args": args, "kwargs": kwargs})
        elif not torch.compiler.is_compiling():
            guard.evaluated()

    def drew(self, loader: int, item: Any) -> None:
        """Pass an item of a data loader to the guards. It may contain labels that the model does not receive."""
        if self._session is not None:
            self._session.feed(loader, item)
        for guard in self._guards:
            guard.drew(loader, item)

    def begins(self, loader: int) -> None:
        """Note that an iterator of a data loader begins."""
        if self._session is not None:
            self._session.begins(loader)

    def scaled(self, scaler: torch.amp.GradScaler, loss: object, result: object) -> None:
        """Store the loss without its scale, and the scaler."""
        for guard in self._guards:
            guard.use_scaler(scaler)
        if isinstance(loss, Tensor) and isinstance(result, Tensor):
            self._pass_on(loss)
            self._scaled = weakref.ref(result), loss.detach()

    def backward(self, loss: Tensor) -> None:
        """Pass a loss to the guards, as it was before it was scaled."""
        if any(guard.recheck.is_running for guard in self._guards):
            return
        is_scaled = self._scaled is not None and self._scaled[0]() is loss
        if self._scaled is not None and is_scaled:
            loss = self._scaled[1]
        self._scaled = None
        if not is_scaled:
            self._pass_on(loss)
        if loss.numel() == 1:
            for guard in self._guards:
                guard.take_loss(loss)

    def _pass_on(self, loss: Tensor) -> None:
        """Pass a loss to `OwnLoss`, whose graph shows whether it is the model's own loss."""
        for guard in self._guards:
            if (micro := guard.current_micro_batch) is not None:
                self._own_losses[id(guard)].passed(micro, loss)

    def clipping(self, parameters: list[Tensor]) -> Guard | None:
        """Return the guard of the clipped parameters before its decision, or None if they have no guard."""
        with_gradients = {id(parameter) for parameter in parameters if parameter.grad is not None}
        return next((guard for guard in self._guards if guard.may_clip(with_gradients)), None)


class _EachCall:
    """Hook that calls a function before each call of any module, until it is removed."""

    def __init__(self, function: Callable[[nn.Module, object], None]) -> None:
        original = self._original = nn.Module.__call__

        @functools.wraps(original)
        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            function(module, args)
            return original(module, *args, **kwargs)

        nn.Module.__call__ = called  # type: ignore[method-assign]

    def remove(self) -> None:
        nn.Module.__call__ = self._original  # type: ignore[method-assign]


def _updated_by(optimizer: Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def install(switch: Switch) -> Automatic:
    """Install the torch hooks, and return the object that handles them.

    Args:
        switch: The settings of the guards.
    """
    automatic = Automatic(switch)
    _after(Optimizer, "__init__", lambda optimizer, *_args, **_kwargs: automatic.made(optimizer))
    loaders = Loaders(automatic.drew, automatic.begins)
    _after(DataLoader, "__init__", lambda loader, *_args, **_kwargs: loaders.made(loader))
    _before(Tensor, "backward", lambda loss, *_args, **_kwargs: automatic.backward(loss))
    _scaling(automatic)
    _clipping(automatic)
    _trainers(switch)
    return automatic


def _after(owner: type, name: str, hook: Callable[..., object]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        hook(self, *args, **kwargs)
        return result

    setattr(owner, name, wrapped)


def _before(owner: type, name: str, hook: Callable[..., object]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        hook(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    setattr(owner, name, wrapped)


def _scaling(automatic: Automatic) -> None:
    original = torch.amp.GradScaler.scale

    @functools.wraps(original)
    def scale(self: torch.amp.GradScaler, outputs: Any) -> Any:
        result = original(self, outputs)
        if self.is_enabled():
            automatic.scaled(self, outputs, result)
        return result

    torch.amp.GradScaler.scale = scale  # type: ignore[method-assign]


def _clipping(automatic: Automatic) -> None:
    """Replace the clipping of the training code by the guard's.

    Both need the same norm, and the guard needs it first.
    """
    original = torch.nn.utils.clip_grad_norm_

    @functools.wraps(original)
    def clip_grad_norm_(
        parameters: Tensor | Iterable[Tensor],
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,  # noqa: FBT001, FBT002  torch's own form
        foreach: bool | None = None,  # noqa: FBT001  as above
    ) -> Tensor:
        clipped = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        guard = None
        if float(norm_type) == 2.0 and not error_if_nonfinite:  # noqa: PLR2004  the norm that policies judge
            guard = automatic.clipping(clipped)
        if guard is not None:
            return guard.clip_(float(max_norm))
        return original(clipped, max_norm, norm_type, error_if_nonfinite, foreach)

    torch.nn.utils.clip_grad_norm_ = clip_grad_norm_
    torch.nn.utils.clip_grad.clip_grad_norm_ = clip_grad_norm_


def _trainers(switch: Switch) -> None:
    """Attach the adapter of each trainer to the trainer's objects once it is imported."""
    from wrapt import register_post_import_hook

    engines = _Engines(switch)
    register_post_import_hook(functools.partial(_hugging_face, switch), "transformers.trainer")
    register_post_import_hook(engines.deepspeed, "deepspeed.runtime.engine")
    register_post_import_hook(engines.megatron, "megatron.core.optimizer")


def _hugging_face(switch: Switch, module: Any) -> None:
    def attach_to(trainer: Any, *_args: Any, **_kwargs: Any) -> None:
        from ckpttool.guard.adapters.huggingface import attach

        attach(trainer, switched_on=VARIABLE, **switch.arguments())

    _after(module.Trainer, "__init__", attach_to)


class _Engines:
    """Hooks that attach the adapters of engines that own their gradients."""

    def __init__(self, switch: Switch) -> None:
        self._switch = switch
        self._guards: list[Guard] = []

    def deepspeed(self, module: Any) -> None:
        def attach_to(engine: Any, *_args: Any, **_kwargs: Any) -> None:
            from ckpttool.guard.adapters.deepspeed import attach

            if engine.optimizer is not None:  # otherwise it evaluates
                self._attach(attach, engine)

        _after(module.DeepSpeedEngine, "__init__", attach_to)

    def megatron(self, module: Any) -> None:
        original = module.get_megatron_optimizer

        @functools.wraps(original)
        def get_megatron_optimizer(config: Any, model_chunks: Any, *args: Any, **kwargs: Any) -> Any:
            from ckpttool.guard.adapters.megatron import attach

            optimizer = original(config, model_chunks, *args, **kwargs)
            self._attach(attach, model_chunks, optimizer)
            return optimizer

        module.get_megatron_optimizer = get_megatron_optimizer

    def _attach(self, attach: Callable[..., Guard], *trained: Any) -> None:
        arguments = self._switch.arguments()
        if self._guards:  # each has separate events
            arguments["output"] = f"{self._switch.output}/model-{len(self._guards) + 1}"
        try:
            guard = attach(*trained, switched_on=VARIABLE, **arguments)
        except CkptToolError as error:
            report(f"not guarded: {error}")
            return
        self._guards.append(guard)
        report(f"{type(guard.model).__name__} is guarded, by {VARIABLE}; events: {arguments['output']}/guard")
