"""Data for recomputing a step, stored by reference during the step at almost no cost."""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from ckpttool.core.domain.units import ByteCount
from ckpttool.guard import randomness
from ckpttool.guard.environment import comes_from_compiled
from ckpttool.guard.nested import form, map_tensors, tensors_in
from ckpttool.guard.tensor_file import TYPES, block

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

DEVICE_BATCHES = ByteCount(256 << 20)
"""Bytes of an accelerator's memory for the earlier micro-batches of an accumulated step."""

HOST_BATCHES = ByteCount(1 << 30)
"""Bytes of the host's memory for the earlier micro-batches of an accumulated step."""

_MOST_PRINTS = 8
"""Maximum number of fingerprints to keep for a dropped batch."""

_MOST_HOOKED = 512
"""Maximum number of modules with an autocast hook, until the first called module is known."""

_MOST_HASHED = 16 << 20
"""Maximum number of bytes to hash per tensor, which takes two milliseconds."""

_NUMPY_HAS = frozenset({torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool})
"""The usual types of batches that numpy supports as well."""


class Remembered:
    """One micro-batch, with its loss and the state at its forward pass."""

    def __init__(self, batch: object, index: int | None, random: randomness.States, *, cloned: bool) -> None:
        self.batch = batch
        if cloned:
            self.batch = map_tensors(
                batch,
                lambda tensor: (
                    tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_(tensor.requires_grad)
                ),
            )
        self.index = index
        self.loss: Tensor | None = None
        self.random = random
        self.outer_autocast = autocast_now()
        self.inner_autocast: tuple[tuple[str, str], ...] | None = None
        self._tensors = [] if cloned else [*tensors_in(batch)]
        self._versions = [_version(tensor) for tensor in self._tensors]
        self._fingerprints = [_fingerprint(tensor) for tensor in self._tensors]
        self._was_changed = False  # before it was moved or freed
        self.let_go: str | None = None
        """Why the batch was dropped, with its fingerprint. None while it is in memory."""

    def nbytes(self, *, on_host: bool) -> int:
        """Return the bytes of the batch's tensors in host memory, or in accelerator memory."""
        tensors = tensors_in(self.batch)
        return sum(_nbytes(tensor) for tensor in tensors if (tensor.device.type == "cpu") is on_host)

    def move_to_host(self) -> None:
        """Move the batch out of the accelerator's memory."""
        self._settle()
        self.batch = map_tensors(self.batch, lambda tensor: tensor.detach().cpu().requires_grad_(tensor.requires_grad))

    def drop(self, beyond: str) -> None:
        """Drop the batch except for its fingerprint. `beyond` is the limit that was exceeded."""
        prints = [f"{form(tensor)} {_first_bytes(tensor)}" for tensor in tensors_in(self.batch)][:_MOST_PRINTS]
        self._settle()
        self.batch, self.let_go = None, f"{beyond}; fingerprint: {', '.join(prints) or 'no tensors'}"

    def _settle(self) -> None:
        self._was_changed = self.was_changed
        self._tensors, self._versions, self._fingerprints = [], [], []

    @property
    def was_moved(self) -> bool:
        """Whether torch counted a change to one of the tensors. This needs no device access."""
        return [_version(tensor) for tensor in self._tensors] != self._versions

    @property
    def was_changed(self) -> bool:
        """Whether one of the tensors changed, including changes by numpy or `.data`, which torch does not count."""
        if self._was_changed or self.was_moved:
            return True
        return any(
            fingerprint is not None and bool(fingerprint != _fingerprint(tensor))
            for fingerprint, tensor in zip(self._fingerprints, self._tensors, strict=True)
        )


class Drawn:
    """One item returned by a data loader of the training run."""

    def __init__(self, loader: int, item: object, *, cloned: bool) -> None:
        """Store the item, and the number of its loader, counted in the order of construction."""
        self.loader = loader
        self.item = map_tensors(item, torch.clone) if cloned else item
        self._tensors = [] if cloned else [*tensors_in(item)]
        self._versions = [_version(tensor) for tensor in self._tensors]
        self.nbytes = sum(_nbytes(tensor) for tensor in tensors_in(item))

    @property
    def was_moved(self) -> bool:
        """Whether torch counted a change to one of the tensors."""
        return [_version(tensor) for tensor in self._tensors] != self._versions


