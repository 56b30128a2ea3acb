"""Journals of a prune and of a heal, which exist while files are moved, and the contents of the trash."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from typing import NamedTuple, TypeVar

from ckpttool.core.domain.retention import Batch, Move, Put
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.errors import IncompleteError
from ckpttool.core.formats.strict_json import (
    OWN_MEMORY,
    Json,
    JsonObject,
    ParseError,
    as_list,
    as_object,
    get_list,
    get_optional_str,
    get_str,
    parse_object,
)
from ckpttool.core.records import HEAL_JOURNAL, JOURNAL, OWN_FOLDER, decoded_name, encoded_name, leads_out
from ckpttool.core.records.hashed_json import closed, is_intact
from ckpttool.core.storage.base import Kind, Storage

TRASH = f"{OWN_FOLDER}/trash"
TIME_FORMAT = "%Y%m%dT%H%M%SZ"
"""Format of the UTC time at the beginning of a trash folder's name."""

_SCHEMA = "ckpttool/prune-journal/1"

_HEAL_SCHEMA = "ckpttool/heal-journal/1"

_LIMIT = ByteCount(128 << 20)
"""Maximum size in bytes; 10,000 ranks with 50 checkpoints to delete need 60 MB."""

_TRASHED = re.compile(r"(?P<time>[0-9]{8}T[0-9]{6}Z)-[^/]+")


def journal_bytes(batches: Iterable[Batch]) -> bytes:
    """Encode a journal; `read_journal` decodes it.

    Paths are arbitrary bytes, so each byte is written as one character, because JSON cannot represent invalid UTF-8.
    """
    records = (
        {
            "trash": encoded_name(batch.trash),
            "moves": [[encoded_name(move.path), move.stamp.size, *move.stamp.token] for move in batch.moves],
        }
        for batch in batches
    )
    lines = ",\n".join(f"    {json.dumps(record, ensure_ascii=True)}" for record in records)
    return closed(f'{{\n  "schema": "{_SCHEMA}",\n  "batches": [\n{lines}\n  ]')


def read_journal(storage: Storage) -> tuple[Batch, ...]:
    """Return the moves of an interrupted prune; empty if no prune was interrupted.

    Raises:
        IncompleteError: The journal exists, but is unreadable or invalid.
    """
    return _each(_batch, storage, _PRUNE)


def heal_journal_bytes(puts: Iterable[Put]) -> bytes:
    """Encode the journal of a heal; `read_heal_journal` decodes it."""
    records = (
        {
            "path": encoded_name(put.path),
            "temporary": encoded_name(put.temporary),
            "file": _stamp_encoded(put.stamp),
            "replaces": None if put.replaces is None else _stamp_encoded(put.replaces),
            "kept": None if put.retained is None else encoded_name(put.retained),
        }
        for put in puts
    )
    lines = ",\n".join(f"    {json.dumps(record, ensure_ascii=True)}" for record in records)
    return closed(f'{{\n  "schema": "{_HEAL_SCHEMA}",\n  "files": [\n{lines}\n  ]')


def read_heal_journal(storage: Storage) -> tuple[Put, ...]:
    """Return the files that an interrupted heal prepared; empty if no heal was interrupted.

    Raises:
        IncompleteError: The journal exists, but is unreadable or invalid.
    """
    return _each(_put, storage, _HEAL)


_T = TypeVar("_T")


class _Kind(NamedTuple):
    """Properties of one of the two journals."""

    path: str
    schema: str
    key: str
    """Key of the list of changes in the journal."""
    change: str
    """Name of the change that was interrupted."""
    by_hand: str
    """Manual steps if the journal is invalid."""


_PRUNE = _Kind(
    JOURNAL, _SCHEMA, "batches", "a prune", f"move the contents of {TRASH} back by hand, then remove the journal"
)
_HEAL = _Kind(HEAL_JOURNAL, _HEAL_SCHEMA, "files", "a heal", "remove the journal, then run heal again")


def _each(read: Callable[[JsonObject], _T], storage: Storage, kind: _Kind) -> tuple[_T, ...]:
    try:
        return tuple(map(read, _parsed(storage.small_file(kind.path, limit=_LIMIT), kind)))
    except FileNotFoundError:
        return ()
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
    except ParseError as error:
        problem = f"cannot be trusted ({error})"
    raise IncompleteError(f"{kind.change} was interrupted, and its journal {kind.path} {problem}: {kind.by_hand}")


