"""The tensors that a save's metadata.json assigns to each file, with their shapes.

Source: `save_metadata` and `load_metadata` of MindFormers 2.1.0, and saves of two ranks. `global_offset` counts slices,
not elements, and is also the number in a key of `storage_data`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, cast

from ckpttool.core.domain.finding import Code
from ckpttool.core.domain.frozen import replace
from ckpttool.core.formats.base import quoted
from ckpttool.core.formats.strict_json import (
    ParseError,
    as_int,
    as_list,
    as_object,
    get_list,
    get_object,
    get_str,
)
from ckpttool.trainers.common.listed import listed_damage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.shard import RecordedEntries
    from ckpttool.core.formats.strict_json import JsonObject

_SLICE = r"""(?s:\('(?P<name>.+)', \((?P<slice>[0-9]{1,9},(?: [0-9]{1,9}(?:, [0-9]{1,9})*)?)\)\))"""
"""A key of `storage_data`, written as a Python pair: a name, and the numbers of a slice."""

_Slice = tuple[str, tuple[int, ...]]


def parse_slice(key: str, what: str) -> tuple[str, tuple[int, ...]]:
    """Return the tensor's name and the numbers of its slice from a key of `storage_data`.

    Raises:
        ParseError: The message names the file and the key.
    """
    match = re.fullmatch(_SLICE, key)
    if match is None:
        raise ParseError("is not a slice of a tensor", where=what, key=key)
    return match["name"], _numbers_in(match["slice"])


@lru_cache(maxsize=65536)
def _numbers_in(text: str) -> tuple[int, ...]:
    """Return the numbers of a slice; cached, because many tensors have the same numbers."""
    return tuple(map(int, re.findall("[0-9]+", text)))


class Entries(NamedTuple):
    """The contents of a metadata.json."""

    by_file: Mapping[str, RecordedEntries]
    """The tensors of each file, by the file's name in the folder."""
    without_file: tuple[str, ...]
    """Tensors with a slice that is not in any file."""


def entries_in(record: JsonObject, what: str) -> Entries:
    """Return the tensors of each file.

    Args:
        record: The parsed metadata.json.
        what: The path of the file.

    Raises:
        ParseError: The message names the file and the invalid key.
    """
    shapes = _shapes(get_object(record, "state_dict_metadata", where=what), what)
    by_file: dict[str, list[tuple[str, tuple[tuple[int, ...], ...]]]] = defaultdict(list)
    stored = set()
    for key, places in get_object(record, "storage_data", where=what).items():
        place = parse_slice(key, what)
        entry = place[0], tuple(shapes.get(place, ()))  # one object for all ranks with a copy
        for file in as_list(places, where=what, key=key):
            stored.add(place)
            name = get_str(as_object(file, where=what, key=key), "file_name", where=f"{what}: {key}")
            by_file[name].append(entry)
    lacking = dict.fromkeys(name for name, number in shapes if (name, number) not in stored)
    return Entries({name: tuple(entries) for name, entries in by_file.items()}, tuple(lacking))


def _shapes(tensors: JsonObject, what: str) -> dict[_Slice, list[tuple[int, ...]]]:
    shapes: dict[_Slice, list[tuple[int, ...]]] = defaultdict(list)
    for name, described in tensors.items():
        where = f"{what}: {name}"
        for chunk in get_list(as_object(described, where=what, key=name), "chunk", where=where):
            slice_record = as_object(chunk, where=where, key="chunk")
            number = numbers_at(slice_record, "global_offset", where)
            shapes[name, number].append(numbers_at(slice_record, "local_shape", where))
    return dict(shapes)


def numbers_at(record: JsonObject, key: str, where: str) -> tuple[int, ...]:
    """Return the numbers in a list.

    Raises:
        ParseError: The message names the key.
    """
    values = get_list(record, key, where=where)
    for value in values:
        if type(value) is not int or value < 0:  # a call per value would double the time
            as_int(value, where=where)
    return tuple(cast("list[int]", values))


def with_entries(checkpoint: Checkpoint, entries: Entries) -> Checkpoint:
    """Add the tensors that each file must contain to a save, and report tensors that no file contains."""
    shards = tuple(
        replace(shard, entries=entries.by_file.get(shard.path.rpartition("/")[2], ())) for shard in checkpoint.shards
    )
    findings = checkpoint.findings
    if entries.without_file:
        first, more = quoted(entries.without_file[0]), len(entries.without_file) - 1
        message = f"has no file for a slice of {first}" + (f" and of {more} more tensors" if more else "")
        path = f"{checkpoint.name}/metadata.json"
        findings = (*findings, listed_damage(Code.ENTRIES_MISSING, message, path))
    return replace(checkpoint, shards=shards, findings=findings)
