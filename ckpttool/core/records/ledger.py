"""Ledger of earlier verifications, which avoids reading an unchanged file again.

The ledger is in the user's cache, because `verify` changes nothing in the tree. If the ledger is damaged in any way, it
is ignored, and the files are read. It cannot detect bit rot in a file whose size and times are unchanged, so the
results expire.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ckpttool.core.domain.finding import Finding, Severity, note, worst
from ckpttool.core.domain.manifest import ShardSeal
from ckpttool.core.domain.replicas import TensorDigests
from ckpttool.core.domain.scalars import encode_scalars
from ckpttool.core.domain.shard import FileStamp, FormatName, ShardRole
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.domain.verdict import CheckTask, Level, ShardReport
from ckpttool.core.errors import LockedError, NotDurableError, UnsafeError, WriteFailedError
from ckpttool.core.extensions import row_of
from ckpttool.core.formats.strict_json import (
    OWN_MEMORY,
    JsonObject,
    ParseError,
    as_list,
    as_object,
    get_bool,
    get_int,
    get_list,
    get_object,
    get_optional_str,
    get_str,
    parse_object,
)
from ckpttool.core.records import own_cache
from ckpttool.core.records.hashed_json import closed, encoded_stamp, is_intact, is_on_disk, scalars_of, stamp_of
from ckpttool.core.records.tensor_table import KnownTensors, encoded_tensors, read_tensors
from ckpttool.core.storage.base import Storage
from ckpttool.core.storage.local import LocalStorage
from ckpttool.core.write.files import ensure_folder, locked
from ckpttool.core.write.files import replace as write

SCHEMA = "ckpttool/ledger/1"

LEDGER_LIMIT = ByteCount(128 << 20)
"""Maximum size in bytes. A shard takes about 500, and its notes at most `_MOST_NOTED` more."""

_MOST_NOTED = 1000
"""Maximum size of a shard's notes in bytes; a shard with longer notes is read each time."""

MOST_SHARDS = 1 << 16
"""Maximum number of shards, latest first, which is enough for eight checkpoints of 8,192 ranks."""

RACY_SECONDS = 2
"""Resolution of file times in seconds.

FAT stores mtimes in steps of 2 s, so a file may change again without a new mtime. git uses the same rule.
"""

_BESIDE = ("path", "tensor", "expected", "actual", "remedy")
"""Optional fields of a shard's note."""

PATIENCE_SECONDS = 5.0
"""Maximum time in seconds to wait for another writer; without the ledger, the next run only has to read again."""

SAVE_SECONDS = 30.0
"""Minimum time in seconds between saves, because each writes the complete ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """Result for a shard that was read completely, with a matching checksum and no findings except notes."""

    stamp: FileStamp
    """Stamp of the file when it was read."""
    verified_at: int
    """Time of the verification in Unix seconds."""
    seal: str | None
    """xxh3-128 of the manifest used in the comparison; None if only the file's own checksum was compared."""
    report: ShardReport
    """The report; the reader adds rank, role and level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Saved results for a tree."""

    shards: Mapping[str, Remembered] = field(default_factory=dict)
    """Results by path relative to the tree's root."""
    tensors: Mapping[str, KnownTensors] = field(default_factory=dict)
    """Digests by path relative to the tree's root."""


def ledger_place(root: str, environment: Mapping[str, str], *, disk: str, kind: str = "ledger") -> str | None:
    """Return the path of a tree's ledger; None if there is no cache folder.

    Args:
        root: The tree; its ledger is the same through any link.
        environment: The environment of the process.
        disk: The result of `disk_identity`. Machines that share a home folder may have different trees under the same
            path, and each result applies to one machine's tree only.
        kind: The kind of folder, for ledgers or for related results.
    """
    from xxhash import xxh3_128_hexdigest  # saves other starts half a millisecond

    base = own_cache(environment)
    if base is None:
        return None
    tree = xxh3_128_hexdigest(os.fsencode(disk) + b"\0" + os.fsencode(Path(root).resolve()))
    return f"{base}/{kind}/{tree}.json"


def load(place: str | None) -> Ledger:
    """Read a ledger; a missing or damaged ledger is empty."""
    return Ledger() if place is None else _parsed(_content(place))


def _content(place: str) -> bytes:
    path = Path(place)
    try:
        return LocalStorage(str(path.parent)).small_file(path.name, limit=LEDGER_LIMIT)
    except OSError:
        return b""


def _parsed(data: bytes) -> Ledger:
    try:
        return _ledger(data) if is_intact(data) else Ledger()
    except ValueError:  # a ParseError is also a ValueError
        return Ledger()


