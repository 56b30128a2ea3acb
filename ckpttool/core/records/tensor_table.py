"""Digests of tensors in ckpttool's own records; equal lists of names or digests are stored only once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.manifest import MOST_TENSORS_BYTES
from ckpttool.core.domain.replicas import PIECE_BYTES, TENSOR_DIGEST_BYTES, TensorDigests, shared_names
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.formats.strict_json import (
    Json,
    JsonObject,
    ParseError,
    as_int,
    as_list,
    as_object,
    as_str,
    get_int,
    get_list,
    get_optional_int,
    get_optional_str,
    get_str,
)
from ckpttool.core.records.hashed_json import encoded_stamp, stamp_of

_HEX = re.compile("(?:[0-9a-f]{2})+")


class TensorTable:
    """Encoded tensor digests of several shards."""

    __slots__ = ("_names", "_rows", "nbytes")

    def __init__(self, shards: Iterable[TensorDigests | None] = ()) -> None:
        """Create a table with the digests of the shards; None for a shard without known digests."""
        self.nbytes = 0
        """Approximate length of the encoded table in bytes."""
        self._names: dict[tuple[str, ...], int] = {}
        self._rows: dict[tuple[int, bytes], int] = {}
        for digests in shards:
            self.add(digests)

    def add(self, digests: TensorDigests | None) -> int | None:
        """Add the digests of one shard, and return their row in the table; None if the digests are unknown."""
        if not digests:
            return None
        names = self._names.get(digests.names)
        if names is None:
            names = self._names[digests.names] = len(self._names)
            self.nbytes += sum(map(len, digests.names)) + 4 * len(digests.names)
        row = names, digests.digests
        if row not in self._rows:
            self._rows[row] = len(self._rows)
            self.nbytes += 2 * len(digests.digests)
        return self._rows[row]

    def member(self) -> str:
        """Encode the table as a member of a JSON object, with a leading comma; empty for an empty table."""
        if not self._rows:
            return ""
        names = ",\n".join(f"      {json.dumps(names)}" for names in self._names)
        rows = ",\n".join(f"      {json.dumps([names, digests.hex()])}" for names, digests in self._rows)
        return (
            f',\n  "tensors": {{\n    "piece_bytes": {PIECE_BYTES},\n    "names": [\n{names}\n    ],\n'
            f'    "xxh3_64": [\n{rows}\n    ]\n  }}'
        )


def tensor_rows(record: JsonObject, *, where: str) -> tuple[TensorDigests, ...]:
    """Return the rows of the table in a record; empty if the record has no table.

    Raises:
        ParseError: The table has a different form.
    """
    if "tensors" not in record:
        return ()
    table = as_object(record["tensors"], where=where, key="tensors")
    where = f"{where}: tensors"
    if get_int(table, "piece_bytes", where=where) != PIECE_BYTES:
        raise ParseError(f"expected {PIECE_BYTES}", where=where, key="piece_bytes")
    names = [_names(value, where) for value in get_list(table, "names", where=where)]
    return tuple(_row(value, names, where) for value in get_list(table, "xxh3_64", where=where))


def row_of(record: JsonObject, rows: tuple[TensorDigests, ...], *, where: str) -> TensorDigests | None:
    """Return the tensor digests for a shard's line, from the rows of the table; None if the line has none.

    Raises:
        ParseError: The line refers to a row that does not exist.
    """
    place = get_optional_int(record, "tensors", where=where) if "tensors" in record else None
    if place is None:
        return None
    if place >= len(rows):
        raise ParseError(f"expected one of {len(rows)} rows, found {place}", where=where, key="tensors")
    return rows[place]


def _names(value: Json, where: str) -> tuple[str, ...]:
    names = tuple(as_str(name, where=where, key="names") for name in as_list(value, where=where, key="names"))
    if not names or any(first >= second for first, second in pairwise(names)):
        raise ParseError("expected each name once, in order", where=where, key="names")
    return shared_names(names)


def _row(value: Json, names: list[tuple[str, ...]], where: str) -> TensorDigests:
    pair = as_list(value, where=where, key="xxh3_64")
    if len(pair) != 2:  # noqa: PLR2004  names and digests
        raise ParseError("expected a number and a text", where=where, key="xxh3_64")
    place = as_int(pair[0], where=where, key="xxh3_64")
    text = as_str(pair[1], where=where, key="xxh3_64")
    if place >= len(names) or len(text) != 2 * TENSOR_DIGEST_BYTES * len(names[place]) or _HEX.fullmatch(text) is None:
        raise ParseError("expected a digest of each name", where=where, key="xxh3_64")
    return TensorDigests(names=names[place], digests=bytes.fromhex(text))


_MOST_SHARDS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTensors:
    """Tensor digests from a complete read of a shard, which a checksum may or may not confirm."""

    stamp: FileStamp
    """Stamp of the file when it was read."""
    read_at: int
    """Time of the read in Unix seconds."""
    schema_hash: str | None
    digests: TensorDigests


def encoded_tensors(tensors: Mapping[str, KnownTensors]) -> str:
    """Encode known tensors up to the size limit, latest read first."""
    if not tensors:
        return ""
    table, retained = TensorTable(), []
    for path, known_tensors in sorted(tensors.items(), key=lambda item: (-item[1].read_at, item[0]))[:_MOST_SHARDS]:
        place = table.add(known_tensors.digests)
        if table.nbytes > MOST_TENSORS_BYTES:
            break
        retained.append(
            {
                "path": path,
                "stamp": encoded_stamp(known_tensors.stamp),
                "read_at": known_tensors.read_at,
                "schema_hash": known_tensors.schema_hash,
                "tensors": place,
            }
        )
    lines = ",\n".join(f"    {json.dumps(line)}" for line in sorted(retained, key=lambda line: str(line["path"])))
    return f',\n  "read": [\n{lines}\n  ]{table.member()}' if retained else ""


def read_tensors(record: JsonObject) -> dict[str, KnownTensors]:
    """Decode the output of `encoded_tensors`, by path; empty if the record has no tensors.

    Raises:
        ParseError: The record has a different form.
    """
    rows = tensor_rows(record, where="the ledger")
    lines = [as_object(value) for value in as_list(record.get("read", []))]
    return {get_str(line, "path"): _read(line, rows) for line in lines}


def _read(line: JsonObject, rows: tuple[TensorDigests, ...]) -> KnownTensors:
    digests = row_of(line, rows, where="the ledger")
    if digests is None:
        raise ParseError("expected a row", where="the ledger", key="tensors")
    return KnownTensors(
        stamp=stamp_of(line),
        read_at=get_int(line, "read_at"),
        schema_hash=get_optional_str(line, "schema_hash"),
        digests=digests,
    )
