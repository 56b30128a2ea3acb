"""What one of several machines saw of a tree, as a file: JSON lines, the last of which tells whether all came whole.

The first line says which part it is, of what, and where and when it was looked at; the second what the storage there
answered; each further line what was seen of the shards of one save, a column for each field of a `ShardReport`.
"""

from __future__ import annotations

import json
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.node import Room
from ckpttool.core.domain.units import Rank
from ckpttool.core.domain.verdict import Level, ShardReport
from ckpttool.core.formats.strict_json import (
    OWN_MEMORY,
    JsonObject,
    ParseError,
    as_bool,
    as_int,
    as_list,
    as_object,
    get_int,
    get_object,
    get_optional_int,
    get_optional_str,
    get_str,
    parse_object,
)
from ckpttool.core.records.damaged import FoundDamaged, decode_damaged, encode_damaged
from ckpttool.core.storage.local import LocalStorage
from ckpttool.nodes.model import MOST_PART_BYTES, Seat
from ckpttool.nodes.records.listing import read_answers, spelled_answers, spelled_text, text_of
from ckpttool.nodes.records.reports import encode_view, read_look
from ckpttool.nodes.storage.recorded import Answers

SCHEMA = "ckpttool/part/1"

MOST_PARTS = 100_000
"""Of one look."""

_BEGIN = f'{{"schema": "{SCHEMA}"'.encode("ascii")
_FOREIGN = b'{"schema": "ckpttool/part/'
_END = re.compile(rb'\{"lines": ([0-9]{1,9}), "xxh3_128": "([0-9a-f]{32})"\}\n?')
_KEPT_LINES = 4
"""Saves whose shards' reports are kept after somebody asked for them: those of all would take too much memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartView:
    """What one machine saw."""

    seat: Seat
    answers: Answers
    report_of: Callable[[str], ShardReport | None]
    """What it saw of a shard, by its path; None where it did not look."""
    damaged: tuple[FoundDamaged, ...] = ()
    """What earlier looks there at the content of its files found damaged."""
    line: Callable[[str], bytes | None] = lambda path: None  # noqa: ARG005
    """The line that tells of a shard, as it was written: two that are alike tell the same of the same files."""


def spelled_part(
    seat: Seat,
    answers: Answers,
    saves: Iterable[tuple[str, Sequence[ShardReport]]],
    *,
    version: str,
    damaged: Iterable[FoundDamaged] = (),
) -> bytes:
    """Return a part as its file holds it.

    Args:
        seat: Which part it is, and where and when it was looked at.
        answers: What the storage there answered.
        saves: What was seen of the shards of each save, by its name; each shard once.
        version: Of the ckpttool that looked.
        damaged: What earlier looks there found damaged.
    """
    views = [(name, list(reports)) for name, reports in saves]
    line_of = {report.path: number for number, (_, reports) in enumerate(views) for report in reports}
    remembered = [encode_damaged(item) for item in damaged]
    record = {**spelled_answers(answers, line_of), **({"found": remembered} if remembered else {})}
    body = [_line(record), *(_line(encode_view(*view, answers)) for view in views)]
    lines = [_line({"schema": SCHEMA, **_spelled_seat(seat), "version": version, "lines": len(body) + 2}), *body]
    before = b"".join(lines)
    return before + _line({"lines": len(lines) + 1, "xxh3_128": _hash(before)})


def read_parts(data: bytes, *, name: str) -> Iterator[tuple[str, PartView | str]]:
    """Yield the parts that lie one behind another in a file; of what is none, or torn, why.

    Args:
        data: The whole file.
        name: What it is called.
    """
    begins = [match.start() for match in re.finditer(rb"^" + re.escape(_FOREIGN), data, re.MULTILINE)]
    if not begins or data[: begins[0]].strip():
        is_packed = data.startswith(b"\x1f\x8b")
        yield name, "is compressed: gunzip it first" if is_packed else "begins with no part's first line"
    for number, (begin, end) in enumerate(zip(begins, [*begins, len(data)][1:], strict=True), 1):
        called = name if len(begins) == 1 else f"{name}: part {number} in it"
        try:
            yield called, _part(data[begin:end])
        except _WRONG as error:
            yield called, str(error) if isinstance(error, ParseError) else f"is spelled otherwise ({error})"


_WRONG = (ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError)
"""What foreign text may lead to; a `ParseError` is a ValueError."""


def _part(data: bytes) -> PartView:
    if len(data) > MOST_PART_BYTES:
        raise ParseError(f"has {len(data)} bytes; no part has more than {MOST_PART_BYTES}")
    if not data.startswith(_BEGIN):
        raise ParseError(f"is no {SCHEMA}: another version of ckpttool wrote it")
    if data.endswith(b"\r\n"):
        raise ParseError("has other line ends than were written: copy it as it is, not as text")
    lines = data.rstrip(b"\n").split(b"\n")
    end = _END.fullmatch(lines[-1])
    if end is None or int(end[1]) != len(lines) or not data.endswith(b"\n"):
        raise ParseError("is torn: its last lines are not there")
    before = data[: len(data.rstrip(b"\n")) - len(lines[-1])]
    if _hash(before) != end[2].decode("ascii"):
        raise ParseError("is not what was written: its hash is another")
    head = _object(lines[0], "line 1")
    if get_int(head, "lines", where="line 1") != len(lines):
        raise ParseError("has not as many lines as its first one says")
    seat = _seat(head)
    record = _object(lines[1], "line 2")
    answers, line_of = read_answers(record, len(lines) - 3)
    damaged = tuple(decode_damaged(as_object(item)) for item in as_list(record.get("found", [])))
    reports = _Reports(lines[2:-1], line_of, answers)
    return PartView(seat=seat, answers=answers, report_of=reports, damaged=damaged, line=reports.line)


def is_part(path: str) -> bool:
    """Tell whether a file begins as a part does; False also of what cannot be read."""
    folder, name = os.path.split(path)
    try:
        with LocalStorage(folder or ".").open(name) as source:
            return source.read(0, len(_FOREIGN)) == _FOREIGN
    except OSError:
        return False


_MOST_OF_A_SEAT = 1 << 20
"""Bytes of a part's first line."""


