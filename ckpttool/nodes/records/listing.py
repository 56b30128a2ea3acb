"""What a storage answered on one machine, in a part's own words: folders with their files, small files, errors."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping, Sequence

from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.formats.strict_json import Json, JsonObject, ParseError, as_int, as_list, as_str, get_list, get_str
from ckpttool.core.storage.base import Entry, Kind
from ckpttool.nodes.storage.recorded import ENTRIES, FAILURES, FILE, KIND, OPEN, STAMP, Answers, Failure

_MOST_CONTENT = 256 << 20
"""Bytes of all record files of a part together, once they are unpacked."""

_PLAIN_BYTES = 64
"""A record that is no longer is not worth being packed."""

_KINDS = {"d": Kind.FOLDER, "o": Kind.OTHER, "l": Kind.LOST, "f": Kind.FILE}
_LETTERS = {kind: letter for letter, kind in _KINDS.items()}
_ASKED = frozenset({ENTRIES, KIND, STAMP, FILE, OPEN})


def spelled_text(text: str) -> Json:
    """Spell text; of a name that is no UTF-8 its bytes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return {"bytes": text.encode("utf-8", "surrogateescape").hex()}
    return text


def text_of(value: Json) -> str:
    """Return what `spelled_text` spelled; a ParseError or a ValueError where that is something else."""
    if isinstance(value, dict):
        return bytes.fromhex(get_str(value, "bytes")).decode("utf-8", "surrogateescape")
    return as_str(value)


def spelled_answers(answers: Answers, line_of: Mapping[str, int]) -> dict[str, object]:
    """Spell what a storage answered.

    Args:
        answers: All of it.
        line_of: The line that tells more of a file, by its path.
    """
    shown_classes: set[str] = set()
    folders = []
    for folder, entries in sorted(answers.entries.items()):
        rows: list[Json] = []
        for name, kind in entries:
            path = f"{folder}/{name}" if folder else name
            stamp = answers.stamps.get(path)
            if kind is Kind.FILE and stamp is not None:
                shown_classes.add(path)
                lines = [line_of[path]] if path in line_of else []
                rows.append([spelled_text(name), *spelled_stamp(stamp), *lines])
            else:
                rows.append([spelled_text(name), _LETTERS[kind]])
        folders.append([spelled_text(folder), rows])
    contents: dict[bytes, int] = {}
    files = [
        [spelled_text(path), contents.setdefault(content, len(contents))]
        for path, content in sorted(answers.files.items())
    ]
    return {
        "folders": folders,
        "stamps": [
            [spelled_text(path), *spelled_stamp(stamp)]
            for path, stamp in sorted(answers.stamps.items())
            if path not in shown_classes
        ],
        "looked": [[spelled_text(path), line] for path, line in sorted(line_of.items()) if path not in shown_classes],
        "files": files,
        "contents": [packed(content) for content in contents],
        "pieces": [
            [spelled_text(path), [[offset, packed(data)] for offset, data in sorted(pieces.items())]]
            for path, pieces in sorted(answers.pieces.items())
        ],
        "failures": [
            [request, spelled_text(path), *failure] for (request, path), failure in sorted(answers.failures.items())
        ],
        "divided": [[spelled_text(folder), names] for folder, names in sorted(answers.divided.items())],
    }


def read_answers(record: JsonObject, view_count: int) -> tuple[Answers, dict[str, int]]:
    """Return what a storage answered, and the line that tells more of a file, by its path.

    Args:
        record: As `spelled_answers` gives it.
        view_count: Lines that there are.

    Raises:
        ParseError: It is spelled otherwise.
        ValueError, KeyError, IndexError, TypeError, OverflowError: The same.
    """
    answers = Answers()
    line_of: dict[str, int] = {}
    for value in get_list(record, "folders"):
        name, rows = as_list(value)
        folder = path_of(name)
        answers.entries[folder] = tuple(_entry(folder, as_list(row), answers, line_of) for row in as_list(rows))
    for value in get_list(record, "stamps"):
        columns = as_list(value)
        answers.stamps[path_of(columns[0])] = stamp_of(columns[1:])
    for value in get_list(record, "looked"):
        name, line = as_list(value)
        line_of[path_of(name)] = as_int(line)
    if any(line >= view_count for line in line_of.values()):
        raise ParseError("names a line that is not there")
    _read_contents(record, answers)
    for value in as_list(record.get("divided", [])):
        folder_name, names = as_list(value)
        answers.divided[path_of(folder_name)] = as_str(names)
    for value in get_list(record, "failures"):
        request, name, kind, number = as_list(value)
        if request not in _ASKED or kind not in FAILURES:
            raise ParseError("names an error that is none", key="failures")
        failure: Failure = (as_str(kind), as_int(number))
        answers.failures[as_str(request), path_of(name)] = failure
    return answers, line_of


