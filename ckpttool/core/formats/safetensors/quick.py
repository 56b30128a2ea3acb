"""Headers as safetensors itself writes them, parsed whole columns at a time.

This is the same answer as `parse_strictly` gives, several times sooner; the tests hold the two against each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from operator import sub
from sys import intern

from ckpttool.core.domain.frozen import many
from ckpttool.core.domain.shard import TensorEntry
from ckpttool.core.formats.base import MAX_DIMS, schema_hash
from ckpttool.core.formats.safetensors import header
from ckpttool.core.formats.safetensors.header import (
    DTYPES,
    METADATA_KEY,
    PLACES,
    HeaderText,
    InvalidHeaderError,
    parse_metadata,
    size_in_bytes,
)

_PIECE_CHARS = 1_000_000
"""All fields of a piece are strings at once: this bounds the memory that a long header takes."""

_MAX_DIGITS = 19
"""Such a number is below 2^64 whatever its digits."""

# "Anything but" is what `re` matches fastest, so the pattern only cuts, and the columns are checked afterwards. The
# bounds keep a hostile header from making every attempt run to the end of the text.
_MAX_DIMS_CHARS = MAX_DIMS * (_MAX_DIGITS + 1)
_ENTRY = re.compile(
    r'"([^"]*)":\{"dtype":"([^"]{0,16})",'
    rf'"shape":\[([^\]"]{{0,{_MAX_DIMS_CHARS}}})\],'
    rf'"data_offsets":\[([^\],]{{1,{_MAX_DIGITS}}}),([^\]]{{1,{_MAX_DIGITS}}})\]\}}'
)
_FIELDS = 1 + _ENTRY.groups
"""`_ENTRY.split` yields the gap before an entry and then the entry's groups."""


def parse_quickly(text: str, *, data_begin: int) -> HeaderText | None:
    """Parse a header in the form that safetensors writes.

    Args:
        text: The JSON without its padding.
        data_begin: File offset of the first byte of data.

    Returns:
        What it says, always without findings; None for a header in any other form, good or bad.
    """
    columns = _Columns(data_begin)
    begin = 0
    try:
        while begin == 0 or begin < len(text):
            end = _piece_end(text, begin)
            columns.take(text[begin:end], is_first=begin == 0, is_last=end == len(text))
            begin = end + 1
        return columns.header()
    except (KeyError, InvalidHeaderError):
        return None


def _piece_end(text: str, begin: int) -> int:
    """Return where a piece that begins here may end: before the comma between two entries, or with the text.

    Raises:
        InvalidHeaderError: There is no such comma for a long time.
    """
    if len(text) - begin <= 2 * _PIECE_CHARS:
        return len(text)
    brace = text.find(']},"', begin + _PIECE_CHARS, begin + 2 * _PIECE_CHARS)
    if brace < 0:
        raise InvalidHeaderError
    return brace + len("]}")


class _Columns:
    """The entries of a header, piece by piece. Whatever is not as safetensors writes it raises `InvalidHeaderError`."""

    def __init__(self, data_begin: int) -> None:
        self._data_begin = data_begin
        self._sizes = _TensorSizes()
        self._metadata: Sequence[tuple[str, str]] = ()
        self._keys = 0
        """Of the header, beside the tensors."""
        self._names: list[str] = []
        self._rows: list[tuple[str, str, str]] = []
        self._entries: list[TensorEntry] = []
        self._end = "0"
        """Of the last tensor, as it is spelled."""
        self._last = (0, "")
        """Place of the last tensor's type, and its name."""

    def take(self, piece: str, *, is_first: bool, is_last: bool) -> None:
        """Add the entries of a piece.

        Raises:
            KeyError: One of the types does not exist.
            InvalidHeaderError: The header is spelled in another way, or wrong.
        """
        parts = _ENTRY.split(piece)
        gaps = parts[0::_FIELDS]
        names, dtypes, dims, begins, ends = (parts[column::_FIELDS] for column in range(1, _FIELDS))
        # Entries with one comma between them, from `{` to `}`.
        framed = names and gaps[-1] == ("}" if is_last else "") and (is_first or not gaps[0])
        if not framed or gaps.count(",") != len(names) - 1 or len(self._names) + len(names) > header.MAX_KEYS:
            raise InvalidHeaderError
        if not _are_plain(names) or begins[0] != self._end or begins[1:] != ends[:-1] or not _are_plain_numbers(ends):
            raise InvalidHeaderError
        if is_first:
            self._metadata = _metadata_before(gaps[0])
            self._keys = len({gaps[0]} - {"{"})
        offsets = [int(begins[0]), *map(int, ends)]
        self._last = _last_in_order(names, dtypes, self._last)
        if list(map(self._sizes.__getitem__, zip(dtypes, dims, strict=True))) != list(map(sub, offsets[1:], offsets)):
            raise InvalidHeaderError
        self._end = ends[-1]
        shapes = map(self._sizes.shapes.__getitem__, dims)
        self._entries += _entries(names, dtypes, shapes, list(map(self._data_begin.__add__, offsets)))
        self._names += names
        if not (is_first and is_last):  # where there are many, each word is kept once
            dtypes, dims = list(map(intern, dtypes)), list(map(intern, dims))
        self._rows += zip(names, dtypes, dims, strict=True)

    def header(self) -> HeaderText:
        """Return what all pieces say.

        Raises:
            InvalidHeaderError: A name stands twice, or there are more than the strict way takes.
        """
        differ = len({METADATA_KEY, *self._names}) > len(self._names)
        if not differ or self._keys + len(self._names) > header.MAX_KEYS:
            raise InvalidHeaderError
        return HeaderText(
            entries=tuple(self._entries),
            metadata=tuple(sorted(self._metadata)),
            data_bytes=int(self._end),
            canonical=True,
            schema_hash=schema_hash(self._rows),
            findings=(),
        )


