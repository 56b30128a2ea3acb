"""Results of replays, recorded in the folder of their capture as `replay-000.json`, `replay-001.json` and so on."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress

from ckpttool.core.domain.units import MAX_RANKS, ByteCount, Rank
from ckpttool.core.errors import UsageError, WriteFailedError
from ckpttool.core.formats.strict_json import ParseError, as_int, get_list, get_str, parse_object
from ckpttool.core.records.hashed_json import closed, is_intact
from ckpttool.core.storage import open_storage
from ckpttool.core.storage.base import Kind
from ckpttool.core.write.files import replace
from ckpttool.guard.model.attribution import RecordedReplay

_SCHEMA = "ckpttool/recorded-replay/1"
_NAME = re.compile(r"replay-[0-9]{3}\.json")
_LIMIT = ByteCount(16 << 20)
_MOST = 1000
"""Maximum number of recorded replays per capture."""
_MOST_READ = 20


def record(folder: str, replay: RecordedReplay) -> str:
    """Write a result to a capture's folder, next to earlier results, and return the file's path.

    Raises:
        WriteFailedError: The file cannot be written, or there are too many.
    """
    for number in range(_MOST):
        path = f"{folder}/replay-{number:03d}.json"
        if not os.path.lexists(path):
            with suppress(UsageError):  # another process took the name
                replace(path, _encode(replay), overwrite=False, backup=False)
                return path
    raise WriteFailedError(f"{folder} has {_MOST} recorded replays")


def recorded(folder: str) -> tuple[RecordedReplay, ...]:
    """Return the results in a capture's folder, by name. Damaged files and an unreadable folder are skipped."""
    storage = open_storage(folder)
    try:
        entries = storage.entries("")
    except OSError:
        return ()
    names = sorted(entry.name for entry in entries if entry.kind is Kind.FILE and _NAME.fullmatch(entry.name))
    replays = []
    for name in names[:_MOST_READ]:
        with suppress(OSError, ParseError):
            replays.append(_decode(storage.small_file(name, limit=_LIMIT), where=name))
    return tuple(replays)


def _encode(replay: RecordedReplay) -> bytes:
    document = {
        "schema": _SCHEMA,
        "host": replay.host,
        "device": replay.device,
        "verdict": replay.verdict,
        "why": replay.why,
        "ranks": [*replay.ranks],
    }
    return closed(json.dumps(document, indent=2).removesuffix("\n}"))


def _decode(data: bytes, *, where: str) -> RecordedReplay:
    if not is_intact(data):
        raise ParseError("truncated or edited: it does not match its own hash", where=where)
    document = parse_object(data, where=where, limit=_LIMIT)
    if get_str(document, "schema", where=where) != _SCHEMA:
        raise ParseError(f"expected {_SCHEMA}", where=where, key="schema")
    ranks = [as_int(rank) for rank in get_list(document, "ranks", where=where)]
    if len(ranks) > MAX_RANKS:
        raise ParseError("has too many ranks", where=where, key="ranks")
    return RecordedReplay(
        host=get_str(document, "host", where=where),
        device=get_str(document, "device", where=where),
        verdict=get_str(document, "verdict", where=where),
        why=get_str(document, "why", where=where),
        ranks=tuple(map(Rank, ranks)),
    )
