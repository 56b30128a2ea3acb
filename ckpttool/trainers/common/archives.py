"""Archives of `torch.save`: the saved object as plain values, and the place of each tensor's elements."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping

from ckpttool.core.domain.finding import Code, Severity, damage, worst
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.weights import NotExportableError, Piece, Record
from ckpttool.core.formats.base import ZIP_MAGIC
from ckpttool.core.formats.torch.contents import MOST_PICKLE_BYTES, dtype_of
from ckpttool.core.formats.torch.part import FilePart
from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError, Tensor
from ckpttool.core.formats.torch.pickle_values import read_values
from ckpttool.core.formats.torch.zip_directory import read_zip_directory
from ckpttool.core.storage.base import ByteSource
from ckpttool.core.verify.kernels.crc import crc32
from ckpttool.trainers.export_findings import incomplete, not_understood, unproven

_SAVE_AGAIN = "load the file with torch and save it again with torch.save"
_RESTORE = "restore the file from a copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """An archive of `torch.save`, without the elements of its tensors."""

    path: str
    tree: object
    """The saved object, as in `core/formats/torch/plain.py`: tensors are `Tensor`, objects of classes `Made`."""
    storages: Mapping[str, Record]
    """The record of each storage, by its key."""
    records: tuple[Record, ...]
    """The records that the tree and the places come from."""
    saved_as: str
    """Name of the file when torch wrote it, without its suffix: the folder of all records; `archive` for a stream."""

    def check_name(self, is_name: Callable[[str], bool]) -> None:
        """Refuse a file that torch wrote under the name of another file of the save, such as another rank's.

        Args:
            is_name: Whether the trainer writes a file with a given name.

        Raises:
            NotExportableError: The file was renamed.
        """
        name = posixpath.basename(self.path)
        original = self.saved_as + posixpath.splitext(name)[1]
        if original != name and is_name(original):
            message = f"The file was written as {original}: it was renamed, or exchanged for another file."
            raise unproven(message, path=self.path, remedy=f"rename it to {original}, or {_RESTORE}")

    def piece(self, tensor: Tensor, at: tuple[int, ...] | None = None) -> Piece:
        """Return the place of a tensor's elements.

        Args:
            tensor: A tensor of the tree.
            at: Offsets of the piece in the complete tensor; None if it is the complete tensor.

        Raises:
            NotExportableError: The type is unknown, or the file does not contain the tensor's data.
        """
        dtype = dtype_of(tensor)
        if dtype is None:
            kind = tensor.dtype or tensor.storage.kind or "unknown"
            raise not_understood(f"A tensor has the type {kind}.", path=self.path, remedy=_SAVE_AGAIN)
        record = self.storages.get(tensor.storage.key)
        if record is None:
            message = f"The data of a tensor are missing: the archive has no record {tensor.storage.key!r}."
            raise incomplete(message, path=self.path, remedy=_RESTORE)
        begin = record.begin + tensor.offset * (dtype.bits // 8)
        offsets = (0,) * len(tensor.shape) if at is None else at
        return Piece(self.path, begin, dtype, tensor.shape, tensor.stride, offsets, record)


def read_archive(
    source: ByteSource,
    path: str,
    begin: int = 0,
    end: int | None = None,
    *,
    trees: dict[bytes, object] | None = None,
) -> Archive:
    """Read the pickle and the directory of an archive. Nothing is unpickled.

    Args:
        source: The open file.
        path: Its path, for records and findings.
        begin: First byte of the archive, if the file contains several.
        end: First byte after the archive; None for the end of the file.
        trees: The objects of pickles that were read before, to which this one is added; ranks often have equal pickles.

    Raises:
        NotExportableError: The archive is damaged, or its form is not supported.
        OSError: The disk did not answer.
    """
    part = FilePart(source, begin, source.stamp.size if end is None else end)
    if part.read(0, len(ZIP_MAGIC)) != ZIP_MAGIC:
        message = "The file is not an archive of torch.save; it may have the format of torch before 1.6."
        raise not_understood(message, path=path, remedy=_SAVE_AGAIN)
    directory = read_zip_directory(part)
    for finding in directory.findings:
        if finding.severity is worst(directory.findings) > Severity.SUSPECT:
            raise NotExportableError(replace(finding, path=path))
    records = {
        entry.name.partition("/")[2]: Record(
            path, begin + entry.begin, entry.end - entry.begin, entry.crc32 if directory.verifiable else None
        )
        for entry in directory.entries
    }
    main, order = records.get("data.pkl"), records.get("byteorder")
    if main is None or main.length > MOST_PICKLE_BYTES:
        raise not_understood("The archive has no readable data.pkl.", path=path, remedy=_SAVE_AGAIN)
    if order is not None and source.read(order.begin, min(order.length, 16)).strip() != b"little":
        raise not_understood("The numbers in the file are big-endian.", path=path, remedy=_SAVE_AGAIN)
    pickled = source.read(main.begin, main.length)
    if main.crc32 is not None and crc32(pickled) != main.crc32:
        message = f"The pickle at byte {main.begin} does not match its CRC-32."
        raise NotExportableError(damage(Code.CHECKSUM_MISMATCH, message, path=path, remedy=_RESTORE))
    trees = {} if trees is None else trees
    try:
        tree = trees[pickled] if pickled in trees else read_values(pickled)
    except BrokenPickleError as error:
        raise incomplete(f"The pickle is damaged: {error}.", path=path, remedy=_RESTORE) from error
    trees[pickled] = tree
    storages = {name.removeprefix("data/"): record for name, record in records.items() if name.startswith("data/")}
    described = (main,) if order is None else (main, order)
    root = directory.entries[0].name.partition("/")[0]
    return Archive(path=path, tree=tree, storages=storages, records=described, saved_as=root)
