"""The file of a part: one machine's view of a tree, as JSON lines.

Line 1 is the `Seat`: the number, machine and time of the part. Line 2 contains the answers of that machine's storage.
Each following line contains the shards of one save, with a column per field of `ShardReport`. The last line has
the number of lines and a hash of all lines before it, so that a torn file is detected.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from ckpttool.core.domain.finding import Finding, Severity
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.node import Room
from ckpttool.core.domain.replicas import TENSOR_DIGEST_BYTES, TensorDigests, shared_names
from ckpttool.core.domain.shard import FileStamp, FormatName, ShardRole
from ckpttool.core.domain.units import ByteCount, Rank
from ckpttool.core.domain.verdict import Level, ShardDigest, ShardReport
from ckpttool.core.extensions import row_of
from ckpttool.core.formats.strict_json import (
    OWN_MEMORY,
    Json,
    JsonObject,
    ParseError,
    as_bool,
    as_int,
    as_list,
    as_object,
    as_str,
    get_int,
    get_list,
    get_object,
    get_optional_int,
    get_optional_str,
    get_str,
    parse_object,
)
from ckpttool.core.records.damaged import FoundDamaged, decode_damaged, encode_damaged
from ckpttool.core.records.hashed_json import scalars_of
from ckpttool.core.storage.base import Entry, Kind
from ckpttool.core.storage.local import LocalStorage
from ckpttool.nodes.model import MOST_PART_BYTES, Seat
from ckpttool.nodes.storage import ENTRIES, FAILURES, FILE, KIND, OPEN, STAMP, Answers

SCHEMA = "ckpttool/part/1"

MOST_PARTS = 100_000
"""Maximum number of parts per tree."""

_BEGIN = f'{{"schema": "{SCHEMA}"'.encode("ascii")
_BEGIN_OF_ANY_VERSION = b'{"schema": "ckpttool/part/'
_END = re.compile(rb'\{"lines": ([0-9]{1,9}), "xxh3_128": "([0-9a-f]{32})"\}\n?')
_MOST_OF_A_SEAT = 1 << 20
"""Maximum bytes of the first line."""

_RETAINED_LINES = 4
"""Number of saves whose decoded reports stay in memory: the reports of all saves would need too much."""

_MOST_CONTENT = 256 << 20
"""Maximum total bytes of a part's record files, when unpacked."""

_PLAIN_BYTES = 64
"""Maximum size of records that are not compressed, because compression would save nothing."""

_WRONG = (ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError)
"""Exceptions from decoding untrusted text; a `ParseError` is a ValueError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartView:
    """The view of one machine."""

    seat: Seat
    answers: Answers
    report_of: Callable[[str], ShardReport | None]
    """The report on a shard, by the shard's path; None if that machine did not check the shard."""
    damaged: tuple[FoundDamaged, ...] = ()
    """Files that earlier checks on that machine found damaged."""
    line: Callable[[str], bytes | None] = lambda path: None  # noqa: ARG005
    """The line with the report on a shard, as written: equal lines contain equal reports on the same files."""


def encode_part(
    seat: Seat,
    answers: Answers,
    saves: Iterable[tuple[str, Sequence[ShardReport]]],
    *,
    version: str,
    damaged: Iterable[FoundDamaged] = (),
) -> bytes:
    """Return the content of a part's file.

    Args:
        seat: The number, place and time of the part.
        answers: The answers of the machine's storage.
        saves: The reports on each save's shards, by the save's name; each shard once.
        version: Version of ckpttool that wrote the part.
        damaged: Files that earlier checks on the machine found damaged.
    """
    saves = list(saves)
    line_of = {report.path: number for number, (_, reports) in enumerate(saves) for report in reports}
    record = _encode_answers(answers, line_of)
    remembered = [encode_damaged(item) for item in damaged]
    if remembered:
        record["found"] = remembered
    body = [_packed_line(record)]
    for name, reports in saves:
        body.append(_packed_line(_encode_save(name, reports, answers)))
    head = {"schema": SCHEMA, **seat_fields(seat, encode_text), "version": version, "lines": len(body) + 2}
    before = b"".join([_line(head), *body])
    return before + _line({"lines": len(body) + 2, "xxh3_128": _hash(before)})


