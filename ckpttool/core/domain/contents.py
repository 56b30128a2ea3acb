"""Contents of a shard or a checkpoint: tensors, scalars, producer and checksums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.checkpoint import Inventory
from ckpttool.core.domain.finding import Finding, of_findings
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.loader_state import SavedLoader
from ckpttool.core.domain.shard import FormatName, ShardRole, TensorEntry
from ckpttool.core.domain.units import ByteCount, Rank, Step
from ckpttool.core.errors import ExitCode

Value: TypeAlias = "bool | int | float | str"
"""A scalar."""

Shape: TypeAlias = "tuple[int, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementStats:
    """Statistics of one tensor, combined over all files that contain it or a slice of it."""

    elements: int
    nans: int
    infinities: int
    zeros: int
    least: float | None
    """Smallest finite element; None if no element is finite."""
    greatest: float | None
    norm: float
    """L2 norm of the finite elements. For several files, the largest of their norms, because files may hold slices or
    copies.
    """

    @property
    def absmax(self) -> float | None:
        """Largest magnitude of the finite elements; None if no element is finite."""
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
    """Contents of one shard, as far as they could be read. The object can be pickled."""

    path: str
    """POSIX path, relative to the root."""
    rank: Rank | None
    role: ShardRole
    format: FormatName | None
    """Format according to the content; None if the file could not be opened."""
    nbytes: ByteCount | None
    """Size of the file."""
    schema: str
    """Hash of the tensors' names, types and shapes: equal for two shards with the same tensors."""
    entries: tuple[TensorEntry, ...] = ()
    """The declared tensors. Offsets may come from another file with the same tensors."""
    stats: tuple[ElementStats | None, ...] = ()
    """Statistics of each entry, if requested; None for entries that are non-numeric or not selected."""
    values: tuple[tuple[str, Value], ...] = ()
    """Values of one-element tensors, and of other data in a torch file, sorted by name."""
    producer: str | None = None
    """Program that wrote the file, and version of the format, if the bytes show them."""
    metadata: tuple[tuple[str, str], ...] = ()
    checksum: tuple[str, str] | None = None
    """Kind and value of the checksum in the file itself, which is not compared with anything."""
    unread: int = 0
    """Number of tensors of types that ckpttool does not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRow:
    """One tensor of a checkpoint, over all of its files."""

    name: str
    dtype: str
    """Element type on most ranks, as a safetensors name."""
    shape: Shape
    """Shape on most ranks."""
    nbytes: ByteCount
    """Size in one file."""
    ranks: tuple[Rank, ...]
    """Ranks that have the tensor, ascending; empty if all ranks share the file."""
    files: int
    """Number of files that contain the tensor."""
    others: tuple[tuple[str, Shape, tuple[Rank, ...]], ...] = ()
    """Different types and shapes under the same name, each with its ranks."""
    stats: ElementStats | None = None

    @property
    def elements(self) -> int:
        """Number of elements in one file."""
        return elements_in(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarRow:
    """One scalar of a checkpoint, over all of its files."""

    name: str
    value: Value
    """Value in most files."""
    others: tuple[tuple[Value, tuple[Rank, ...]], ...] = ()
    """Different values, each with its ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedDigest:
    """Digest of a file according to a manifest."""

    xxh3_128: str
    first_seen: str
    """Time at which this content was first sealed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """Contents of one file, as far as they could be read."""

    path: str
    rank: Rank | None
    format: FormatName | None
    producer: str | None
    metadata: tuple[tuple[str, str], ...]
    nbytes: ByteCount | None
    tensors: int
    unread: int
    """Number of tensors of types that ckpttool does not read."""
    checksum: tuple[str, str] | None
    seal: SealedDigest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents(Answered):
    """The answer of `inspect`."""

    NOUN = "contents"

    inventory: Inventory
    """The tree, or a substitute if only a single file was requested."""
    checkpoint: str
    step: Step | None
    file: str | None
    """The requested file; None if the whole checkpoint was requested."""
    files: tuple[FileRow, ...]
    """Sorted by (rank, path)."""
    tensors: tuple[TensorRow, ...]
    """The requested tensors, sorted by name in natural order."""
    left_out: int
    """Number of tensors that match no pattern."""
    parameters: int
    """Number of elements in the selected tensors, each counted once, without optimizer state and scalars."""
    scalars: tuple[ScalarRow, ...]
    findings: tuple[Finding, ...]
    loaders: tuple[SavedLoader, ...] = ()
    """States of the data loaders; empty if the save has none."""
    most_rows: int | None = None
    """Maximum number of rows in a table for people; None shows all rows."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code for the findings about the shards; the same code as `verify` has for their structure."""
        return of_findings(self.findings)


def elements_in(shape: Sequence[int]) -> int:
    """Return the number of elements of a tensor with this shape; 1 for a scalar."""
    count = 1
    for dim in shape:
        count *= dim
    return count


def is_selected(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a tensor's name equals or matches a pattern; without patterns, all tensors are selected."""
    from fnmatch import fnmatchcase

    return not patterns or any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)
