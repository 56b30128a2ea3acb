"""The `.metadata` of torch.distributed.checkpoint: the file and tensor of each slice. It is never unpickled.

Source: `torch/distributed/checkpoint/{metadata,filesystem,planner}.py` of torch 2.13, as Python 3.11 pickles it. Other
programs also store their save plans in this file.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError, Global, Made
from ckpttool.core.formats.torch.slice_machine import (
    ALL,
    BYTES,
    CHUNK,
    INDEX,
    INFO,
    TENSOR,
    Chunk,
    Numbers,
    Slice,
    SliceMachine,
    numbers_in,
)
from ckpttool.core.storage.base import Storage

MOST_METADATA_BYTES = 256 << 20
"""Maximum size of a `.metadata` in bytes; a file with 512,000 slices has 90 MB."""


class SplitTensor(NamedTuple):
    """A tensor, and its division into parts."""

    dtype: str | None
    """Name of the type in torch; None if the value is not a type."""
    shape: Numbers
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DcpMetadata:
    """Contents of a `.metadata`."""

    tensors: Mapping[str, SplitTensor]
    """Tensors by name, in file order."""
    values: tuple[str, ...]
    """Names of values that are not tensors, in file order."""
    slices: tuple[Slice, ...]
    """Slices in file order."""
    calls: tuple[Global, ...]
    """Every class and function that loading the file would import, sorted."""
    paths: Mapping[str, tuple[object, ...]] | None = None
    """Keys of each name in the saved object; None if not requested, or if the writer records none.

    Only this shows which dots of a name are keys: `model.0.weight` may be `0.weight` of `model`.
    """


def read_dcp_metadata(data: bytes, *, with_paths: bool = False) -> DcpMetadata:
    """Parse a `.metadata`.

    Args:
        data: The complete file.
        with_paths: Whether to keep the keys of each name.

    Raises:
        BrokenPickleError: The file is incomplete, or not from torch.distributed.checkpoint.
    """
    machine = SliceMachine(data)
    with _without_collector():
        tree = machine.run()
    if not isinstance(tree, Made) or tree.by != ALL:
        raise BrokenPickleError("it is not metadata of torch.distributed.checkpoint")
    root = tree.members
    declared, stored = root.get("state_dict_metadata"), root.get("storage_data")
    if not isinstance(declared, dict) or not isinstance(stored, dict):
        raise BrokenPickleError("it does not list the slices")
    tensors = {
        name: _tensor(value) for name, value in declared.items() if isinstance(name, str) and not _is_value(value)
    }
    values = tuple(name for name, value in declared.items() if isinstance(name, str) and _is_value(value))
    first = tuple(_slice(key, info) for key, info in stored.items())
    return DcpMetadata(
        tensors=tensors,
        values=values,
        slices=(*first, *machine.slices),
        calls=tuple(sorted(machine.calls)),
        paths=_paths(root.get("planner_data")) if with_paths else None,
    )


def _paths(recorded: object) -> dict[str, tuple[object, ...]] | None:
    if not isinstance(recorded, dict):
        return None
    return {name: keys for name, keys in recorded.items() if isinstance(name, str) and isinstance(keys, tuple)}


@contextmanager
def _without_collector() -> Iterator[None]:
    """Disable garbage collection in this block, because it would take longer than creating a million small values."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def slice_names(storage: Storage, path: str) -> dict[int, str]:
    """Return the names of the slices of a `.distcp`, by their first bytes, from the `.metadata` next to it.

    A part of a tensor is named after its position: `model.weight (part 2 of 8)`.

    Returns:
        The names; empty if the `.metadata` does not exist or cannot be read.
    """
    folder, _, name = path.rpartition("/")
    record = f"{folder}/.metadata" if folder else ".metadata"
    try:
        metadata = read_dcp_metadata(storage.small_file(record, limit=MOST_METADATA_BYTES))
    except (OSError, BrokenPickleError):
        return {}
    parts: dict[str, list[Slice]] = defaultdict(list)
    for slice_ in sorted(metadata.slices):
        parts[slice_.name].append(slice_)
    names: dict[int, str] = {}
    for fqn, slices in parts.items():
        for number, slice_ in enumerate(slices, 1):
            if slice_.path == name:
                names[slice_.offset] = fqn if len(slices) == 1 else f"{fqn} (part {number} of {len(slices)})"
    return names


def _is_value(declared: object) -> bool:
    return isinstance(declared, Made) and declared.by == BYTES


def _tensor(declared: object) -> SplitTensor:
    fields = declared.members if isinstance(declared, Made) and declared.by == TENSOR else {}
    shape, parts, properties = fields.get("size"), fields.get("chunks"), fields.get("properties")
    if not isinstance(parts, list):
        raise BrokenPickleError("it does not list the parts of a tensor")
    chunks = tuple(part if isinstance(part, Chunk) else _chunk(part) for part in parts)
    state = properties.state if isinstance(properties, Made) else properties
    dtype = state[0] if isinstance(state, tuple) and state else None
    return SplitTensor(dtype.name if isinstance(dtype, Global) else None, numbers_in(shape), chunks)


def _chunk(made: object) -> Chunk:
    fields = made.members if isinstance(made, Made) and made.by == CHUNK else {}
    return Chunk(numbers_in(fields.get("offsets")), numbers_in(fields.get("sizes")))


def _slice(key: object, info: object) -> Slice:
    index = key.members if isinstance(key, Made) and key.by == INDEX else {}
    place = info.members if isinstance(info, Made) and info.by == INFO else {}
    name, path = index.get("fqn"), place.get("relative_path")
    if not isinstance(name, str) or not isinstance(path, str):
        raise BrokenPickleError("it does not record the place of a slice")
    offset, length = numbers_in((place.get("offset"), place.get("length")))
    at = index.get("offset")
    offsets = () if at is None else numbers_in(at)
    return Slice(name, path, offset, length, bool(place.get("transform_descriptors")), offsets)
