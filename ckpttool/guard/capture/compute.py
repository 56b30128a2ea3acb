"""The results of a step, bit for bit, and its recomputation in place, without the other ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor, nn
from xxhash import xxh3_128_hexdigest

from ckpttool.guard import randomness
from ckpttool.guard.capture.attributes import attributes_restored
from ckpttool.guard.capture.memory import Remembered
from ckpttool.guard.model.capture import GradientFacts, LossBits, Rerun
from ckpttool.guard.nested import own_part
from ckpttool.guard.tensor_file import block

LossFunction: TypeAlias = "Callable[[nn.Module, object], Tensor]"
"""Function of the model and a batch that returns the value on which `backward` is called."""

Recompute: TypeAlias = "Callable[[nn.Module, Remembered], Tensor]"
"""The same function with a micro-batch instead of a batch, as a trainer's adapter provides it."""


def loss_bits(loss: Tensor) -> LossBits:
    """Return the bits of a loss. If it has several elements, they are summed."""
    value = loss.detach().reshape(-1)
    value = value if value.numel() == 1 else value.sum().reshape(-1)
    dtype = str(value.dtype).removeprefix("torch.")
    return LossBits(value=float(value.item()), dtype=dtype, bits=bytes(block(value)).hex())


def named_gradients(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield each gradient with the name of its parameter."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            yield name, parameter.grad


def facts_of(gradients: Iterable[tuple[str, Tensor]]) -> Iterator[GradientFacts]:
    """Yield a record of each gradient. For a sharded gradient, the record covers this rank's part."""
    for name, gradient in gradients:
        local = own_part(gradient).detach()
        local = local if local.layout is torch.strided else local.to_dense()  # a sparse gradient
        wrong = ~torch.isfinite(local)
        first = torch.nonzero(wrong)[0].tolist() if bool(wrong.any()) else None
        parts = torch.view_as_real(local.resolve_conj()) if local.is_complex() else local
        yield GradientFacts(
            name=name,
            shape=tuple(local.shape),
            xxh3_128=xxh3_128_hexdigest(block(local)),
            norm=float(torch.linalg.vector_norm(local.float() if local.dtype.itemsize < 4 else local)),  # noqa: PLR2004
            nan=int(torch.isnan(local).sum()),
            positive_inf=int(torch.isposinf(parts).sum()),
            negative_inf=int(torch.isneginf(parts).sum()),
            first=None if first is None else tuple(int(index) for index in first),
        )


def digests_of(model: nn.Module) -> tuple[tuple[str, str], ...]:
    """Return the name of each parameter and the xxh3-128 of its bytes on this rank."""
    return tuple((name, xxh3_128_hexdigest(block(own_part(value)))) for name, value in model.named_parameters())


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside all compiled or data-parallel wrappers.

    It involves no other rank and has original names.
    """
    while True:
        inner = getattr(model, "_orig_mod", None) if hasattr(model, "_orig_mod") else None
        if inner is None and isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def compute_again(
    model: nn.Module,
    micro_batches: Sequence[Remembered],
    loss_of: Recompute,
    *,
    scale: float | None,
    restore_buffers: Callable[[], None],
) -> Rerun:
    """Recompute a step, then restore gradients, random-number state, buffers and attributes of modules.

    Args:
        model: The model without a wrapper. A wrapper that waits for other ranks would wait forever.
        micro_batches: The micro-batches of the step.
        loss_of: Returns the loss of a micro-batch.
        scale: Factor by which a scaler multiplied each loss, or None without a scaler.
        restore_buffers: Restores the buffers to their state before the step.
    """
    with attributes_restored(model), _left_as_it_is(model, restore_buffers):
        losses = []
        restore_buffers()
        for micro in micro_batches:
            randomness.restore(micro.random)
            loss = loss_of(model, micro)
            losses.append(loss_bits(loss))
            if loss.requires_grad:  # else it already ran backward, as some training steps do
                (loss if scale is None else loss * scale).sum().backward()
        unscale(model, scale)
        return Rerun(losses=tuple(losses), gradients=tuple(facts_of(named_gradients(model))))


def unscale(model: nn.Module, scale: float | None) -> None:
    """Remove the loss scale from all gradients as the scaler does, by multiplying with its inverse."""
    if scale is None:
        return
    inverse = 1.0 / scale
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(inverse)


@contextmanager
def _left_as_it_is(model: nn.Module, restore_buffers: Callable[[], None]) -> Iterator[None]:
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    current = randomness.states()
    try:
        for parameter, _ in gradients:
            parameter.grad = None
        yield
    finally:
        randomness.restore(current)
        restore_buffers()
        for parameter, gradient in gradients:
            parameter.grad = gradient