def lookup(ledger: Ledger, task: CheckTask, stamp: FileStamp, *, now: float, max_age: float) -> ShardReport | None:
    """Return the report on a shard that was verified before and has not changed since; None if there is no such report.

    Only tasks of level CHECKSUM without hashes use the ledger: headers are cheaper to read than to store, and the
    numbers and digests that other tasks need are not stored.

    Args:
        ledger: The ledger of the task's tree.
        task: The task to check.
        stamp: The current stamp of the file.
        now: Current time in Unix seconds.
        max_age: Maximum age of an earlier verification in seconds.
    """
    remembered = ledger.shards.get(task.path)
    if remembered is None or task.level is not Level.CHECKSUM or task.hashes:
        return None
    # A copy in place may have set the mtime back (rsync --inplace -t), but never the ctime.
    if (remembered.stamp, remembered.stamp.changed_ns) != (stamp, stamp.changed_ns):
        return None
    if remembered.seal != _seal_of(task.seal) or not 0 <= now - remembered.verified_at <= max_age:
        return None
    tensors = ledger.tensors.get(task.path)
    digests = tensors.digests if tensors is not None and tensors.stamp == stamp else None
    return replace(remembered.report, rank=task.rank, role=task.role, level=task.level, tensor_digests=digests)


def save(place: str | None, reports: Collection[ShardReport], *, seals: Mapping[str, ShardSeal], began: float) -> None:
    """Save the good reports in the ledger, and remove shards that are no longer good.

    If the cache cannot be written, nothing is saved or reported, because the answer does not depend on the ledger.

    Args:
        place: The path that `ledger_place` returns.
        reports: The reports, in any order. Reports from the ledger keep their age.
        seals: The records that the reports were compared with, by path.
        began: Unix seconds when the first of these reads began. A file that was written less than `RACY_SECONDS` before
            may have changed again while it was read, with the same mtime, so it is not saved.
    """
    news = {
        report.path: _remembered(report, seals.get(report.path), began)
        for report in reports
        if not report.remembered and (report.findings or report.level.reads_content)
    }
    tensors = {
        report.path: known_tensors for report in reports if (known_tensors := _known_tensors(report, began)) is not None
    }
    if place is None or not (news or tensors):
        return
    with suppress(LockedError, UnsafeError, WriteFailedError, NotDurableError):
        ensure_folder(str(Path(place).parent), mode=0o700)
        with locked(place, timeout=PATIENCE_SECONDS):
            data = _content(place)
            before = _parsed(data)
            after = {
                path: remembered for path, remembered in {**before.shards, **news}.items() if remembered is not None
            }
            ledger = Ledger(shards=after, tensors={**before.tensors, **tensors})
            if (before.shards or before.tensors or after or tensors) and (encoded := _encode(ledger)) != data:
                write(place, encoded, overwrite=True, backup=False)


def _seal_of(seal: ShardSeal | None) -> str | None:
    return None if seal is None else seal.xxh3_128


def _remembered(report: ShardReport, seal: ShardSeal | None, began: float) -> Remembered | None:
    """Return the entry for a report; None if the report is not good or cannot be stored."""
    if not report.checksum_matched or not _is_utf8(report.path):
        return None
    if report.findings and (
        worst(report.findings) > Severity.NOTE or len(json.dumps(_notes(report.findings))) > _MOST_NOTED
    ):
        return None
    if report.stamp is None or report.format is None or report.tensors is None:
        return None
    if report.stamp.modified_ns is None or report.stamp.modified_ns > (began - RACY_SECONDS) * 1e9:
        return None
    if not is_on_disk(report.stamp):
        return None
    return Remembered(stamp=report.stamp, verified_at=int(began), seal=_seal_of(seal), report=report)


def _known_tensors(report: ShardReport, began: float) -> KnownTensors | None:
    """Return the entry for a shard's tensors; None if the tensors are unknown or the shard may be damaged."""
    stamp = report.stamp
    if not report.tensor_digests or report.remembered or stamp is None or not _is_utf8(report.path):
        return None
    if worst(report.findings) >= Severity.DAMAGE or not is_on_disk(stamp):
        return None
    if stamp.modified_ns is None or stamp.modified_ns > (began - RACY_SECONDS) * 1e9:
        return None
    return KnownTensors(stamp=stamp, read_at=int(began), schema_hash=report.schema_hash, digests=report.tensor_digests)


