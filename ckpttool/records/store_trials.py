"""What stores did when they were told wrong checksums: one record a trial, in the tree, where nobody replaces it."""

from __future__ import annotations

import json
import re

from ckpttool.domain.stored import CLAIMS, Claim, StoreTrial
from ckpttool.formats.strict_json import JsonObject, ParseError, as_str, get_list, get_str, parse_object
from ckpttool.records import OWN_FOLDER
from ckpttool.records.hashed_json import closed, is_whole
from ckpttool.storage.base import Storage

TRIALS = f"{OWN_FOLDER}/store-trials"
_SCHEMA = "ckpttool/store-trial/1"
_NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{16}\.json")
_LIMIT = 1 << 16
_MOST = 64
"""Trials of one tree that are read, the latest ones."""


def trial_path(tried_at: str, chance: str) -> str:
    """Return where a trial is written down: a name that nobody else takes."""
    return f"{TRIALS}/{tried_at.translate({ord('-'): None, ord(':'): None})}-{chance}.json"


def trial_bytes(trial: StoreTrial) -> bytes:
    """Spell a trial; `read_trials` reads the same value back."""
    record = {
        "schema": _SCHEMA,
        "address": trial.address,
        "server": trial.server,
        "tried_at": trial.tried_at,
        "refused": [claim.word for claim in trial.refused],
        "taken": [claim.word for claim in trial.taken],
    }
    return closed(json.dumps(record, indent=2, ensure_ascii=True).removesuffix("\n}"))


def read_trials(storage: Storage, address: str) -> tuple[tuple[int, StoreTrial], ...]:
    """Read the trials of a store at one address, each with when the store got its record, in ns, oldest first.

    What cannot be read or believed is no trial.
    """
    try:
        names = sorted(entry.name for entry in storage.entries(TRIALS) if _NAME.fullmatch(entry.name))
    except OSError:
        return ()
    found = []
    for name in names[-_MOST:]:
        path = f"{TRIALS}/{name}"
        try:
            written_ns = storage.stamp(path).modified_ns
            trial = _trial(storage.small_file(path, limit=_LIMIT), path)
        except (OSError, ParseError):
            continue
        if written_ns is not None and trial.address == address:
            found.append((written_ns, trial))
    return tuple(sorted(found, key=lambda each: each[0]))


def _trial(data: bytes, path: str) -> StoreTrial:
    if not is_whole(data):
        raise ParseError("torn or edited", where=path)
    record = parse_object(data, what=path, limit=_LIMIT)
    if get_str(record, "schema", where=path) != _SCHEMA:
        raise ParseError("another version's", where=path, key="schema")
    return StoreTrial(
        address=get_str(record, "address", where=path),
        server=get_str(record, "server", where=path),
        tried_at=get_str(record, "tried_at", where=path),
        refused=_claims(record, "refused", path),
        taken=_claims(record, "taken", path),
    )


def _claims(record: JsonObject, key: str, where: str) -> tuple[Claim, ...]:
    words = {as_str(word) for word in get_list(record, key, where=where)}
    return tuple(claim for claim in CLAIMS if claim.word in words)
