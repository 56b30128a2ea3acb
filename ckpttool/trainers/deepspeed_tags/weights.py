"""The weights in a tag: FP32 master weights, which ZeRO divides over the ranks, or the 16-bit copy.

Only records and pickles are read. The names of files and of parameters, and the order of parameters in flat buffers,
are those of DeepSpeed.

Source:
    `deepspeed/utils/zero_to_fp32.py` and `_common_checkpoint_state` of `deepspeed/runtime/engine.py` 0.19.8. Unlike
    `zero_to_fp32`, frozen parameters of stage 1 are found: they are complete in `module`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.weights import LeftOut, Piece, Target, Weights
from ckpttool.core.formats.torch.pickle_objects import Made, Tensor
from ckpttool.core.formats.torch.plain import integer_at, value_at
from ckpttool.trainers.common.archives import Archive, read_archive
from ckpttool.trainers.deepspeed_tags import StatesFile, parse
from ckpttool.trainers.export_findings import incomplete, needs_model, not_in_output, not_understood, unproven

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.weights import WeightsRequest
    from ckpttool.core.storage.base import Storage

_WEIGHTS_DIVIDED = 3
_STATE = "optimizer_state_dict"
_FLAT = {1: "single_partition_of_fp32_groups", 2: "single_partition_of_fp32_groups", 3: "fp32_flat_groups"}
_SHAPES, _FROZEN_SHAPES = "param_shapes", "frozen_param_shapes"
_SAME_ON_ALL_RANKS = (_SHAPES, _FROZEN_SHAPES, "global_steps", "dp_world_size")
_UNIVERSAL = "convert the save with `ds_to_universal.py` of DeepSpeed, which merges the parts of each parameter"
_RESTORE = "restore the file from a copy, or export another checkpoint"
_ONE_SAVE = "restore the files of one save from a copy, or export another checkpoint"
_NO_COPY = "ZeRO 3 saves no 16-bit copy of the weights, so the FP32 master weights are exported"
_COPY = "--half exports the complete 16-bit weights in the model file"
_MOST_STEP_BYTES = 8
"""Maximum size of a record that has only a number of steps."""
_FLOATS = frozenset({DType.F64, DType.F32, DType.BF16, DType.F16, DType.F8_E4M3, DType.F8_E5M2})

_Shapes: TypeAlias = dict[str, tuple[int, ...]]


class _Run(NamedTuple):
    """A tensor with one axis, as a part of a flat buffer."""

    file: Archive
    tensor: Tensor


class _Flat:
    """A buffer that consists of several tensors."""

    def __init__(self, runs: Sequence[_Run]) -> None:
        self._runs = runs
        self._ends = list(accumulate(run.tensor.shape[0] for run in runs))
        self.numel = self._ends[-1] if self._ends else 0

    def pieces(self, begin: int, numel: int, at: int) -> Iterator[Piece]:
        """Yield the pieces of a weight whose elements `at` and following begin at `begin` in the buffer."""
        index = bisect_right(self._ends, begin)
        while numel > 0 and index < len(self._runs):
            file, tensor = self._runs[index]
            first = begin - self._ends[index] + tensor.shape[0]
            count = min(numel, tensor.shape[0] - first)
            yield file.piece(tensor._replace(offset=tensor.offset + first, shape=(count,)), (at,))
            begin, numel, at = begin + count, numel - count, at + count
            index += 1


def tags_in(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the folders of a save's tags, by their own names; empty if it was not written with DeepSpeed."""
    parted = (shard.path.rpartition("/") for shard in checkpoint.shards)
    folders = sorted({folder for folder, _, name in parted if parse(name) is not None})
    return {folder.rpartition("/")[2]: folder for folder in folders}


def tag_weights(storage: Storage, folder: str, request: WeightsRequest, *, names_of: str, drops: str = "") -> Weights:
    """Return the weights in a tag.

    Args:
        storage: The tree.
        folder: Path of the tag's folder.
        request: The user's choice of weights.
        names_of: Origin of the parameters' names.
        drops: Prefix of parameter names that the trainer's own converter removes.

    Raises:
        NotExportableError: The weights cannot be exported.
        OSError: The disk could not be read.
    """
    tag = _Tag(storage, folder)
    takes_copy = tag.stage == 0 or (request.is_16bit and tag.stage != _WEIGHTS_DIVIDED)
    found = {} if takes_copy else tag.masters()
    tied, absent = tag.complete(found, floats=None if takes_copy else DType.F32)
    place = {name: index for index, name in enumerate(tag.module)}
    ordered = sorted(found, key=lambda name: place.get(name, len(place)))
    targets = tuple(replace(found[name], name=name.removeprefix(drops)) for name in ordered)
    if len({target.name for target in targets}) < len(targets):
        raise incomplete(
            f"Two parameters have the same name without the prefix {drops!r}.", path=folder, remedy=_RESTORE
        )
    return Weights(
        targets=targets,
        names_of=names_of,
        is_loadable=None,
        tied={alias.removeprefix(drops): name.removeprefix(drops) for alias, name in tied.items()} or None,
        left_out=(LeftOut(kind="entries without elements", names=absent),) if absent else (),
        records=tuple(record for file in (*tag.models, *tag.optimizers) for record in file.records),
        findings=(not_in_output(_NO_COPY, remedy="--dtype bf16 writes 16-bit weights"),)
        if request.is_16bit and tag.stage == _WEIGHTS_DIVIDED
        else (),
    )


