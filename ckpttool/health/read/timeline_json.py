"""Write and parse the timeline of a replay, as `ckpttool log replay --format json` prints it."""

from __future__ import annotations

from ckpttool.core.domain.metrics import LocalTime, parse_local_time, show_local_time
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.errors import UsageError
from ckpttool.core.formats.strict_json import (
    Json,
    JsonObject,
    ParseError,
    as_list,
    as_object,
    get_int,
    get_str,
    number,
    parse_json,
)
from ckpttool.health.model.events import HealthTimeline, JudgedSteps, SuspectInterval, SuspectKind

SCHEMA = "ckpttool/replay/1"

REPLAY_LIMIT = 64 << 20
"""Maximum bytes, enough for a replay of a year's training with a spike per minute."""

REPLAY_HEAD = 64
"""Number of bytes at the beginning that include the schema."""


def timeline_document(timeline: HealthTimeline) -> list[Json]:
    """Encode a timeline; `parse_timeline` decodes the part that a choice needs."""
    return [
        {
            "kind": interval.kind.value,
            "first_step": interval.first_step,
            "recovered_step": interval.recovered_step,
            "first_time": None if interval.first_time is None else show_local_time(interval.first_time),
            "rank": interval.rank,
            "peak": number(interval.peak),
            "reason": interval.reason,
        }
        for interval in timeline.intervals
    ]


def judged_document(judged: JudgedSteps | None) -> Json:
    """Encode the judged steps; `parse_timeline` decodes them."""
    return None if judged is None else {"first": judged.first, "last": judged.last, "why": judged.why}


def is_replay(head: bytes) -> bool:
    """Return whether the first `REPLAY_HEAD` bytes of a file are those of a saved replay, not a log."""
    return f'"schema": "{SCHEMA}"'.encode() in head


def parse_timeline(data: bytes, *, source: str) -> HealthTimeline:
    """Return the timeline of a saved replay.

    Args:
        data: The complete file.
        source: Name of the file, for the error.

    Raises:
        UsageError: The file begins like a saved replay, but is not one.
    """
    try:
        document = as_object(parse_json(data, where=source, limit=REPLAY_LIMIT), where=source)
        items = as_list(document.get("timeline"), where=f"{source}: timeline")
        intervals = tuple(_interval(source, index, item) for index, item in enumerate(items))
        return HealthTimeline(intervals=intervals, judged=_judged(document, source))
    except (ParseError, ValueError) as error:
        raise UsageError(f"{error!s:.500}; expected the output of ckpttool log replay --format json") from None


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


def _judged(document: JsonObject, source: str) -> JudgedSteps | None:
    if document.get("judged") is None:  # of a detector's events, or written before this was recorded
        return None
    where = f"{source}: judged"
    record = as_object(document["judged"], where=where)
    first, last = (None if record.get(key) is None else get_int(record, key, where=where) for key in ("first", "last"))
    return JudgedSteps(
        first=None if first is None else Step(first),
        last=None if last is None else Step(last),
        why=get_str(record, "why", where=where),
    )


def _kind(text: str, where: str) -> SuspectKind:
    try:
        return SuspectKind(text)
    except ValueError:
        raise ParseError(f"expected a known kind, found {text!a:.80}", where=where, key="kind") from None


def _time(record: dict[str, Json], where: str) -> LocalTime | None:
    if record.get("first_time") is None:
        return None
    text = get_str(record, "first_time", where=where)
    try:
        return parse_local_time(text)
    except ValueError:
        raise ParseError(f"expected a time, found {text!a:.80}", where=where, key="first_time") from None
