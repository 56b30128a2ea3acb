"""The timeline in what `ckpttool replay --format json` printed."""

from __future__ import annotations

import os

from ckpttool.domain.health_events import HealthTimeline, SuspectInterval, SuspectKind
from ckpttool.domain.metrics import LocalTime, parse_local_time
from ckpttool.domain.units import Rank, Step
from ckpttool.errors import UsageError
from ckpttool.formats.strict_json import Json, ParseError, as_list, as_object, get_int, get_str, parse_json

SCHEMA = "ckpttool/replay/1"

_LIMIT = 64 << 20
"""A replay of a year's training with a spike a minute fits."""
_HEAD = 64
"""Bytes that hold the schema, which stands first."""


def read_timeline(path: str) -> HealthTimeline | None:
    """Return the timeline of a replay that was saved; None where the file is none, but perhaps a log.

    Raises:
        UsageError: It begins like one, and is not.
    """
    try:
        if not os.path.isfile(path):  # what a pipe holds can be read only once, and a device has no end
            return None
        with open(path, "rb") as file:
            head = file.read(_HEAD)
            if f'"schema": "{SCHEMA}"'.encode() not in head:
                return None
            data = head + file.read(_LIMIT)
    except OSError:
        return None  # the log reader tells what is wrong with a file
    try:
        document = as_object(parse_json(data, what=path, limit=_LIMIT), where=path)
        items = as_list(document.get("timeline"), where=f"{path}: timeline")
        return HealthTimeline(intervals=tuple(_interval(path, index, item) for index, item in enumerate(items)))
    except (ParseError, ValueError) as error:
        raise UsageError(f"{error!s:.500}; expected what ckpttool replay --format json printed") from None


def _interval(path: str, index: int, item: Json) -> SuspectInterval:
    where = f"{path}: timeline: {index}"
    record = as_object(item, where=where)
    first, recovered, rank = (
        None if record.get(key) is None else get_int(record, key, where=where)
        for key in ("first_step", "recovered_step", "rank")
    )
    return SuspectInterval(
        kind=_kind(get_str(record, "kind", where=where), where),
        reason=get_str(record, "reason", where=where),
        first_step=None if first is None else Step(first),
        recovered_step=None if recovered is None else Step(recovered),
        first_time=_time(record, where),
        rank=None if rank is None else Rank(rank),
    )


def _kind(text: str, where: str) -> SuspectKind:
    try:
        return SuspectKind(text)
    except ValueError:
        raise ParseError(f"expected a kind that ckpttool knows, found {text!a:.80}", where=where, key="kind") from None


def _time(record: dict[str, Json], where: str) -> LocalTime | None:
    if record.get("first_time") is None:
        return None
    text = get_str(record, "first_time", where=where)
    try:
        return parse_local_time(text)
    except ValueError:
        raise ParseError(f"expected a time, found {text!a:.80}", where=where, key="first_time") from None
