"""`health_ckpts.json`, in which MindFormers' health monitor records the health of each save."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from ckpttool.core.domain.finding import Code, Finding, suspect, unknown
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.health import Health, HealthBook, HealthRecord, worst_health
from ckpttool.core.domain.units import ByteCount
from ckpttool.core.formats.strict_json import (
    MOST_MEMORY,
    Json,
    ParseError,
    as_list,
    as_object,
    get_int,
    get_str,
    memory_of,
    parse_json,
)
from ckpttool.core.storage.base import OverLimitError, Storage
from ckpttool.trainers.findings import TrainersCode

HEALTH_FILE_LIMIT = ByteCount(64 << 20)
"""Enough for more than a hundred thousand saves; the file is never pruned, but no training run saves that often."""

_SALVAGED_BYTES = 256 << 10  # of a file that was rejected because its values would fill the memory
_SHOWN_ENTRIES = 20  # invalid entries with a finding each; the others are only counted
_MARKS = {Health.HEALTHY: 0, Health.UNHEALTHY: 1}


def read_health(storage: Storage, path: str) -> HealthBook:
    """Read the recorded health of each checkpoint file.

    If a name occurs several times, the worst entry counts. Each problem in the file is a finding; the health of the
    checkpoints that the problem affects is unknown, never healthy. Names in the file are untrusted text: they are only
    compared with names, and never opened.

    Args:
        storage: The storage with the file.
        path: The path of the file, relative to the storage's root; printed unchanged.

    Returns:
        The recorded health; its `path` is None if there is no such file.

    Source:
        MindFormers appends one entry per save before it writes the weights, and never removes an entry. So a name may
        occur twice, and its files may no longer exist. `is_health` 0 means healthy, 1 unhealthy.
    """
    try:
        data = storage.small_file(path, limit=HEALTH_FILE_LIMIT)
    except FileNotFoundError:
        return HealthBook(path=None, records=())
    except OSError as error:
        why = _unreadable(path, f"expected a readable health file, found: {error.strerror or error}")
        return HealthBook(path=path, records=(), findings=(why,), over_limit=isinstance(error, OverLimitError))
    try:
        entries = as_list(parse_json(data, where=path, limit=HEALTH_FILE_LIMIT), where=path)
    except ParseError as error:
        return _salvaged(path, data, _unreadable(path, str(error), error.line))
    return _book(path, entries)


def updated_health_json(old: bytes | None, judgements: Iterable[tuple[str, Health]]) -> bytes:
    """Return the file's new content; the bytes are identical if nothing changes.

    The order, unknown fields and other checkpoints' entries are preserved. Every entry of a judged name gets the same
    mark, so that no contradiction remains. A name without an entry gets one at the end. Unknown health changes nothing,
    because the file cannot express it.

    Args:
        old: The current content; None if there is no file.
        judgements: File names as the trainer writes them (rank 0's), with their health.

    Raises:
        ValueError: The old content is not a list of objects; overwriting it could lose information.
    """
    entries = _entries(old)
    changed = False
    for name, health in judgements:
        mark = _MARKS.get(health)
        if mark is None:
            continue
        own_entries = [entry for entry in entries if entry.get("ckpt_name") == name]
        for entry in own_entries:
            # `True == 1`, but MindFormers writes integers, and its readers accept nothing else.
            if type(entry.get("is_health")) is not int or entry["is_health"] != mark:
                entry["is_health"] = mark
                changed = True
        if not own_entries:
            entries.append({"is_health": mark, "ckpt_name": name})
            changed = True
    if old is not None and not changed:
        return old
    return json.dumps(entries, indent=4).encode("ascii")


def _salvaged(path: str, data: bytes, why: Finding) -> HealthBook:
    """Return the records in the complete entries at the beginning of a truncated file.

    A lost entry may mark any checkpoint as unhealthy, so healthy records become unknown; unhealthy records stay
    unhealthy.
    """
    over_limit = memory_of(data) > MOST_MEMORY
    readable = data[:_SALVAGED_BYTES] if over_limit else data
    book = _book(path, _complete_entries(readable.decode("utf-8", "replace")))
    records = tuple(replace(record, health=worst_health((record.health, Health.UNKNOWN))) for record in book.records)
    return replace(book, records=records, findings=(why, *book.findings), over_limit=over_limit)


def _complete_entries(text: str) -> Iterator[Json]:
    """Yield the objects in a list up to the first invalid object."""
    decoder = json.JSONDecoder()
    next_object = re.compile(r"[\s,]*\{")
    place = text.find("[") + 1
    if text[:place].strip() != "[":
        return
    while (match := next_object.match(text, place)) is not None:
        try:
            _, place = decoder.raw_decode(text, match.end() - 1)
            yield parse_json(text[match.end() - 1 : place].encode(), where="entry")
        except (ValueError, RecursionError):
            return


def _book(path: str, entries: Iterable[Json]) -> HealthBook:
    """Read complete entries.

    Only the first invalid entries get a finding each, because there may be a million.
    """
    marks: dict[str, list[Health]] = {}
    findings: list[Finding] = []
    wrong = 0
    for index, entry in enumerate(entries):
        where, name = f"{path}: entry {index}", None
        try:
            record = as_object(entry, where=where)
            name = get_str(record, "ckpt_name", where=where)
            health = _health(get_int(record, "is_health", where=where), where)
        except ParseError as error:
            health = Health.UNKNOWN
            wrong += 1
            if wrong <= _SHOWN_ENTRIES:
                findings.append(_unreadable(path, str(error)))
        if name is not None:
            marks.setdefault(name, []).append(health)
    if wrong > _SHOWN_ENTRIES:
        more = f"{path}: {wrong - _SHOWN_ENTRIES} more entries have the same problems"
        findings.append(_unreadable(path, more))
    findings += [
        suspect(
            TrainersCode.HEALTH_CONTRADICTORY,
            f"{path}: {name!a} is recorded both healthy and unhealthy; the unhealthy entry is used",
            path=path,
            expected="one state per checkpoint",
            actual="healthy and unhealthy",
            remedy="ckpttool health --threshold X --log LOG rates it again from the training log",
        )
        for name, mark in sorted(marks.items())
        if {Health.HEALTHY, Health.UNHEALTHY} <= set(mark)
    ]
    records = tuple(
        HealthRecord(name=name, health=worst_health(marks[name]), entries=len(marks[name])) for name in sorted(marks)
    )
    return HealthBook(path=path, records=records, findings=tuple(findings))


def _health(mark: int, where: str) -> Health:
    for health, health_marks in _MARKS.items():
        if health_marks == mark:
            return health
    raise ParseError(f"expected 0 (healthy) or 1 (unhealthy), found {mark}", where=where, key="is_health")


def _unreadable(path: str, problem: str, line: int | None = None) -> Finding:
    return unknown(
        Code.HEALTH_UNREADABLE,
        f"{problem}; its states for these checkpoints are unknown",
        path=path,
        line=line,
        remedy="ckpttool health --threshold X --log LOG rates the checkpoints again from the training log",
    )


def _entries(old: bytes | None) -> list[dict[str, object]]:
    if old is None:
        return []
    try:
        document = json.loads(old)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(document, list) or not all(isinstance(entry, dict) for entry in document):
        raise ValueError("expected a list of objects")
    return document


class MindFormersHealthFile:
    """MindFormers' file of recorded health: a list of `{"is_health": 0, "ckpt_name": "..."}`."""

    name = "health_ckpts.json"

    read = staticmethod(read_health)
    updated = staticmethod(updated_health_json)
