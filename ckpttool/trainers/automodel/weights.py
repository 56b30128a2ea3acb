"""The weights in saves of AutoModel: safetensors files with the slices of each rank, or complete tensors.

The files do not show the shape of a complete tensor. It is proven by the optimizer's record of slices, which has the
shape of each parameter, or by the files of all ranks.

Source: `components/checkpoint` of nemo-automodel 0.7.0, whose own consolidation gave the same tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ckpttool.core.domain.shard import FormatName, ShardRole
from ckpttool.core.domain.weights import Weights
from ckpttool.core.formats.base import quoted
from ckpttool.core.formats.strict_json import ParseError, parse_object
from ckpttool.core.storage.base import is_there
from ckpttool.trainers.automodel import MODEL, OPTIMIZER
from ckpttool.trainers.common.companions import companions_in
from ckpttool.trainers.common.divided_files import divided_targets
from ckpttool.trainers.common.whole_files import whole_targets
from ckpttool.trainers.export_findings import assert_no_part, incomplete, not_in_output, unproven
from ckpttool.trainers.torch_dcp import METADATA
from ckpttool.trainers.torch_dcp.weights import Names, dcp_weights

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.weights import Target, WeightsRequest
    from ckpttool.core.storage.base import Storage

_SLICES = re.compile(r"shard-(?P<rank>[0-9]{5,7})-model-(?P<file>[0-9]{5})-of-[0-9]{5}\.safetensors")
_HF_FOLDER = ".hf_metadata"
_INDEX = "fqn_to_file_index_mapping.json"
_INDEX_LIMIT = 64 << 20
_STATE = re.compile(r"optim\.state\.(?P<name>.+)\.(?P<state>[^.]+)")
_NAMES_OF = "names of the Hugging Face model"
_ADAPTER = "adapter_model"
_RESTORE = "restore the missing file from a copy, or export another checkpoint"

_Shapes = Mapping[str, frozenset[tuple[int, ...]]]
"""Shapes of the optimizer's states, by parameter."""


def weights(storage: Storage, checkpoint: Checkpoint, request: WeightsRequest) -> Weights:
    """Return the model's tensors and the places of their elements.

    Raises:
        NotExportableError: The weights cannot be exported, for the reason in its finding.
        OSError: The disk could not be read.
    """
    folder = f"{checkpoint.name}/{MODEL}"
    paths = [
        shard.path
        for shard in checkpoint.shards
        if shard.role is ShardRole.MODEL and shard.format is FormatName.SAFETENSORS
    ]
    if not paths:
        return dcp_weights(storage, folder, request, Names("module names of NeMo AutoModel's model", None))
    assert_no_part(request, checkpoint.name)
    companions = companions_in(storage, f"{folder}/{_HF_FOLDER}")
    files = {path: _SLICES.fullmatch(path.rpartition("/")[2]) for path in paths}
    if not any(files.values()):
        return _of_whole_files(storage, sorted(paths), companions)
    tensors = divided_targets(storage, paths)
    present = {(int(match["rank"]), int(match["file"])) for match in files.values() if match}
    # The states of random generators and of the optimizer show the number of ranks, independently of the weights.
    world = max((shard.rank + 1 for shard in checkpoint.shards if shard.rank is not None), default=0)
    every = {(rank, file) for rank in range(1, world + 1) for _, file in present}
    is_complete = world > 0 and every <= present
    record, index = f"{checkpoint.name}/{OPTIMIZER}/{METADATA}", f"{folder}/{_HF_FOLDER}/{_INDEX}"
    shapes = _shapes_of_states(storage, record)
    findings = _missing_names(tensors, _names_in(storage, index), shapes, is_complete=is_complete)
    for tensor in tensors:
        _assert_complete(tensor, shapes.get(tensor.name, frozenset()), is_complete=is_complete)
    return Weights(
        targets=tuple(tensors),
        names_of=_NAMES_OF,
        is_loadable=True,
        described_by=tuple(path for path in (record, index) if is_there(storage, path)),
        companions=companions,
        findings=findings,
    )


