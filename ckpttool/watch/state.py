"""The saved state of a watch, which outlives the process. An invalid state counts as missing.

The state contains the reported events, so a restart does not repeat any. It is written after a hook ran, so no event is
lost.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.node import Reach
from ckpttool.core.domain.units import Step
from ckpttool.core.domain.verdict import VerdictWord
from ckpttool.core.formats.strict_json import (
    OWN_MEMORY,
    JsonObject,
    ParseError,
    as_float,
    as_object,
    as_str,
    get_bool,
    get_int,
    get_list,
    get_object,
    get_optional_int,
    get_optional_str,
    get_str,
    parse_object,
)
from ckpttool.core.records import decoded_name, encoded_name, own_state
from ckpttool.core.records.hashed_json import closed, is_intact
from ckpttool.core.storage import is_local
from ckpttool.core.storage.local import LocalStorage
from ckpttool.core.storage.mounts import mount_of
from ckpttool.watch.model import KnownNode, KnownResume, KnownSave, SaveState, Watched

SCHEMA = "ckpttool/watch-state/1"

STATE_LIMIT = 64 << 20
"""Maximum size in bytes, enough for about a hundred thousand saves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchState:
    """The saved state of a watch."""

    watched: Watched
    boot: str
    """Boot ID of the machine whose clock the times use. Empty if unknown."""
    seconds: float
    """Seconds since the machine booted."""
    wall: float
    """Seconds since 1970, in case the machine was restarted."""


def state_place(root: str, environment: Mapping[str, str], *, table: str) -> str | None:
    """Return the path of the state of a tree's watch, or None if the user has no folder for it.

    The path is the same before the tree exists and after the machine restarts. If many machines share the folder of the
    state, but not the disk of the tree, each has a separate file.

    Args:
        root: The tree.
        environment: Environment of the process.
        table: The output of `mount_table`.
    """
    from xxhash import xxh3_128_hexdigest

    base = own_state(environment)
    if base is None:
        return None
    mount = mount_of(root, table)
    if mount.reach is Reach.SHARED:
        disk = f"{mount.kind} {mount.source}"
    else:
        disk = "" if mount_of(base, table).reach is Reach.LOCAL else os.uname().nodename
    place = os.path.realpath(root) if is_local(root) else root
    tree = xxh3_128_hexdigest(os.fsencode(disk) + b"\0" + os.fsencode(place))
    return f"{base}/watch/{tree}.json"


def state_bytes(state: WatchState) -> bytes:
    """Encode a state. `read_state` decodes it."""
    watched = state.watched
    document = {
        "schema": SCHEMA,
        "boot": state.boot,
        "seconds": float(state.seconds),
        "wall": float(state.wall),
        "now": float(watched.now),
        "last_new": watched.last_new,
        "intervals": [*watched.intervals],
        "durations": [*watched.durations],
        "newest": None if watched.newest is None else encoded_name(watched.newest),
        "overdue_told": watched.overdue_told,
        "low_told": watched.low_told,
        "room_told": watched.room_told,
        "unseen_since": watched.unseen_since,
        "unseen_told": watched.unseen_told,
        "under_way": watched.under_way,
        "nodes": [
            {name: getattr(node, name) for name in KnownNode.__slots__} | {"name": encoded_name(node.name)}
            for node in watched.nodes
        ],
        "saves": [
            {name: getattr(save, name) for name in KnownSave.__slots__}
            | {name: encoded_name(getattr(save, name)) for name in ("key", "name", "why")}
            for save in watched.saves
        ],
        "resume": None if watched.resume is None else _resume_record(watched.resume),
    }
    return closed(json.dumps(document)[:-1])


def read_state(place: str) -> WatchState | None:
    """Return the saved state, or None if it is missing or damaged."""
    path = Path(place)
    try:
        data = LocalStorage(str(path.parent)).small_file(path.name, limit=STATE_LIMIT)
        return _state(data) if is_intact(data) else None
    except (OSError, ValueError):  # a ParseError is one
        return None


