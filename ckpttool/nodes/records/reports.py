"""What was seen of the shards of one save, in a part's own words: a column for each field of their reports."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Any

from ckpttool.core.domain.finding import Finding, Severity
from ckpttool.core.domain.replicas import TENSOR_DIGEST_BYTES, TensorDigests, shared_names
from ckpttool.core.domain.shard import FormatName, ShardRole
from ckpttool.core.domain.units import ByteCount, Rank
from ckpttool.core.domain.verdict import Level, ShardDigest, ShardReport
from ckpttool.core.extensions import row_of
from ckpttool.core.formats.strict_json import (
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
)
from ckpttool.core.records.hashed_json import scalars_of
from ckpttool.nodes.records.listing import Room, packed, path_of, spelled_stamp, spelled_text, stamp_of, text_of
from ckpttool.nodes.storage.recorded import Answers


def encode_view(name: str, reports: Sequence[ShardReport], answers: Answers) -> dict[str, object]:
    """Spell the shards of a save: what is the same of all of them once, and else a row for each."""
    tensors = _TensorRows()
    columns: dict[str, list[Json]] = {"path": [spelled_text(report.path) for report in reports]}
    for field, spell in _SPELLED.items():
        columns[field] = [spell(getattr(report, field)) for report in reports]
    columns["stamp"] = [_spelled_own_stamp(report, answers) for report in reports]
    columns["findings"] = [
        [_spelled_finding(finding, report.path) for finding in report.findings] for report in reports
    ]
    columns["tensor_digests"] = [tensors.add(report.tensor_digests) for report in reports]
    for scalar in sorted({scalar for report in reports for scalar, _ in report.scalars}):
        columns[f"scalar {scalar}"] = [dict(report.scalars).get(scalar) for report in reports]
    same = (
        {
            field: column[0]
            for field, column in columns.items()
            if all(value == column[0] and type(value) is type(column[0]) for value in column)
        }
        if len(reports) > 1
        else {}
    )
    fields = [field for field in columns if field not in same]
    return {
        "checkpoint": spelled_text(name),
        "same": same,
        "columns": fields,
        "rows": [list(row) for row in zip(*(columns[field] for field in fields), strict=True)],
        **tensors.member(),
    }


def read_look(record: JsonObject, answers: Answers) -> dict[str, ShardReport]:
    """Return the reports in a line, by the paths of the shards.

    Raises:
        ParseError: It is spelled otherwise.
        ValueError, KeyError, IndexError, TypeError, OverflowError: The same.
    """
    same, names = get_object(record, "same"), [as_str(name) for name in get_list(record, "columns")]
    tensors = _tensor_rows(record)
    reports = {}
    for value in get_list(record, "rows"):
        row = as_list(value)
        fields = same | dict(zip(names, row, strict=True))
        report = _report(fields, answers, tensors)
        reports[report.path] = report
    return reports


def _report(fields: JsonObject, answers: Answers, tensors: Sequence[TensorDigests]) -> ShardReport:
    path, place = path_of(fields["path"]), get_optional_int(fields, "tensor_digests")
    scalars = {name.removeprefix(_SCALAR): value for name, value in fields.items() if name.startswith(_SCALAR)}
    stamp = fields.get("stamp")
    return ShardReport(
        path=path,
        stamp=answers.stamps[path] if stamp is True else None if stamp is None else stamp_of(as_list(stamp)),
        scalars=scalars_of(scalars, where="scalars"),
        findings=tuple(_finding(as_object(value), path) for value in get_list(fields, "findings")),
        tensor_digests=None if place is None else tensors[place],
        **{field: read(fields, field) for field, read in _READ.items()},
    )


_SCALAR = "scalar "

_SPELLED: dict[str, Callable[[Any], Json]] = {
    "rank": lambda rank: rank,
    "role": lambda role: role.value,
    "level": lambda level: level.word,
    "format": lambda name: None if name is None else name.value,
    "schema_hash": lambda text: text,
    "tensors": lambda count: count,
    "checksum_matched": lambda matched: matched,
    "bytes_read": lambda count: count,
    "embedded_checksum": lambda value: value,
    "zero_tail": lambda zero: zero,
    "tail_hash": lambda text: text,
    "metadata_hash": lambda text: text,
    "digest": lambda digest: None if digest is None else [digest.xxh3_128, *digest.chunks],
    "remembered": lambda remembered: remembered,
}
"""How a report's fields are spelled, but for those that take more than their own value. Left out: `stats`, which are
many and stay where they were computed, and what is known only once all ranks' reports are together."""