class StepMemory:
    """The micro-batches since the last step of one optimizer."""

    def __init__(
        self, model: nn.Module, *, host_batches: int = HOST_BATCHES, device_batches: int = DEVICE_BATCHES
    ) -> None:
        """Store the model, whose autocast is detected, and the budgets in bytes for earlier batches."""
        self._host, self._device = host_batches, device_batches
        self.micro_batches: list[Remembered] = []
        self._model = model
        self._clones = False
        self._random = randomness.StatesReader()
        self._hooks: list[RemovableHandle] = []
        self._called_first: nn.Module | None = None  # in the previous micro-batch: usually the same module
        self.drawn: list[Drawn] = []
        """The items that the data loaders returned for the step, in order. Empty if they are unknown."""
        self._pending: list[Drawn] = []  # since the last forward pass
        self._loaders: set[int] = set()  # loaders of the training run, not of an evaluation
        self._misses_items = False
        self.is_compiled: bool | None = None
        """Whether the first loss came from compiled code. None before the first loss."""

    def micro(self, batch: object, *, index: int | None = None) -> None:
        """Store a micro-batch and the random-number state. Call it immediately before the forward pass.

        Args:
            batch: The input of the forward pass, after transfer and augmentation.
            index: The number of the batch in the epoch, if the training step needs it.
        """
        self._make_room()
        self._take_pending()
        self.micro_batches.append(Remembered(batch, index, self._random.states(), cloned=self._clones))
        self.leave()
        first, self._called_first = self._called_first, None
        modules = callable_parts(self._model) if first is None else [first]
        self._hooks += [module.register_forward_pre_hook(self._called) for module in modules]

    def drew(self, loader: int, item: object) -> None:
        """Store an item of a data loader by reference.

        If the items of a step exceed the budget for batches in host memory, none of them is kept.
        """
        self._pending.append(Drawn(loader, item, cloned=self._clones))
        if sum(drawn.nbytes for drawn in (*self.drawn, *self._pending)) > self._host:
            self._misses_items = True
            self.drawn.clear()
            self._pending.clear()

    def evaluated(self) -> None:
        """Discard the items that were drawn for a forward pass without gradients."""
        self._pending = [drawn for drawn in self._pending if drawn.loader in self._loaders]

    def _take_pending(self) -> None:
        self._loaders.update(drawn.loader for drawn in self._pending)
        if not self._misses_items:
            self.drawn += self._pending
        self._pending.clear()

    def _make_room(self) -> None:
        """Limit earlier micro-batches to the budgets. Without the guard, only one batch is in memory at a time."""
        host, device = self._host, self._device
        retained = [micro for micro in self.micro_batches if micro.let_go is None]
        on_device = [micro for micro in retained if micro.nbytes(on_host=False)]
        while on_device and sum(micro.nbytes(on_host=False) for micro in on_device) > device:
            on_device.pop(0).move_to_host()
        while retained and sum(micro.nbytes(on_host=True) for micro in retained) > host:
            retained.pop().drop(f"above the limit of {host >> 20} MiB of host memory for the batches of a step")

    @property
    def holds_all(self) -> bool:
        """Whether every batch of the step is still available."""
        return all(micro.let_go is None for micro in self.micro_batches)

    @property
    def is_hooked(self) -> bool:
        """Whether the model has the guard's hook: it was not called since the micro-batch began."""
        return bool(self._hooks)

    def leave(self) -> None:
        """Remove the guard's hook from the model. A model with the hook can be neither scripted nor copied."""
        while self._hooks:
            self._hooks.pop().remove()

    def loss(self, loss: Tensor) -> None:
        """Store the loss of the last micro-batch, as passed to `backward`."""
        if self.is_compiled is None:
            self.is_compiled = comes_from_compiled(loss)
        if self.micro_batches:
            # Some callers pass a number. Copied: a compiled training may write its next loss to the same memory.
            self.micro_batches[-1].loss = torch.as_tensor(loss).detach().clone()

    def forget(self) -> None:
        """Discard a step. If torch counted a change to one of its batches, copy batches from now on."""
        parts: list[Remembered | Drawn] = [*self.micro_batches, *self.drawn]
        self._clones = self._clones or any(part.was_moved for part in parts)
        self.micro_batches.clear()
        self.drawn.clear()
        self._misses_items = False

    def keep_copies(self) -> None:
        """Copy every batch from the next one on.

        Use this if a batch was changed in place and torch did not count it.
        """
        self._clones = True

    @property
    def nbytes(self) -> int:
        """Total size of the stored batches in bytes."""
        return sum(tensor.nbytes for micro in self.micro_batches for tensor in tensors_in(micro.batch))

    def _called(self, module: nn.Module, _inputs: object) -> None:
        if torch.compiler.is_compiling():  # none of this may be part of a compiled model
            return
        if self.micro_batches and self.micro_batches[-1].inner_autocast is None:
            self.micro_batches[-1].inner_autocast = autocast_now()
            self._called_first = module
        self.leave()


