"""Weights whose parts are in one file per rank, as DTensor, as ShardedTensor, or complete on every rank.

Each part records its place: a DTensor has placements on a mesh of ranks, and a ShardedTensor has offsets.

Source:
    `torch/distributed/tensor/_utils.py` (`_compute_local_shape_and_global_offset`), `placement_types.py`,
    `torch/distributed/device_mesh.py` and `torch/distributed/_shard/sharded_tensor/api.py` (`__setstate__`) of torch
    2.13; older meshes from the code of torch 2.4 to 2.10.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ckpttool.core.domain.weights import Piece, Target
from ckpttool.core.formats.torch.pickle_objects import Global, Made, Tensor
from ckpttool.core.formats.torch.plain import integer_at, value_at
from ckpttool.trainers.export_findings import needs_model, not_understood, unproven

if TYPE_CHECKING:
    from ckpttool.trainers.common.archives import Archive

_MOST_SPLITS = 1 << 16
"""Maximum split factor of a strided placement: the number of ranks in a tensor-parallel group."""
_FLAT = "_flat_param"
"""Name of the buffer in which FSDP 1 stores the parameters of a module with LOCAL_STATE_DICT."""
_SHARDED = "save with SHARDED_STATE_DICT or FULL_STATE_DICT instead of LOCAL_STATE_DICT"
_FULL = "load the save with the trainer, and save the result of `full_tensor()`"
_ONE_SAVE = "restore the files of one save from a copy, or export another checkpoint"


class _Part(NamedTuple):
    """The parts of one weight on one rank."""

    shape: tuple[int, ...]
    """Shape of the complete weight."""
    pieces: Sequence[Piece]


def merged(archives: Sequence[Archive]) -> tuple[Target, ...]:
    """Return the weights of a model, of which each rank has a file.

    Args:
        archives: The files of all ranks, by rank.

    Raises:
        NotExportableError: A part does not show its place, or the files contradict each other.
    """
    trees = [_tree(archive) for archive in archives]
    for archive, tree in zip(archives, trees, strict=True):
        if tree.keys() != trees[0].keys():
            name = min(tree.keys() ^ trees[0].keys())
            message = f"The weight `{name}` is on one of the ranks 0 and {archives.index(archive)} only."
            raise unproven(message, path=archive.path, remedy=_ONE_SAVE)
    return tuple(_target(name, archives, [tree[name] for tree in trees]) for name in trees[0])


def _tree(archive: Archive) -> Mapping[str, object]:
    """Return the tensors in a file, by name."""
    tree = archive.tree
    if not isinstance(tree, dict) or not all(isinstance(name, str) for name in tree):
        raise unproven("The file is not a dictionary of weights.", path=archive.path, remedy=_ONE_SAVE)
    flat = next((name for name in tree if name.rpartition(".")[2] == _FLAT), None)
    if flat is not None:
        message = f"FSDP stored the parameters of a module in one buffer, `{flat}`, whose order only the model shows."
        raise needs_model(message, path=archive.path, remedy=_SHARDED)
    return {name: value for name, value in tree.items() if isinstance(value, (Tensor, Made))}


def _target(name: str, archives: Sequence[Archive], values: Sequence[object]) -> Target:
    parts = [
        _part(name, archive, value, rank) for rank, (archive, value) in enumerate(zip(archives, values, strict=True))
    ]
    pieces = [piece for part in parts for piece in part.pieces]
    dtypes = {piece.dtype for piece in pieces}
    if len({part.shape for part in parts}) > 1 or len(dtypes) > 1:
        message = f"The ranks record different shapes or types for `{name}`."
        raise unproven(message, path=archives[0].path, remedy=_ONE_SAVE)
    if not pieces:
        message = f"No rank has elements of `{name}`."
        raise unproven(message, path=archives[0].path, remedy=_ONE_SAVE)
    _compare_replicas(name, pieces)
    return Target(name=name, dtype=dtypes.pop(), shape=parts[0].shape, pieces=tuple(pieces))


def _compare_replicas(name: str, pieces: Sequence[Piece]) -> None:
    """Refuse copies of a part with different checksums: it is unknown which of them is right."""
    seen: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, str]] = {}
    for piece in pieces:
        record = piece.record
        nbytes = prod(piece.shape) * piece.dtype.bits // 8
        if record is None or record.crc32 is None or nbytes != record.length:
            continue
        crc32, path = seen.setdefault((piece.at, piece.shape), (record.crc32, piece.path))
        if crc32 != record.crc32:
            message = f"The copy of `{name}` in this file differs from that in {path}."
            raise unproven(message, path=piece.path, remedy="compare the ranks with `ckpttool replicas`")


def _part(name: str, archive: Archive, value: object, rank: int) -> _Part:
    """Return the parts that a rank has."""
    if isinstance(value, Tensor):
        return _Part(value.shape, (archive.piece(value),))
    kind, shape = None, None
    if isinstance(value, Made) and isinstance(value.by, Global) and value.by.name == "_rebuild_wrapper_subclass":
        kind, shape = value_at(value.args, 0), _numbers(value_at(value.args, 2))
    if isinstance(value, Made) and shape is not None and isinstance(kind, Global):
        if kind.name == "DTensor":
            return _Part(shape, tuple(_of_dtensor(name, archive, value, shape, rank)))
        if kind.name == "ShardedTensor":
            return _Part(shape, tuple(_of_sharded(name, archive, value, shape, rank)))
    message = f"The weight `{name}` is neither a tensor, nor a DTensor or ShardedTensor."
    raise not_understood(message, path=archive.path, remedy=_FULL)


def _of_sharded(name: str, archive: Archive, value: Made, shape: tuple[int, ...], rank: int) -> Iterator[Piece]:
    """Yield the shards of a ShardedTensor, which record their offsets."""
    shards, metadata, group = (value_at(value.state, index) for index in range(3))
    if _numbers(value_at(metadata, "size")) != shape or integer_at(group, "global_rank") not in {None, rank}:
        raise _misplaced(name, archive)
    for index in range(len(shards) if isinstance(shards, list) else 0):
        tensor = value_at(shards, index, "tensor")
        at, sizes = (_numbers(value_at(shards, index, "metadata", key)) for key in ("shard_offsets", "shard_sizes"))
        if not isinstance(tensor, Tensor) or at is None or tensor.shape != sizes:
            raise _misplaced(name, archive)
        yield archive.piece(tensor, at)


def _of_dtensor(name: str, archive: Archive, value: Made, shape: tuple[int, ...], rank: int) -> Iterator[Piece]:
    """Yield the part of a DTensor on one rank; nothing if the rank has no elements."""
    local, spec = value.members.get("_local_tensor"), value.members.get("_spec")
    runs = [[(0, size)] for size in shape]
    for placement, ranks, index in _placements(name, archive, spec, rank):
        kind = placement.by.name if isinstance(placement, Made) and isinstance(placement.by, Global) else None
        if kind == "Replicate":
            continue
        if kind not in {"Shard", "_StridedShard"}:
            message = f"The weight `{name}` has the placement {kind}, so no rank has the final values of its part."
            raise needs_model(message, path=archive.path, remedy=_FULL)
        axis = integer_at(placement, "dim")
        if axis is None or not 0 <= axis < len(shape):
            raise _misplaced(name, archive)
        splits = 1 if kind == "Shard" else integer_at(placement, "split_factor") or 0
        taken = _taken(runs[axis], ranks, index, splits)
        if taken is None:
            message = f"The weight `{name}` is divided unevenly by a strided placement, of which no place is certain."
            raise needs_model(message, path=archive.path, remedy=_FULL)
        runs[axis] = taken
    if any(len(run) > 1 for run in runs):
        message = f"The rows of the weight `{name}` on one rank are not contiguous."
        raise needs_model(message, path=archive.path, remedy=_FULL)
    box = [run[0] if run else (0, 0) for run in runs]
    lengths = tuple(length for _, length in box)
    is_empty = 0 in lengths and 0 not in shape
    if not isinstance(local, Tensor) or (0 not in local.shape if is_empty else local.shape != lengths):
        raise _misplaced(name, archive)
    if not is_empty:
        yield archive.piece(local, tuple(begin for begin, _ in box))


def _placements(name: str, archive: Archive, spec: object, rank: int) -> Iterator[tuple[object, int, int]]:
    """Yield the placements of a DTensor, each with the size of its axis of the mesh and the rank's place there."""
    mesh, placements = value_at(spec, "mesh"), value_at(spec, "placements")
    sizes, places = _mesh_sizes(mesh), _numbers(value_at(mesh, "_coordinate_on_dim"))
    if not isinstance(placements, (tuple, list)) or sizes is None or places is None:
        raise _misplaced(name, archive)
    fits = len(placements) == len(sizes) == len(places) and all(map(int.__lt__, places, sizes))
    if not fits or integer_at(mesh, "_rank") not in {None, rank} or not _is_in_order(spec):
        raise _misplaced(name, archive)
    yield from zip(placements, sizes, places, strict=True)


