"""Headers as safetensors itself writes them, parsed whole columns at a time.

This is the same answer as `parse_strictly` gives, several times sooner; the tests hold the two against each other.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise, repeat
from operator import sub

from ckpttool.domain.shard import TensorEntry
from ckpttool.read.formats.base import MAX_DIMS, schema_hash
from ckpttool.read.formats.json_scanner import InvalidHeaderError
from ckpttool.read.formats.safetensors_header import (
    DTYPES,
    METADATA_KEY,
    PLACES,
    HeaderText,
    parse_metadata,
    size_in_bytes,
)

_MAX_CHARS = 8_000_000
"""All fields of the header are strings at once; longer headers go the strict way, which takes them one by one. This is
room for as many tensors as are looked into, and leaves no room for more keys than the strict way takes."""

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
    if len(text) > _MAX_CHARS:
        return None
    parts = _ENTRY.split(text)
    gaps = parts[0::_FIELDS]
    names, dtypes, dims, begins, ends = (parts[column::_FIELDS] for column in range(1, _FIELDS))
    # Entries with one comma between them, from `{` to `}`.
    if not names or gaps[-1] != "}" or gaps.count(",") != len(names) - 1:
        return None
    if not _are_plain_names(names) or begins[0] != "0" or begins[1:] != ends[:-1] or not _are_plain_numbers(ends):
        return None
    offsets = [0, *map(int, ends)]
    sizes = _TensorSizes()
    try:
        metadata = _metadata_before(gaps[0])
        in_order = _are_in_order(names, dtypes)
        expected = list(map(sizes.__getitem__, zip(dtypes, dims, strict=True)))
    except (KeyError, InvalidHeaderError):
        return None
    if not in_order or expected != list(map(sub, offsets[1:], offsets)):
        return None
    return HeaderText(
        entries=_entries(names, dtypes, map(sizes.shapes.__getitem__, dims), list(map(data_begin.__add__, offsets))),
        metadata=tuple(sorted(metadata)),
        data_bytes=offsets[-1],
        canonical=True,
        schema_hash=schema_hash(zip(names, dtypes, dims, strict=True)),
        findings=(),
    )


def _are_plain_names(names: Sequence[str]) -> bool:
    """Tell whether the names differ and JSON spells them as they are."""
    together = "".join(names).encode()
    return len(together.translate(None, _ESCAPED)) == len(together) and len({METADATA_KEY, *names}) > len(names)


_ESCAPED = bytes(range(0x20)) + b"\\"
"""What JSON never has unescaped in a string, or that begins an escape; quotes cannot be in what `_ENTRY` cuts out."""


def _are_in_order(names: Sequence[str], dtypes: Sequence[str]) -> bool:
    """Tell whether the widest types come first, and names ascend within a type.

    Raises:
        KeyError: One of the types does not exist.
    """
    places = []
    begin = 0
    for dtype, run in groupby(dtypes):
        end = begin + len(list(run))
        if names[begin:end] != sorted(names[begin:end]):
            return False
        places.append(PLACES[dtype])
        begin = end
    return places == sorted(places)


def _are_plain_numbers(words: Sequence[str]) -> bool:
    """Tell whether all words are numbers, and none has a leading zero; the rare lone zero goes the strict way."""
    digits = "".join(words)
    return ",0" not in "," + ",".join(words) and digits.isascii() and digits.isdigit()


def _entries(
    names: Sequence[str], dtypes: Sequence[str], shapes: Iterable[tuple[int, ...]], edges: Sequence[int]
) -> tuple[TensorEntry, ...]:
    """Make the entries; `edges` has one more, the end of the last tensor.

    The constructor of a frozen class looks every field up again for every object. That is a third of the time of a
    whole header, so here the fields are set column by column, by their own slots.
    """
    entries = list(map(object.__new__, repeat(TensorEntry, len(names))))
    columns: dict[str, Iterable[object]] = {
        "name": names,
        "dtype": map(DTYPES.__getitem__, dtypes),
        "shape": shapes,
        "spans": zip(pairwise(edges), strict=True),  # tuples of one tuple: one span each
    }
    for field, column in columns.items():
        deque(map(vars(TensorEntry)[field].__set__, entries, column), maxlen=0)
    return tuple(entries)


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
