"""Feature values of gradients: the square of the largest one of every third parameter, before clipping.

After the ranks have averaged their gradients all hold the same ones: whose was wrong can be seen before alone. So under
`DistributedDataParallel` the values are taken by its communication hook, which then averages as torch does without one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Rank, Step
from ckpttool.health.model.asd import FeatureValue

_LOOKED_AT = (torch.float32, torch.bfloat16)
"""As Ascend's detector has it: float16 is scaled, and what overflows there is the scaler's business."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """The values of one step, still on the device."""

    step: Step
    names: tuple[str, ...]
    largest: Tensor
    """Absolute gradient of each."""


class FeatureProbe:
    """Takes the values of a step, and keeps them on the device until they are asked for."""

    def __init__(self, model: nn.Module, *, interval: int = 3) -> None:
        """Choose the parameters, and hook into the averaging of gradients where that is possible.

        Args:
            model: As it is trained, with its wrapper.
            interval: Every how many-th parameter of two or more dimensions is looked at.
        """
        bare = model.module if isinstance(model, DistributedDataParallel) else model
        suitable = [
            (name, parameter)
            for name, parameter in bare.named_parameters()
            if parameter.requires_grad and parameter.dim() > 1 and parameter.dtype in _LOOKED_AT
        ]
        self._chosen: dict[str, nn.Parameter] = dict(suitable[::interval])
        self._names = {id(parameter): name for name, parameter in self._chosen.items()}
        self._seen: dict[str, Tensor] = {}
        self._extremes: list[Tensor] = []
        self._own_extremes: list[Tensor] = []
        self._failure: Exception | None = None
        self._taken: list[_Taken] = []
        self._is_open = True
        self.is_before_reduction = isinstance(model, DistributedDataParallel) and self._hook_into(model)
        """Whether the values are those of this rank alone."""
        alone = not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)
        knows_rank = self.is_before_reduction or alone
        self.rank = Rank(0 if alone else dist.get_rank()) if knows_rank else None
        """Whose values they are; None where gradients are averaged before anybody can see them."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the parameters that are looked at, in the model's order."""
        return tuple(self._chosen)

    @property
    def own_are_finite(self) -> bool | None:
        """Whether all gradients of this rank were finite before they were averaged; None where nobody saw them so.

        Waits for the device: to be asked where something is wrong.
        """
        if not self._own_extremes:
            return None
        return all(bool(torch.isfinite(extreme)) for extreme in self._own_extremes)

    def take(self, step: Step, *, scale: float = 1.0) -> None:
        """Take the values of this step, once its gradients are complete and before they are clipped.

        Args:
            step: That they are of.
            scale: By which the loss was multiplied, where a scaler does that: only gradients that were taken in
                backward are still scaled.

        Raises:
            Exception: Whatever went wrong while they were taken in backward, where nothing may be raised.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self.is_before_reduction:
            largest, self._seen = self._seen, {}
            self._own_extremes, self._extremes = self._extremes, []
        else:
            grads = {name: parameter.grad for name, parameter in self._chosen.items() if parameter.grad is not None}
            largest = dict(zip(grads, _largest(list(grads.values())), strict=True))
            scale = 1.0
        if largest:
            values = list(largest.values())
            stacked = torch.stack([value.to(values[0].device, torch.float32) for value in values])
            self._taken.append(_Taken(step=step, names=tuple(largest), largest=stacked / scale))

    def forget(self) -> None:
        """Drop what was taken last: the gradients of this step overflowed, which is the loss scaler's business."""
        del self._taken[-1:]

    def values(self) -> tuple[FeatureValue, ...]:
        """Return the values that were taken, each once; to be asked a step later, when nothing waits for them."""
        taken, self._taken = self._taken, []
        return tuple(
            FeatureValue(value=root * root, name=name, step=step.step, rank=self.rank)
            for step in taken
            for name, root in zip(step.names, step.largest.tolist(), strict=True)
        )

    def close(self) -> None:
        """Take no more: torch cannot take a hook away, but it does nothing from now on."""
        self._is_open = False

    def _hook_into(self, model: DistributedDataParallel) -> bool:
        group: dist.ProcessGroup = model.process_group
        if model._comm_hooks or model.mixed_precision is not None or model._use_python_reducer:  # noqa: SLF001  torch tells it nowhere else
            return False
        if model.gradient_as_bucket_view and not _is_power_of_two(group.size()):
            return False  # torch averages gradients that are accumulated in its buckets in another way than others
        try:
            model.register_comm_hook(None, self._hook(group))
        except RuntimeError:  # one of torch's own is registered: that stands nowhere
            model._comm_hooks.clear()  # noqa: SLF001  it notes ours before it refuses it
            return False
        return True

    def _hook(self, group: dist.ProcessGroup) -> Callable[[object, Any], torch.futures.Future[Tensor]]:
        # torch insists on the name `bucket`, and compares what is annotated with types: ours are text.
        def take_and_average(_state, bucket):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
            if self._is_open:
                try:
                    self._look(bucket)
                except Exception as error:  # noqa: BLE001  in backward: whatever it is, the training must not end by it
                    self._failure = error
            return _average(group, bucket.buffer())

        return take_and_average

    def _look(self, bucket: Any) -> None:  # noqa: ANN401  a torch without distributed has no name for it
        """Take the values of the last micro-batch: by then its gradients hold those of all before."""
        pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
        chosen = {self._names[id(parameter)]: gradient for parameter, gradient in pairs if id(parameter) in self._names}
        self._seen.update(zip(chosen, _largest(list(chosen.values())), strict=True))
        if bucket.index() == 0:
            self._extremes = []
        self._extremes += _largest([bucket.buffer()])


def _largest(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return the largest absolute value of each; NaN where one is NaN."""
    local = [_local(gradient.detach()) for gradient in gradients]
    if local and all(gradient.is_cuda for gradient in local):
        return list(torch._foreach_norm(local, torch.inf))  # noqa: SLF001  as torch's own clipping does
    # On the CPU an infinity norm takes thirty times as long.
    extremes = [torch.aminmax(gradient) for gradient in local]
    return [torch.maximum(-lowest, highest) for lowest, highest in extremes]


def _local(gradient: Tensor) -> Tensor:
    """Return what of it lies here: of a sharded one this rank's part, of a sparse one what it holds."""
    local: Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    local = local.coalesce().values() if local.is_sparse else local
    return local if local.numel() else local.new_zeros(1)


def _average(group: dist.ProcessGroup, buffer: Tensor) -> torch.futures.Future[Tensor]:
    """Average over ranks, to the bit as torch does without a hook.

    Its own `allreduce_hook` divides by the number of ranks; without a hook torch multiplies with the reciprocal, which
    for three ranks gives other bits.
    """
    buffer.mul_(1.0 / group.size())
    work = dist.all_reduce(buffer, group=group, async_op=True)
    averaged: torch.futures.Future[Tensor] = work.get_future().then(lambda future: future.value()[0])
    return averaged


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