def callable_parts(model: nn.Module) -> list[nn.Module]:
    """Return the modules whose first call shows the autocast, outermost first.

    A wrapper may call the model, or only parts of it, at any depth. If a trainer replaced a module's `forward`, as
    accelerate does, autocast is entered there, so only parts of the module can show it. A hook inside a compiled module
    would cause another compilation.
    """
    parts: list[nn.Module] = []
    ahead = deque([model])
    while ahead and len(parts) < _MOST_HOOKED:
        module = ahead.popleft()
        is_wrapper = hasattr(module, "_orig_mod")
        if is_wrapper or "forward" not in vars(module):
            parts.append(module)
        if not is_wrapper and getattr(module, "_compiled_call_impl", None) is None:
            ahead.extend(module.children())
    return parts


def autocast_now() -> tuple[tuple[str, str], ...]:
    """Return the device type and the data type of each active autocast."""
    return tuple(
        [
            (kind, str(torch.get_autocast_dtype(kind)).removeprefix("torch."))
            for kind in _kinds()
            if torch.is_autocast_enabled(kind)
        ]
    )


@cache
def _kinds() -> tuple[str, ...]:
    """Return the device types that this build of torch supports. They do not change within a process."""
    accelerator = torch.accelerator.current_accelerator()
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)


def _nbytes(tensor: Tensor) -> int:
    """Return the size in bytes. For a sparse tensor, the size of its values and indices is approximate."""
    if tensor.layout is torch.strided:
        return tensor.nbytes
    return int(tensor._nnz()) * (tensor.dtype.itemsize + 8 * tensor.dim())  # noqa: SLF001  torch has no public name


def _first_bytes(tensor: Tensor) -> str:
    """Return the xxh3-64 of up to the first 16 MiB, or "unread" if reading them would need a complete copy."""
    if tensor.layout is not torch.strided or tensor.dtype not in TYPES or not tensor.is_contiguous():
        return "unread"
    first = tensor.detach().reshape(-1)[: _MOST_HASHED // max(1, tensor.dtype.itemsize)].cpu()
    of_what = " of its first 16 MiB" if first.nbytes < tensor.nbytes else ""
    return f"xxh3-64 {xxh3_64_hexdigest(block(first))}{of_what}"


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else int(tensor._version)  # noqa: SLF001  torch has no public name


def _fingerprint(tensor: Tensor) -> object:
    """Return a value that changes with the content, or None if computing it takes too long.

    Does not wait for a device.
    """
    if tensor.device.type != "cpu":
        return torch.hash_tensor(tensor) if hasattr(torch, "hash_tensor") and not tensor.is_complex() else None
    if tensor.layout is not torch.strided or tensor.nbytes > _MOST_HASHED or tensor.dtype not in TYPES:
        return None
    if tensor.dtype in _NUMPY_HAS and tensor.is_contiguous():  # in a third of the time
        return xxh3_64_intdigest(tensor.detach().numpy().data)
    return xxh3_64_intdigest(block(tensor))
