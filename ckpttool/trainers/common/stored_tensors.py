"""Tensors in a safetensors file or a `.ckpt` of MindSpore, as pieces of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckpttool.core.domain.finding import blocking
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.shard import FORMAT_OF_SUFFIX, FormatName, TensorEntry
from ckpttool.core.domain.weights import NotExportableError, Piece, Record, Target
from ckpttool.core.formats import read_header
from ckpttool.core.formats.base import quoted
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.export_findings import incomplete, not_understood

CONVERT = "load the file with its trainer and save the weights as safetensors"
_RESTORE = "restore the file from a copy, or export another checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensors:
    """The header of a file."""

    path: str
    entries: Mapping[str, TensorEntry]
    """Tensors by name, in file order."""
    metadata: Mapping[str, str]
    record: Record | None
    """The checksum of the file's tensors; None if the file has none that covers a range."""

    def piece(self, entry: TensorEntry, at: tuple[int, ...] | None = None) -> Piece:
        """Return the place of a tensor that is stored in one run.

        Args:
            entry: The tensor in the header.
            at: Offsets of the piece in the complete tensor; None if it is the complete tensor.
        """
        offsets = (0,) * len(entry.shape) if at is None else at
        begin = entry.spans[0][0]
        return Piece(self.path, begin, entry.dtype, entry.shape, dense(entry.shape), offsets, self.record)

    def target(self, entry: TensorEntry) -> Target:
        """Return a tensor of the file as it is; MindSpore splits large ones into several runs.

        Raises:
            NotExportableError: A run ends inside an element.
        """
        target = Target(name=entry.name, dtype=entry.dtype, shape=entry.shape, pieces=(self.piece(entry),))
        if len(entry.spans) == 1:
            return target
        pieces = []
        done = 0
        for begin, end in entry.spans:
            count, rest = divmod(end - begin, entry.dtype.bits // 8)
            if rest:
                message = f"Tensor {quoted(entry.name)} is split inside an element."
                raise incomplete(message, path=self.path, remedy=_RESTORE, tensor=entry.name)
            pieces.append(Piece(self.path, begin, entry.dtype, (count,), (1,), (done,), self.record))
            done += count
        return replace(target, pieces=tuple(pieces), flat=True)


def read_stored(storage: Storage, path: str) -> StoredTensors:
    """Read the header of a file.

    Raises:
        NotExportableError: The file is damaged, or has another format.
        OSError: The disk did not answer.
    """
    named = FORMAT_OF_SUFFIX.get(path.rpartition(".")[2], FormatName.SAFETENSORS)
    with storage.open(path) as source:
        header = read_header(source, named=named)
    wrong = blocking(header.findings)
    if wrong:
        raise NotExportableError(replace(wrong[0], path=path))
    if header.format not in {FormatName.SAFETENSORS, FormatName.MINDSPORE_CKPT}:
        message = "The file is neither a safetensors file nor a .ckpt of MindSpore."
        raise not_understood(message, path=path, remedy=CONVERT)
    record = None
    if header.checksum is not None and header.checksum.algorithm == "crc32-file":
        record = Record(path, 0, header.checksum.end, header.checksum.value)
    entries = {entry.name: entry for entry in header.entries}
    return StoredTensors(path=path, entries=entries, metadata=dict(header.metadata), record=record)


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor that is stored in row-major order."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
