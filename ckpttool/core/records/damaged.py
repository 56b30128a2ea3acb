"""Record of files that were read completely and found damaged, so that a later check of headers does not pass them.

The record is next to the ledger, in the user's cache, and exists only if damage was found. A file is removed from the
record if it was written since then, or if a later check finds it good.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import Code, Finding, Severity, brief, suspect
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.units import ByteCount, Step, moment
from ckpttool.core.domain.verdict import Level, ShardReport
from ckpttool.core.errors import LockedError, NotDurableError, UnsafeError, WriteFailedError

if TYPE_CHECKING:
    from ckpttool.core.formats.strict_json import JsonObject

SCHEMA = "ckpttool/damaged/1"

_WRONG = frozenset({Code.CHECKSUM_MISMATCH, Code.REPLICA_DIFFERS, Code.REPLICA_STALE})
"""Codes for damaged content, which headers do not show.

Other damage is recorded only if the header passes.
"""

_LIMIT = ByteCount(16 << 20)
_MOST_FILES = 1 << 12
"""Maximum number of files, latest first, which take about 500 bytes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDamaged:
    """A file that was read completely and found damaged by a checksum, by other ranks' copies, or in its structure."""

    path: str
    """Path relative to the tree's root."""
    stamp: FileStamp
    """Stamp of the file when it was read."""
    found_at: int
    """Time of the finding in Unix seconds."""
    seal: str | None
    """xxh3-128 of the manifest used in the comparison; None if only the file's own checksum was compared."""
    message: str
    """Message of the finding."""
    drifted: bool = False
    """Whether the training run itself saved the file in this state, because the shard drifted from its replicas."""
    since: Step | None = None
    """Step of the first save that is known to differ, for a drift; None if no such step is known."""


def read_damaged(place: str | None) -> Mapping[str, FoundDamaged]:
    """Read the recorded damage in a tree, by path; empty if there is no valid file."""
    return {} if place is None else _parsed(_content(place))


def found_before(damaged: FoundDamaged, stamp: FileStamp) -> Finding | None:
    """Return the earlier finding about a file; None if the file was written since then.

    If the file was only renamed, linked or given other permissions, the result is an unknown state, because a copy over
    the file may have restored its time.
    """
    if damaged.stamp != stamp:
        return None
    if damaged.drifted:
        message = f"found at {moment(damaged.found_at)}, and the file has not changed since: {damaged.message}"
        return suspect(Code.REPLICA_DRIFTED, message, path=damaged.path)
    is_same = damaged.stamp.changed_ns == stamp.changed_ns
    since = "and the file has not changed since" if is_same else "and the file has been touched, but not read, since"
    return Finding(
        code=Code.FOUND_DAMAGED,
        severity=Severity.DAMAGE if is_same else Severity.UNKNOWN,
        message=f"found damaged at {moment(damaged.found_at)}, {since}: {damaged.message}",
        path=damaged.path,
        remedy="resume from another checkpoint; ckpttool verify --level checksum checks it again",
    )