def read_parts(data: bytes, *, name: str) -> Iterator[tuple[str, PartView | str]]:
    """Yield the parts in a file, which may contain several consecutive parts; for a bad part, yield the reason.

    Args:
        data: The complete file.
        name: The name of the file.
    """
    begins = [match.start() for match in re.finditer(rb"^" + re.escape(_BEGIN_OF_ANY_VERSION), data, re.MULTILINE)]
    if not begins or data[: begins[0]].strip():
        is_compressed = data.startswith(b"\x1f\x8b")
        yield (
            name,
            "is compressed: gunzip it first" if is_compressed else "does not start with the first line of a part",
        )
    for number, (begin, end) in enumerate(zip(begins, [*begins, len(data)][1:], strict=True), 1):
        called = name if len(begins) == 1 else f"{name}: part {number} in it"
        try:
            yield called, _part(data[begin:end])
        except ParseError as error:
            yield called, str(error)
        except _WRONG as error:
            yield called, f"is encoded differently ({error})"


def is_part(path: str) -> bool:
    """Return whether a file begins like a part; False if the file cannot be read."""
    return _head(path, len(_BEGIN_OF_ANY_VERSION)) == _BEGIN_OF_ANY_VERSION


def seat_in(path: str) -> Seat | None:
    """Return the seat in the first line of a file, or None if the file has no seat, or cannot be read."""
    try:
        return _decode_seat(_object(_head(path, _MOST_OF_A_SEAT).partition(b"\n")[0], "line 1"))
    except _WRONG:
        return None


def _head(path: str, length: int) -> bytes:
    """Return the first bytes of a file; empty if the file cannot be read."""
    folder, name = os.path.split(path)
    try:
        with LocalStorage(folder or ".").open(name) as source:
            return source.read(0, length)
    except OSError:
        return b""


def _part(data: bytes) -> PartView:
    if len(data) > MOST_PART_BYTES:
        raise ParseError(f"has {len(data)} bytes; a part has at most {MOST_PART_BYTES}")
    if not data.startswith(_BEGIN):
        raise ParseError(f"is not {SCHEMA}: another version of ckpttool wrote it")
    if data.endswith(b"\r\n"):
        raise ParseError("has other line endings than were written: copy it as binary, not as text")
    lines = data.rstrip(b"\n").split(b"\n")
    end = _END.fullmatch(lines[-1])
    if end is None or int(end[1]) != len(lines) or not data.endswith(b"\n"):
        raise ParseError("is truncated: its last lines are missing")
    before = data[: len(data.rstrip(b"\n")) - len(lines[-1])]
    if _hash(before) != end[2].decode("ascii"):
        raise ParseError("was changed after it was written: its hash differs")
    head = _object(lines[0], "line 1")
    if get_int(head, "lines", where="line 1") != len(lines):
        raise ParseError("does not have as many lines as its first line says")
    seat = _decode_seat(head)
    record = _object(lines[1], "line 2")
    of_saves = lines[2:-1]
    answers, line_of = _decode_answers(record, len(of_saves))
    damaged = tuple(decode_damaged(as_object(item)) for item in as_list(record.get("found", [])))

    @lru_cache(maxsize=_RETAINED_LINES)
    def reports_in(number: int) -> Mapping[str, ShardReport]:
        return _decode_save(of_saves[number], f"line {number + 3}", answers)

    return PartView(
        seat=seat,
        answers=answers,
        report_of=lambda path: reports_in(line_of[path]).get(path) if path in line_of else None,
        damaged=damaged,
        line=lambda path: of_saves[line_of[path]] if path in line_of else None,
    )


def _line(value: Mapping[str, object]) -> bytes:
    return json.dumps(value).encode("ascii") + b"\n"


