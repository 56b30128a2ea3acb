"""A copy of the model's buffers before each step, because a forward pass changes them even if its update is dropped.

After an Inf in a batch, the running mean of a batch norm is not finite even if the update is dropped, so every later
evaluation is NaN. `_version` does not show changes of running statistics, so changes are detected by comparing bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from operator import is_

import torch
import xxhash
from torch import Tensor, nn

MOST_BYTES = 64 * 1024 * 1024
"""Maximum size of a snapshot. In larger models, buffers that change come first, then the smallest."""

_FIRST_LOOKS = 3
_LOOK_EVERY = 100
"""Interval in steps of the check for changes, after the first steps."""


class Buffers:
    """The buffers of a model, with a copy of the buffers that can be restored."""

    def __init__(self, model: nn.Module, *, most_bytes: int = MOST_BYTES) -> None:
        self._model = model
        self._most_bytes = most_bytes
        self._places: list[tuple[nn.Module, str, Tensor]] = []
        self._copies: list[Tensor] = []
        self._holders: list[Mapping[str, object]] = []  # for each module, its submodules and its buffers
        self._contents: list[object] = []  # by buffer, at the last check
        self._changing: set[tuple[nn.Module, str]] = set()
        self._digests: dict[tuple[nn.Module, str], bytes] = {}
        self._steps = 0
        self._is_taken = False
        self.left_out: tuple[str, ...] = ()
        """Names of the buffers that are not restored, because all buffers together are too large."""

    def take(self) -> None:
        """Copy the buffers, including new ones. If they do not all fit, check periodically which of them change."""
        is_due = self._steps < _FIRST_LOOKS or self._steps % _LOOK_EVERY == 0
        self._steps += 1
        current = self._current_contents()  # in a quarter of the time of a walk over all modules
        if is_due or len(current) != len(self._contents) or not all(map(is_, current, self._contents)):
            self._choose()
        live = [tensor for _, _, tensor in self._places]
        if live:
            with torch.no_grad():
                torch._foreach_copy_(self._copies, live)
        self._is_taken = True

    def restore(self) -> None:
        """Restore the copy made by `take`, including the original tensors if a forward pass replaced them."""
        if not self._is_taken:
            return
        with torch.no_grad():
            for (module, name, tensor), copy in zip(self._places, self._copies, strict=True):
                if getattr(module, name, None) is not tensor:
                    setattr(module, name, tensor)
                # Bits are compared: a NaN is equal to itself, and zero is not minus zero.
                if tensor.shape != copy.shape or not torch.equal(as_bytes(tensor), as_bytes(copy)):
                    tensor.copy_(copy)

    def forget(self) -> None:
        """Discard the copy at the end of a step."""
        self._is_taken = False

    def _current_contents(self) -> list[object]:
        return list(chain.from_iterable([holder.values() for holder in self._holders]))

    def _choose(self) -> None:
        self._holders = [tensors for module in self._model.modules() for tensors in (module._modules, module._buffers)]  # noqa: SLF001  as below, without its time
        self._contents = self._current_contents()
        buffers = [
            (module, name, tensor)
            for module in self._model.modules()
            for name, tensor in module.named_buffers(recurse=False)
        ]
        chosen = buffers
        if sum(tensor.nbytes for _, _, tensor in buffers) > self._most_bytes:
            self._note_changes(buffers)
            chosen = list(self._fitting(buffers))
        chosen_ids = {id(tensor) for _, _, tensor in chosen}
        self.left_out = tuple(name for name, tensor in self._model.named_buffers() if id(tensor) not in chosen_ids)
        if [id(tensor) for _, _, tensor in chosen] != [id(tensor) for _, _, tensor in self._places]:
            self._places = chosen
            self._copies = [torch.empty_like(tensor, requires_grad=False) for _, _, tensor in chosen]

    def _note_changes(self, buffers: list[tuple[nn.Module, str, Tensor]]) -> None:
        """Record which buffers changed. Digests are compared, because these buffers do not fit into memory twice."""
        for module, name, tensor in buffers:
            digest = xxhash.xxh3_128_digest(as_bytes(tensor).cpu().numpy().data)
            if self._digests.setdefault((module, name), digest) != digest:
                self._changing.add((module, name))
                self._digests[module, name] = digest

    def _fitting(self, buffers: list[tuple[nn.Module, str, Tensor]]) -> Iterator[tuple[nn.Module, str, Tensor]]:
        nbytes = self._most_bytes
        for module, name, tensor in sorted(
            buffers, key=lambda buffer: (buffer[:2] not in self._changing, buffer[2].nbytes)
        ):
            nbytes -= tensor.nbytes
            if nbytes < 0:
                return
            yield module, name, tensor


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor, in the order of its elements."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