class _Tag:
    """The files of a tag, which are checked against each other."""

    def __init__(self, storage: Storage, folder: str) -> None:
        models, optimizers = _files(storage, folder)
        self.folder = folder
        trees: dict[bytes, object] = {}
        self.models = [_read(storage, path, trees) for path in models]
        self.optimizers = [_read(storage, path, trees) for path in optimizers]
        self._values = self.models[0].tree
        module = value_at(self._values, "module")
        if not isinstance(module, dict):
            raise incomplete("The model file has no `module`.", path=self.models[0].path, remedy=_RESTORE)
        self.module = {name: value for name, value in module.items() if isinstance(name, str)}
        self.stage = self._stage()
        self._check_form()
        self._check_ranks()

    def _stage(self) -> int | None:
        """Return the ZeRO stage; 0 if the model file alone has the weights, None if no record shows it."""
        stages = [_stage_of(value_at(file.tree, _STATE, "zero_stage")) for file in self.optimizers]
        if len(set(stages)) > 1:
            raise unproven(
                "The ranks have optimizer states of different ZeRO stages.", path=self.folder, remedy=_ONE_SAVE
            )
        stage = stages[0] if stages else 0
        is_divided = "/zero_pp_rank_" in self.models[0].path
        if is_divided != (stage == _WEIGHTS_DIVIDED):
            message = f"The folder has model files of ZeRO {3 if is_divided else '0 to 2'}, and optimizer states of "
            raise unproven(f"{message}{stage if stages else 'no rank'}.", path=self.folder, remedy=_ONE_SAVE)
        return stage

    def _check_form(self) -> None:
        """Refuse weights in forms that `zero_to_fp32` does not read, or reads wrongly."""
        for layers in (value_at(self._values, key) for key in ("ds_autoep_layers", "autoep_layers")):
            if isinstance(layers, list) and layers:
                raise needs_model(
                    "AutoEP divided the experts over groups of ranks.", path=self.folder, remedy=_UNIVERSAL
                )
        if value_at(self._values, "ds_config", "zero_optimization", "zero_quantized_nontrainable_weights"):
            raise not_understood(
                "The frozen weights are quantized.", path=self.folder, remedy="load the save with DeepSpeed"
            )

    def _check_ranks(self) -> None:
        """Refuse files of different saves, and numbers of ranks that contradict each other.

        Source: `parse_optim_states` of `zero_to_fp32.py`.
        """
        for key in _SAME_ON_ALL_RANKS:
            for file in self.models[1:]:
                if value_at(file.tree, key) != value_at(self._values, key):
                    raise unproven(f"`{key}` differs between this file and rank 0's.", path=file.path, remedy=_ONE_SAVE)
        if len({_steps_of(file) for file in self.optimizers} - {None}) > 1:
            message = "The optimizer states of the ranks have made different numbers of steps."
            raise unproven(message, path=self.folder, remedy=_ONE_SAVE)
        if not self.stage:
            return
        world = len(self.optimizers)
        recorded = {path: set(counts) for path, counts in self._recorded_worlds()}
        if self.stage == _WEIGHTS_DIVIDED:
            recorded[self.folder] = {len(self.models)}
        for path, counts in recorded.items():
            if len(counts) > 1:
                raise needs_model(
                    "The groups of parameters are divided over different numbers of ranks.",
                    path=path,
                    remedy=_UNIVERSAL,
                )
            if counts != {world}:
                message = f"The save has {world} files of optimizer state, and is of {min(counts, default=0)} ranks."
                raise incomplete(
                    message, path=path, remedy="restore the missing files, or move files of another save away"
                )

    def _recorded_worlds(self) -> Iterator[tuple[str, list[int]]]:
        """Yield the numbers of data-parallel ranks that each file records, one per group of parameters."""
        replicas = integer_at(self._values, "dp_world_size")
        yield self.models[0].path, [len(self.optimizers) if replicas is None else replicas]
        for file in self.optimizers:
            counts = value_at(file.tree, _STATE, "partition_count")
            yield file.path, _integers(counts if isinstance(counts, list) else [counts], file)

    def masters(self) -> dict[str, Target]:
        """Return the trained weights, from the optimizer's own copy, by name."""
        if self.stage is None:
            message = "The FP32 weights are in the state of another optimizer than ZeRO's, whose order is unknown."
            raise not_understood(message, path=self.optimizers[0].path, remedy=_COPY)
        groups = value_at(self._values, _SHAPES)
        if not isinstance(groups, list):
            raise incomplete(f"The model file has no `{_SHAPES}`.", path=self.models[0].path, remedy=_RESTORE)
        shapes = [_shapes(group, self.models[0]) for group in groups]
        if sum(map(len, shapes)) > len({name for group in shapes for name in group}):
            raise incomplete(f"A parameter is in two groups of `{_SHAPES}`.", path=self.models[0].path, remedy=_RESTORE)
        found = {}
        placed = self._divided(shapes) if self.stage == _WEIGHTS_DIVIDED else self._joined(shapes)
        for name, shape, pieces in placed:
            found[name] = _flat_target(name, shape, pieces, self.folder)
            self._check_shape(name, shape)
        return found | self._frozen()

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Refuse a shape that differs from that of the 16-bit copy."""
        copy = self.module.get(name)
        if self.stage != _WEIGHTS_DIVIDED and isinstance(copy, Tensor) and copy.shape != shape:
            raise incomplete(
                f"`{name}` has the shape {shape} in `{_SHAPES}`, and {copy.shape} in `module`.",
                path=self.folder,
                remedy=_RESTORE,
            )

    def _joined(self, groups: Sequence[_Shapes]) -> Iterator[tuple[str, tuple[int, ...], list[Piece]]]:
        """Yield the weights of ZeRO 1 and 2: each group is one buffer, of which each rank has a part.

        Source: `_zero2_merge_trainable_params`.
        """
        ranks = [_flat_groups(file, _FLAT[1], len(groups)) for file in self.optimizers]
        paddings = value_at(self.optimizers[0].tree, _STATE, "param_alignment_paddings")
        align = 2 * len(ranks)
        for index, shapes in enumerate(groups):
            flat = _Flat([_Run(file, rank[index]) for file, rank in zip(self.optimizers, ranks, strict=True)])
            padding = [0] * len(shapes)
            if paddings is not None:
                padding = _integers(value_at(paddings, index), self.optimizers[0])
            if len(padding) != len(shapes):
                raise incomplete(
                    "The number of paddings differs from that of parameters.",
                    path=self.optimizers[0].path,
                    remedy=_RESTORE,
                )
            begin = 0
            for (name, shape), gap in zip(shapes.items(), padding, strict=True):
                yield name, shape, list(flat.pieces(begin, prod(shape), 0))
                begin += prod(shape) + gap
            if -(-begin // align) != -(-flat.numel // align):
                self._refuse_sum(begin, flat.numel)

    def _divided(self, groups: Sequence[_Shapes]) -> Iterator[tuple[str, tuple[int, ...], list[Piece]]]:
        """Yield the weights of ZeRO 3: each rank has an equal part of each parameter, the last ones with padding.

        Source: `_zero3_merge_trainable_params`, and `zero3_partitioned_param_info`.
        """
        ranks = [_flat_groups(file, _FLAT[3], None) for file in self.optimizers]
        if len({tuple(tensor.shape for tensor in rank) for rank in ranks}) > 1:
            raise unproven("The buffers of the ranks have different sizes.", path=self.folder, remedy=_ONE_SAVE)
        flats = [
            _Flat([_Run(file, tensor) for tensor in rank]) for file, rank in zip(self.optimizers, ranks, strict=True)
        ]
        begin = 0
        for name, shape in ((name, shape) for shapes in groups for name, shape in shapes.items()):
            numel = prod(shape)
            part = -(-numel // len(flats))
            places = ((flat, index * part) for index, flat in enumerate(flats))
            pieces = [piece for flat, at in places for piece in flat.pieces(begin, max(0, min(part, numel - at)), at)]
            yield name, shape, pieces
            begin += part
        if begin != flats[0].numel:
            self._refuse_sum(begin, flats[0].numel)

    def _refuse_sum(self, used: int, numel: int) -> None:
        message = f"The parameters have {used} elements with their padding, and the buffer has {numel}."
        raise incomplete(message, path=self.folder, remedy="export another checkpoint, or restore this one from a copy")

    def _frozen(self) -> dict[str, Target]:
        """Return the frozen weights that are recorded as such, in their own element type.

        Source: `_zero2_merge_frozen_params` and `_zero3_merge_frozen_params`.
        """
        recorded = value_at(self._values, _FROZEN_SHAPES)
        shapes = _shapes(recorded, self.models[0]) if recorded is not None else {}
        found = {}
        for name, shape in shapes.items():
            parts = [_Run(file, _tensor(file, "frozen_param_fragments", name)) for file in self.models]
            if self.stage != _WEIGHTS_DIVIDED:
                found[name] = _undivided_target(name, parts[0])
                if found[name].shape != shape:
                    raise incomplete(f"`{name}` has two shapes.", path=parts[0].file.path, remedy=_RESTORE)
                continue
            part = -(-prod(shape) // len(parts))
            if any(run.tensor.shape != (part,) or not _is_dense(run.tensor) for run in parts):
                message = f"The parts of `{name}` do not have {part} elements each."
                raise incomplete(message, path=self.folder, remedy=_UNIVERSAL)
            found[name] = _flat_target(name, shape, list(_Flat(parts).pieces(0, prod(shape), 0)), self.folder)
        return found

    def complete(self, found: dict[str, Target], *, floats: DType | None) -> tuple[dict[str, str], tuple[str, ...]]:
        """Add the weights that are complete in the model file: buffers, and parameters without an optimizer.

        Args:
            found: Weights by name, to which weights are added.
            floats: Element type of buffers with floats; None for their own.

        Returns:
            The names of shared weights, each with the name under which the weights are in `found`; and the names
            without any elements.
        """
        shared = _texts(value_at(self._values, "shared_params"))
        buffers = value_at(self._values, "buffer_names")
        buffer_names = set(buffers) if isinstance(buffers, list) else set()
        tied, absent = {}, []
        views: dict[Tensor, str] = {}
        for name, tensor in self.module.items():
            if name in found:
                continue
            if name in shared and shared[name] in found and self._fits(tensor, found[shared[name]]):
                tied[name] = shared[name]
            elif not isinstance(tensor, Tensor) or (self.stage == _WEIGHTS_DIVIDED and tensor.shape == (0,)):
                absent.append(name)
            elif prod(tensor.shape) and tensor in views:
                tied[name] = views[tensor]
            else:
                views[tensor] = name
                target = _undivided_target(name, _Run(self.models[0], tensor))
                if floats is not None and name in buffer_names and target.dtype in _FLOATS:
                    target = replace(target, dtype=floats)
                found[name] = target
        return tied, tuple(absent)

    def _fits(self, tensor: object, target: Target) -> bool:
        """Return whether a name of shared weights has their shape, because weights without elements are never shared.

        ZeRO 3 keeps no shape in the model file.
        """
        return self.stage == _WEIGHTS_DIVIDED or (isinstance(tensor, Tensor) and tensor.shape == target.shape)


def _undivided_target(name: str, run: _Run) -> Target:
    """Return a weight that is one complete tensor."""
    piece = run.file.piece(run.tensor, (0,) * len(run.tensor.shape))
    return Target(name=name, dtype=piece.dtype, shape=run.tensor.shape, pieces=(piece,))


def _flat_target(name: str, shape: tuple[int, ...], pieces: Sequence[Piece], folder: str) -> Target:
    """Return a weight that consists of runs of elements."""
    dtypes = {piece.dtype for piece in pieces}
    if len(dtypes) > 1:
        raise unproven(f"The ranks have parts of `{name}` of different element types.", path=folder, remedy=_ONE_SAVE)
    dtype = dtypes.pop() if dtypes else DType.F32
    return Target(name=name, dtype=dtype, shape=shape, pieces=tuple(pieces), flat=True)


def _files(storage: Storage, folder: str) -> tuple[list[str], list[str]]:
    """Return the model files and the files of optimizer state, by data-parallel rank."""
    files = {entry.name: file for entry in storage.entries(folder) if (file := parse(entry.name)) is not None}
    for name, file in sorted(files.items()):
        if file.slice is None:
            kind = "an expert" if "exp" in name else "a layer of a pipeline"
            raise needs_model(f"The file contains {kind}.", path=f"{folder}/{name}", remedy=_UNIVERSAL)
        if file.slice > 0:
            raise needs_model(
                "The file has a tensor-parallel part of the weights.", path=f"{folder}/{name}", remedy=_UNIVERSAL
            )
    models = _by_rank(files, ShardRole.MODEL, folder)
    if not models:
        raise incomplete("The folder has no model file.", path=folder, remedy=_RESTORE)
    return models, _by_rank(files, ShardRole.OPTIMIZER, folder)


def _by_rank(files: dict[str, StatesFile], role: ShardRole, folder: str) -> list[str]:
    ranked = sorted(
        (-1 if file.replica is None else file.replica, name) for name, file in files.items() if file.role is role
    )
    ranks = [rank for rank, _ in ranked]
    if ranks not in ([-1], list(range(len(ranks)))):
        lacking = sorted(set(range(max(ranks) + 1)) - set(ranks))
        problem = f"rank {lacking[0]} has no file" if lacking else "a rank has two files"
        raise unproven(f"Of the files with the {role.value}, {problem}.", path=folder, remedy=_ONE_SAVE)
    return [f"{folder}/{name}" for _, name in ranked]


def _read(storage: Storage, path: str, trees: dict[bytes, object]) -> Archive:
    with storage.open(path) as source:
        archive = read_archive(source, path, trees=trees)
    archive.check_name(lambda name: parse(name) is not None)
    return archive


def _steps_of(file: Archive) -> object:
    """Return the number of steps of an optimizer state, or the checksum of the record that has it; None if unknown.

    A save that replaces another under the same name, and is killed, leaves files of both.
    """
    for key in ("base_optimizer_state", _STATE):
        state = value_at(file.tree, _STATE, key)
        states = value_at(state, "state")
        first = next(iter(states.values()), None) if isinstance(states, dict) else None
        for steps in (value_at(first, "step"), value_at(state, "param_groups", 0, "step")):
            record = file.storages.get(steps.storage.key) if isinstance(steps, Tensor) else None
            if record is not None and record.length <= _MOST_STEP_BYTES:
                return record.crc32
            if type(steps) is int:
                return steps
    return None


def _stage_of(value: object) -> int | None:
    """Return a ZeRO stage, which is a number or an item of an enumeration; None for anything else."""
    if isinstance(value, Made) and len(value.args) == 1:
        value = value.args[0]
    return value if type(value) is int and value in _FLAT else None


def _shapes(group: object, file: Archive) -> _Shapes:
    """Return the shapes of parameters, in their order."""
    shapes: _Shapes = {}
    if not isinstance(group, dict):
        raise incomplete(f"`{_SHAPES}` is not a list of names and shapes.", path=file.path, remedy=_RESTORE)
    for name, shape in group.items():
        if not isinstance(name, str) or not isinstance(shape, tuple):
            raise incomplete(f"`{_SHAPES}` is not a list of names and shapes.", path=file.path, remedy=_RESTORE)
        shapes[name] = tuple(_integers(shape, file))
    return shapes


def _integers(values: object, file: Archive) -> list[int]:
    """Return the counts in a list or tuple."""
    if not isinstance(values, (list, tuple)) or any(type(value) is not int or value < 0 for value in values):
        raise incomplete("A list of counts in the pickle has other values.", path=file.path, remedy=_RESTORE)
    return list(values)


def _texts(values: object) -> dict[str, str]:
    """Return the texts of a dictionary, by name."""
    pairs = values.items() if isinstance(values, dict) else ()
    return {key: value for key, value in pairs if isinstance(key, str) and isinstance(value, str)}


def _tensor(file: Archive, *path: str) -> Tensor:
    tensor = value_at(file.tree, *path)
    if not isinstance(tensor, Tensor):
        raise incomplete(f"The file has no `{path[-1]}` in `{path[0]}`.", path=file.path, remedy=_RESTORE)
    return tensor


def _is_dense(tensor: Tensor) -> bool:
    return tensor.stride == (1,) or tensor.shape in {(0,), (1,)}


def _flat_groups(file: Archive, key: str, groups: int | None) -> list[Tensor]:
    """Return a rank's parts of the flat buffers.

    Args:
        file: The rank's file.
        key: Key of the parts in the optimizer's state.
        groups: Number of groups of parameters; None if the buffers do not correspond to groups.
    """
    tensors = value_at(file.tree, _STATE, key)
    if not isinstance(tensors, list) or not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise incomplete(f"The file has no list of tensors `{key}`.", path=file.path, remedy=_RESTORE)
    if groups is not None and len(tensors) != groups:
        raise incomplete(
            f"The file has {len(tensors)} groups of parameters instead of {groups}.", path=file.path, remedy=_RESTORE
        )
    if any(len(tensor.shape) != 1 or not _is_dense(tensor) for tensor in tensors):
        raise not_understood(f"`{key}` is not flat.", path=file.path, remedy=_RESTORE)
    return tensors
