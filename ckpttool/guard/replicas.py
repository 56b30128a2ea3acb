"""Whether ranks that train the same weights still have the same: one flipped bit shows long before a loss does.

A hash of whole numbers is compared, the largest with the smallest. It is an exclusive or: blind where two elements
change alike, or change places. It finds a flip, and never proves that weights are equal.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ckpttool.core.domain.frozen import dataclass
from ckpttool.guard.agree import Ranks

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

_MOST_NAMES = 8
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of an element -> its bits as a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Weights that are not the same on all ranks."""

    parameters: tuple[str, ...]
    """The first of them, in the model's order."""
    count: int
    """How many there are."""
    ranks: tuple[int, ...]
    """Global ranks that have other ones than most; none where no most is."""


class ReplicaCheck:
    """Compares the weights of all ranks that `DistributedDataParallel` keeps the same."""

    def __init__(self, model: DistributedDataParallel) -> None:
        """Take the model as it is trained."""
        self._parameters = dict(model.module.named_parameters())
        group: dist.ProcessGroup = model.process_group
        device = next((parameter.device for parameter in self._parameters.values()), torch.device("cpu"))
        self._ranks = Ranks(group, device)

    def hashes(self) -> Tensor:
        """Return [parameters], a whole number of the bits of each."""
        digests = [_hash(parameter.detach()) for parameter in self._parameters.values()]
        return torch.stack([number.to(digests[0].device) for number in digests])

    def compare(self, hashes: Tensor | None) -> Disagreement | None:
        """Return which weights differ; None where none do, or a rank has no hashes. Every rank must call it.

        Args:
            hashes: Of this rank; None where they could not be made.
        """
        own_hashes = torch.zeros(len(self._parameters), dtype=torch.int64) if hashes is None else hashes
        failed = torch.tensor([hashes is None], dtype=torch.int64, device=own_hashes.device)
        # What is inverted is ordered the other way: the largest of these is the smallest of those.
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
        """Return who has other hashes than more than half of the ranks."""
        by_rank = list(zip(*(self._ranks.gather(number) for number in hashes), strict=True))
        usual, holders = Counter(by_rank).most_common(1)[0]
        if 2 * holders <= len(by_rank):
            return ()
        return tuple(self._ranks.global_rank(rank) for rank, digest in enumerate(by_rank) if digest != usual)


def _hash(tensor: Tensor) -> Tensor:
    bits = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).view(_INTEGERS[_width(tensor)])
    if not bits.numel():
        return torch.zeros((), dtype=torch.int64, device=bits.device)
    if hasattr(torch, "hash_tensor"):  # since 2.9
        return torch.hash_tensor(bits).view(torch.int64)
    return bits.sum(dtype=torch.int64)


def _width(tensor: Tensor) -> int:
    return tensor.itemsize // 2 if tensor.is_complex() else tensor.itemsize
