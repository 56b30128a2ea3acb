"""Strict parser for JSON from other programs, with typed access to values.

An invalid document or value raises an error with the file and the key path.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import TypeAlias, TypeVar

from ckpttool.core.domain.units import ByteCount

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
JsonObject: TypeAlias = "dict[str, Json]"

DEFAULT_LIMIT = ByteCount(1 << 30)
"""Maximum size of a record next to a checkpoint in bytes; the metadata of 8,192 ranks have a few hundred megabytes."""

MOST_MEMORY = ByteCount(160 << 20)
"""Maximum memory of a record's values in bytes, by a generous estimate.

Three bytes of `{},` become seventy. The limit allows about 150,000 entries.
"""

OWN_MEMORY = ByteCount(512 << 20)
"""The same limit for documents that ckpttool sealed with a hash, which must be readable for 10,000 ranks."""

MAX_DEPTH = 64
"""Maximum nesting depth, so that a hostile file cannot exhaust the stack; real records have six levels."""

_SHOWN = 60  # maximum length of an invalid value in a message
_NONFINITE = ("nan", "inf", "-inf")
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in _STEP)
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

_T = TypeVar("_T")


class ParseError(ValueError):
    """A record differs from its specification. Readers catch this error and report a finding."""

    def __init__(self, problem: str, *, where: str = "", key: str = "", line: int | None = None) -> None:
        """Store the problem and its location.

        Args:
            problem: The expected and the actual value.
            where: The file, and the path to the object.
            key: Key path from that object; empty for the complete document.
            line: Line in the file, from 1.
        """
        super().__init__(": ".join(part for part in (where, key, problem) if part))
        self.problem = problem
        self.where = where
        self.key = key
        self.line = line

    def within(self, path: str) -> str:
        """Return the message without the path of the file, for a finding that has the path in a separate field."""
        return str(self).removeprefix(f"{path}: ")


def parse_json(
    data: bytes, *, where: str, limit: int = DEFAULT_LIMIT, most_memory: int = MOST_MEMORY, nonfinite: bool = False
) -> Json:
    """Return the parsed document, if every JSON parser would read it in the same way.

    Refused although `json` accepts them: a key that occurs twice, `NaN`, `Infinity`, a number that overflows to
    infinity, text that cannot be written back as UTF-8, and nesting deep enough to exhaust the stack.

    Args:
        data: The complete file.
        where: The file's name for the error.
        limit: Maximum number of bytes.
        most_memory: Maximum memory of the values in bytes, as estimated by `memory_of`.
        nonfinite: Accept `NaN` and `Infinity`, which are valid and important values in logs.

    Raises:
        ParseError: The document is refused as above, or is not JSON.
    """
    if len(data) > limit:
        raise ParseError(f"expected at most {limit} bytes, found {len(data)}", where=where)
    if memory_of(data) > most_memory:
        raise ParseError(f"has more values than any such record, in {len(data)} bytes", where=where)
    _check_depth(data, where)
    try:
        text = data.decode("utf-8")
        document: Json = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=float if nonfinite else _no_constant,
            parse_float=float if nonfinite else _finite,
        )
        if _SURROGATE.search(data):
            json.dumps(document, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        if not data.strip():
            raise ParseError("not JSON: it is empty", where=where) from None
        raise ParseError(
            f"not JSON: {error.msg.removesuffix(' at')} at line {error.lineno}, column {error.colno}",
            where=where,
            line=error.lineno,
        ) from None
    except UnicodeError as error:
        raise ParseError(
            f"not UTF-8: {error.reason if isinstance(error, UnicodeDecodeError) else error}", where=where
        ) from None
    except ParseError as error:
        raise ParseError(error.problem, where=where, key=error.key) from None
    except ValueError:  # an integer with thousands of digits
        raise ParseError("has a number that is too long to read", where=where) from None
    return document


def number(value: float | None) -> Json:
    """Encode a number that may be NaN or infinite; `as_number` decodes it."""
    return value if value is None or math.isfinite(value) else str(float(value))


def measured(value: float | None) -> Json:
    """Encode a measured value with six significant digits, because further digits are arithmetic noise."""
    return None if value is None else number(float(f"{value:.6g}"))


def as_number(value: Json) -> float:
    """Decode a number that `number` encoded, bit for bit.

    Raises:
        ParseError: The value has a different form.
    """
    return float(value) if isinstance(value, str) and value in _NONFINITE else as_float(value)


def memory_of(data: bytes) -> int:
    """Return an upper bound for the memory of a JSON document after parsing, without parsing it.

    The estimate counts the text and its strings, with four bytes per character if any character needs them; empty
    objects, lists and numbers, which take the most memory for their length; and keys, of which the first five are
    included in the object's size.
    """
    wide = 1 if data.isascii() else 4
    objects, quotes = data.count(b"{"), data.count(b'"')
    many_keys = max(0, data.count(b":") - 5 * objects)
    return (
        len(data) * 2 * wide
        + 240 * objects
        + 88 * data.count(b"[")
        + 40 * data.count(b",")
        + 24 * quotes
        + 200 * many_keys
    )


def parse_object(
    data: bytes, *, where: str, limit: int = DEFAULT_LIMIT, most_memory: int = MOST_MEMORY, nonfinite: bool = False
) -> JsonObject:
    """Return the document if it is an object; raise a `ParseError` for anything else, including invalid JSON."""
    value = parse_json(data, where=where, limit=limit, most_memory=most_memory, nonfinite=nonfinite)
    return as_object(value, where=where)


def as_object(value: Json, *, where: str = "", key: str = "") -> JsonObject:
    """Return `value` if it is an object; otherwise raise a `ParseError`."""
    if not isinstance(value, dict):
        raise _wrong("an object", value, where, key)
    return value


def as_list(value: Json, *, where: str = "", key: str = "") -> list[Json]:
    """Return `value` if it is a list; otherwise raise a `ParseError`."""
    if not isinstance(value, list):
        raise _wrong("a list", value, where, key)
    return value


def as_int(value: Json, *, minimum: int | None = 0, where: str = "", key: str = "") -> int:
    """Return `value` if it is an integer (not `true` or `1.0`) of at least `minimum`, or raise a `ParseError`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong("an integer", value, where, key)
    if minimum is not None and value < minimum:
        raise _wrong(f"an integer of at least {minimum}", value, where, key)
    return value


