"""One rank's step again: the user's own model with the captured weights, batches and chance, and never an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from ckpttool.core.domain.frozen import dataclass
from ckpttool.guard import randomness
from ckpttool.guard.capture.compute import digests_of, facts_of, loss_bits, named_gradients, unscale, unwrapped
from ckpttool.guard.capture.shard import Content
from ckpttool.guard.environment import comes_from_compiled
from ckpttool.guard.model.capture import (
    Difference,
    GradientFacts,
    LossBits,
    MicroBatch,
    Origin,
    OriginKind,
    RankCapture,
)
from ckpttool.guard.nested import form, map_tensors, named_tensors
from ckpttool.guard.replay.locate import Event, Locator, far_off
from ckpttool.guard.state_tree import Sharded
from ckpttool.guard.tensor_file import copied

OF_MODEL = "config."
"""Begins the names of a model's own settings: those that differed are set as they were."""

_MOST_NAMED = 3

_SQUARE_OVERFLOWS = 1.8e19
"""Of a float32: from there on a product of such a weight may be infinite."""


class EntryDoesNotFit(Exception):  # noqa: N818  it says what is so
    """What the user's entry returns cannot be what was captured, or that does not tell enough."""

    def __init__(self, why: str, *, remedy: str = "let the entry build what was trained") -> None:
        """Take what is so, and what to do."""
        super().__init__(why)
        self.remedy = remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTask:
    """What an entry returns for a plain loop."""

    model: nn.Module
    loss: Callable[[Any], Tensor]
    """Makes of one micro-batch what the training hands to `backward`, divided by the accumulation where it does so."""