def _packed_line(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"


def _object(line: bytes, where: str) -> JsonObject:
    return parse_object(line, where=where, limit=MOST_PART_BYTES, most_memory=OWN_MEMORY)


def _hash(data: bytes) -> str:
    from xxhash import xxh3_128_hexdigest  # saves half a millisecond in a start without parts

    return xxh3_128_hexdigest(data)


# The first line: the seat.


def seat_fields(seat: Seat, text: Callable[[str], Json]) -> JsonObject:
    """Return a seat as JSON; `text` encodes texts that may not be UTF-8."""
    disk: JsonObject = {"id": text(seat.disk), "shared": seat.shared}
    if seat.room is not None:
        disk |= {"free_bytes": seat.room.free_bytes, "free_files": seat.room.free_files}
    if seat.inode is not None:
        disk["inode"] = seat.inode
    disk["unwritable"] = [text(folder) for folder in seat.unwritable]
    return {
        "run": seat.run,
        "part": seat.number,
        "of": seat.of,
        "host": text(seat.host),
        "disk": disk,
        "root": text(seat.root),
        **({} if seat.absolute is None else {"absolute": text(seat.absolute)}),
        **({} if seat.trace is None else {"trace": text(seat.trace)}),
        "began_ns": seat.began_ns,
        "ended_ns": seat.ended_ns,
        "level": seat.level.word,
        "share": seat.share,
        "claims": None if seat.claims is None else list(seat.claims),
    }


def _decode_seat(head: JsonObject) -> Seat:
    where = "line 1"
    disk = get_object(head, "disk", where=where)
    number, of = get_int(head, "part", minimum=1, where=where), get_int(head, "of", minimum=1, where=where)
    if number > of or of > MOST_PARTS:
        raise ParseError(f"says that it is part {number} of {of}")
    claims, free_bytes = head.get("claims"), get_optional_int(disk, "free_bytes")
    room = None
    if free_bytes is not None:
        room = Room(free_bytes=free_bytes, free_files=get_optional_int(disk, "free_files"))
    return Seat(
        number=number,
        of=of,
        run=get_str(head, "run", where=where),
        host=decode_text(head["host"]),
        disk=decode_text(disk["id"]),
        shared=as_bool(disk.get("shared"), where=where, key="shared"),
        root=decode_text(head["root"]),
        began_ns=get_int(head, "began_ns", where=where),
        ended_ns=get_int(head, "ended_ns", where=where),
        level=_decode_level(get_str(head, "level", where=where)),
        share=get_optional_str(head, "share", where=where),
        claims=None if claims is None else tuple(Rank(as_int(rank)) for rank in as_list(claims)),
        room=room,
        absolute=decode_text(head["absolute"]) if "absolute" in head else None,
        trace=decode_text(head["trace"]) if "trace" in head else None,
        inode=get_optional_int(disk, "inode"),
        unwritable=tuple(decode_text(folder) for folder in as_list(disk.get("unwritable", []))),
    )


# The second line: the answers of the storage.

_KINDS = {"d": Kind.FOLDER, "o": Kind.OTHER, "l": Kind.LOST, "f": Kind.FILE}
_LETTERS = {kind: letter for letter, kind in _KINDS.items()}
_REQUESTS = frozenset({ENTRIES, KIND, STAMP, FILE, OPEN})

_LAST_ERRNO = 4095
"""Largest error number: no system has a larger number, and numbers above a C integer have no text."""

_WITH_STAMP = 5
"""Columns of a file's row with its name and stamp; a longer row also has the number of the line with the report."""


def _encode_answers(answers: Answers, line_of: Mapping[str, int]) -> dict[str, object]:
    """Encode the answers of a storage.

    Args:
        answers: All answers.
        line_of: The number of the line with the report on a file, by the file's path.
    """
    listed: set[str] = set()
    folders = []
    for folder, entries in sorted(answers.entries.items()):
        rows: list[Json] = []
        for name, kind in entries:
            path = f"{folder}/{name}" if folder else name
            stamp = answers.stamps.get(path)
            if kind is not Kind.FILE or stamp is None:
                rows.append([encode_text(name), _LETTERS[kind]])
                continue
            listed.add(path)
            lines = [line_of[path]] if path in line_of else []
            rows.append([encode_text(name), *_encode_stamp(stamp), *lines])
        folders.append([encode_text(folder), rows])
    stamps = [
        [encode_text(path), *_encode_stamp(stamp)]
        for path, stamp in sorted(answers.stamps.items())
        if path not in listed
    ]
    looked = [[encode_text(path), line] for path, line in sorted(line_of.items()) if path not in listed]
    contents: dict[bytes, int] = {}
    files = []
    for path, content in sorted(answers.files.items()):
        files.append([encode_text(path), contents.setdefault(content, len(contents))])
    pieces = []
    for path, read in sorted(answers.pieces.items()):
        pieces.append([encode_text(path), [[offset, _packed(data)] for offset, data in sorted(read.items())]])
    failures = [[request, encode_text(path), *failure] for (request, path), failure in sorted(answers.failures.items())]
    return {
        "folders": folders,
        "stamps": stamps,
        "looked": looked,
        "files": files,
        "contents": [_packed(content) for content in contents],
        "pieces": pieces,
        "failures": failures,
        "divided": [[encode_text(folder), names] for folder, names in sorted(answers.divided.items())],
    }


def _decode_answers(record: JsonObject, line_count: int) -> tuple[Answers, dict[str, int]]:
    """Return the answers of a storage, and the number of the line with the report on each file, by the file's path."""
    answers = Answers()
    line_of: dict[str, int] = {}
    for value in get_list(record, "folders"):
        name, rows = as_list(value)
        folder = decode_path(name)
        answers.entries[folder] = tuple(_decode_entry(folder, as_list(row), answers, line_of) for row in as_list(rows))
    for value in get_list(record, "stamps"):
        name, *columns = as_list(value)
        answers.stamps[decode_path(name)] = _decode_stamp(columns)
    for value in get_list(record, "looked"):
        name, line = as_list(value)
        line_of[decode_path(name)] = as_int(line)
    if any(line >= line_count for line in line_of.values()):
        raise ParseError("names a line that does not exist")
    _decode_contents(record, answers)
    for value in as_list(record.get("divided", [])):
        name, names = as_list(value)
        answers.divided[decode_path(name)] = as_str(names)
    for value in get_list(record, "failures"):
        request, name, kind, number = as_list(value)
        if request not in _REQUESTS or kind not in FAILURES or as_int(number) > _LAST_ERRNO:
            raise ParseError("names an unknown error", key="failures")
        answers.failures[as_str(request), decode_path(name)] = as_str(kind), as_int(number)
    return answers, line_of


def _decode_contents(record: JsonObject, answers: Answers) -> None:
    unpacker = _Unpacker()
    contents = [unpacker.unpacked(value) for value in get_list(record, "contents")]
    for value in get_list(record, "files"):
        name, number = as_list(value)
        answers.files[decode_path(name)] = contents[as_int(number)]
    for value in get_list(record, "pieces"):
        name, pieces = as_list(value)
        read = answers.pieces[decode_path(name)] = {}
        for piece in as_list(pieces):
            offset, data = as_list(piece)
            read[as_int(offset)] = unpacker.unpacked(data)


def _decode_entry(folder: str, columns: list[Json], answers: Answers, line_of: dict[str, int]) -> Entry:
    name, kind = decode_text(columns[0]), columns[1]
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise ParseError(f"has {name!r}, which is not a file name")
    if isinstance(kind, str):
        return Entry(name, _KINDS[kind])
    path = f"{folder}/{name}" if folder else name
    answers.stamps[path] = _decode_stamp(columns[1:_WITH_STAMP])
    if len(columns) > _WITH_STAMP:
        line_of[path] = as_int(columns[_WITH_STAMP])
    return Entry(name, Kind.FILE)


# A line of a save: the reports on its shards.

_Codec: TypeAlias = "tuple[Callable[[Any], Json], Callable[[Json], Any]]"
"""The functions that encode and decode a value."""


def _plain(decode: Callable[[Json], Any]) -> _Codec:
    """Return the codec of a value that is already JSON."""
    return lambda value: value, decode


def _optional(codec: _Codec) -> _Codec:
    """Return the codec for a value that may be None."""
    encode, decode = codec
    return (
        lambda value: None if value is None else encode(value),
        lambda value: None if value is None else decode(value),
    )


def _decode_level(value: Json) -> Level:
    return Level[as_str(value).upper()]


def _decode_digest(value: Json) -> ShardDigest:
    whole, *chunks = (as_str(text) for text in as_list(value))
    return ShardDigest(xxh3_128=whole, chunks=tuple(chunks))


_FIELDS: dict[str, _Codec] = {
    "rank": _optional(_plain(as_int)),
    "role": (lambda role: role.value, ShardRole),
    "level": (lambda level: level.word, _decode_level),
    "format": _optional((lambda name: name.value, FormatName)),
    "schema_hash": _optional(_plain(as_str)),
    "tensors": _optional(_plain(as_int)),
    "checksum_matched": _plain(as_bool),
    "bytes_read": _plain(as_int),
    "embedded_checksum": _plain(as_bool),
    "zero_tail": _plain(as_bool),
    "tail_hash": _optional(_plain(as_str)),
    "metadata_hash": _optional(_plain(as_str)),
    "digest": _optional((lambda digest: [digest.xxh3_128, *digest.chunks], _decode_digest)),
    "remembered": _plain(as_bool),
}
"""The fields of a report that are encoded separately, in the order of their columns. The many `stats` stay on the
report's machine. Fields that are known only from the reports of all ranks together are also omitted."""

_SCALAR = "scalar "
"""Prefix of the columns of scalars."""


def _encode_save(name: str, reports: Sequence[ShardReport], answers: Answers) -> dict[str, object]:
    """Encode the reports on a save's shards: a value that all reports share once, other values in one row each."""
    names: dict[tuple[str, ...], int] = {}
    tensor_rows: dict[tuple[int, bytes], int] = {}

    def place_of(digests: TensorDigests | None) -> int | None:
        if digests is None:
            return None
        row = names.setdefault(digests.names, len(names)), digests.digests
        return tensor_rows.setdefault(row, len(tensor_rows))

    columns: dict[str, list[Json]] = {"path": [encode_text(report.path) for report in reports]}
    for field, (encode, _) in _FIELDS.items():
        columns[field] = [encode(getattr(report, field)) for report in reports]
    columns["stamp"] = [_encode_report_stamp(report, answers) for report in reports]
    columns["findings"] = [[_encode_finding(finding, report.path) for finding in report.findings] for report in reports]
    columns["tensor_digests"] = [place_of(report.tensor_digests) for report in reports]
    for scalar in sorted({scalar for report in reports for scalar, _ in report.scalars}):
        columns[f"{_SCALAR}{scalar}"] = [dict(report.scalars).get(scalar) for report in reports]
    same: dict[str, Json] = {}
    if len(reports) > 1:
        same = {field: column[0] for field, column in columns.items() if _is_constant(column)}
    fields = [field for field in columns if field not in same]
    record: dict[str, object] = {
        "checkpoint": encode_text(name),
        "same": same,
        "columns": fields,
        "rows": [list(row) for row in zip(*(columns[field] for field in fields), strict=True)],
    }
    if tensor_rows:
        record["names"] = [_packed("\0".join(texts).encode("utf-8", "surrogatepass")) for texts in names]
        record["xxh3_64"] = [[place, b64encode(digests).decode("ascii")] for place, digests in tensor_rows]
    return record


def _is_constant(column: Sequence[Json]) -> bool:
    first = column[0]
    return all(value == first and type(value) is type(first) for value in column)  # 1 is different from True


def _decode_save(line: bytes, where: str, answers: Answers) -> dict[str, ShardReport]:
    """Decode the reports in a line, by the shards' paths; empty if ckpttool did not write the line."""
    try:
        record = _object(line, where)
        same, names = get_object(record, "same"), [as_str(name) for name in get_list(record, "columns")]
        tensors = _decode_tensors(record)
        rows = (dict(zip(names, as_list(row), strict=True)) for row in get_list(record, "rows"))
        reports = [_decode_report(same | row, tensors, answers) for row in rows]
    except _WRONG:
        return {}
    return {report.path: report for report in reports}


def _decode_report(fields: JsonObject, tensors: Sequence[TensorDigests], answers: Answers) -> ShardReport:
    path, stamp, place = decode_path(fields["path"]), fields.get("stamp"), fields.get("tensor_digests")
    report_stamp = None
    if stamp is True:
        report_stamp = answers.stamps[path]
    elif stamp is not None:
        report_stamp = _decode_stamp(as_list(stamp))
    scalars = {name.removeprefix(_SCALAR): value for name, value in fields.items() if name.startswith(_SCALAR)}
    return ShardReport(
        path=path,
        stamp=report_stamp,
        scalars=scalars_of(scalars, where="scalars"),
        findings=tuple(_decode_finding(as_object(item), path) for item in get_list(fields, "findings")),
        tensor_digests=None if place is None else tensors[as_int(place)],
        **{field: decode(fields.get(field)) for field, (_, decode) in _FIELDS.items()},
    )


def _decode_tensors(record: JsonObject) -> list[TensorDigests]:
    unpacker = _Unpacker()
    lists = []
    for value in as_list(record.get("names", [])):
        text = unpacker.unpacked(value).decode("utf-8", "surrogatepass")
        lists.append(shared_names(tuple(text.split("\0")) if text else ()))
    rows = []
    for value in as_list(record.get("xxh3_64", [])):
        place, encoded = as_list(value)
        names, digests = lists[as_int(place)], b64decode(as_str(encoded), validate=True)
        if len(digests) != TENSOR_DIGEST_BYTES * len(names):
            raise ParseError("expected a digest of each name", key="xxh3_64")
        rows.append(TensorDigests(names=names, digests=digests))
    return rows


def _encode_report_stamp(report: ShardReport, answers: Answers) -> Json:
    """Encode the stamp of the file that was read; true if it equals the listed stamp."""
    listed = answers.stamps.get(report.path)
    if report.stamp is None:
        return None
    if listed is not None and listed == report.stamp and listed.changed_ns == report.stamp.changed_ns:
        return True
    return _encode_stamp(report.stamp)


_WORDS = ("tensor", "expected", "actual", "remedy")


def _encode_finding(finding: Finding, path: str) -> JsonObject:
    record: JsonObject = {
        "code": finding.code.value,
        "severity": finding.severity.word,
        "message": encode_text(finding.message),
    }
    for name in _WORDS:
        text = getattr(finding, name)
        if text is not None:
            record[name] = encode_text(text)
    if finding.path != path:
        record["path"] = None if finding.path is None else encode_text(finding.path)
    if finding.line is not None:
        record["line"] = finding.line
    if finding.ranks:
        record["ranks"] = list(finding.ranks)
    return record


def _decode_finding(record: JsonObject, path: str) -> Finding:
    other_path = record.get("path", path)
    texts = {name: decode_text(record[name]) for name in _WORDS if name in record}
    return Finding(
        code=row_of(get_str(record, "code")),
        severity=Severity[get_str(record, "severity").upper()],
        message=decode_text(record["message"]),
        path=None if other_path is None else decode_text(other_path),
        line=get_optional_int(record, "line"),
        ranks=tuple(Rank(as_int(rank)) for rank in as_list(record.get("ranks", []))),
        **texts,
    )


# Text, paths, stamps and bytes.


def encode_text(text: str) -> Json:
    """Encode text; for a name that is not UTF-8, encode its bytes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return {"bytes": text.encode("utf-8", "surrogateescape").hex()}
    return text


def decode_text(value: Json) -> str:
    """Decode the output of `encode_text`."""
    if isinstance(value, dict):
        return bytes.fromhex(get_str(value, "bytes")).decode("utf-8", "surrogateescape")
    return as_str(value)


def decode_path(value: Json) -> str:
    """Decode a path in the tree or right above it.

    Raises:
        ParseError: The path is outside the tree.
    """
    path = decode_text(value)
    if path.startswith("/") or "\0" in path or ".." in path.split("/")[1:]:
        raise ParseError(f"names {path!r}, which is not in a tree")
    return path


def _encode_stamp(stamp: FileStamp) -> list[Json]:
    """Encode a stamp in four columns; a part of its token that repeats the modification time becomes null."""
    modified_ns = stamp.modified_ns
    token: list[Json] = [None if modified_ns is not None and part == modified_ns else part for part in stamp.token]
    return [stamp.size, modified_ns, stamp.changed_ns, token]


def _decode_stamp(columns: Sequence[Json]) -> FileStamp:
    size, modified, changed, token = columns
    modified_ns = None if modified is None else as_int(modified, minimum=None)
    parts: list[int | str] = []
    for part in as_list(token):
        if part is None and modified_ns is not None:
            parts.append(modified_ns)
        elif isinstance(part, (int, str)):
            parts.append(part)
        else:
            raise ParseError("has an invalid stamp")
    return FileStamp(
        size=ByteCount(as_int(size)),
        token=tuple(parts),
        modified_ns=modified_ns,
        changed_ns=None if changed is None else as_int(changed, minimum=None),
    )


def _packed(content: bytes) -> Json:
    """Encode short ASCII bytes as text, and other bytes as their length with the compressed content."""
    if len(content) <= _PLAIN_BYTES and content.isascii():
        return content.decode("ascii")
    return [len(content), b64encode(zlib.compress(content, 6)).decode("ascii")]


class _Unpacker:
    """A decoder for the output of `_packed` that limits the total size, because a part may be a decompression bomb."""

    def __init__(self) -> None:
        self._bytes_left = _MOST_CONTENT

    def unpacked(self, value: Json) -> bytes:
        if isinstance(value, str):
            return value.encode("ascii")
        size, packed = as_list(value)
        length = as_int(size)
        self._bytes_left -= length
        if self._bytes_left < 0:
            raise ParseError(f"has more than {_MOST_CONTENT} bytes of records")
        try:
            unpacker = zlib.decompressobj()
            content = unpacker.decompress(b64decode(as_str(packed), validate=True), length + 1)
        except (Base64Error, zlib.error) as error:
            raise ParseError(f"has a record that cannot be unpacked ({error})") from None
        if len(content) != length or unpacker.unconsumed_tail:
            raise ParseError("has a record whose length differs from the stated length")
        return content
