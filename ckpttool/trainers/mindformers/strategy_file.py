"""MindSpore's strategy files, and the slice of each tensor on each rank according to them.

They record how the parameters of a pipeline stage are distributed over its ranks. Each rank has a file, equal for all
ranks of a stage. The file is written when a model is compiled for training: before the first save, not with each save.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple, TypeVar

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.replicas import RecordedSlices
from ckpttool.core.domain.units import Rank
from ckpttool.core.formats.protobuf import WireError, fields, signed, varints
from ckpttool.core.formats.strict_json import (
    JsonObject,
    ParseError,
    as_int,
    as_object,
    get_int,
    get_list,
    get_object,
    parse_object,
)
from ckpttool.core.storage import above, open_storage
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.mindformers.strategy import STRATEGY_FOLDER, strategy_files

_T = TypeVar("_T")

MOST_PARAMETERS = 100_000
"""Maximum number of a stage's parameters. The largest models have tens of thousands, including optimizer states."""

STRATEGY_LIMIT = 8 << 20
"""Maximum size in bytes. A real file has about 60 per parameter and optimizer state."""

MOST_ARRANGEMENTS = 64
"""Maximum number of ways to distribute a stage's tensors; a model has about ten."""

MOST_LOST = 4
"""Maximum number of a stage's ranks per existing shard, so that a number in a file cannot cause a long count."""

_MOST_RANKS, _MOST_SIDES = 1 << 20, 32
"""Maximum size of a grid, and of its number of dimensions, both far above those of any model."""


