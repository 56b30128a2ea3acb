"""Strict parser for the JSON header of a safetensors file.

This is not a general JSON parser. A header has three levels, so deeper nesting, repeated keys and millions of empty
lists are rejected at the first invalid character, without recursion and in bounded memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from json import JSONDecodeError, JSONDecoder
from json.encoder import encode_basestring
from sys import intern

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.finding import Code, Finding, damage
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.shard import TensorEntry
from ckpttool.core.formats.base import (
    LENGTH_BYTES,
    MAX_DIMS,
    MAX_FINDINGS,
    over_limit,
    quoted,
    schema_hash,
    schema_rows,
)
from ckpttool.core.formats.safetensors import ALIGNMENT

MAX_SIZE = 2**64 - 1
"""Largest number that safetensors accepts; larger numbers are refused here as well."""

MAX_KEYS = 400_000
"""Maximum number of keys in an object (tensors or metadata), so that the parsed data stay below 512 MB."""

# Source: the order of `Dtype` in safetensors' tensor.rs. The widest types come first in a file, for alignment.
DTYPES = {
    name: DType(name)
    for name in (
        *("U64", "I64", "F64", "C64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16"),
        *("F8_E5M2FNUZ", "F8_E4M3FNUZ", "F8_E8M0", "F8_E4M3", "F8_E5M2", "I8", "U8"),
        *("F6_E3M2", "F6_E2M3", "F4", "BOOL"),
    )
}
"""Types of the format, in the order in which safetensors sorts tensors before it writes them."""

PLACES = {name: place for place, name in enumerate(DTYPES)}
"""Position of each type in that order; tensors of one type are sorted by name."""

METADATA_KEY = "__metadata__"

_SHOWN_CHARS = 40  # maximum length of an invalid type in a message


class InvalidHeaderError(Exception):
    """The text violates the grammar; the message contains the position and the reason."""


_WHOLE_NUMBER = re.compile(r"0|[1-9][0-9]{0,19}")
_BLANK = re.compile(r"[ \t\n\r]*")
_DECODER = JSONDecoder()
_LIST_CHARS = 4096
"""Maximum length of a shape in characters: MAX_DIMS numbers of 20 digits, with blanks in between."""


class TooManyKeysError(InvalidHeaderError):
    """The text may be valid, but has more entries than fit into the memory limit."""


class Scanner:
    """Scanner that reads a text once, without recursion or backtracking."""

    __slots__ = ("_at", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def members(self, usual: re.Pattern[str] | None = None) -> Iterator[tuple[str, re.Match[str] | None]]:
        """Yield the keys of the object at the current position.

        Args:
            usual: A pattern that matches a key (its first group) together with the value.

        Yields:
            A key, and the match of `usual`; if there is no match, the caller consumes the value before the next key.
        """
        names: set[str] = set()
        self._expect("{")
        if self._take("}"):
            return
        while True:
            match = None if usual is None else usual.match(self._text, self._at)
            if match is None:
                key = self.string()
            else:
                key = match[1]
                self._at = match.end()
            if key in names:
                raise InvalidHeaderError(f"the key {quoted(key)} occurs twice in one object")
            if len(names) == MAX_KEYS:
                raise TooManyKeysError(f"an object has more than {MAX_KEYS} keys")
            names.add(key)
            if match is None:
                self._expect(":")
            yield key, match
            if not self._take(","):
                break
        self._expect("}")

    def string(self) -> str:
        """Consume a JSON string and return it."""
        self._skip_blanks()
        if self._text[self._at : self._at + 1] != '"':
            raise self._unexpected("a string")
        try:
            value, self._at = _DECODER.raw_decode(self._text, self._at)
            value.encode()  # a surrogate without its pair is not a character
        except (JSONDecodeError, UnicodeEncodeError) as error:
            raise self._unexpected("a complete string") from error
        return str(value)

    def numbers(self) -> tuple[int, ...]:
        """Consume a list of non-negative integers and return it."""
        self._expect("[")
        end = self._text.find("]", self._at, self._at + _LIST_CHARS)
        if end < 0:
            raise self._unexpected(f"a list of at most {MAX_DIMS} numbers")
        numbers = [number.strip(" \t\n\r") for number in self._text[self._at : end].split(",")]
        if numbers == [""]:
            numbers = []
        if len(numbers) > MAX_DIMS or not all(map(_WHOLE_NUMBER.fullmatch, numbers)):
            raise self._unexpected(f"a list of at most {MAX_DIMS} whole numbers")
        values = tuple(map(int, numbers))
        if values and max(values) > MAX_SIZE:
            raise self._unexpected("numbers below 2^64")
        self._at = end + 1
        return values

    def rest(self) -> str:
        """Return the text after the last consumed character."""
        return self._text[self._at :]

    def _skip_blanks(self) -> None:
        blank = _BLANK.match(self._text, self._at)
        self._at = blank.end() if blank else self._at

    def _take(self, char: str) -> bool:
        if not self._text.startswith(char, self._at):
            self._skip_blanks()
            if not self._text.startswith(char, self._at):
                return False
        self._at += 1
        return True

    def _expect(self, char: str) -> None:
        if not self._take(char):
            raise self._unexpected(f"'{char}'")

    def _unexpected(self, expected: str) -> InvalidHeaderError:
        snippet = self._text[self._at : self._at + 20]
        return InvalidHeaderError(f"expected {expected} at character {self._at}, not {snippet!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderText:
    """Contents of the JSON header."""

    entries: tuple[TensorEntry, ...]
    """Tensors in data order; their spans are relative to the start of the file."""
    metadata: tuple[tuple[str, str], ...]
    """Pairs of key and value, sorted."""
    data_bytes: int
    """Number of bytes from the first byte of data to the end of the last tensor."""
    canonical: bool
    """Whether safetensors itself would write the same text."""
    schema_hash: str | None
    """Result of `schema_hash`; None if the text could not be parsed to its end."""
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One entry as written, with offsets relative to the first byte of data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, int]


def parse_strictly(text: str, *, data_begin: int) -> HeaderText:
    """Parse any header, whether valid or not.

    Args:
        text: The JSON without its padding.
        data_begin: File offset of the first byte of data.
    """
    rows: list[_Row] = []
    findings: list[Finding] = []
    metadata = None
    complete = True
    try:
        metadata = _scan(text, rows)
    except InvalidHeaderError as error:
        complete = False
        findings.append(_unreadable(error))
    rows_in_data_order = sorted(rows, key=lambda row: row.offsets)
    entries = []
    for row in rows_in_data_order:
        wrong = _wrong_entry(row)
        if wrong is None:
            begin, end = row.offsets
            span = (data_begin + begin, data_begin + end)
            entries.append(TensorEntry(name=row.name, dtype=DTYPES[row.dtype], shape=row.shape, spans=(span,)))
        elif len(findings) < MAX_FINDINGS:
            findings.append(wrong)
    if complete and (gap := _first_gap(rows_in_data_order)):
        findings.append(gap)
    return HeaderText(
        entries=tuple(entries),
        metadata=tuple(sorted(metadata or ())),
        data_bytes=max((row.offsets[1] for row in rows), default=0),
        canonical=not findings and _is_as_written(text, metadata, rows),
        schema_hash=schema_hash(schema_rows(entries)) if complete else None,
        findings=tuple(findings),
    )


def encoded_header(
    tensors: Iterable[tuple[str, DType, tuple[int, ...]]], metadata: Sequence[tuple[str, str]] | None = None
) -> tuple[bytes, tuple[TensorEntry, ...]]:
    """Encode the beginning of a file in the same form as safetensors.

    Args:
        tensors: Name, type and shape of each tensor, in any order; each name occurs once.
        metadata: Pairs of key and value; None for no metadata.

    Returns:
        All bytes before the tensors' data, and the tensors with their positions in the file, in file order.

    Raises:
        ValueError: A tensor's size is not a whole number of bytes, or is too large for safetensors.
    """
    rows: list[_Row] = []
    end = 0
    for name, dtype, shape in sorted(tensors, key=lambda tensor: (PLACES.get(tensor[1].value, -1), tensor[0])):
        size = size_in_bytes(dtype, shape) if dtype.value in PLACES else None
        if size is None:
            raise ValueError(
                f"tensor {quoted(name)} of {dtype.value} {list(shape)} is too large for any safetensors file"
            )
        rows.append(_Row(name=name, dtype=dtype.value, shape=shape, offsets=(end, end + size)))
        end += size
    text = "".join(_as_written(metadata, rows)).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    begin = LENGTH_BYTES + len(text)
    entries = tuple(
        TensorEntry(
            name=row.name,
            dtype=DTYPES[row.dtype],
            shape=row.shape,
            spans=((begin + row.offsets[0], begin + row.offsets[1]),),
        )
        for row in rows
    )
    return len(text).to_bytes(LENGTH_BYTES, "little") + text, entries


def metadata_in(text: str) -> tuple[tuple[str, str], ...] | None:
    """Return the metadata of a header in file order; None if it has no metadata.

    Raises:
        InvalidHeaderError: The bytes are not a header.
    """
    entry = _scan(text, [])
    return None if entry is None else tuple(entry)


def with_metadata(text: str, metadata: Sequence[tuple[str, str]] | None) -> bytes:
    """Encode a new header from another header's tensors and this metadata.

    Returns:
        All bytes before the tensors' data.

    Raises:
        InvalidHeaderError: The bytes are not a header.
    """
    rows: list[_Row] = []
    _scan(text, rows)
    written = "".join(_as_written(metadata, rows)).encode()
    written += b" " * (-len(written) % ALIGNMENT)
    return len(written).to_bytes(LENGTH_BYTES, "little") + written


def size_in_bytes(dtype: DType, shape: Sequence[int]) -> int | None:
    """Return the size of a shape in bytes; None if it is not a whole number of bytes, or too large for safetensors.

    As in safetensors, each intermediate product must fit: `[2^63, 4, 0]` is refused although it has no elements.
    """
    bits = 1
    for dim in (*shape, dtype.bits):
        bits *= dim
        if bits > MAX_SIZE:
            return None
    return None if bits % 8 else bits // 8


def _scan(text: str, rows: list[_Row]) -> list[tuple[str, str]] | None:
    """Parse entries into `rows`, which also has those before any damage, and return the metadata, if present.

    Raises:
        InvalidHeaderError: The text violates the grammar.
    """
    metadata = None
    scanner = Scanner(text)
    shapes: dict[str, tuple[int, ...]] = {"": ()}  # a model has thousands of tensors but few different shapes
    for key, match in scanner.members(_USUAL_ENTRY):
        if key == METADATA_KEY:
            metadata = [(name, scanner.string()) for name, _ in scanner.members()]
        elif match is None:
            rows.append(_scan_entry(scanner, key))
        else:
            _, dtype, dims, begin, end = match.groups()
            shape = shapes.get(dims)
            if shape is None:
                shape = shapes[dims] = tuple(map(int, dims.split(",")))
            rows.append(_Row(name=key, dtype=intern(dtype), shape=shape, offsets=(int(begin), int(end))))
    if scanner.rest():
        raise InvalidHeaderError(f"{scanner.rest()[:20]!r} follows its end, but only spaces may")
    return metadata


_NUMBER = "(?:0|[1-9][0-9]{0,18})"
"""Pattern of a JSON number with few enough digits to be below 2^64."""
_USUAL_ENTRY = re.compile(
    rf'"(?!{METADATA_KEY}")([^"\\\x00-\x1f]*)":\{{"dtype":"([A-Z0-9_]{{1,16}})",'
    rf'"shape":\[((?:{_NUMBER}(?:,{_NUMBER}){{0,{MAX_DIMS - 1}}})?)\],'
    rf'"data_offsets":\[({_NUMBER}),({_NUMBER})\]\}}'
)
"""Pattern of an entry in safetensors' own form, whose name has no escapes.