def _are_plain(names: Sequence[str]) -> bool:
    """Tell whether JSON spells the names as they are."""
    together = "".join(names).encode()
    return len(together.translate(None, _ESCAPED)) == len(together)


_ESCAPED = bytes(range(0x20)) + b"\\"
"""What JSON never has unescaped in a string, or that begins an escape; quotes cannot be in what `_ENTRY` cuts out."""


def _last_in_order(names: Sequence[str], dtypes: Sequence[str], before: tuple[int, str]) -> tuple[int, str]:
    """Return the place of the last type, and the last name.

    Args:
        names: Of a piece.
        dtypes: Their types.
        before: The same of the piece before.

    Raises:
        KeyError: One of the types does not exist.
        InvalidHeaderError: Not the widest types come first, or names do not ascend within a type.
    """
    begin = 0
    for dtype, run in groupby(dtypes):
        end = begin + len(list(run))
        if names[begin:end] != sorted(names[begin:end]) or (PLACES[dtype], names[begin]) < before:
            raise InvalidHeaderError
        before = PLACES[dtype], names[end - 1]
        begin = end
    return before


def _are_plain_numbers(words: Sequence[str]) -> bool:
    """Tell whether all words are numbers, and none has a leading zero; the rare lone zero goes the strict way."""
    digits = "".join(words)
    return ",0" not in "," + ",".join(words) and digits.isascii() and digits.isdigit()


def _entries(
    names: Sequence[str], dtypes: Sequence[str], shapes: Iterable[tuple[int, ...]], edges: Sequence[int]
) -> tuple[TensorEntry, ...]:
    """Make the entries; `edges` has one more, the end of the last tensor."""
    return tuple(
        many(
            TensorEntry,
            len(names),
            name=names,
            dtype=list(map(DTYPES.__getitem__, dtypes)),
            shape=list(shapes),
            spans=list(zip(pairwise(edges), strict=True)),  # tuples of one tuple: one span each
        )
    )


class _TensorSizes(dict[tuple[str, str], int]):
    """Bytes of a tensor by its dtype and dims as they are spelled: a model of thousands of tensors has few of them."""

    __slots__ = ("shapes",)

    def __init__(self) -> None:
        super().__init__()
        self.shapes: dict[str, tuple[int, ...]] = {}

    def __missing__(self, key: tuple[str, str]) -> int:
        dtype, dims = key
        words = dims.split(",") if dims else []
        if len(words) > MAX_DIMS or not all(word.isdecimal() and len(word) <= _MAX_DIGITS for word in words):
            raise KeyError(key)
        shape = tuple(map(int, words))
        size = size_in_bytes(DTYPES[dtype], shape)
        if size is None or ",".join(map(str, shape)) != dims:
            raise KeyError(key)
        self.shapes[dims] = shape
        self[key] = size
        return size


def _metadata_before(gap: str) -> Sequence[tuple[str, str]]:
    """Parse what stands before the first entry: `{` or `{"__metadata__":{...},`. The rest is for the strict way."""
    if gap == "{":
        return ()
    if not (gap.startswith('{"') and gap.endswith(",")):
        raise InvalidHeaderError
    return parse_metadata(gap[:-1] + "}")