def seat_in(path: str) -> Seat | None:
    """Return which part a file is by its first line; None where there is none, or nobody can tell."""
    folder, name = os.path.split(path)
    try:
        with LocalStorage(folder or ".").open(name) as source:
            return _seat(_object(source.read(0, _MOST_OF_A_SEAT).partition(b"\n")[0], "line 1"))
    except (OSError, *_WRONG):
        return None


class _Reports:
    """What was seen of the shards, a save's at a time: what nobody asks for is not read."""

    def __init__(self, lines: Sequence[bytes], line_of: Mapping[str, int], answers: Answers) -> None:
        self._lines = lines
        self._line_of = line_of
        self._answers = answers
        self._kept: OrderedDict[int, Mapping[str, ShardReport]] = OrderedDict()

    def line(self, path: str) -> bytes | None:
        """Return the line that tells of a shard; None where none does."""
        number = self._line_of.get(path)
        return None if number is None else self._lines[number]

    def __call__(self, path: str) -> ShardReport | None:
        number = self._line_of.get(path)
        if number is None:
            return None
        if number not in self._kept:
            try:
                self._kept[number] = read_look(_object(self._lines[number], f"line {number + 3}"), self._answers)
            except _WRONG:  # written so by somebody else than us: it tells nothing
                self._kept[number] = {}
            if len(self._kept) > _KEPT_LINES:
                self._kept.popitem(last=False)
        return self._kept[number].get(path)


def _line(value: Mapping[str, object]) -> bytes:
    return (
        json.dumps(value, separators=(", ", ": ") if "schema" in value or "lines" in value else (",", ":")).encode(
            "ascii"
        )
        + b"\n"
    )


def _object(line: bytes, where: str) -> JsonObject:
    return parse_object(line, where=where, limit=MOST_PART_BYTES, most_memory=OWN_MEMORY)


def _hash(data: bytes) -> str:
    from xxhash import xxh3_128_hexdigest  # half a millisecond that a start without parts need not pay

    return xxh3_128_hexdigest(data)


def _spelled_seat(seat: Seat) -> dict[str, object]:
    return {
        "run": seat.run,
        "part": seat.number,
        "of": seat.of,
        "host": spelled_text(seat.host),
        "disk": {"id": spelled_text(seat.disk), "shared": seat.shared, **_spelled_room(seat)},
        "root": spelled_text(seat.root),
        **({} if seat.absolute is None else {"absolute": spelled_text(seat.absolute)}),
        "began_ns": seat.began_ns,
        "ended_ns": seat.ended_ns,
        "level": seat.level.word,
        "share": seat.share,
        "claims": list(seat.claims) if seat.claims is not None else None,
    }


def _spelled_room(seat: Seat) -> dict[str, object]:
    room = seat.room
    free = {} if room is None else {"free_bytes": room.free_bytes, "free_files": room.free_files}
    inode = {} if seat.inode is None else {"inode": seat.inode}
    return {**free, **inode, "unwritable": [spelled_text(folder) for folder in seat.unwritable]}


def _room(disk: JsonObject) -> Room | None:
    free = get_optional_int(disk, "free_bytes")
    return None if free is None else Room(free_bytes=free, free_files=get_optional_int(disk, "free_files"))


def _seat(head: JsonObject) -> Seat:
    where = "line 1"
    disk = get_object(head, "disk", where=where)
    number, of = get_int(head, "part", minimum=1, where=where), get_int(head, "of", minimum=1, where=where)
    if number > of or of > MOST_PARTS:
        raise ParseError(f"says that it is part {number} of {of}")
    claims = head.get("claims")
    return Seat(
        number=number,
        of=of,
        run=get_str(head, "run", where=where),
        host=text_of(head["host"]),
        disk=text_of(disk["id"]),
        shared=as_bool(disk.get("shared"), where=where, key="shared"),
        root=text_of(head["root"]),
        began_ns=get_int(head, "began_ns", where=where),
        ended_ns=get_int(head, "ended_ns", where=where),
        level=Level[get_str(head, "level", where=where).upper()],
        share=get_optional_str(head, "share", where=where),
        claims=None if claims is None else tuple(Rank(as_int(rank)) for rank in as_list(claims)),
        room=_room(disk),
        absolute=text_of(head["absolute"]) if "absolute" in head else None,
        inode=get_optional_int(disk, "inode"),
        unwritable=tuple(text_of(folder) for folder in as_list(disk.get("unwritable", []))),
    )
