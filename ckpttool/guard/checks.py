"""Checks of the device: matrix products after a strike or at intervals, and replicas at intervals.

To check replicas, the largest and the smallest integer hash over all ranks are compared. The hash is an exclusive or,
so it misses two elements that change in the same way or swap places. It finds a bit flip, but never proves that weights
are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.guarding import EventValue, GuardEventKind
from ckpttool.core.domain.units import Rank, Step, on_ranks
from ckpttool.core.errors import UsageError
from ckpttool.guard.agree import Ranks
from ckpttool.guard.checksum import MatmulChecksum
from ckpttool.guard.contain import Containment, Part

if TYPE_CHECKING:
    from torch import nn

T = TypeVar("T")

_CLOSER = 20
"""Number of steps to check after a non-finite result that was finite when recomputed."""
_MOST_NAMES = 8
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Maps the bytes of an element to an integer type for its bits."""


class Checks:
    """Context for the forward and backward passes of checked steps. It also compares replicas between steps."""

    def __init__(
        self, model: nn.Module, ranks: Ranks, contain: Containment, *, patrol: int, replica_every: int
    ) -> None:
        """Start counting steps. `patrol` and `replica_every` have the same meaning as in `Guard`.

        Raises:
            UsageError: `patrol` or `replica_every` is not a number of steps.
        """
        for name, steps in (("patrol", patrol), ("replica_every", replica_every)):
            if type(steps) is not int or steps < 0:
                raise UsageError(f"{name} must be a number of steps, or 0 for never, not {steps!r}")
        self._patrol = patrol
        self._replica_every = replica_every
        self._model = model
        self._ranks = ranks
        self._contain = contain
        self._checksum: MatmulChecksum | None = None
        self._is_inside = False
        self._closer_until = Step(-1)
        self._replicas = ReplicaCheck(model) if isinstance(model, DistributedDataParallel) else None

    def enter(self, step: Step, *, runs: bool) -> None:
        """Begin the forward and backward passes of a micro-batch.

        Args:
            step: The current step.
            runs: Whether the ranks agreed to check every step.
        """
        self.leave()  # an exception may have ended the last one unnoticed
        is_patrol = self._patrol > 0 and step % self._patrol == 0
        if (runs or is_patrol or step <= self._closer_until) and self._contain.is_on(Part.CHECKSUM):
            self._run(lambda: self._begin(step))

    def _begin(self, step: Step) -> None:
        if self._checksum is None:
            bare = self._model.module if isinstance(self._model, DistributedDataParallel) else self._model
            self._checksum = MatmulChecksum(bare, self._contain.emit, rank=Rank(self._ranks.own), contained=self._run)
        self._checksum.step = step
        self._checksum.__enter__()
        self._is_inside = True

    def look_closer(self, step: Step) -> None:
        """Check the matrix products of the next steps on this rank: recomputing this step gave a different result."""
        self._closer_until = Step(step + _CLOSER)

    def leave(self) -> None:
        """End the forward and backward passes of a micro-batch."""
        if self._is_inside and (checksum := self._checksum) is not None:
            self._is_inside = False
            # Even if it was switched off in the meantime, the dispatch mode must not stay on.
            self._contain.run(Part.CHECKSUM, lambda: checksum.__exit__(None, None, None), waits=True, always=True)

    def take_abnormal(self) -> bool:
        """Return whether a product was wrong on this rank since the last call."""
        return self._checksum is not None and (self._run(self._checksum.take_abnormal) or False)

    def fields(self) -> dict[str, EventValue]:
        """Return the results of the checks in this step, for its event."""
        summary = {} if self._checksum is None else self._checksum.summary()
        return {"checked": summary} if summary.get("products") else {}

    def compare_replicas(self, step: Step) -> None:
        """Compare the weights of all ranks if a comparison is due. Every rank must call it in each step."""
        if self._replicas is None or self._replica_every == 0 or step % self._replica_every:
            return
        disagreement = self._replicas.compare(self._contain.run(Part.CHECKSUM, self._replicas.hashes))
        if disagreement is None:
            return
        names, ranks = disagreement.parameters, disagreement.ranks
        on_which = f": different on {on_ranks(ranks)}" if ranks else ""
        message = f"weights differ from rank to rank{on_which}, in {', '.join(names)}"
        if disagreement.count > len(names):
            message += f" and {disagreement.count - len(names)} more"
        self._contain.emit(
            GuardEventKind.REPLICAS_DISAGREE,
            step=step,
            parameters=[*names],
            count=disagreement.count,
            ranks=[*ranks],
            message=message,
        )

    def _run(self, call: Callable[[], T]) -> T | None:
        """Run a check without counting its duration as the guard's share of a step."""
        return self._contain.run(Part.CHECKSUM, call, waits=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """The parameters whose weights differ between ranks."""

    parameters: tuple[str, ...]
    """Names of the first of these parameters, in the model's order."""
    count: int
    """Number of these parameters."""
    ranks: tuple[int, ...]
    """Global ranks that differ from the majority. Empty if there is no majority."""


class ReplicaCheck:
    """Comparison of the weights that `DistributedDataParallel` keeps equal on all ranks."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._parameters = dict(model.module.named_parameters())
        device = next((parameter.device for parameter in self._parameters.values()), torch.device("cpu"))
        self._ranks = Ranks(model.process_group, device)

    def hashes(self) -> Tensor:
        """Return one integer per parameter, computed from the bits of its elements."""
        digests = [_hash(parameter.detach()) for parameter in self._parameters.values()]
        return torch.stack([number.to(digests[0].device) for number in digests])

    def compare(self, hashes: Tensor | None) -> Disagreement | None:
        """Return the weights that differ, or None if all are equal or a rank has no hashes. Every rank must call it.

        Args:
            hashes: Hashes of this rank, or None if they could not be computed.
        """
        own_hashes = torch.zeros(len(self._parameters), dtype=torch.int64) if hashes is None else hashes
        failed = torch.tensor([hashes is None], dtype=torch.int64, device=own_hashes.device)
        # Inverted values have the reverse order: the largest of these is the smallest of those.
        *maxima, any_failed = self._ranks.largest(torch.cat([own_hashes, ~own_hashes, failed]))
        count = len(self._parameters)
        differing = [
            index
            for index, (largest, inverted) in enumerate(zip(maxima[:count], maxima[count:], strict=True))
            if largest != ~inverted
        ]
        if any_failed or not differing:
            return None
        names = tuple(self._parameters)
        return Disagreement(
            parameters=tuple(names[index] for index in differing[:_MOST_NAMES]),
            count=len(differing),
            ranks=self._outliers([int(own_hashes[index]) for index in differing[:_MOST_NAMES]]),
        )

    def _outliers(self, hashes: list[int]) -> tuple[int, ...]:
        """Return the ranks whose hashes differ from the majority, or an empty tuple if there is no majority."""
        by_rank = list(zip(*(self._ranks.gather(number) for number in hashes), strict=True))
        usual, holders = Counter(by_rank).most_common(1)[0]
        if 2 * holders <= len(by_rank):
            return ()
        return tuple(self._ranks.global_rank(rank) for rank, digest in enumerate(by_rank) if digest != usual)


def _hash(tensor: Tensor) -> Tensor:
    parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    bits = parts.view(_INTEGERS[parts.itemsize])
    if not bits.numel():
        return torch.zeros((), dtype=torch.int64, device=bits.device)
    if hasattr(torch, "hash_tensor"):  # since 2.9
        return torch.hash_tensor(bits).view(torch.int64)
    return bits.sum(dtype=torch.int64)
