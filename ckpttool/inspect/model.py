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
    """The distance of one tensor's elements between two files. Picklable."""

    name: str
    equal: bool
    """Whether the elements are equal bit for bit."""
    squares: float | None = None
    """Sum of the squares of A's elements; None, as all below, if only bits were compared.

    Elements that are not finite in both files count only in `lost` and `found`.
    """
    other: float = 0.0
    """Sum of the squares of B's elements."""
    dot: float = 0.0
    """Sum of the products."""
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
    """L2 norm of the change divided by the norm of A; None if A is all zero, or not numeric."""
    cosine: float | None
    """Cosine of the angle between A and B; None if one is all zero."""
    largest: float
    """Largest change of one element."""
    largest_rank: Rank | None
    """Rank with the largest change; None if all ranks share the file."""
    nonfinite: tuple[int, int]
    """Numbers of NaN and infinities in A and in B."""
    times_median: float | None
    """`relative` divided by the median of all tensors of its kind that moved; None if too few moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorChange:
    """A tensor that differs between the two sides."""

    name: str
    kind: str
    """`weights`, or the state of an optimizer, according to its name."""
    what: tuple[str, ...]
    """`added`, `gone`; `dtype`, `shape`, `ranks`, `values`."""
    before: tuple[tuple[str, Shape, tuple[Rank, ...]], ...]
    """Types and shapes in A, and the ranks that have them."""
    after: tuple[tuple[str, Shape, tuple[Rank, ...]], ...]
    movement: Movement | None = None
    """How far the values moved; None if values were not compared, or are not numeric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The compared tensors of one kind."""

    kind: str
    equal: int
    """Number of tensors that are equal bit for bit."""
    moved: int
    median: float | None
    """Median of their relative L2 distances; None if no tensor moved, or only bits were compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarChange:
    """A scalar that differs between the two sides."""

    name: str
    before: Value | None
    """Value in A; None if A lacks the scalar."""
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
    """Tensors without any difference, on all ranks that have them."""
    uncompared: int
    """Tensors whose values could not be compared as requested, on at least one rank."""
    groups: tuple[Group, ...]
    scalars: tuple[ScalarChange, ...]
    findings: tuple[Finding, ...]
    """Problems of either side."""
    differing_is_damage: bool = False
    """Whether differing and uncompared tensors change the exit code."""
    most_rows: int | None = None
    """Maximum number of rows of a table for people; None for all."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code 0 even if tensors differ; not 0 for damage or, on request, for differing or uncompared tensors."""
        codes = [of_findings(self.findings)]
        if self.differing_is_damage and self.tensors:
            codes.append(ExitCode.DAMAGE)
        elif self.differing_is_damage and self.uncompared:
            codes.append(ExitCode.INCOMPLETE)
        return safest(codes)