def _entry(folder: str, columns: list[Json], answers: Answers, line_of: dict[str, int]) -> Entry:
    name, kind = text_of(columns[0]), columns[1]
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise ParseError(f"holds {name!r}, which is no file's name")
    if isinstance(kind, str):
        return Entry(name, _KINDS[kind])
    path = f"{folder}/{name}" if folder else name
    answers.stamps[path] = stamp_of(columns[1:_WITH_STAMP])
    if len(columns) > _WITH_STAMP:
        line_of[path] = as_int(columns[_WITH_STAMP])
    return Entry(name, Kind.FILE)


def _read_contents(record: JsonObject, answers: Answers) -> None:
    room = Room()
    contents = [room.unpacked(value) for value in get_list(record, "contents")]
    for value in get_list(record, "files"):
        name, number = as_list(value)
        answers.files[path_of(name)] = contents[as_int(number)]
    for value in get_list(record, "pieces"):
        name, several = as_list(value)
        pieces = {}
        for piece in as_list(several):
            offset, data = as_list(piece)
            pieces[as_int(offset)] = room.unpacked(data)
        answers.pieces[path_of(name)] = pieces


_WITH_STAMP = 5
"""Columns of a file's row, with its name and its stamp, but for the line that tells more of it."""


def path_of(value: Json) -> str:
    """Return a path in the tree or right above it; a ParseError where it is something else."""
    path = text_of(value)
    if path.startswith("/") or "\0" in path or ".." in path.split("/")[1:]:
        raise ParseError(f"names {path!r}, which lies in no tree")
    return path


def spelled_stamp(stamp: FileStamp) -> list[Json]:
    """Spell a stamp in four columns; of its token what is its time is left out."""
    modified_ns = stamp.modified_ns
    token: list[Json] = [None if modified_ns is not None and part == modified_ns else part for part in stamp.token]
    return [stamp.size, modified_ns, stamp.changed_ns, token]


def stamp_of(columns: Sequence[Json]) -> FileStamp:
    """Return what `spelled_stamp` spelled; a ParseError or a ValueError where that is something else."""
    size, modified, changed, token = columns
    modified_ns = None if modified is None else as_int(modified, minimum=None)
    parts: list[int | str] = []
    for part in as_list(token):
        if part is None and modified_ns is not None:
            parts.append(modified_ns)
        elif isinstance(part, (int, str)):
            parts.append(part)
        else:
            raise ParseError("holds a stamp that is none")
    return FileStamp(
        size=ByteCount(as_int(size)),
        token=tuple(parts),
        modified_ns=modified_ns,
        changed_ns=None if changed is None else as_int(changed, minimum=None),
    )


def packed(content: bytes) -> Json:
    """Spell bytes: as text where that is short, else deflated."""
    if len(content) <= _PLAIN_BYTES:
        try:
            return content.decode("ascii")
        except UnicodeDecodeError:
            pass
    return [len(content), b64encode(zlib.compress(content, 6)).decode("ascii")]


class Room:
    """Counts what is unpacked, of which there may be no more than any tree has."""

    def __init__(self) -> None:
        self._left = _MOST_CONTENT

    def unpacked(self, value: Json) -> bytes:
        """Return what `packed` spelled; a ParseError or a ValueError where that is something else."""
        if isinstance(value, str):
            return value.encode("ascii")
        size, packed = as_list(value)
        length = as_int(size)
        self._left -= length
        if self._left < 0:
            raise ParseError(f"holds more than {_MOST_CONTENT} bytes of records")
        try:
            unpacker = zlib.decompressobj()
            content = unpacker.decompress(b64decode(as_str(packed), validate=True), length + 1)
        except (Base64Error, zlib.error) as error:
            raise ParseError(f"holds a record that cannot be unpacked ({error})") from None
        if len(content) != length or unpacker.unconsumed_tail:
            raise ParseError("holds a record of another length than it says")
        return content
