"""Differences between two shards or two checkpoints: tensors, scalars, and the distance of values."""

from __future__ import annotations

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.contents import Contents, Shape, Value
from ckpttool.core.domain.finding import Finding, of_findings, safest
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Rank
from ckpttool.core.domain.verdict import Level
from ckpttool.core.errors import ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """The distance of one tensor's elements between two files. It can be pickled."""

    name: str
    equal: bool
    """Whether the elements are equal bit for bit."""
    squares: float | None = None
    """Sum of the squares of A's elements. None if only bits were compared. The fields below are then 0.

    Elements that are not finite in both files count only in `lost` and `found`.
    """
    other: float = 0.0
    """Sum of the squares of B's elements."""
    dot: float = 0.0
    """Sum of the products of A's and B's elements."""
    moved: float = 0.0
    """Sum of the squares of the differences."""
    largest: float = 0.0
    """Largest difference of one element."""
    found: int = 0
    """Number of NaN and infinities in A."""
    lost: int = 0
    """Number of NaN and infinities in B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """The distance that a tensor moved, over all files that contain a part of it."""

    relative: float | None
    """L2 norm of the change divided by the norm of A, or None if A is all zero or not numeric."""
    cosine: float | None
    """Cosine of the angle between A and B, or None if one of them is all zero."""
    largest: float
    """Largest change of one element."""
    largest_rank: Rank | None
    """Rank with the largest change, or None if all ranks share the file."""
    nonfinite: tuple[int, int]
    """Numbers of NaN and infinities in A and in B."""
    times_median: float | None
    """`relative` divided by the median of all moved tensors of its kind, or None if too few moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorChange:
    """A tensor that differs between the two sides."""

    name: str
    kind: str
    """`weights`, or the state of an optimizer, derived from its name."""
    what: tuple[str, ...]
    """Words for the kinds of change: `added`, `gone`, `dtype`, `shape`, `ranks`, `values`."""
    before: tuple[tuple[str, Shape, tuple[Rank, ...]], ...]
    """Types and shapes in A, and the ranks that have them."""
    after: tuple[tuple[str, Shape, tuple[Rank, ...]], ...]
    movement: Movement | None = None
    """Distance that the values moved, or None if values were not compared or are not numeric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The compared tensors of one kind."""

    kind: str
    equal: int
    """Number of tensors that are equal bit for bit."""
    moved: int
    median: float | None
    """Median of their relative L2 distances, or None if no tensor moved or only bits were compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarChange:
    """A scalar that differs between the two sides."""

    name: str
    before: Value | None
    """Value in A, or None if A lacks the scalar."""
    after: Value | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Answered):
    """The answer of `diff`."""

    NOUN = "difference"

    a: Contents
    b: Contents
    level: Level
    tensors: tuple[TensorChange, ...]
    """Differing tensors, the most unusual first."""
    same: int
    """Number of tensors without any difference, on all ranks that have them."""
    uncompared: int
    """Number of tensors whose values could not be compared as requested, on at least one rank."""
    groups: tuple[Group, ...]
    scalars: tuple[ScalarChange, ...]
    findings: tuple[Finding, ...]
    """Problems of either side."""
    differing_is_damage: bool = False
    """Whether differing and uncompared tensors change the exit code."""
    most_rows: int | None = None
    """Maximum number of rows of a table for people, or None for all."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code for damage or, on request, for differing or uncompared tensors.

        Otherwise 0, even if tensors differ.
        """
        codes = [of_findings(self.findings)]
        if self.differing_is_damage and self.tensors:
            codes.append(ExitCode.DAMAGE)
        elif self.differing_is_damage and self.uncompared:
            codes.append(ExitCode.INCOMPLETE)
        return safest(codes)