def _is_utf8(path: str) -> bool:
    """Return whether JSON can represent a path; shards with other paths are read each time."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _encode(ledger: Ledger) -> bytes:
    newest = sorted(ledger.shards.items(), key=lambda item: (-item[1].verified_at, item[0]))[:MOST_SHARDS]
    lines = ",\n".join(f"    {json.dumps(_line(path, remembered))}" for path, remembered in sorted(newest))
    return closed(f'{{\n  "schema": "{SCHEMA}",\n  "shards": [\n{lines}\n  ]{encoded_tensors(ledger.tensors)}')


def _line(path: str, remembered: Remembered) -> dict[str, object]:
    report = remembered.report
    return {
        "path": path,
        "stamp": encoded_stamp(remembered.stamp),
        "verified_at": remembered.verified_at,
        "seal": remembered.seal,
        "format": report.format,
        "scalars": encode_scalars(report.scalars),
        "schema_hash": report.schema_hash,
        "tensors": report.tensors,
        "embedded_checksum": report.embedded_checksum,
        "zero_tail": report.zero_tail,
        **({"notes": _notes(report.findings)} if report.findings else {}),
    }


def _notes(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """Encode the notes about a shard, without its path and ranks, which the reader adds."""
    records = [{name: getattr(finding, name) for name in ("code", "message", *_BESIDE)} for finding in findings]
    return [{name: value for name, value in record.items() if value is not None} for record in records]


def _noted(line: JsonObject) -> Iterator[Finding]:
    for value in as_list(line.get("notes", [])):
        record = as_object(value)
        extras = {name: get_str(record, name) for name in _BESIDE if name in record}
        yield note(row_of(get_str(record, "code")), get_str(record, "message"), **extras)  # type: ignore[arg-type]


def _ledger(data: bytes) -> Ledger:
    record = parse_object(data, where="the ledger", limit=LEDGER_LIMIT, most_memory=OWN_MEMORY)
    if get_str(record, "schema") != SCHEMA:
        raise ParseError("another version of ckpttool wrote it", where="the ledger")
    lines = [as_object(value) for value in get_list(record, "shards")]
    return Ledger(
        shards={get_str(line, "path"): _known(line) for line in lines},
        tensors=read_tensors(record),
    )


def _known(line: JsonObject) -> Remembered:
    file = stamp_of(line)
    report = ShardReport(
        path=get_str(line, "path"),
        rank=None,
        role=ShardRole.FULL,
        level=Level.CHECKSUM,
        format=FormatName(get_str(line, "format")),
        stamp=file,
        scalars=scalars_of(get_object(line, "scalars"), where="scalars"),
        schema_hash=get_optional_str(line, "schema_hash"),
        tensors=get_int(line, "tensors"),
        checksum_matched=True,
        bytes_read=ByteCount(0),
        findings=tuple(_noted(line)),
        embedded_checksum=get_bool(line, "embedded_checksum"),
        zero_tail=get_bool(line, "zero_tail"),
        remembered=True,
    )
    return Remembered(
        stamp=file, verified_at=get_int(line, "verified_at"), seal=get_optional_str(line, "seal"), report=report
    )


class Memory:
    """The ledger of one tree, read once; new entries are written from time to time, and at the end."""

    def __init__(
        self, storage: Storage, place: str | None, *, max_age: float, clock: Callable[[], float] = time.time
    ) -> None:
        """Store the tree, its ledger, and the maximum age of an earlier verification in seconds."""
        self._storage = storage
        self._place = place
        self._max_age = max_age
        self._clock = clock
        self._ledger = load(place)
        self._began = clock()
        self._reports: dict[str, ShardReport] = {}
        self._seals: dict[str, ShardSeal] = {}
        self._saved_at = clock()

    def keeps(self, report: ShardReport) -> bool:
        """Return whether a report will be stored, so that the next run need not read its file."""
        return self._place is not None and (report.remembered or _remembered(report, None, self._began) is not None)

    def recall(self, task: CheckTask) -> ShardReport | None:
        """Return the report on an unchanged file that was verified before; None if the file must be read."""
        if task.path not in self._ledger.shards:
            return None
        try:
            stamp = self._storage.stamp(task.path)
        except OSError:  # the check itself will report the problem
            return None
        return lookup(self._ledger, task, stamp, now=self._clock(), max_age=self._max_age)

    def tensors(self, path: str) -> tuple[str | None, TensorDigests] | None:
        """Return the schema hash and digests of an unchanged file that was read before; None if unknown."""
        tensors = self._ledger.tensors.get(path)
        try:
            stamp = None if tensors is None else self._storage.stamp(path)
        except OSError:
            return None
        if tensors is None or (tensors.stamp, tensors.stamp.changed_ns) != (stamp, stamp.changed_ns if stamp else None):
            return None
        return tensors.schema_hash, tensors.digests

    def remember(self, reports: Iterable[ShardReport], seals: Mapping[str, ShardSeal]) -> None:
        """Add verified reports and remove bad ones; `save` writes the pending reports."""
        for report in reports:
            self._reports[report.path] = report
            if report.path in seals:
                self._seals[report.path] = seals[report.path]
        if self._clock() - self._saved_at > SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write the pending entries."""
        save(self._place, self._reports.values(), seals=self._seals, began=self._began)
        self._reports, self._seals = {}, {}
        self._saved_at = self._clock()