def _of_whole_files(storage: Storage, paths: list[str], companions: tuple[str, ...]) -> Weights:
    targets, tied, _ = whole_targets(storage, paths)
    is_adapter = paths[0].endswith(f"/{_ADAPTER}.safetensors")
    message = "The save contains only an adapter, so the output is an adapter, without its base model."
    return Weights(
        targets=targets,
        names_of=_NAMES_OF,
        is_loadable=True,
        tied=tied,
        companions=companions,
        stem=_ADAPTER if is_adapter else "model",
        findings=(not_in_output(message),) if is_adapter else (),
    )


def _assert_complete(tensor: Target, shapes: frozenset[tuple[int, ...]], *, is_complete: bool) -> None:
    """Check that no slice at the end of a tensor is missing; a gap between slices is found by the export.

    Args:
        tensor: A tensor with the shape that its slices show.
        shapes: Shapes of the optimizer's states of this tensor.
        is_complete: Whether each rank has its files.

    Raises:
        NotExportableError: Slices are missing, or may be missing.
    """
    of_same_axes = {shape for shape in shapes if len(shape) == len(tensor.shape)}
    if tensor.shape in of_same_axes:
        return
    shown = f"The slices of tensor {quoted(tensor.name)} end at {list(tensor.shape)}"
    if of_same_axes:
        message = f"{shown}, but the optimizer's states have the shape {list(max(of_same_axes))}."
        raise incomplete(message, path=tensor.pieces[0].path, remedy=_RESTORE, tensor=tensor.name)
    if not is_complete:
        message = f"{shown}, and not every rank has a file of slices, so more slices may be missing."
        raise unproven(message, path=tensor.pieces[0].path, remedy=_RESTORE)


def _missing_names(
    tensors: Iterable[Target], names: Iterable[str], shapes: _Shapes, *, is_complete: bool
) -> tuple[Finding, ...]:
    """Report recorded weights that are in no file; AutoModel itself leaves out some that it does not save.

    Raises:
        NotExportableError: A weight is missing, or may be missing.
    """
    saved = {tensor.name for tensor in tensors}
    missing = sorted(set(names) - saved)
    if not missing:
        return ()
    message = f"{_INDEX} lists {quoted(missing[0])}, which is in no file"
    if shapes.keys() & set(missing):
        raise incomplete(f"{message}, although the optimizer has states of it.", remedy=_RESTORE)
    if not is_complete:
        raise unproven(f"{message}, and not every rank has a file of slices.", remedy=_RESTORE)
    more = f" (and {len(missing) - 1} more)" if missing[1:] else ""
    return (not_in_output(f"{message}{more}; AutoModel leaves out weights that it can restore."),)


def _names_in(storage: Storage, path: str) -> tuple[str, ...]:
    """Return the names of the weights that AutoModel listed for the save; none if it wrote no index."""
    try:
        return tuple(parse_object(storage.small_file(path, limit=_INDEX_LIMIT), where=path))
    except FileNotFoundError:
        return ()
    except ParseError as error:
        raise incomplete(f"The index cannot be used: {error.within(path)}.", path=path, remedy=_RESTORE) from None


def _shapes_of_states(storage: Storage, path: str) -> _Shapes:
    """Return the shapes of the optimizer's states; none if there is no readable record."""
    from ckpttool.core.formats.torch.dcp import MOST_METADATA_BYTES, read_dcp_metadata
    from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError

    try:
        metadata = read_dcp_metadata(storage.small_file(path, limit=MOST_METADATA_BYTES))
    except (FileNotFoundError, BrokenPickleError):
        return {}
    shapes: dict[str, set[tuple[int, ...]]] = {}
    for key, tensor in metadata.tensors.items():
        match = _STATE.fullmatch(key)
        if match is not None:
            shapes.setdefault(match["name"], set()).add(tuple(tensor.shape))
    return {name: frozenset(found) for name, found in shapes.items()}