def _parsed(data: bytes, kind: _Kind) -> tuple[JsonObject, ...]:
    if not is_intact(data):
        raise ParseError("it does not match its own hash")
    record = parse_object(data, where=kind.path, limit=_LIMIT, most_memory=OWN_MEMORY)
    if get_str(record, "schema", where=kind.path) != kind.schema:
        raise ParseError("another version of ckpttool wrote it")
    return tuple(as_object(value, where=kind.path) for value in get_list(record, kind.key, where=kind.path))


def _put(record: JsonObject) -> Put:
    retained = get_optional_str(record, "kept", where=HEAL_JOURNAL)
    if retained is not None and not retained.startswith(f"{TRASH}/"):
        raise ParseError("it names a trash folder that ckpttool does not use")
    replaces = record.get("replaces")
    return Put(
        path=_path(get_str(record, "path", where=HEAL_JOURNAL)),
        temporary=_path(get_str(record, "temporary", where=HEAL_JOURNAL)),
        stamp=_stamp(record.get("file")),
        replaces=None if replaces is None else _stamp(replaces),
        retained=None if retained is None else _path(retained),
    )


def _stamp_encoded(stamp: FileStamp) -> list[int | str]:
    return [stamp.size, *stamp.token]


def _stamp(value: Json) -> FileStamp:
    match value:
        case [int() as size, int() as mtime_ns, int() as inode]:
            return FileStamp.on_disk(size=size, mtime_ns=mtime_ns, inode=inode)
        case _:
            raise ParseError("a file name is not encoded as ckpttool encodes it")


def _batch(record: JsonObject) -> Batch:
    trash = _path(get_str(record, "trash", where=JOURNAL))
    if not trash.startswith(f"{TRASH}/"):
        raise ParseError("it names a trash folder that ckpttool does not use")
    return Batch(trash=trash, moves=tuple(_move(move) for move in get_list(record, "moves", where=JOURNAL)))


def _move(value: Json) -> Move:
    match as_list(value, where=JOURNAL):
        case [str() as path, int() as size, int() as mtime_ns, int() as inode]:
            stamp = FileStamp.on_disk(size=size, mtime_ns=mtime_ns, inode=inode)
            return Move(path=_path(path), stamp=stamp)
        case _:
            raise ParseError("a move is not encoded as ckpttool encodes it")


def _path(text: str) -> str:
    """Return the path, or raise an error if it is outside the tree, because a journal must not move files out of it."""
    try:
        path = decoded_name(text)
    except UnicodeEncodeError:
        raise ParseError("a path is not encoded as ckpttool encodes it") from None
    if leads_out(path):
        raise ParseError(f"a path is outside the tree: {path!a:.80}")
    return path


class TrashFolder(NamedTuple):
    """A folder in the trash with one checkpoint."""

    name: str
    since: float
    """Time of the move in Unix seconds."""


def trash_folders(storage: Storage) -> Iterator[TrashFolder]:
    """Yield the trash folders of earlier prunes, oldest first; folders of other programs are left out.

    Raises:
        IncompleteError: The trash cannot be listed.
    """
    try:
        entries = storage.entries(TRASH)
    except FileNotFoundError:
        return
    except OSError as error:
        raise IncompleteError(f"{TRASH} cannot be listed: {error.strerror or error}") from None
    for name in sorted(entry.name for entry in entries if entry.kind is Kind.FOLDER):
        folder = trash_folder(name)
        if folder is not None:
            yield folder


def trash_folder(name: str) -> TrashFolder | None:
    """Parse the name of a trash folder; return None if the folder is not from ckpttool."""
    match = _TRASHED.fullmatch(name)
    since = _since(match["time"]) if match else None
    return None if since is None else TrashFolder(name, since)


def trashed_name(folder: str) -> str:
    """Return the name of the checkpoint in a trash folder, which is a part of the folder's name."""
    match = _TRASHED.fullmatch(folder)
    return folder if match is None else folder[len(match["time"]) + 1 :].rstrip("+")


def _since(text: str) -> float | None:
    try:
        return datetime.strptime(text, TIME_FORMAT).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
