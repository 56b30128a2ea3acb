"""A step once more, in place: on the same device at once, and without the other ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from ckpttool.guard import randomness
from ckpttool.guard.capture.facts import gradients_of, loss_bits
from ckpttool.guard.capture.remember import Remembered
from ckpttool.guard.model.capture import Rerun

if TYPE_CHECKING:
    from torch import Tensor, nn

LossFunction: TypeAlias = "Callable[[nn.Module, object], Tensor]"
"""Takes the model and a batch, and returns what the training hands to `backward`."""


def compute_again(
    model: nn.Module,
    micro_batches: Sequence[Remembered],
    loss_of: LossFunction,
    *,
    scale: float | None,
    restore_buffers: Callable[[], None],
) -> Rerun:
    """Compute a step again and leave everything as it was: gradients, chance, buffers.

    Args:
        model: Without a wrapper: one that waits for other ranks would wait for ever.
        micro_batches: Of the step.
        loss_of: Makes the loss of one.
        scale: By which a scaler multiplied each loss; None without one.
        restore_buffers: Puts the buffers back as they were before the step.
    """
    with _set_aside(model), _same_chance(restore_buffers):
        losses = []
        restore_buffers()
        for micro in micro_batches:
            randomness.restore(micro.random)
            loss = loss_of(model, micro.batch)
            losses.append(loss_bits(loss))
            if loss.requires_grad:  # else it went backward by itself, as some training steps do
                (loss if scale is None else loss * scale).sum().backward()
        unscale(model, scale)
        return Rerun(losses=tuple(losses), gradients=gradients_of(model))


def unscale(model: nn.Module, scale: float | None) -> None:
    """Take a loss scaler's factor out of all gradients, as it does itself: one product with the inverse."""
    if scale is None:
        return
    inverse = 1.0 / scale
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(inverse)


@contextmanager
def _set_aside(model: nn.Module) -> Iterator[None]:
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient


@contextmanager
def _same_chance(restore_buffers: Callable[[], None]) -> Iterator[None]:
    current = randomness.states()
    try:
        yield
    finally:
        randomness.restore(current)
        restore_buffers()
