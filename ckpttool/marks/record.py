"""The files in which marks are recorded, one per mark, in the folder `.ckpttool/marks`.

A file is never overwritten, so that marks work in object stores, and machines with their own disks never replace each
other's marks. Of the marks of one save, the one with the highest number counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from ckpttool import __version__
from ckpttool.core.domain.checkpoint import CheckpointKey
from ckpttool.core.domain.units import ByteCount, Step
from ckpttool.core.formats.strict_json import (
    OWN_MEMORY,
    JsonObject,
    ParseError,
    as_object,
    get_bool,
    get_int,
    get_list,
    get_optional_int,
    get_str,
    parse_object,
)
from ckpttool.core.records import MARKS, decoded_name, encoded_name, leads_out
from ckpttool.core.records.hashed_json import closed, is_intact
from ckpttool.core.storage.base import Storage
from ckpttool.marks.model import Mark, MarkFile, MarkKind, Witness

VERSION = 1
"""Version of the format; other versions are not read."""

LIMIT = ByteCount(1 << 20)
"""Maximum size of a file in bytes. A mark with eight files and a long reason takes about 10,000."""

MOST_WITNESSES = 8
"""Maximum number of files by which a save is recognized."""

_NAME = re.compile(r"(?P<label>.+\.[0-9a-f]{16})\.(?P<number>[0-9]{1,6})-[0-9a-f]{16}\.json")
_PLAIN = re.compile(r"[A-Za-z0-9_=+-][A-Za-z0-9._=+-]{0,99}")
"""Names of saves that may begin the name of a file; the label of another save has only a hash."""
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_DIGEST = re.compile(r"[0-9a-f]{32}")


def label_of(key: CheckpointKey) -> str:
    """Return the common beginning of the names of a save's marks: its name, if it is plain, and a hash of its key."""
    from xxhash import xxh3_64_hexdigest

    prefix, name, format_ = key
    digest = xxh3_64_hexdigest(f"{prefix}\0{name}\0{format_.value}".encode("utf-8", "surrogateescape"))
    return f"{name if _PLAIN.fullmatch(name) else 'save'}.{digest}"


def file_name(label: str, number: int, token: str) -> str:
    """Return the path of a mark, relative to the root; the token makes it unique, also in an object store."""
    return f"{MARKS}/{label}.{number}-{token}.json"


def mark_files(storage: Storage) -> tuple[list[MarkFile], list[str]]:
    """List the marks, and the other files in their folder, sorted.

    Raises:
        OSError: The folder cannot be listed.
    """
    try:
        names = sorted(entry.name for entry in storage.entries(MARKS))
    except FileNotFoundError:
        return [], []
    files, others = [], []
    for name in names:
        match = _NAME.fullmatch(name)
        if match is not None:
            files.append(MarkFile(path=f"{MARKS}/{name}", label=match["label"], number=int(match["number"])))
        elif not name.startswith("."):  # temporary files of this and other programs
            others.append(f"{MARKS}/{name}")
    return files, others


def newest_files(files: Iterable[MarkFile]) -> dict[str, list[MarkFile]]:
    """Return the marks that count, by label; several if machines that do not see each other set them."""
    newest: dict[str, list[MarkFile]] = {}
    for file in files:
        known = newest.setdefault(file.label, [file])
        if file.number > known[0].number:
            newest[file.label] = [file]
        elif file.number == known[0].number and file is not known[0]:
            known.append(file)
    return newest


def encode(mark: Mark) -> bytes:
    """Return the content of a mark's file."""
    record = {
        "schema": f"ckpttool/mark/{VERSION}",
        "mark": mark.kind.value,
        "reason": None if mark.reason is None else encoded_name(mark.reason),
        "automatic": mark.is_automatic,
        "by": mark.by,
        "at": mark.at,
        "with": __version__,
        "checkpoint": encoded_name(mark.checkpoint),
        "step": mark.step,
        "files": [
            {
                "path": encoded_name(witness.path),
                "size": witness.size,
                "modified_ns": witness.modified_ns,
                "sample": witness.sample,
            }
            for witness in mark.witnesses
        ],
    }
    return closed(json.dumps(record, indent=2).removesuffix("\n}"))


def read(storage: Storage, path: str) -> Mark:
    """Read one mark.

    Raises:
        ParseError: The file is damaged, or of another version.
        OSError: The file cannot be read.
    """
    data = storage.small_file(path, limit=LIMIT)
    if not is_intact(data):
        raise ParseError("it is truncated or was edited: it does not match its own hash")
    record = parse_object(data, where=path, limit=LIMIT, most_memory=OWN_MEMORY)
    schema = get_str(record, "schema")
    if schema != f"ckpttool/mark/{VERSION}":
        raise ParseError(
            f"another version of ckpttool wrote it: expected ckpttool/mark/{VERSION}, found {schema!a:.80}"
        )
    kind = get_str(record, "mark")
    if kind not in {known.value for known in MarkKind}:
        raise ParseError(f"it has an unknown mark: {kind!a:.80}")
    step = get_optional_int(record, "step")
    return Mark(
        kind=MarkKind(kind),
        reason=None if record.get("reason") is None else _name(record, "reason"),
        is_automatic=get_bool(record, "automatic"),
        by=get_str(record, "by"),
        at=_time(record, "at"),
        checkpoint=_name(record, "checkpoint"),
        step=None if step is None else Step(step),
        witnesses=tuple(_witness(as_object(value)) for value in get_list(record, "files")[:MOST_WITNESSES]),
    )


def _witness(record: JsonObject) -> Witness:
    path = _name(record, "path")
    if leads_out(path):
        raise ParseError(f"it names a file outside the tree: {path!a:.80}")
    return Witness(
        path=path,
        size=get_int(record, "size"),
        modified_ns=get_optional_int(record, "modified_ns", minimum=None),
        sample=_matching(_DIGEST, record, "sample"),
    )


def _matching(pattern: re.Pattern[str], record: JsonObject, key: str) -> str:
    text = get_str(record, key)
    if pattern.fullmatch(text) is None:
        raise ParseError(f"{key} is not encoded as ckpttool encodes it: {text!a:.80}")
    return text


def _time(record: JsonObject, key: str) -> str:
    from datetime import datetime

    text = _matching(_TIME, record, key)
    try:
        datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise ParseError(f"{key} is outside the calendar: {text!a:.80}") from None
    return text


def _name(record: JsonObject, key: str) -> str:
    try:
        return decoded_name(get_str(record, key))
    except UnicodeEncodeError:
        raise ParseError(f"{key} is not encoded as ckpttool encodes it") from None
