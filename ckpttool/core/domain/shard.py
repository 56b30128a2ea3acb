"""A file of a checkpoint, and the tensors in its header."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import ByteCount, Rank


class FormatName(str, Enum):
    """File format, recognised by content."""

    SAFETENSORS = "safetensors"
    MINDSPORE_CKPT = "mindspore-ckpt"
    TORCH_ZIP = "torch-zip"
    TORCH_ZIPS = "torch-zips"
    """Several torch zips, one after another: `.distcp`.

    A file with a single part fits both formats; its name decides.
    """
    TORCH_PICKLE = "torch-pickle"
    OCDBT = "ocdbt"
    """A file of a key-value store with arrays, which is recognised by its location and not by its first bytes."""


TORCH_FORMATS = frozenset({FormatName.TORCH_ZIP, FormatName.TORCH_ZIPS, FormatName.TORCH_PICKLE})
"""All formats of torch."""

FORMAT_OF_SUFFIX = {"ckpt": FormatName.MINDSPORE_CKPT, "safetensors": FormatName.SAFETENSORS}
"""Format for each file suffix; the content decides the actual format."""


class ShardRole(str, Enum):
    """Role of a file among a rank's files."""

    FULL = "full"
    """Weights, optimizer state and training scalars in one file."""
    MODEL = "model"
    OPTIMIZER = "optimizer"
    UNIFIED = "unified"
    """A part of a checkpoint that all ranks share."""
    SCALARS = "scalars"
    """Only the training scalars."""
    INDEX = "index"
    """A record that names the files of the save."""
    DATA = "data"
    """A writer's slices of any data of the save, both weights and optimizer state."""
    STATE = "state"
    """The rest of the training state: scheduler, random-number state, data loader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStamp:
    """Identity of a file's content; equal stamps mean that the file has not changed."""

    size: ByteCount
    token: tuple[int | str, ...]
    """Identity of this version of the file in its storage, which is only compared for equality."""
    modified_ns: int | None = None
    """Time of the last change of the content, in nanoseconds since 1970; None if the storage has no such time."""
    changed_ns: int | None = None
    """Time of the last change of content, name or permissions; None if unknown.

    Unlike the mtime, users cannot set it back.
    """

    @classmethod
    def on_disk(cls, *, size: int, mtime_ns: int, inode: int, ctime_ns: int | None = None) -> FileStamp:
        """Return the stamp of a file on a local file system."""
        return cls(size=ByteCount(size), token=(mtime_ns, inode), modified_ns=mtime_ns, changed_ns=ctime_ns)

    def __eq__(self, other: object) -> bool:
        """Compare all fields except `changed_ns`, because permissions and links may change."""
        if not isinstance(other, FileStamp):
            return NotImplemented
        return (self.size, self.token) == (other.size, other.token)

    def __hash__(self) -> int:
        """Hash the compared fields."""
        return hash((self.size, self.token))


RecordedEntries: TypeAlias = "tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]"
"""Names of tensors with the shapes that each may have; without shapes, any shape is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file of a checkpoint as listed, before it is opened."""

    path: str
    """POSIX path, relative to the inventory's root."""
    rank: Rank | None
    """Rank of the file; None if all ranks share the file."""
    role: ShardRole
    format: FormatName
    """Format according to the *name*; the `ShardReport` has the actual format."""
    run: int = 0
    """Number `_k` in the name of this file; 0 if the name has no such suffix.

    It is counted per rank folder, so ranks may disagree.
    """
    stamp: FileStamp | None = None
    """Stamp of the file; None if the listing did not need it."""
    least: ByteCount | None = None
    """Minimum size in bytes according to the save's own record; None if there is no record."""
    entries: RecordedEntries = ()
    """Tensors of the file, as in `ShardFacts`."""

    @property
    def modified_ns(self) -> int | None:
        """Time of the last write, in nanoseconds since 1970; None if unknown."""
        return None if self.stamp is None else self.stamp.modified_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """A tensor as declared in a header."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    """Byte ranges in the file, end exclusive, in order; several if a `.ckpt` splits a big tensor."""

    @property
    def nbytes(self) -> ByteCount:
        """Size of the tensor's data in the file, in bytes."""
        return ByteCount(sum(end - begin for begin, end in self.spans))