def as_float(value: Json, *, where: str = "", key: str = "") -> float:
    """Return `value` if it is a finite number; otherwise raise a `ParseError`."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _wrong("a number", value, where, key)
    try:
        return float(value)
    except OverflowError:
        raise _wrong("a number that a float can hold", value, where, key) from None


def as_str(value: Json, *, where: str = "", key: str = "") -> str:
    """Return `value` if it is text; otherwise raise a `ParseError`."""
    if not isinstance(value, str):
        raise _wrong("text", value, where, key)
    return value


def as_bool(value: Json, *, where: str = "", key: str = "") -> bool:
    """Return `value` if it is `true` or `false`, but not 0 or 1; otherwise raise a `ParseError`."""
    if not isinstance(value, bool):
        raise _wrong("true or false", value, where, key)
    return value


def get_int(record: Mapping[str, Json], key: str, *, minimum: int | None = 0, where: str = "") -> int:
    """Return the integer under `key`; raise a `ParseError` if it is missing, not an integer, or below `minimum`."""
    return as_int(_member(record, key, where), minimum=minimum, where=where, key=key)


def get_str(record: Mapping[str, Json], key: str, *, where: str = "") -> str:
    """Return the text under `key`; raise a `ParseError` if it is missing or not text."""
    return as_str(_member(record, key, where), where=where, key=key)


def get_bool(record: Mapping[str, Json], key: str, *, where: str = "") -> bool:
    """Return the boolean under `key`; raise a `ParseError` if it is missing or not a boolean."""
    return as_bool(_member(record, key, where), where=where, key=key)


def get_object(record: Mapping[str, Json], key: str, *, where: str = "") -> JsonObject:
    """Return the object under `key`; raise a `ParseError` if it is missing or not an object."""
    return as_object(_member(record, key, where), where=where, key=key)


def get_list(record: Mapping[str, Json], key: str, *, where: str = "") -> list[Json]:
    """Return the list under `key`; raise a `ParseError` if it is missing or not a list."""
    return as_list(_member(record, key, where), where=where, key=key)


def get_optional_int(record: Mapping[str, Json], key: str, *, minimum: int | None = 0, where: str = "") -> int | None:
    """Return the integer under `key`; None if it is absent or null.

    Raises:
        ParseError: The value is not an integer, or is below `minimum`.
    """
    return _optional(record, key, lambda value: as_int(value, minimum=minimum, where=where, key=key))


def get_optional_float(record: Mapping[str, Json], key: str, *, where: str = "") -> float | None:
    """Return the number under `key`; None if it is absent or null.

    Raises:
        ParseError: The value is not a finite number.
    """
    return _optional(record, key, lambda value: as_float(value, where=where, key=key))


def get_optional_str(record: Mapping[str, Json], key: str, *, where: str = "") -> str | None:
    """Return the text under `key`; None if it is absent or null.

    Raises:
        ParseError: The value is not text.
    """
    return _optional(record, key, lambda value: as_str(value, where=where, key=key))


def _optional(record: Mapping[str, Json], key: str, convert: Callable[[Json], _T]) -> _T | None:
    value = record.get(key)
    return None if value is None else convert(value)


def _member(record: Mapping[str, Json], key: str, where: str) -> Json:
    try:
        return record[key]
    except KeyError:
        raise ParseError("is missing", where=where, key=key) from None


def _wrong(expected: str, value: Json, where: str, key: str) -> ParseError:
    return ParseError(f"expected {expected}, found {_snippet(value)}", where=where, key=key)


def _snippet(value: Json) -> str:
    """Return an invalid value as one short line for a message."""
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case int() if not isinstance(value, bool) and abs(value) > 10**_SHOWN:
            return "an integer of more digits than are worth showing"  # longer than Python agrees to print
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _check_depth(data: bytes, where: str) -> None:
    """Raise an error for deep nesting, before `json` parses the document.

    The depth that `json` can parse depends on the remaining stack, but the same file must give the same answer
    everywhere.
    """
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    outside_strings = b"".join(_ESCAPED.sub(b"", data).split(b'"')[::2])
    brackets = outside_strings.translate(None, _NOT_BRACKETS)
    if max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > MAX_DEPTH:
        raise ParseError(f"expected nesting of at most {MAX_DEPTH}, found more", where=where)


def _unique(pairs: list[tuple[str, Json]]) -> JsonObject:
    record = dict(pairs)
    if len(record) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ParseError("occurs twice in one object", key=_snippet(twice))
    return record


def _no_constant(name: str) -> Json:
    raise ParseError(f"expected a finite number, found {name}")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ParseError(f"expected a number that a float can hold, found {text[:_SHOWN]}")
    return number
