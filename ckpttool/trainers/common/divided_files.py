"""Safetensors files with slices of tensors, as written by the `HuggingFaceStorageWriter` of torch.

Each file records the offsets of its slices in its metadata. No file records the shape of a complete tensor, so slices
at the end of a tensor may be missing without a trace: `divided_targets` returns the shapes that the files show, and the
caller must prove them.

Source: `filesystem.py` (`_write_files_from_queue`) and `hf_storage.py` of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterable

from ckpttool.core.domain.shard import TensorEntry
from ckpttool.core.domain.weights import Piece, Target
from ckpttool.core.formats.base import quoted
from ckpttool.core.formats.strict_json import JsonObject, ParseError, get_list, get_object, parse_object
from ckpttool.core.formats.strict_json import as_int as whole_number
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.common.stored_tensors import read_stored
from ckpttool.trainers.export_findings import incomplete, not_understood

_INFO, _VERSION = "DCP_SHARDING_INFO", "DCP_VERSION"
_KNOWN_VERSION = "1.0"
_RESTORE = "restore the file from a copy, or export another checkpoint"
_OTHER_WAY = "load the save with torch.distributed.checkpoint, and save it again"


def divided_targets(storage: Storage, paths: Iterable[str]) -> list[Target]:
    """Return the tensors whose slices are in these files, in the order of the paths and their headers.

    The shape of each tensor ends at the last element of any slice.

    Raises:
        NotExportableError: A file is damaged or of another form, or slices of a tensor contradict each other.
        OSError: The disk did not answer.
    """
    pieces: dict[str, list[Piece]] = {}
    for path in sorted(paths):
        stored = read_stored(storage, path)
        if stored.metadata.get(_VERSION) != _KNOWN_VERSION:
            message = f"The file does not record its slices, or not in version {_KNOWN_VERSION} of the form."
            raise not_understood(message, path=path, remedy=_OTHER_WAY)
        try:
            info = parse_object(stored.metadata.get(_INFO, "{}").encode(), where=_INFO)
            for entry in stored.entries.values():
                pieces.setdefault(entry.name, []).append(stored.piece(entry, _offsets(info, entry)))
        except ParseError as error:
            raise incomplete(f"The record of the slices cannot be used: {error}.", path=path, remedy=_RESTORE) from None
    return [_tensor(name, slices) for name, slices in pieces.items()]


def _offsets(info: JsonObject, entry: TensorEntry) -> tuple[int, ...]:
    """Return the place of a slice.

    Raises:
        ParseError: The record has none, or has another number of axes.
    """
    where = f"{_INFO}: {entry.name}"
    record = get_object(info, entry.name, where=_INFO)
    values = get_list(record, "saved_offsets", where=where)
    offsets = tuple(whole_number(value, where=where, key="saved_offsets") for value in values)
    if len(offsets) != len(entry.shape):
        raise ParseError(f"expected {len(entry.shape)} numbers, found {len(offsets)}", where=where, key="saved_offsets")
    return offsets


def _tensor(name: str, slices: list[Piece]) -> Target:
    first = slices[0]
    for piece in slices:
        if piece.dtype is not first.dtype or len(piece.shape) != len(first.shape):
            types = " and ".join(f"{each.dtype.value} {list(each.shape)}" for each in (first, piece))
            message = f"Slices of tensor {quoted(name)} have different types or numbers of axes: {types}."
            raise incomplete(message, path=piece.path, remedy=_RESTORE, tensor=name)
    ends = zip(*(map(sum, zip(piece.at, piece.shape, strict=True)) for piece in slices), strict=True)
    return Target(name=name, dtype=first.dtype, shape=tuple(map(max, ends)), pieces=tuple(slices))