class SavedLayout(NamedTuple):
    """The distribution of one parameter over the ranks of its stage."""

    devices: tuple[int, ...]
    """The ranks as a grid, the outermost dimension first."""
    sliced_by: tuple[int, ...]
    """Dimensions of the grid along which the parameter is sliced, counted from 0 for the innermost."""
    step: int
    """Distance between ranks that divide one slice, if the optimizer's states are sharded."""
    sharers: int
    """Number of ranks that divide one slice; 0 if each rank has all of it, -1 for all ranks with the same slice."""

    @property
    def slice_of(self) -> Callable[[int], tuple[int, ...]] | None:
        """A function from a rank, counted from the first of its stage, to its slice; None if unknown."""
        sides = len(self.devices)
        by = [sides - 1 - side for side in self.sliced_by]
        if len(set(by)) < len(by) or any(side < 0 for side in by):
            return None
        strides = [prod(self.devices[side + 1 :]) for side in range(sides)]
        axes = [(strides[side], self.devices[side]) for side in by]
        if self.sharers:
            rest = [side for side in range(sides) if side not in by and self.devices[side] > 1]
            if not rest or self.step != strides[rest[-1]]:
                return None
            shared = self._shared_along([(strides[side], self.devices[side]) for side in rest[::-1]])
            if shared is None:
                return None
            axes += shared
        return lambda rank: tuple([rank // stride % size for stride, size in axes])

    def _shared_along(self, rest: Iterable[tuple[int, int]]) -> list[tuple[int, int]] | None:
        """Return the dimensions over which a slice is divided, innermost first as in MindSpore; None if unknown."""
        axes = []
        remaining = max(0, self.sharers)
        for stride, size in rest:
            part = min(size, remaining) if remaining else size
            if size % part or remaining % part:
                return None
            axes.append((stride, part))
            remaining //= part
            if remaining == 1:
                return axes
        return None if remaining else axes


class StageStrategy(NamedTuple):
    """The contents of a strategy file."""

    stage: int
    ranks: int
    """Number of ranks in the stage."""
    layouts: Mapping[str, SavedLayout]
    """Layouts by parameter; unknown layouts are omitted."""

    @property
    def own_ranks(self) -> range:
        """The ranks of the stage, as numbered in the complete training run."""
        return range(self.stage * self.ranks, (self.stage + 1) * self.ranks)


def parse_strategy(data: bytes, *, where: str) -> StageStrategy:
    """Parse a strategy file of either form; the file's name shows which form it has.

    Raises:
        ParseError: The file is invalid, or contains no parameter.
    """
    try:
        stages, stages_layouts = (_of_json if where.endswith(".json") else _of_protobuf)(data, where)
        layouts = dict(stages_layouts)
    except WireError as error:
        raise ParseError(str(error), where=where) from None
    sizes = {prod(layout.devices) for layout in layouts.values() if layout is not None}
    if len(sizes) != 1 or len(set(stages)) != 1:
        raise ParseError("does not describe exactly one pipeline stage", where=where)
    known_layouts = {name: layout for name, layout in layouts.items() if layout is not None}
    return StageStrategy(stage=stages[0], ranks=sizes.pop(), layouts=known_layouts)


_Told = tuple[list[int], Iterator[tuple[str, SavedLayout | None]]]
"""The stages that a strategy file names, and the layout of each parameter."""

_STRATEGIES, _LAYOUTS = 2 * 8 + 2, 3 * 8 + 2
"""Keys of `ParallelStrategyMap`: the operators' strategies, each with its stage, and the parameters' layouts."""
_NAME, _CONTENT = 1 * 8 + 2, 2 * 8 + 2
"""Keys of an item in either of these maps."""
_STAGE = 1 * 8
_GRID, _TENSOR_MAP, _SPLIT_SHAPE, _OFFSETS, _FIELD, _STEP, _SHARERS = 10, 18, 26, 34, 40, 48, 56
"""Keys of `ParallelLayouts`, in the order of the message's fields."""
_DIM, _DIMS = 1 * 8, 1 * 8 + 2
"""Keys of a list of numbers: one by one as MindSpore writes them, or packed."""


def _of_protobuf(data: bytes, where: str) -> _Told:
    record = _Message(data)
    stages = [_Message(item).message(_CONTENT).number(_STAGE) for item in record.every(_STRATEGIES)]
    items = [_Message(item) for item in record.every(_LAYOUTS)]
    layouts = {item.text(_NAME): item.message(_CONTENT) for item in items}
    if len(layouts) < len(items):
        raise ParseError("has a parameter twice", where=where)
    return stages, ((name, _layout(layout)) for name, layout in layouts.items())


def _layout(layout: _Message) -> SavedLayout | None:
    grids = [_dims(grid) for grid in layout.every(_GRID)]
    sides = [side for part in layout.every(_TENSOR_MAP) for side in _dims(part)]
    unsupported = [_dims(part) for key in (_SPLIT_SHAPE, _OFFSETS) for part in layout.every(key)]
    field, step, sharers = (layout.number(key) for key in (_FIELD, _STEP, _SHARERS))
    return None if len(grids) != 1 or any(unsupported) else _saved_layout(grids[0], sides, field, step, sharers)


def _dims(message: bytes) -> list[int]:
    record = _Message(message)
    packed = (number for dims in record.every(_DIMS) for number in varints(dims))
    return [signed(number) for number in (*record.numbers(_DIM), *packed)]


class _Message:
    """The fields of a message; a key includes the wire type."""

    def __init__(self, message: bytes) -> None:
        self._numbers: dict[int, list[int]] = {}
        self._parts: dict[int, list[bytes]] = {}
        for key, value in fields(message):
            if isinstance(value, int):
                self._numbers.setdefault(key, []).append(value)
            else:
                self._parts.setdefault(key, []).append(value)

    def numbers(self, key: int) -> list[int]:
        return self._numbers.get(key, [])

    def number(self, key: int) -> int:
        (number,) = self._once(self.numbers(key))
        return signed(number)

    def every(self, key: int) -> list[bytes]:
        parts = self._parts.get(key, [])
        if len(parts) > MOST_PARAMETERS:
            raise WireError(f"has more than {MOST_PARAMETERS} of a kind")
        return parts

    def message(self, key: int) -> _Message:
        return _Message(*self._once(self.every(key)))

    def text(self, key: int) -> str:
        (text,) = self._once(self.every(key))
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise WireError("a name is not UTF-8") from None

    @staticmethod
    def _once(values: list[_T]) -> list[_T]:
        if len(values) != 1:
            raise WireError(f"a field occurs {len(values)} times, not once")
        return values


def _of_json(data: bytes, where: str) -> _Told:
    record = parse_object(data, where=where)
    operators = get_object(record, "parallel_strategy_item", where=where)
    stages = [
        get_int(as_object(operator, where=where, key=key), "stage", where=where) for key, operator in operators.items()
    ]
    items = get_object(record, "parallel_layout_item", where=where)
    return stages, ((name, _json_layout(as_object(item, where=where, key=name), where)) for name, item in items.items())


def _json_layout(layout: JsonObject, where: str) -> SavedLayout | None:
    grid = [as_int(size, where=where, key="dev_matrix") for size in get_list(layout, "dev_matrix", where=where)]
    sides = [
        as_int(side, minimum=None, where=where, key="tensor_map")
        for part in get_list(layout, "tensor_map", where=where)
        for side in (part if isinstance(part, list) else [part])
    ]
    unsupported = [layout.get(key) for key in ("param_split_shape", "indices_offset")]
    names = ("field", "opt_weight_shard_step", "opt_weight_shard_size")
    field, step, sharers = (get_int(layout, name, minimum=None, where=where) for name in names)
    return None if any(unsupported) else _saved_layout(grid, sides, field, step, sharers)


def _saved_layout(grid: Sequence[int], sides: Sequence[int], field: int, step: int, sharers: int) -> SavedLayout | None:
    """Return a layout; None if its features are unknown, such as an embedding by fields or an unknown grid."""
    is_grid = 0 < len(grid) <= _MOST_SIDES and all(0 < size <= _MOST_RANKS for size in grid)
    if field or not is_grid or sharers < -1 or any(not -1 <= side < len(grid) for side in sides):
        return None
    layout = SavedLayout(tuple(grid), tuple(side for side in sides if side >= 0), step, sharers)
    return None if layout.slice_of is None else layout


# Slices of a save according to the files next to a tree ---------------------------------------------------------------


def strategy_slices(storage: Storage, checkpoint: Checkpoint) -> RecordedSlices | None:
    """Return the slices of a checkpoint from the strategy files; None if these are missing or not reliable.

    MindSpore writes the same file for all ranks of a stage: two files per stage are read, and they must agree. The next
    start of the training overwrites them: a file that is newer than the checkpoint belongs to a different start, which
    may have had a different arrangement.

    Args:
        storage: The tree, next to the folder of the strategy files.
        checkpoint: A checkpoint with one file per rank.

    Raises:
        OSError: The disk could not be read.
    """
    output = open_storage(above(storage.root))
    paths = strategy_files(output)
    ranks = checkpoint.ranks
    if not _are_of_one_world(ranks, paths):
        return None
    stages = list(_stages(output, {rank: paths[rank] for rank in ranks if rank in paths}, storage, checkpoint))
    every = {rank for stage in stages for rank in stage.own_ranks}
    # If a side of the grid does not count ranks, as with interleaved operators, the grid has more positions than ranks.
    if not set(ranks) <= every or max(every) > max(paths):
        return None
    return RecordedSlices(source=f"../{STRATEGY_FOLDER}", slices=_slices(stages), is_of_save=False)


def _are_of_one_world(saved: Collection[Rank], ranks: Collection[Rank]) -> bool:
    """Return whether the saved ranks may belong to a run on the given ranks, of which a few shards may be lost."""
    world = max(ranks, default=-1) + 1
    return max(saved, default=world) < world and (2 * len(saved) > world or world - len(saved) == 1)


def _stages(
    output: Storage, paths: Mapping[Rank, str], storage: Storage, checkpoint: Checkpoint
) -> Iterator[StageStrategy]:
    remaining = sorted(paths)
    while remaining:
        first = _read(output, paths[remaining[0]])
        if first is None or remaining[0] // first.ranks != first.stage or first.ranks > MOST_LOST * len(paths):
            remaining = remaining[1:]
            continue
        stage_ranks = [rank for rank in remaining if rank in first.own_ranks]
        remaining = remaining[len(stage_ranks) :]
        is_agreed = len(stage_ranks) > 1 and _read(output, paths[stage_ranks[-1]]) == first
        if is_agreed and all(
            _is_of(output, paths[rank], storage, checkpoint, rank) for rank in (stage_ranks[0], stage_ranks[-1])
        ):
            yield first


def _read(output: Storage, path: str) -> StageStrategy | None:
    try:
        return parse_strategy(output.small_file(path, limit=STRATEGY_LIMIT), where=path)
    except (OSError, ParseError):  # an unreadable file proves nothing
        return None


def _is_of(output: Storage, path: str, storage: Storage, checkpoint: Checkpoint, rank: Rank) -> bool:
    """Return whether a rank's strategy file is not newer than the rank's shards."""
    written = output.stamp(path).modified_ns
    for shard in checkpoint.shards:
        if shard.rank == rank:
            saved = (shard.stamp or storage.stamp(shard.path)).modified_ns
            if written is None or saved is None or written > saved:
                return False
    return True


def _slices(stages: Iterable[StageStrategy]) -> dict[str, Mapping[Rank, int]]:
    """Return each tensor's slices by rank.

    Each slice is numbered by its first rank, so that the numbers differ between stages.
    """
    slices: dict[str, Mapping[Rank, int]] = {}
    for stage in stages:
        by_layout: dict[SavedLayout, Mapping[Rank, int]] = {}
        for name, layout in stage.layouts.items():
            if layout not in by_layout and len(by_layout) < MOST_ARRANGEMENTS:
                by_layout[layout] = _numbered(stage, layout)
            if layout in by_layout:
                slices_before = slices.get(name)
                slices[name] = by_layout[layout] if slices_before is None else {**slices_before, **by_layout[layout]}
    return slices


def _numbered(stage: StageStrategy, layout: SavedLayout) -> dict[Rank, int]:
    slice_of, ranks = layout.slice_of, stage.own_ranks
    if slice_of is None:
        return {}
    first: dict[tuple[int, ...], int] = {}
    return {Rank(rank): first.setdefault(slice_of(rank - ranks[0]), rank) for rank in ranks}