`Scanner` reads any other entry step by step.
"""


def _scan_entry(scanner: Scanner, name: str) -> _Row:
    dtype = None
    numbers: dict[str, tuple[int, ...]] = {}
    for key, _ in scanner.members():
        if key == "dtype":
            dtype = scanner.string()
        elif key in {"shape", "data_offsets"}:
            numbers[key] = scanner.numbers()
        else:
            raise InvalidHeaderError(f"tensor {quoted(name)} has an unknown field {quoted(key)}")
    if dtype is None or len(numbers) != len(("shape", "data_offsets")):
        raise InvalidHeaderError(f"tensor {quoted(name)} lacks one of dtype, shape, data_offsets")
    if len(numbers["data_offsets"]) != len(("begin", "end")):
        raise InvalidHeaderError(f"tensor {quoted(name)} has {len(numbers['data_offsets'])} data_offsets, not 2")
    begin, end = numbers["data_offsets"]
    return _Row(name=name, dtype=dtype, shape=numbers["shape"], offsets=(begin, end))


def _unreadable(error: InvalidHeaderError) -> Finding:
    if isinstance(error, TooManyKeysError):
        return over_limit(f"The header was not read completely: {error}.")
    return damage(Code.HEADER_INVALID, f"The header is not JSON of safetensors: {error}.")


def _wrong_entry(row: _Row) -> Finding | None:
    """Return a finding if an entry is invalid; otherwise None."""
    dtype = DTYPES.get(row.dtype)
    begin, end = row.offsets
    if dtype is None:
        return damage(
            Code.HEADER_INVALID,
            f"Tensor {quoted(row.name)} has the type {quoted(row.dtype)}, which safetensors does not know.",
            tensor=row.name,
            actual=row.dtype[:_SHOWN_CHARS],
        )
    if begin > end:
        return damage(
            Code.OFFSETS_NOT_CONTIGUOUS,
            f"Tensor {quoted(row.name)} begins at byte {begin} of the data and ends before, at {end}.",
            tensor=row.name,
        )
    size = size_in_bytes(dtype, row.shape)
    if size == end - begin:
        return None
    needed = "an uncountable number of bytes" if size is None else f"{size} bytes"
    return damage(
        Code.HEADER_INVALID,
        f"Tensor {quoted(row.name)} of {row.dtype} {list(row.shape)} takes {needed}, but has {end - begin}.",
        tensor=row.name,
        expected=needed,
        actual=f"{end - begin} bytes",
    )


def _first_gap(rows: Sequence[_Row]) -> Finding | None:
    """Return a finding for the first tensor that does not begin at the end of the previous one."""
    end = 0
    for row in rows:
        begin = row.offsets[0]
        if begin != end:
            fault = "leaves a gap" if begin > end else "overlaps the previous one"
            return damage(
                Code.OFFSETS_NOT_CONTIGUOUS,
                f"Tensor {quoted(row.name)} {fault}: it begins at byte {begin} of the data, not at {end}.",
                tensor=row.name,
                expected=str(end),
                actual=str(begin),
            )
        end = max(end, row.offsets[1])
    return None


def _as_written(metadata: Sequence[tuple[str, str]] | None, rows: Sequence[_Row]) -> Iterator[str]:
    """Yield the parts of a header in the form that safetensors writes, except that it writes metadata in random order.

    A hostile header is one string of many megabytes, and each copy would need as much memory again.
    """
    comma = ""
    yield "{"
    if metadata is not None:
        yield f'"{METADATA_KEY}":{{'
        for name, value in metadata:
            yield f"{comma}{encode_basestring(name)}:"
            yield encode_basestring(value)
            comma = ","
        yield "}"
        comma = ","
    for row in sorted(rows, key=lambda row: (PLACES[row.dtype], row.name)):
        dims = ",".join(map(str, row.shape))
        begin, end = row.offsets
        yield f"{comma}{encode_basestring(row.name)}"
        yield f':{{"dtype":"{row.dtype}","shape":[{dims}],"data_offsets":[{begin},{end}]}}'
        comma = ","
    yield "}"


def _is_as_written(text: str, metadata: Sequence[tuple[str, str]] | None, rows: Sequence[_Row]) -> bool:
    at = 0
    for part in _as_written(metadata, rows):
        if not text.startswith(part, at):
            return False
        at += len(part)
    return at == len(text)
