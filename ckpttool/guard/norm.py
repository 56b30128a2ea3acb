"""The norm of all gradients, and the one moment of a step in which the host waits for the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ckpttool.domain.frozen import dataclass


def is_sharded(tensor: Tensor) -> bool:
    """Tell whether a tensor is spread over ranks, so that to reduce it takes all of them.

    Nothing is imported for the question: where no `DTensor` was ever made, there is none.
    """
    return hasattr(tensor, "full_tensor")


def total_norm(parameters: Sequence[Tensor]) -> Tensor:
    """Return the L2 norm of all gradients, the same in every bit on all ranks that share sharded parameters.

    Of a `DTensor` the local part differs from rank to rank: who reads that decides differently on each. To put the
    parts together takes all ranks, so with sharded parameters no rank may leave this out.
    """
    with_gradients = [parameter for parameter in parameters if parameter.grad is not None]
    norms = [
        full(_norm([_dense(parameter.grad) for parameter in group if parameter.grad is not None]))
        for group in _by_mesh(with_gradients)
    ]
    return norms[0] if len(norms) == 1 else get_total_norm(norms)


def clip(parameters: Sequence[Tensor], most: float, norm: Tensor) -> None:
    """Scale all gradients down to a norm, as torch does that has been told the one they have."""
    for group in _by_mesh(parameters):
        clip_grads_with_norm_(group, most, norm)


def _by_mesh(parameters: Sequence[Tensor]) -> Iterable[list[Tensor]]:
    """Return plain parameters, and those of each mesh: torch takes no lists of several kinds."""
    groups: dict[object, list[Tensor]] = {}
    for parameter in parameters:
        groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return groups.values()


def _norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return it as torch's clipping does; of float16 in float32, for there is no larger float16 than 65504."""
    if any(gradient.dtype == torch.float16 for gradient in gradients):
        gradients = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in gradients]
    return get_total_norm(gradients)


def _dense(gradient: Tensor) -> Tensor:
    """Return all elements that may differ from zero: of sparse gradients torch takes no norm."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def full(norm: Tensor) -> Tensor:
    """Put a norm together that is spread over ranks; any other is returned as it is."""
    whole: Tensor = norm.full_tensor() if is_sharded(norm) else norm  # type: ignore[attr-defined]  # a DTensor has it
    return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one rank knows of its own step, on the host."""

    norm: float
    """L2 norm of all gradients, before clipping."""
    loss: float | None
    """Sum of the local losses of the micro-batches; None where the training tells none."""
    losses_finite: bool
    """Whether each of these losses is."""


class Losses:
    """The local losses of a step, gathered on the device: nothing waits for them."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._finite: Tensor | None = None

    def add(self, loss: Tensor | float) -> None:
        """Take the loss of one micro-batch, of any shape, as it is handed to `backward`."""
        loss = torch.as_tensor(loss).detach()
        # Of a loss over sharded scores each rank holds all of it; to ask the others would take all of them.
        loss = (loss.to_local() if is_sharded(loss) else loss).sum()  # type: ignore[attr-defined]  # a DTensor has it
        finite = torch.isfinite(loss)
        self._sum = loss if self._sum is None else self._sum + loss
        self._finite = finite if self._finite is None else self._finite & finite

    def read(self, norm: Tensor | float) -> Reading:
        """Return norm and losses, with one transfer from the device."""
        norm = norm.detach() if isinstance(norm, Tensor) else torch.tensor(norm, dtype=torch.float64)
        if self._sum is None or self._finite is None:
            return Reading(norm=norm.item(), loss=None, losses_finite=True)
        # Both fit exactly: float32 holds every bfloat16 and float16, and what is float64 stays so.
        wide = torch.promote_types(torch.promote_types(norm.dtype, self._sum.dtype), torch.float32)
        told = [norm.reshape(()), self._sum.to(norm.device), self._finite.to(norm.device)]
        value, loss, finite = torch.stack([number.to(wide) for number in told]).tolist()
        return Reading(norm=value, loss=loss, losses_finite=finite == 1)
