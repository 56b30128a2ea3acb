"""What a probe inside a training tells of an operand: how many of its elements have which magnitude."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from ckpttool.domain.fp8 import Gemm, Operand
from ckpttool.domain.frozen import dataclass
from ckpttool.domain.units import Rank, Step

PATTERNS = 1 << 15
"""Magnitudes that BF16 has: its patterns without the sign."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandSite:
    """Where an operand is seen."""

    layer: str
    """As the module is called."""
    gemm: Gemm
    operand: Operand
    rank: Rank | None
    """None: of several ranks together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MagnitudeHistogram:
    """An operand's magnitudes at a step. What a scale of the whole tensor does to it follows from this exactly.

    Channels, rows and blocks are not in it.
    """

    site: OperandSite
    step: Step
    counts: tuple[tuple[int, int], ...]
    """(BF16 pattern without its sign, elements), by pattern; patterns that do not occur are left out."""

    def __add__(self, other: MagnitudeHistogram) -> MagnitudeHistogram:
        """Return both as one: of two micro-batches, or of two ranks.

        Raises:
            ValueError: They are of other steps, or of other operands.
        """
        ours, theirs = self.site, other.site
        if (self.step, ours.layer, ours.gemm, ours.operand) != (other.step, theirs.layer, theirs.gemm, theirs.operand):
            raise ValueError(f"{ours.layer} at step {self.step} and {theirs.layer} at step {other.step} do not add up")
        together = Counter(dict(self.counts)) + Counter(dict(other.counts))
        rank = ours.rank if ours.rank == theirs.rank else None
        site = OperandSite(layer=ours.layer, gemm=ours.gemm, operand=ours.operand, rank=rank)
        return MagnitudeHistogram(site=site, step=self.step, counts=tuple(sorted(together.items())))


class OperandProbe(Protocol):
    """Takes what is seen of operands inside a training."""

    def wants(self, where: OperandSite, step: Step) -> bool:
        """Tell whether an operand is to be counted at a step: most steps of most layers are not."""
        ...

    def seen(self, what: MagnitudeHistogram) -> None:
        """Take what was counted."""
        ...
