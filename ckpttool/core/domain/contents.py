"""Contents of a shard or a checkpoint: tensors, scalars, writer and checksums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.checkpoint import Inventory
from ckpttool.core.domain.finding import Finding, of_findings
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.shard import FormatName, ShardRole, TensorEntry
from ckpttool.core.domain.units import ByteCount, Rank, Step
from ckpttool.core.errors import ExitCode

Value: TypeAlias = "bool | int | float | str"
"""A scalar."""

Shape: TypeAlias = "tuple[int, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementStats:
    """The statistics of one tensor, over all files that contain it or a part of it."""

    elements: int
    nans: int
    infinities: int
    zeros: int
    least: float | None
    """Smallest finite element; None if no element is finite."""
    greatest: float | None
    norm: float
    """L2 norm of the finite elements; for several files, the largest norm, because the files may hold slices or copies.
    """

    @property
    def absmax(self) -> float | None:
        """Largest magnitude of the finite elements."""
        return None if self.least is None or self.greatest is None else max(abs(self.least), abs(self.greatest))

    def join(self, other: ElementStats) -> ElementStats:
        """Combine the statistics of the same tensor in two files."""
        ends = [end for end in (self.least, self.greatest, other.least, other.greatest) if end is not None]
        return ElementStats(
            elements=self.elements + other.elements,
            nans=self.nans + other.nans,
            infinities=self.infinities + other.infinities,
            zeros=self.zeros + other.zeros,
            least=min(ends, default=None),
            greatest=max(ends, default=None),
            norm=max(self.norm, other.norm),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The readable contents of one shard. Picklable."""

    path: str
    """POSIX, relative to the root."""
    rank: Rank | None
    role: ShardRole
    format: FormatName | None
    """Format according to the content; None if it could not be opened."""
    nbytes: ByteCount | None
    """Size of the file."""
    schema: str
    """Equal for two shards with the same tensors."""
    entries: tuple[TensorEntry, ...] = ()
    """The offset of the elements may be that of another file with the same tensors."""
    stats: tuple[ElementStats | None, ...] = ()
    """One for each entry, if statistics were requested; None for non-numeric or unselected entries."""
    values: tuple[tuple[str, Value], ...] = ()
    """Values of one-element tensors, and of other data in a torch file; by name."""
    producer: str | None = None
    """The writer, and the version of the format, if the bytes show them."""
    metadata: tuple[tuple[str, str], ...] = ()
    checksum: tuple[str, str] | None = None
    """The kind and value of the file's own checksum; not compared with anything."""
    unread: int = 0
    """Tensors of kinds that ckpttool does not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRow:
    """One tensor of a checkpoint."""

    name: str
    dtype: str
    """The type on most ranks, by its name in safetensors."""
    shape: Shape
    """The shape on most ranks."""
    nbytes: ByteCount
    """Bytes in one file."""
    ranks: tuple[Rank, ...]
    """The ranks that have it, ascending; empty if all ranks share the file."""
    files: int
    """Number of files that contain it."""
    others: tuple[tuple[str, Shape, tuple[Rank, ...]], ...] = ()
    """Types and shapes under this name on ranks that differ from most."""
    stats: ElementStats | None = None

    @property
    def elements(self) -> int:
        """Number of elements in one file."""
        return elements_in(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarRow:
    """One scalar of a checkpoint."""

    name: str
    value: Value
    """The value in most files."""
    others: tuple[tuple[Value, tuple[Rank, ...]], ...] = ()
    """The different values on other ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedDigest:
    """A manifest's record of a file."""

    xxh3_128: str
    first_seen: str
    """When the file was sealed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """The readable contents of one file."""

    path: str
    rank: Rank | None
    format: FormatName | None
    producer: str | None
    metadata: tuple[tuple[str, str], ...]
    nbytes: ByteCount | None
    tensors: int
    unread: int
    """Tensors of kinds that ckpttool does not read."""
    checksum: tuple[str, str] | None
    seal: SealedDigest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents(Answered):
    """The answer of `inspect`."""

    NOUN = "contents"

    inventory: Inventory
    """The tree, or a stand-in for it around a single file."""
    checkpoint: str
    step: Step | None
    file: str | None
    """The requested file; None if the whole checkpoint was requested."""
    files: tuple[FileRow, ...]
    """Sorted by (rank, path)."""
    tensors: tuple[TensorRow, ...]
    """The requested tensors, by name in natural order."""
    left_out: int
    """Number of tensors that no pattern selected."""
    parameters: int
    """Elements of the selected tensors, excluding optimizer state and scalars, with each tensor counted once."""
    scalars: tuple[ScalarRow, ...]
    findings: tuple[Finding, ...]
    most_rows: int | None = None
    """Maximum number of rows in a table for people; None shows all rows."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code for the shards' findings, the same as `verify` returns for their structure."""
        return of_findings(self.findings)


def elements_in(shape: Sequence[int]) -> int:
    """Count the elements of a shape; a scalar has one."""
    count = 1
    for dim in shape:
        count *= dim
    return count


def is_selected(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a tensor is selected by its name or a shell pattern; without patterns, all are selected."""
    from fnmatch import fnmatchcase

    return not patterns or any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)
