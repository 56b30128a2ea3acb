"""The fragments of each tensor of the model, according to a save's metadata.json, and the files that contain them.

`global_offset` is not an offset but the number of a fragment, in row-major order over `axis_fragmentations`. The
same rule gives the fragment of each rank from the layout, so the record is checked against itself: a number, a rank or
a file that contradicts the others is never used.

Source: `save_metadata`, `get_sharded_tensor_from_strategy_metadata`, `save_balanced_metadata` and
`infer_slice_area_by_rank` of MindFormers 2.1.0, which wrote and loaded saves with random layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.formats.base import MAX_DIMS, quoted
from ckpttool.core.formats.mindspore.records import dtype_named
from ckpttool.core.formats.strict_json import (
    Json,
    JsonObject,
    ParseError,
    as_int,
    as_list,
    as_object,
    get_bool,
    get_int,
    get_list,
    get_object,
    get_str,
)
from ckpttool.trainers.mindformers.layouts.entries import numbers_at
from ckpttool.trainers.mindformers.layouts.iteration import role_of

if TYPE_CHECKING:
    from ckpttool.core.domain.dtype import DType

_Places = list[tuple[str, int]]
"""The name of a file, and the rank that wrote it, for each copy of a fragment."""


class Fragment(NamedTuple):
    """A part of a tensor: every axis is divided into equal parts."""

    at: tuple[int, ...]
    """Offsets of its first element in the tensor."""
    files: tuple[str, ...]
    """Names of the files that contain a copy, in the order of the record; none if the record names no file."""


class FragmentedTensor(NamedTuple):
    """A tensor of the model."""

    dtype: DType
    shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    """Shape of each fragment."""
    fragments: tuple[Fragment, ...]


class ModelRecord(NamedTuple):
    """The contents of a metadata.json, as far as they matter for the weights."""

    tensors: Mapping[str, FragmentedTensor]
    """Tensors of the model by name, in the order of the record."""
    others: tuple[str, ...]
    """Names of the other tensors, which are the optimizer's."""


class UnsupportedRecordError(Exception):
    """The record describes a division of a tensor that ckpttool does not know; the message has no path."""


class _Layout(NamedTuple):
    """The distribution of a tensor over ranks."""

    cuts: tuple[int, ...]
    """Number of parts along each axis."""
    numbers: Mapping[int, int]
    """The number of each rank's fragment."""


def model_in(record: JsonObject, what: str) -> ModelRecord:
    """Return the tensors of the model with their fragments.

    Args:
        record: The parsed metadata.json.
        what: The path of the file.

    Raises:
        ParseError: The message names the file and the invalid key, or a contradiction.
        UnsupportedRecordError: A tensor is divided in an unknown way.
    """
    files = {key: _places(places, what, key) for key, places in get_object(record, "storage_data", where=what).items()}
    _check_writers(chain.from_iterable(files.values()), what)
    tensors: dict[str, FragmentedTensor] = {}
    others = []
    for name, described in get_object(record, "state_dict_metadata", where=what).items():
        where = f"{what}: {name}"
        fields = as_object(described, where=what, key=name)
        places = {number: files.pop(_key(name, number), []) for number in _numbers_of(fields, where)}
        roles = {role_of(file) for copies in places.values() for file, _ in copies}
        if roles == {ShardRole.OPTIMIZER}:
            others.append(name)
        elif roles <= {ShardRole.MODEL}:
            tensors[name] = _tensor(name, fields, places, where)
        else:
            raise ParseError("is in files of the model and in other files", where=what, key=name)
    if files:
        raise ParseError("is in a file, but is not a fragment of a tensor", where=what, key=next(iter(files)))
    return ModelRecord(tensors, tuple(others))


def _key(name: str, number: int) -> str:
    """Return the key of a fragment in `storage_data`, as MindFormers writes it."""
    return str((name, (number,)))


def _places(places: Json, what: str, key: str) -> _Places:
    where = f"{what}: {key}"
    fields = [as_object(place, where=what, key=key) for place in as_list(places, where=what, key=key)]
    return [(get_str(place, "file_name", where=where), get_int(place, "storage_rank", where=where)) for place in fields]


def _check_writers(places: Iterable[tuple[str, int]], what: str) -> None:
    """Check that each rank wrote one file per role, and each file is of one rank, in the order of the ranks.

    Raises:
        ParseError: The record assigns a file to two ranks, or a rank's slices to two files of a role.
    """
    ranks: dict[str, int] = {}
    for file, rank in places:
        if ranks.setdefault(file, rank) != rank:
            raise ParseError(f"is assigned to rank {ranks[file]} and to rank {rank}", where=what, key=file)
    writers: dict[str, list[tuple[str, int]]] = {}
    for file, rank in sorted(ranks.items()):  # the numbers in the names have the same length
        start, _, _ = file.rpartition("-")
        writers.setdefault(start.rpartition("-")[0], []).append((file, rank))
    for role in writers.values():
        for (_, before), (file, rank) in pairwise(role):
            if rank <= before:
                raise ParseError(f"is assigned to rank {rank}, out of order", where=what, key=file)