def _bool(fields: JsonObject, name: str) -> bool:
    return as_bool(fields[name], key=name)


def _digest(fields: JsonObject, name: str) -> ShardDigest | None:
    value = fields[name]
    if value is None:
        return None
    whole_digest, *chunks = (as_str(text) for text in as_list(value))
    return ShardDigest(xxh3_128=whole_digest, chunks=tuple(chunks))


_READ: dict[str, Callable[[JsonObject, str], Any]] = {
    "rank": lambda fields, name: None if (rank := get_optional_int(fields, name)) is None else Rank(rank),
    "role": lambda fields, name: ShardRole(get_str(fields, name)),
    "level": lambda fields, name: Level[get_str(fields, name).upper()],
    "format": lambda fields, name: None if (text := get_optional_str(fields, name)) is None else FormatName(text),
    "schema_hash": get_optional_str,
    "tensors": get_optional_int,
    "checksum_matched": _bool,
    "bytes_read": lambda fields, name: ByteCount(get_int(fields, name)),
    "embedded_checksum": _bool,
    "zero_tail": _bool,
    "tail_hash": get_optional_str,
    "metadata_hash": get_optional_str,
    "digest": _digest,
    "remembered": _bool,
}


def _spelled_own_stamp(report: ShardReport, answers: Answers) -> Json:
    """Spell the stamp of the file that was read: true where it is the one that was listed."""
    listed = answers.stamps.get(report.path)
    if report.stamp is None:
        return None
    is_same = listed is not None and listed == report.stamp and listed.changed_ns == report.stamp.changed_ns
    return True if is_same else spelled_stamp(report.stamp)


_WORDS = ("tensor", "expected", "actual", "remedy")


def _spelled_finding(finding: Finding, path: str) -> JsonObject:
    texts = {name: getattr(finding, name) for name in _WORDS}
    extras: JsonObject = {name: spelled_text(text) for name, text in texts.items() if text is not None}
    if finding.path != path:
        extras["path"] = None if finding.path is None else spelled_text(finding.path)
    if finding.line is not None:
        extras["line"] = finding.line
    if finding.ranks:
        extras["ranks"] = list(finding.ranks)
    return {
        "code": finding.code.value,
        "severity": finding.severity.word,
        "message": spelled_text(finding.message),
        **extras,
    }


def _finding(record: JsonObject, path: str) -> Finding:
    other_path = record.get("path") if "path" in record else path
    texts = {name: text_of(record[name]) for name in _WORDS if name in record}
    return Finding(
        code=row_of(get_str(record, "code")),
        severity=Severity[get_str(record, "severity").upper()],
        message=text_of(record["message"]),
        path=None if other_path is None else text_of(other_path),
        line=get_optional_int(record, "line"),
        ranks=tuple(Rank(as_int(rank)) for rank in as_list(record.get("ranks", []))),
        **texts,
    )


class _TensorRows:
    """The digests of a save's tensors: each list of names once, and once the digests of shards that hold the same."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, ...], int] = {}
        self._rows: dict[tuple[int, bytes], int] = {}

    def add(self, digests: TensorDigests | None) -> int | None:
        if digests is None:
            return None
        row = self._names.setdefault(digests.names, len(self._names)), digests.digests
        return self._rows.setdefault(row, len(self._rows))

    def member(self) -> dict[str, object]:
        if not self._rows:
            return {}
        names = [packed("\0".join(names).encode("utf-8", "surrogatepass")) for names in self._names]
        rows = [[names, b64encode(digests).decode("ascii")] for names, digests in self._rows]
        return {"names": names, "xxh3_64": rows}


def _tensor_rows(record: JsonObject) -> list[TensorDigests]:
    room = Room()
    lists = [
        shared_names(tuple(text.split("\0")) if text else ())
        for value in as_list(record.get("names", []))
        for text in [room.unpacked(value).decode("utf-8", "surrogatepass")]
    ]
    rows = []
    for value in as_list(record.get("xxh3_64", [])):
        place, packed = as_list(value)
        names, digests = lists[as_int(place)], b64decode(as_str(packed), validate=True)
        if len(digests) != TENSOR_DIGEST_BYTES * len(names):
            raise ParseError("expected a digest of each name", key="xxh3_64")
        rows.append(TensorDigests(names=names, digests=digests))
    return rows