class Proofs:
    """Results of reading complete files of a tree: damaged files, and files that are no longer damaged."""

    def __init__(self, place: Callable[[], str | None], clock: Callable[[], float]) -> None:
        """Store functions that return the path of the record, which is called only before saving, and the time."""
        self._place = place
        self._clock = clock
        self._news: dict[str, FoundDamaged | None] = {}

    def drifted(self, report: ShardReport, finding: Finding, since: Step | None) -> None:
        """Record that a shard has differed from its replicas since an earlier save, without being damaged.

        Args:
            report: The report on the shard.
            finding: The finding about the shard.
            since: The step of the first save that is known to differ.
        """
        from ckpttool.core.records.hashed_json import is_on_disk

        if report.path.isprintable() and report.stamp is not None and is_on_disk(report.stamp):
            self._news[report.path] = FoundDamaged(
                path=report.path,
                stamp=report.stamp,
                found_at=int(self._clock()),
                seal=None,
                message=brief(finding).message,
                drifted=True,
                since=since,
            )

    def take(
        self, report: ShardReport, seal: str | None, *, was_damaged: bool, hidden: tuple[Finding, ...] = ()
    ) -> None:
        """Record the findings about a shard, unless JSON cannot represent the shard's name.

        Args:
            report: A report of any level.
            seal: xxh3-128 of the shard in a manifest.
            was_damaged: Whether the shard was found damaged before.
            hidden: Other damage that a check of the header does not find.
        """
        if report.remembered or report.level < Level.CHECKSUM or not report.path.isprintable():
            return
        from ckpttool.core.records.hashed_json import is_on_disk

        wrong = [finding for finding in report.findings if finding.code in _WRONG] or hidden
        if wrong and report.stamp is not None and is_on_disk(report.stamp):
            self._news[report.path] = FoundDamaged(
                path=report.path,
                stamp=report.stamp,
                found_at=int(self._clock()),
                seal=seal,
                message=brief(wrong[0]).message,
            )
        elif was_damaged and (report.checksum_matched or report.copies > 1):
            self._news[report.path] = None

    def save(self) -> None:
        """Write new results. If the cache is not writable, nothing is stored or reported."""
        if not self._news or (place := self._place()) is None:
            return
        from ckpttool.core.write.files import ensure_folder, locked
        from ckpttool.core.write.files import replace as write

        with suppress(LockedError, UnsafeError, WriteFailedError, NotDurableError):
            ensure_folder(str(Path(place).parent), mode=0o700)
            with locked(place, timeout=5.0):
                after = {
                    path: damaged
                    for path, damaged in {**read_damaged(place), **self._news}.items()
                    if damaged is not None
                }
                write(place, _encode(after), overwrite=True, backup=False)
        self._news = {}


def _content(place: str) -> bytes:
    from ckpttool.core.storage.local import LocalStorage

    folder, name = os.path.split(place)
    try:
        return LocalStorage(folder).small_file(name, limit=_LIMIT)
    except OSError:
        return b""


def _encode(files: Mapping[str, FoundDamaged]) -> bytes:
    from ckpttool.core.records.hashed_json import closed

    newest = sorted(files.values(), key=lambda damaged: (-damaged.found_at, damaged.path))[:_MOST_FILES]
    lines = ",\n".join(
        f"    {json.dumps(encode_damaged(damaged))}" for damaged in sorted(newest, key=lambda damaged: damaged.path)
    )
    return closed(f'{{\n  "schema": "{SCHEMA}",\n  "files": [\n{lines}\n  ]')


def encode_damaged(damaged: FoundDamaged) -> dict[str, object]:
    """Encode a record of a damaged file; `decode_damaged` decodes it."""
    from ckpttool.core.records.hashed_json import encoded_stamp

    return {
        "path": damaged.path,
        "stamp": encoded_stamp(damaged.stamp),
        "found_at": damaged.found_at,
        "seal": damaged.seal,
        "message": damaged.message,
        **({"drifted": True, "since": damaged.since} if damaged.drifted else {}),
    }


def _parsed(data: bytes) -> Mapping[str, FoundDamaged]:
    from ckpttool.core.formats.strict_json import OWN_MEMORY, as_object, get_list, get_str, parse_object
    from ckpttool.core.records.hashed_json import is_intact

    try:
        if not is_intact(data):
            return {}
        record = parse_object(data, where="the list of damaged files", limit=_LIMIT, most_memory=OWN_MEMORY)
        if get_str(record, "schema") != SCHEMA:
            return {}
        files = [decode_damaged(as_object(value)) for value in get_list(record, "files")]
    except (ValueError, OverflowError):  # a ParseError is also a ValueError
        return {}
    return {damaged.path: damaged for damaged in files}


def decode_damaged(line: JsonObject) -> FoundDamaged:
    """Decode a record that `encode_damaged` encoded.

    Raises:
        ParseError: The record has a different form.
        ValueError: The time is impossible.
        OverflowError: The time is impossible.
    """
    from ckpttool.core.formats.strict_json import get_bool, get_int, get_optional_int, get_optional_str, get_str
    from ckpttool.core.records.hashed_json import stamp_of

    found_at = get_int(line, "found_at")
    moment(found_at)  # check the time, which is displayed later
    drifted = "drifted" in line and get_bool(line, "drifted")
    return FoundDamaged(
        path=get_str(line, "path"),
        stamp=stamp_of(line),
        found_at=found_at,
        seal=get_optional_str(line, "seal"),
        message=get_str(line, "message"),
        drifted=drifted,
        since=Step(since) if drifted and (since := get_optional_int(line, "since")) is not None else None,
    )
