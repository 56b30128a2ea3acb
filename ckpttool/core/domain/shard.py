"""One file of a checkpoint, and its header."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import ByteCount, Rank


class FormatName(str, Enum):
    """A file format, recognised by content."""

    SAFETENSORS = "safetensors"
    MINDSPORE_CKPT = "mindspore-ckpt"
    TORCH_ZIP = "torch-zip"
    TORCH_ZIPS = "torch-zips"
    """Several torch zips, one after another: `.distcp`. A file with a single part fits both formats; its name
    decides."""
    TORCH_PICKLE = "torch-pickle"
    OCDBT = "ocdbt"
    """A file of a key-value store with arrays: its location identifies it, not its first bytes."""


TORCH_FORMATS = frozenset({FormatName.TORCH_ZIP, FormatName.TORCH_ZIPS, FormatName.TORCH_PICKLE})
"""The formats of torch."""

FORMAT_OF_SUFFIX = {"ckpt": FormatName.MINDSPORE_CKPT, "safetensors": FormatName.SAFETENSORS}
"""Suffix of a shard's name -> format; the content decides the actual format."""


class ShardRole(str, Enum):
    """The role of a rank's file."""

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
    """The rest of the training state: scheduler, random numbers, data loader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStamp:
    """Identity of a file's content: if the stamps are equal, the checked file has not changed."""

    size: ByteCount
    token: tuple[int | str, ...]
    """The storage's identity of this version of the file: only compared for equality."""
    modified_ns: int | None = None
    """Time of the last change of its content, in nanoseconds since 1970; None if the storage has no such time."""
    changed_ns: int | None = None
    """When content, name or permissions last changed; unlike the mtime, users cannot set it back. None if unknown."""

    @classmethod
    def on_disk(cls, *, size: int, mtime_ns: int, inode: int, ctime_ns: int | None = None) -> FileStamp:
        """Return the stamp of a file of a local file system."""
        return cls(size=ByteCount(size), token=(mtime_ns, inode), modified_ns=mtime_ns, changed_ns=ctime_ns)

    def __eq__(self, other: object) -> bool:
        """Return whether the file is unchanged; permissions and links may change, so `changed_ns` is ignored."""
        if not isinstance(other, FileStamp):
            return NotImplemented
        return (self.size, self.token) == (other.size, other.token)

    def __hash__(self) -> int:
        """Hash the compared fields."""
        return hash((self.size, self.token))


RecordedEntries: TypeAlias = "tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]"
"""Names of tensors, each with the shapes that it may have; if no shapes are given, any shape is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One rank's file of one checkpoint, as listed; it has not been opened."""

    path: str
    """POSIX, relative to the inventory's root."""
    rank: Rank | None
    """None if all ranks share the file."""
    role: ShardRole
    format: FormatName
    """The format according to its *name*; its `ShardReport` has the actual format."""
    run: int = 0
    """The `_k` in this file's own name, 0 if the name has no such suffix. Counted per rank folder, so ranks may
    disagree."""
    stamp: FileStamp | None = None
    """None if the listing did not need it."""
    least: ByteCount | None = None
    """Minimum size in bytes according to the save's own record; None if there is no record."""
    entries: RecordedEntries = ()
    """The same as in `ShardFacts`."""

    @property
    def modified_ns(self) -> int | None:
        """Time of the last write, in nanoseconds since 1970; None if unknown."""
        return None if self.stamp is None else self.stamp.modified_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor as declared in a header."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    """Byte ranges in the file, end exclusive, in order; more than one if a `.ckpt` splits a big tensor."""

    @property
    def nbytes(self) -> ByteCount:
        """Bytes of tensor data in the file."""
        return ByteCount(sum(end - begin for begin, end in self.spans))