def _taken(runs: Sequence[tuple[int, int]], ranks: int, index: int, splits: int) -> list[tuple[int, int]] | None:
    """Return the positions along an axis that a placement gives to a rank.

    Args:
        runs: First position and length of each contiguous run of positions that the placements before have left.
        ranks: Number of ranks along the axis of the mesh.
        index: Place of the rank along that axis.
        splits: Split factor of a strided placement; 1 for a plain one, which divides as `torch.chunk` does.

    Returns:
        The runs; None if the placement is strided and does not divide the positions evenly.
    """
    total = sum(length for _, length in runs)
    if splits != 1 and (not 0 < splits <= _MOST_SPLITS or total % (ranks * splits)):
        return None
    chunk = -(-total // (ranks * splits))
    taken: list[tuple[int, int]] = []
    for begin in range(index * chunk, max(1, total), max(1, ranks * chunk)):
        for first, length in _cut(runs, begin, min(chunk, total - begin)):
            if taken and sum(taken[-1]) == first:
                taken[-1] = (taken[-1][0], taken[-1][1] + length)
            else:
                taken.append((first, length))
    return taken


def _cut(runs: Sequence[tuple[int, int]], begin: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield the runs of the positions from number `begin`."""
    for first, length in runs:
        skipped = min(begin, length)
        taken = min(count, length - skipped)
        if taken > 0:
            yield first + skipped, taken
        begin, count = begin - skipped, count - max(0, taken)


def _mesh_sizes(mesh: object) -> tuple[int, ...] | None:
    """Return the number of ranks along each axis of a mesh; None if unknown."""
    ranks = value_at(mesh, "mesh")  # before torch 2.10
    if isinstance(ranks, Tensor):
        return ranks.shape
    layout = value_at(mesh, "_layout")
    axes = value_at(layout, "axes")
    shapes = [value_at(axis, "shape") for axis in axes] if isinstance(axes, tuple) else value_at(layout, "shape")
    sizes = [_product(shape) for shape in shapes] if isinstance(shapes, (list, tuple)) else [_product(shapes)]
    return _numbers(sizes)


def _product(shape: object) -> int | None:
    """Return the number of ranks in an axis of a layout, which may be joined from several axes."""
    if isinstance(shape, tuple):
        numbers = _numbers(shape)
        return None if numbers is None else prod(numbers)
    return shape if type(shape) is int else None


def _is_in_order(spec: object) -> bool:
    """Return whether the placements of each axis are applied from left to right, as always before torch 2.10."""
    order = value_at(spec, "shard_order")
    for entry in order if isinstance(order, tuple) else ():
        axes = _numbers(entry.args[-1]) if isinstance(entry, Made) and entry.args else None
        if axes is None or list(axes) != sorted(axes):
            return False
    return True


def _numbers(values: object) -> tuple[int, ...] | None:
    """Return the counts in a list or tuple; None if there are other values."""
    if not isinstance(values, (list, tuple)) or any(type(value) is not int or value < 0 for value in values):
        return None
    return tuple(values)


def _misplaced(name: str, archive: Archive) -> Exception:
    """Return the refusal of a part whose place is unknown, or contradicts its shape or its rank."""
    message = f"The record of the place of `{name}` on this rank is missing, or contradicts its shape or its rank."
    return unproven(message, path=archive.path, remedy=_ONE_SAVE)