def _numbers_of(fields: JsonObject, where: str) -> list[int]:
    """Return the number of each fragment, in the order of the record."""
    numbers: list[int] = []
    for chunk in get_list(fields, "chunk", where=where):
        number = numbers_at(as_object(chunk, where=where, key="chunk"), "global_offset", where)
        if len(number) != 1:
            raise UnsupportedRecordError(f"a fragment has the numbers {list(number)}")
        numbers += number
    if len(set(numbers)) < len(numbers):
        raise ParseError("has a fragment twice", where=where)
    return numbers


def _tensor(name: str, fields: JsonObject, places: Mapping[int, _Places], where: str) -> FragmentedTensor:
    shape = numbers_at(fields, "global_shape", where)
    cuts = numbers_at(fields, "axis_fragmentations", where)
    properties = get_object(fields, "properties", where=where)
    dtype = dtype_named(get_str(properties, "dtype", where=where))
    if dtype is None or len(shape) > MAX_DIMS:
        raise UnsupportedRecordError(f"tensor {quoted(name)} has a type or a shape that MindSpore does not have")
    if len(cuts) != len(shape) or 0 in cuts:
        raise ParseError(f"divides {len(shape)} axes into {list(cuts)} parts", where=where)
    layout = _layout(fields.get("layout"), name, where)
    if layout is not None and layout.cuts != cuts:
        raise ParseError(f"divides the axes into {list(cuts)}, but its layout into {list(layout.cuts)}", where=where)
    if any(size % cut for size, cut in zip(shape, cuts, strict=True)):
        raise UnsupportedRecordError(f"tensor {quoted(name)} of {list(shape)} is divided unevenly into {list(cuts)}")
    local_shape = tuple(size // cut for size, cut in zip(shape, cuts, strict=True))
    for chunk in get_list(fields, "chunk", where=where):
        recorded = numbers_at(as_object(chunk, where=where, key="chunk"), "local_shape", where)
        if recorded != local_shape:
            raise ParseError(f"has a fragment of {list(recorded)} instead of {list(local_shape)}", where=where)
    fragments = []
    for number in sorted(places):
        if number >= prod(cuts):
            raise ParseError(f"has a fragment {number} of {prod(cuts)}", where=where)
        at = tuple(part * size for part, size in zip(_unravelled(number, cuts), local_shape, strict=True))
        copies = places[number]
        if layout is not None:
            copies = [(file, rank) for file, rank in copies if _is_of(layout, rank, number, where)]
        fragments.append(Fragment(at, tuple(file for file, _ in copies)))
    return FragmentedTensor(dtype, shape, local_shape, tuple(fragments))


def _is_of(layout: _Layout, rank: int, number: int, where: str) -> bool:
    """Return whether a rank has a fragment; a rank of another pipeline stage than the layout's is not used.

    Raises:
        ParseError: The layout assigns another fragment to the rank.
    """
    own = layout.numbers.get(rank)
    if own not in {None, number}:
        raise ParseError(f"assigns fragment {number} to rank {rank}, but its layout assigns {own}", where=where)
    return own is not None


def _layout(value: Json, name: str, where: str) -> _Layout | None:
    """Return a layout; None if the tensor is not divided.

    Raises:
        UnsupportedRecordError: The layout interleaves parts, or uses a dimension of the grid twice.
    """
    if value is None:
        return None
    fields = as_object(value, where=where, key="layout")
    devices = numbers_at(fields, "device_matrix", where)
    ranks = numbers_at(fields, "rank_list", where)
    if get_bool(fields, "interleaved_parallel", where=where):
        raise UnsupportedRecordError(f"the parts of tensor {quoted(name)} are interleaved")
    if len(ranks) != prod(devices) or len(set(ranks)) != len(ranks) or len(devices) > MAX_DIMS:
        raise ParseError(f"has a layout of {list(devices)} for {len(ranks)} ranks", where=where)
    by_axis = []
    for part in get_list(fields, "tensor_map", where=where):
        sides = [as_int(side, minimum=-1, where=where) for side in (part if isinstance(part, list) else [part])]
        by_axis.append(tuple(len(devices) - 1 - side for side in sides if side >= 0))
    used = [side for sides in by_axis for side in sides]
    if len(set(used)) != len(used) or any(side < 0 for side in used):
        raise UnsupportedRecordError(f"the layout of tensor {quoted(name)} divides two axes by the same ranks")
    return _layout_of(devices, tuple(by_axis), ranks)


@lru_cache(maxsize=256)
def _layout_of(devices: tuple[int, ...], by_axis: tuple[tuple[int, ...], ...], ranks: tuple[int, ...]) -> _Layout:
    """Return a layout; cached, because many tensors are divided the same way.

    Args:
        devices: The ranks as a grid, the outermost dimension first.
        by_axis: For each axis, the dimensions of the grid that divide it, slowest first.
        ranks: The ranks in the grid, in row-major order.
    """
    numbers = {}
    for place, rank in enumerate(ranks):
        coordinates = _unravelled(place, devices)
        number = 0
        for side in chain.from_iterable(by_axis):
            number = number * devices[side] + coordinates[side]
        numbers[rank] = number
    return _Layout(tuple(prod(devices[side] for side in sides) for sides in by_axis), numbers)


def _unravelled(number: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the indices of an element, counted in row-major order."""
    indices = []
    for size in reversed(sizes):
        number, index = divmod(number, size)
        indices.append(index)
    return tuple(reversed(indices))