def _state(data: bytes) -> WatchState:
    record = parse_object(data, where="the state", limit=STATE_LIMIT, most_memory=OWN_MEMORY)
    if get_str(record, "schema") != SCHEMA:
        raise ParseError("another version's", where="the state")
    newest = get_optional_str(record, "newest")
    watched = Watched(
        saves=tuple(_save(as_object(value)) for value in get_list(record, "saves")),
        now=_float(record, "now"),
        last_new=_optional_float(record, "last_new"),
        intervals=_floats(record, "intervals"),
        durations=_floats(record, "durations"),
        newest=None if newest is None else decoded_name(newest),
        overdue_told=get_bool(record, "overdue_told"),
        low_told=get_bool(record, "low_told"),
        room_told="room_told" in record and get_bool(record, "room_told"),  # older states do not have it
        unseen_since=_optional_float(record, "unseen_since"),
        unseen_told=get_bool(record, "unseen_told"),
        under_way=get_str(record, "under_way"),
        nodes=tuple(_node(as_object(value)) for value in get_list(record, "nodes")),
        resume=None if record.get("resume") is None else _resume(get_object(record, "resume")),
    )
    return WatchState(
        watched=watched,
        boot=get_str(record, "boot"),
        seconds=_float(record, "seconds"),
        wall=_float(record, "wall"),
    )


def _save(line: JsonObject) -> KnownSave:
    step, verdict_word = get_optional_int(line, "step"), get_optional_str(line, "word")
    return KnownSave(
        key=decoded_name(get_str(line, "key")),
        name=decoded_name(get_str(line, "name")),
        step=None if step is None else Step(step),
        fingerprint=get_str(line, "fingerprint"),
        state=SaveState(get_str(line, "state")),
        first_seen=_float(line, "first_seen"),
        changed_at=_float(line, "changed_at"),
        still=get_int(line, "still"),
        judged_at=_optional_float(line, "judged_at"),
        word=None if verdict_word is None else VerdictWord(verdict_word),
        was_good=get_bool(line, "was_good"),
        told_incomplete=get_bool(line, "told_incomplete"),
        read_again=get_bool(line, "read_again"),
        good_as=get_str(line, "good_as"),
        seal_tried=get_bool(line, "seal_tried"),
        newest_ns=get_optional_int(line, "newest_ns"),
        good_ns=get_optional_int(line, "good_ns"),
        rewritten=get_bool(line, "rewritten"),
        files=get_int(line, "files"),
        good_files=get_int(line, "good_files"),
        beside=get_str(line, "beside"),
        why=decoded_name(get_optional_str(line, "why") or ""),
    )


def _node(line: JsonObject) -> KnownNode:
    return KnownNode(
        number=get_int(line, "number"),
        name=decoded_name(get_str(line, "name")),
        mark=get_str(line, "mark"),
        since=_float(line, "since"),
        told=get_bool(line, "told"),
    )


def _resume_record(resume: KnownResume) -> dict[str, object]:
    return {name: getattr(resume, name) for name in KnownResume.__slots__} | {"why": encoded_name(resume.why)}


def _resume(record: JsonObject) -> KnownResume:
    step = get_optional_int(record, "step")
    return KnownResume(
        start=get_str(record, "start"),
        step=None if step is None else Step(step),
        is_wrong=None if record.get("is_wrong") is None else get_bool(record, "is_wrong"),
        codes=tuple(as_str(code) for code in get_list(record, "codes")),
        why=decoded_name(get_str(record, "why")),
    )


def _float(record: JsonObject, key: str) -> float:
    return as_float(record.get(key), where="the state", key=key)


def _optional_float(record: JsonObject, key: str) -> float | None:
    return None if record.get(key) is None else _float(record, key)


def _floats(record: JsonObject, key: str) -> tuple[float, ...]:
    return tuple(as_float(value, where="the state", key=key) for value in get_list(record, key))
