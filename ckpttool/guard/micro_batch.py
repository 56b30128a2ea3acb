"""What stands around forward and backward of one micro-batch."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Listener(Protocol):
    """Who wants to know when a micro-batch begins and ends."""

    def begin(self, batch: object, index: int | None) -> None:
        """Take the batch as the model gets it, and its number in the epoch."""
        ...

    def take_loss(self, loss: Tensor) -> None:
        """Take its loss."""
        ...

    def end(self) -> None:
        """Take note that its backward is done."""
        ...


class MicroBatch:
    """Stands around forward and backward of one micro-batch; an exception in these passes through."""

    def __init__(self, guard: Listener, batch: object, index: int | None) -> None:
        """Take the guard, and the batch as the model gets it."""
        self._guard = guard
        self._batch = batch
        self._index = index

    def __enter__(self) -> MicroBatch:  # noqa: PYI034  `Self` is in Python since 3.11
        self._guard.begin(self._batch, self._index)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._guard.end()

    def loss(self, loss: Tensor) -> Tensor:
        """Take the loss, as it is handed to `backward`, and return it: nothing waits for the device."""
        self._guard.take_loss(loss)
        return loss
