"""Captures in a folder, and one verified rank's part of a capture, read without torch."""

from __future__ import annotations

from ckpttool.core.errors import IncompleteError, UnknownLayoutError, UsageError
from ckpttool.core.formats.strict_json import ParseError
from ckpttool.core.storage import open_storage
from ckpttool.core.storage.base import Kind, Storage
from ckpttool.guard.files.capture import (
    HEAD,
    RECORD_LIMIT,
    head_step,
    rank_of_record,
    read_rank,
    record_name,
    shard_name,
)
from ckpttool.guard.model.capture import CaptureLevel, RankCapture

_PLACES = ("", "captures", "guard/captures")
"""Places of captures relative to the folder of captures, the guard's folder, or the output folder."""

_BLOCK = 8 << 20  # bytes of a shard that are hashed at once


def is_capture(storage: Storage, folder: str = "") -> bool:
    """Return whether a folder has the records of a capture."""
    try:
        names = {entry.name for entry in storage.entries(folder)}
    except OSError:
        return False
    return HEAD in names or any(rank_of_record(name) is not None for name in names)


def capture_folders(path: str) -> list[str]:
    """Return the folders of all captures below a path, relative to it. "" is the path itself.

    Raises:
        UnknownLayoutError: There is no capture.
    """
    storage = open_storage(path)
    folders = [""] if is_capture(storage) else sorted({name for place in _PLACES for name in _folders(storage, place)})
    if not folders:
        raise UnknownLayoutError(
            f"{path} has no capture of a non-finite step: no nan-at-* in it, in its captures/ or guard/captures/"
        )
    return folders


def only_capture(path: str) -> str:
    """Return the path of the only capture at or below a path.

    Raises:
        UnknownLayoutError: There is no capture.
        UsageError: There are several captures.
    """
    folders = capture_folders(path)
    paths = [f"{path.rstrip('/')}/{folder}" if folder else path for folder in folders]
    if len(paths) > 1:
        raise UsageError(f"{path} has {len(paths)} captures: name one, {paths[0]}")
    return paths[0]


def _folders(storage: Storage, place: str) -> list[str]:
    try:
        entries = storage.entries(place)
    except OSError:
        return []
    names = [entry.name for entry in entries if entry.kind is Kind.FOLDER and head_step(entry.name) is not None]
    return [f"{place}/{name}" if place else name for name in names]


def records(path: str) -> list[RankCapture]:
    """Return the readable records of a capture, by rank. Their tensors are not read."""
    storage = open_storage(path)
    readable = []
    numbers = [rank_of_record(entry.name) for entry in storage.entries("")]
    for rank in sorted(number for number in numbers if number is not None):
        try:
            readable.append(_record(storage, rank))
        except (OSError, ParseError):
            continue
    return readable


def part_of_rank(path: str, rank: int) -> RankCapture:
    """Return the record of one rank after comparing its tensors with their digest.

    Raises:
        IncompleteError: The record is missing, damaged, or not sufficient for a replay.
    """
    storage = open_storage(path)
    try:
        captured = _record(storage, rank)
        size = storage.stamp(shard_name(rank)).size
        if (size, shard_digest(storage, shard_name(rank))) != (captured.shard.size, captured.shard.xxh3_128):
            raise IncompleteError(
                f"{path}: rank {rank}'s tensors were changed after they were written; copy them again"
            )
    except FileNotFoundError:
        raise IncompleteError(f"{path} has no files of rank {rank}: copy them from the machine of that rank") from None
    except (OSError, ParseError) as error:
        raise IncompleteError(f"{path}: rank {rank}'s files cannot be read ({error}); copy them again") from None
    refuse_unreplayable(captured, path)
    return captured


def refuse_unreplayable(captured: RankCapture, path: str) -> None:
    """Raise an error if a part of a capture has no weights or no batches.

    Raises:
        IncompleteError: The part cannot be replayed.
    """
    if captured.level is CaptureLevel.LIGHT:
        raise IncompleteError(
            f"{path} is a light capture, without weights: ckpttool guard replay {path} --weights FILE takes them from "
            "a checkpoint"
        )
    if not captured.micro_batches:
        raise IncompleteError(f"{path} has no micro-batch: the training did not pass its batches to the guard")
    for batch in captured.micro_batches:
        if (left_out := batch.left_out) is not None:
            raise IncompleteError(
                f"{path}: a batch was not saved: {left_out.path or 'it'} is {left_out.reason}; for the next capture, "
                f"{left_out.remedy}"
            )


def _record(storage: Storage, rank: int) -> RankCapture:
    name = record_name(rank)
    return read_rank(storage.small_file(name, limit=RECORD_LIMIT), rank, where=name)


def shard_digest(storage: Storage, path: str) -> str:
    """Return the xxh3-128 of a file.

    Raises:
        OSError: The file cannot be read.
    """
    from xxhash import xxh3_128

    digest, offset = xxh3_128(), 0
    with storage.open(path) as source:
        while piece := source.read(offset, _BLOCK):
            digest.update(piece)
            offset += len(piece)
    return digest.hexdigest()
