"""What is written down of a gradient and of a loss: enough to tell whether another run has the same bits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

import torch
from torch import Tensor, nn
from xxhash import xxh3_128_hexdigest

from ckpttool.guard.model.capture import GradientFacts, LossBits
from ckpttool.guard.norm import is_sharded
from ckpttool.guard.tensor_file import block


def loss_bits(loss: Tensor) -> LossBits:
    """Return a loss to the last bit; one of several elements is summed, as a reader would take it."""
    value = loss.detach().reshape(-1)
    value = value if value.numel() == 1 else value.sum().reshape(-1)
    dtype = str(value.dtype).removeprefix("torch.")
    return LossBits(value=float(value.item()), dtype=dtype, bits=bytes(block(value)).hex())


def gradients_of(model: nn.Module) -> tuple[GradientFacts, ...]:
    """Return the facts of every gradient that there is, in the model's order."""
    return tuple(facts_of(named_gradients(model)))


def named_gradients(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield each gradient by its parameter's name."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            yield name, parameter.grad


def facts_of(gradients: Iterable[tuple[str, Tensor]]) -> Iterator[GradientFacts]:
    """Yield the facts of gradients; of sharded ones this rank's part."""
    for name, gradient in gradients:
        local = own_part(gradient).detach()
        local = local if local.layout is torch.strided else local.to_dense()  # of an embedding that has sparse ones
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
    """Return name and xxh3-128 of each parameter's bytes; of sharded ones of this rank's part."""
    return tuple((name, xxh3_128_hexdigest(block(own_part(value)))) for name, value in model.named_parameters())


def own_part(tensor: Tensor) -> Tensor:
    """Return what of a tensor lies on this rank: all of it, but of a sharded one."""
    return cast("Tensor", tensor.to_local()) if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def unwrapped(model: nn.Module) -> nn.Module:
    """Return what is in a compiled or data-parallel wrapper: it calls no other rank, and has the model's own names."""
    while True:
        inner = getattr(model, "_orig_mod", None) if hasattr(model, "_orig_mod") else None
        if inner is None and isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner
