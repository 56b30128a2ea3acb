"""The common decision of all ranks, made by one reduction of eight integers in every optimizer step.

The reduction and its callers must stay outside of every `try`: if a rank skips it, the others wait forever. Earlier
errors are caught, and the rank contributes the number of the part that failed.
"""

from __future__ import annotations

import math
import struct

import torch
import torch.distributed as dist
from torch import Tensor

from ckpttool.core.domain.frozen import dataclass
from ckpttool.guard.model.guarding import Action, Proposal

_NO_NORM = -(2**63)
"""A number below the bits of any norm and of any negated norm, so it is never the largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """The contribution of one rank to the common decision."""

    proposal: Proposal | None = None
    """None if the guard failed on this rank. The other ranks then decide."""
    failed: int = 0
    """Number of the part that failed, or 0 if no part failed."""
    strike: bool = False
    """Whether a detector counted enough abnormal feature values on this rank."""
    abnormal: bool = False
    """Whether a matrix product was wrong on this rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The common decision, which is the same on all ranks."""

    proposal: Proposal | None
    """The largest action and norm, or None if the guard failed on every rank.

    Finite only if all proposals are finite.
    """
    norms_differ: bool
    """Whether two ranks have different norms. All NaN count as equal."""
    failed: int
    """The largest number of a part that failed on any rank, or 0 if no part failed."""
    strike: bool
    abnormal: bool

    @property
    def is_finite(self) -> bool:
        """Whether no rank found a non-finite value."""
        return self.proposal is None or self.proposal.is_finite

    @property
    def is_overflow(self) -> bool:
        """Whether the loss scale is too large and there is no other problem."""
        return self.proposal is not None and self.proposal.is_overflow


class Ranks:
    """The ranks of the training run, from its process group."""

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        """Store the group, or None for the default group, and the device of the parameters."""
        self._group = group
        self._device = device

    @property
    def count(self) -> int:
        """Number of ranks. Query it at each step, because a group may be created after the guard, or removed."""
        return dist.get_world_size(self._group) if dist.is_available() and dist.is_initialized() else 1

    @property
    def world(self) -> int:
        """Number of all processes, including those in other groups."""
        return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1

    @property
    def own(self) -> int:
        """Global rank of this process."""
        return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0

    def agree(self, vote: Vote) -> Agreement:
        """Return the common decision of all ranks. Every rank must call it once in each optimizer step."""
        if self.count == 1:
            return Agreement(
                proposal=vote.proposal,
                norms_differ=False,
                failed=vote.failed,
                strike=vote.strike,
                abnormal=vote.abnormal,
            )
        return _agreement(self.largest(torch.tensor(_numbers(vote), dtype=torch.int64)))

    def largest(self, numbers: Tensor) -> list[int]:
        """Return the maximum of each int64 over all ranks. Every rank must call it with the same number of values."""
        if self.count > 1:
            numbers = numbers.to(self._meeting_place())
            dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=self._group)
        largest: list[int] = numbers.tolist()
        return largest

    def global_rank(self, rank: int) -> int:
        """Return the global rank of a rank of this group."""
        return rank if self.count == 1 or self._group is None else dist.get_global_rank(self._group, rank)

    def gather(self, number: int) -> list[int]:
        """Return the number from each rank, in order of rank.

        Every rank must call it, so only after a common decision.
        """
        if self.count == 1:
            return [number]
        numbers = torch.zeros(self.count, dtype=torch.int64, device=self._meeting_place())
        numbers[dist.get_rank(self._group)] = number
        dist.all_reduce(numbers, group=self._group)
        return [int(value) for value in numbers.tolist()]

    def _meeting_place(self) -> torch.device:
        """Return the device for the group's collective operations. Backends for accelerators accept no host tensors."""
        devices = str(dist.get_backend_config(self._group))  # `cpu:gloo,cuda:nccl`
        takes = {pair.partition(":")[0] for pair in devices.split(",")}
        return self._device if self._device.type in takes else torch.device("cpu")


def _numbers(vote: Vote) -> list[int]:
    proposal = vote.proposal
    if proposal is None:
        return [0, 0, 0, vote.failed, int(vote.strike), int(vote.abnormal), _NO_NORM, _NO_NORM]
    bits = _bits(proposal.norm)
    return [
        int(not proposal.is_finite),
        int(proposal.action >= Action.SKIP),
        int(proposal.action >= Action.STOP),
        vote.failed,
        int(vote.strike),
        int(vote.abnormal),
        bits,
        -bits,
    ]


def _agreement(numbers: list[int]) -> Agreement:
    not_finite, skip, stop, failed, strike, abnormal, largest, negated_smallest = numbers
    action = Action.SKIP if skip else Action.APPLY
    if stop:
        action = Action.STOP
    known = largest != _NO_NORM
    norm: float = struct.unpack("<d", struct.pack("<q", largest))[0]
    return Agreement(
        proposal=Proposal(action=action, norm=norm, is_finite=not not_finite) if known else None,
        norms_differ=largest != -negated_smallest and known,
        failed=failed,
        strike=bool(strike),
        abnormal=bool(abnormal),
    )


def _bits(norm: float) -> int:
    """Return an integer that sorts like the norm, with infinity and then NaN above all other values.

    The encoding of a NaN depends on the device. All NaN are mapped to the same integer.
    """
    bits: int = struct.unpack("<q", struct.pack("<d", math.nan if math.isnan(norm) else abs(norm)))[0]
    return bits