class RankRun:
    """A rank's step, ready to be computed as often as one likes."""

    def __init__(self, captured: RankCapture, content: Content, made: object, device: torch.device) -> None:
        """Load what was captured into what the entry made.

        Args:
            captured: The rank's record.
            content: Its tensors.
            made: What the entry returned.
            device: Where it is computed.

        Raises:
            EntryDoesNotFit: The model has other parameters, buffers or modules, or is nothing that can be run.
        """
        self._captured = captured
        self._content = content
        self._device = device
        model = made.model if isinstance(made, ReplayTask) else made
        if not isinstance(model, nn.Module):
            raise EntryDoesNotFit(
                f"the entry returned {type(made).__name__}: "
                "expected a ReplayTask, a LightningModule or a transformers model"
            )
        self._made = made
        self._model = unwrapped(model).to(device)
        self.differences = tuple(_take_config(self._model, captured.model_config))
        """Settings of the model that were not as captured, and are now."""
        self.is_compiled = False
        """Whether compiled code computed a loss of the last run."""
        self._load()

    def compute(self) -> tuple[LossBits, ...]:
        """Compute the step: forward and backward of each micro-batch, and nothing else."""
        self._prepare()
        losses = []
        for number in range(len(self._captured.micro_batches)):
            loss = self._loss(number, self._batch(number))
            self.is_compiled = self.is_compiled or comes_from_compiled(loss)
            losses.append(loss_bits(loss))
            self._backward(loss)
        unscale(self._model, self._captured.scale)
        return tuple(losses)

    @property
    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each gradient of the last run by its name."""
        return named_gradients(self._model)

    def facts(self) -> tuple[GradientFacts, ...]:
        """Return the facts of these gradients."""
        return tuple(facts_of(self.gradients))

    def locate(self) -> Origin | None:
        """Compute it again and look at every operation; None where all stayed finite."""
        self._prepare()
        for number in range(len(self._captured.micro_batches)):
            locator = Locator(self._model)
            batch = self._batch(number)
            locator.know_inputs(batch)
            with locator.watching():
                loss = self._loss(number, batch)
                self._backward(loss)
            wrong = [loss.detach()] if not bool(torch.isfinite(loss).all()) else []
            tensors = [gradient._values() if gradient.is_sparse else gradient for _, gradient in self.gradients]  # noqa: SLF001  a copy would lie elsewhere than what was looked at
            wrong += [gradient for gradient in tensors if not bool(torch.isfinite(gradient).all())]
            if wrong:
                event = locator.origin(wrong[:1]) or locator.origin(wrong)
                if event is None:
                    return None
                return self._origin(number, self._overflowing_weight(event) or event)
        far = (
            far_off(OriginKind.PARAMETER, self._model.named_parameters())
            or far_off(OriginKind.BUFFER, self._model.named_buffers())
            or far_off(OriginKind.INPUT, named_tensors(self._content.batches))
        )
        return None if far is None else self._origin(0, far)

    def _overflowing_weight(self, event: Event) -> Event | None:
        """Return the weight that made an operation overflow: its own square is no float32 any more."""
        if event.kind is not OriginKind.OP:
            return None
        far = far_off(OriginKind.PARAMETER, self._model.named_parameters())
        return None if far is None or abs(far.value or 0.0) < _SQUARE_OVERFLOWS else far

    def _origin(self, number: int, event: Event) -> Origin:
        return Origin(
            rank=self._captured.rank,
            micro_batch=number,
            phase=event.phase,
            kind=event.kind,
            op=event.name,
            module=event.module,
            line=event.line,
            shape=event.shape,
            nan=event.nan,
            inf=event.inf,
            value=event.value,
            times_rms=event.times_rms,
        )

    def _load(self) -> None:
        weights = dict(self._model.named_parameters())
        captured: dict[str, Tensor] = {}
        for name, value in self._content.parameters.items():
            if isinstance(value, Sharded):
                raise EntryDoesNotFit(f"the weight {name} is sharded, and not all ranks' captures are here")
            captured[name] = value
        _assert_same("parameter", captured, weights)
        _assert_same("buffer", self._content.buffers, dict(self._model.named_buffers()))
        modules = dict(self._model.named_modules())
        if unknown := [name for name in self._captured.evaluating if name not in modules]:
            raise EntryDoesNotFit(f"the model has no module {unknown[0]}")
        self._weights = captured
        self._prepare()
        if self._captured.weights:
            self._assert_captured_weights()
        for name, wants_gradient in self._content.trained.items():
            weights[name].requires_grad_(wants_gradient)
        for name, module in modules.items():
            module.training = name not in self._captured.evaluating

    def _assert_captured_weights(self) -> None:
        current = dict(digests_of(self._model))
        changed = [name for name, digest in self._captured.weights if current.get(name) != digest]
        if changed:
            raise EntryDoesNotFit(
                f"{len(changed)} of {len(current)} weights are not those that were captured, {changed[0]} first: "
                "name the checkpoint of that very step, or one with no applied update in between"
            )

    def _prepare(self) -> None:
        """Put weights, buffers and gradients where they were before the step: a forward may change any of them."""
        self._model.zero_grad(set_to_none=True)
        for name, parameter in self._model.named_parameters():
            parameter.data = self._weights[name].detach().clone().to(self._device)
        for name, buffer in self._model.named_buffers():
            buffer.data = self._content.buffers[name].detach().clone().to(self._device)

    def _batch(self, number: int) -> object:
        """Return a batch in memory of its own: where a file's bytes lie, a kernel may sum in another order."""

        def moved(tensor: Tensor) -> Tensor:
            stored = tensor.detach()
            own = copied(stored) if stored.device == self._device else stored.to(self._device)
            return own.requires_grad_(tensor.requires_grad)

        return map_tensors(self._content.batches[number], moved)

    def _loss(self, number: int, batch: object) -> Tensor:
        micro = self._captured.micro_batches[number]
        randomness.restore(self._content.random[number])
        with self._autocast(micro):
            loss = self._own_loss(micro, batch)
        if not isinstance(loss, Tensor):
            raise EntryDoesNotFit(f"the loss is a {type(loss).__name__}, and no tensor")
        return loss

    def _own_loss(self, micro: MicroBatch, batch: object) -> object:
        """Return the loss as the training that this model is from hands it to `backward`."""
        if isinstance(self._made, ReplayTask):
            return self._made.loss(batch)
        divisor = len(self._captured.micro_batches)
        if hasattr(self._model, "training_step"):
            result = cast("Any", self._model).training_step(batch, micro.index or 0)
            loss = result["loss"] if isinstance(result, Mapping) else result
            return loss / divisor
        if not isinstance(batch, Mapping):
            raise EntryDoesNotFit("the batch is no dict, as a transformers model takes it: return a ReplayTask")
        inputs = {key: value for key, value in batch.items() if key != "num_items_in_batch"}
        counted = batch.get("num_items_in_batch")
        # Without a number of items the trainer divides by the accumulation itself.
        given = {} if counted is None else {"num_items_in_batch": counted}
        result = self._model(**inputs, **given)
        loss = result["loss"] if isinstance(result, Mapping) else result[0]  # as the trainer takes it
        return loss if given else loss / divisor

    @contextmanager
    def _autocast(self, micro: MicroBatch) -> Iterator[None]:
        """Be in the autocast of then: of a plain loop in that which was on before its own code ran."""
        inner = () if isinstance(self._made, ReplayTask) or micro.inner_autocast is None else micro.inner_autocast
        with ExitStack() as stack:
            for kind, dtype in inner or micro.outer_autocast:
                device = kind if kind == "cpu" else self._device.type
                stack.enter_context(torch.autocast(device, dtype=getattr(torch, dtype, torch.bfloat16)))
            yield

    def _backward(self, loss: Tensor) -> None:
        if not loss.requires_grad:
            raise EntryDoesNotFit("the loss wants no gradient: the entry has to return what goes to `backward`")
        scale = self._captured.scale
        (loss if scale is None else loss * scale).sum().backward()


def _assert_same(noun: str, captured: Mapping[str, Tensor], current: Mapping[str, Tensor]) -> None:
    """Say by name what does not fit.

    Raises:
        EntryDoesNotFit: Something is missing, or there is more, or of another shape or type.
    """
    missing = [name for name in captured if name not in current]
    extra = [name for name in current if name not in captured]
    changed = [
        f"{name} ({form(captured[name])} captured, {form(current[name])} here)"
        for name in current
        if name in captured and form(captured[name]) != form(current[name])
    ]
    for phrase, names in (("lacks the", missing), ("has a {} that was not captured:", extra), ("has another", changed)):
        if names:
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            lead = phrase.format(noun) if "{}" in phrase else f"{phrase} {noun}"
            raise EntryDoesNotFit(f"the entry's model {lead} {', '.join(names[:_MOST_NAMED])}{more}")


def _take_config(model: nn.Module, captured: object) -> Iterator[Difference]:
    """Set attributes of a library's config as they were, for a trainer sets some without a word, and yield them."""
    config = getattr(model, "config", None)
    if not isinstance(captured, Mapping) or config is None:
        return
    for key, value in captured.items():
        current = getattr(config, key, None)
        if isinstance(value, (str, int, bool)) and type(current) in {str, int, bool} and current != value:
            setattr(config, key, value)
            yield Difference(what=f"{OF_MODEL}{key}", captured=value, here=current)
