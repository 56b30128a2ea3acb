"""The weights in saves of MindFormers: places of the model's tensors, from headers and metadata.json alone.

Saves of the iteration layout record how the ranks divide each tensor. Rank folders do not, so their tensors are
complete only if the run had one rank, or if the user states that all ranks have the same weights.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.finding import Finding, note
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.shard import ShardRole, TensorEntry
from ckpttool.core.domain.weights import LeftOut, NotExportableError, Target, Weights
from ckpttool.core.formats.base import quoted
from ckpttool.core.formats.strict_json import ParseError
from ckpttool.core.storage.base import is_there
from ckpttool.trainers.common.stored_tensors import StoredTensors, read_stored
from ckpttool.trainers.export_findings import (
    ExportCode,
    assert_no_part,
    incomplete,
    needs_strategy,
    not_in_output,
    not_understood,
)
from ckpttool.trainers.mindformers.layouts.names import ITERATION_LAYOUT, RANK_LAYOUT
from ckpttool.trainers.mindformers.layouts.unified import MAP_FILE

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.weights import WeightsRequest
    from ckpttool.core.storage.base import Storage
    from ckpttool.trainers.mindformers.layouts.fragments import Fragment, FragmentedTensor, ModelRecord

_STATE = (
    r"optimizer\..+|(?:adam_[mv]|muon_m|exp_avg(?:_sq)?|max_exp_avg_sq|moment[s12]|main_param|accu_grads)\..+"
    r"|pma_weight_\w+\..+|exp_avg_(?:sq|insta)_.+"
)
"""Names of the optimizer's tensors: the name of a state before the name of a weight.

Source: `core/optim` and `pynative/optimizer` of MindFormers 2.1.0.
"""
_COUNTER = (
    r"epoch_num|step_num|global_step|global_batch_size|learning_rate|loss_scale|scale_sense|current_iterator_step"
    r"|last_overflow_iterator_step|afactor_step|beta[12]_power|loss_scaling_manager\..+"
)
"""Names of tensors that are neither weights nor states of a weight."""

_NO_NUMBERS = frozenset({DType.STRING, DType.OPAQUE})
"""Types of MindSpore's texts and states of random generators."""
_RESTORE = "check the save with `ckpttool verify`, and restore its files or export another checkpoint"
_OWN_WAY = "load the save with MindFormers on one device, and save it again"
_UNIFY = "merge the files with `mindspore.unified_safetensors` and the strategy files of the run"
_ADAPTER = "mindformers_adapter_config.json"


def weights(storage: Storage, checkpoint: Checkpoint, request: WeightsRequest) -> Weights:
    """Return the model's tensors and the places of their elements.

    Raises:
        NotExportableError: The weights cannot be exported, for the reason in its finding.
        OSError: The disk could not be read.
    """
    assert_no_part(request, checkpoint.name)
    if request.layout == ITERATION_LAYOUT:
        return _of_iteration(storage, checkpoint)
    if request.layout == RANK_LAYOUT:
        return _of_ranks(storage, checkpoint, is_replicated=request.is_replicated)
    return _of_unified(storage, checkpoint)


# One folder for all ranks ---------------------------------------------------------------------------------------------


def _of_iteration(storage: Storage, checkpoint: Checkpoint) -> Weights:
    models = frozenset(shard.path for shard in checkpoint.shards if shard.role is ShardRole.MODEL)
    findings = _adapter_findings(storage, checkpoint.name)
    path = f"{checkpoint.name}/metadata.json"
    if not is_there(storage, path):
        if checkpoint.topology.world_size != 1 or len(models) != 1:
            message = "The save has no metadata.json, which records how the ranks divided the weights."
            raise _incomplete(checkpoint.name, message)
        (model,) = models
        file = read_stored(storage, model)
        return _weights(map(file.target, file.entries.values()), findings=findings)
    record = _record(storage, checkpoint, path)
    files: dict[str, StoredTensors] = {}
    targets = []
    for name, tensor in record.tensors.items():
        pieces = []
        for fragment in tensor.fragments:
            shard = _first_present(checkpoint, models, name, fragment)
            file = files.get(shard) or files.setdefault(shard, read_stored(storage, shard))
            pieces.append(file.piece(_entry(file, name, tensor), fragment.at))
        targets.append(Target(name=name, dtype=tensor.dtype, shape=tensor.shape, pieces=tuple(pieces)))
    unrecorded = sorted({name for file in files.values() for name in file.entries} - record.tensors.keys())
    if unrecorded:
        names = f"{quoted(unrecorded[0])} and {len(unrecorded) - 1} more" if unrecorded[1:] else quoted(unrecorded[0])
        message = f"metadata.json does not describe {names} in the model's files, so they are not in the output."
        findings = (*findings, not_in_output(message))
    return _weights(targets, left_out=record.others, findings=findings, described_by=(path,))


def _first_present(checkpoint: Checkpoint, models: Collection[str], name: str, fragment: Fragment) -> str:
    """Return the path of the first existing file with a copy of a fragment.

    Raises:
        NotExportableError: No file has it.
    """
    paths = [f"{checkpoint.name}/{file}" for file in fragment.files]
    for path in paths:
        if path in models:
            return path
    message = f"No file of the save has the part at {list(fragment.at)} of tensor {quoted(name)}."
    raise _incomplete(paths[0] if paths else checkpoint.name, message)


def _record(storage: Storage, checkpoint: Checkpoint, path: str) -> ModelRecord:
    from ckpttool.trainers.mindformers.layouts.fragments import UnsupportedRecordError, model_in
    from ckpttool.trainers.mindformers.layouts.iteration import from_metadata

    try:
        return from_metadata(storage, path, model_in, files=len(checkpoint.shards))
    except ParseError as error:
        raise _incomplete(path, f"The record of the weights cannot be used: {error.within(path)}.") from None
    except UnsupportedRecordError as error:
        message = f"The record of the weights is not understood: {error}."
        raise not_understood(message, path=path, remedy=_OWN_WAY) from None


def _entry(file: StoredTensors, name: str, tensor: FragmentedTensor) -> TensorEntry:
    """Return the header's entry of a fragment, which must be as recorded.

    Raises:
        NotExportableError: The file contains another tensor, or none.
    """
    entry = file.entries.get(name)
    if entry is not None and (entry.dtype, entry.shape) == (tensor.dtype, tensor.local_shape):
        return entry
    actual = "none" if entry is None else f"{entry.dtype.value} {list(entry.shape)}"
    expected = f"{tensor.dtype.value} {list(tensor.local_shape)}"
    message = f"metadata.json describes a part of tensor {quoted(name)} as {expected}, but the file has {actual}."
    raise _incomplete(file.path, message)


def _adapter_findings(storage: Storage, folder: str) -> tuple[Finding, ...]:
    path = f"{folder}/{_ADAPTER}"
    if not is_there(storage, path):
        return ()
    message = "The save contains an adapter alone: the base model is elsewhere, and is not in the output."
    return (not_in_output(message),)


# One folder per rank --------------------------------------------------------------------------------------------------


def _of_ranks(storage: Storage, checkpoint: Checkpoint, *, is_replicated: bool) -> Weights:
    ranks = max(checkpoint.topology.world_size or 1, len(checkpoint.shards))
    if ranks > 1 and not is_replicated:
        message = f"{ranks} ranks have a file each, and nothing in them records how the ranks divided the weights."
        remedy = f"{_UNIFY}; or add --replicated, if the run was purely data-parallel"
        raise needs_strategy(message, path=checkpoint.name, remedy=remedy)
    files = [read_stored(storage, shard.path) for shard in checkpoint.shards]
    models = [_model_in(file) for file in files]
    for file, model in zip(files, models, strict=True):
        if {(entry.name, entry.dtype, entry.shape) for entry in model} != {
            (entry.name, entry.dtype, entry.shape) for entry in models[0]
        }:
            message = f"{file.path} and {files[0].path} do not have the same tensors: the ranks are not replicas."
            raise needs_strategy(message, path=file.path, remedy=_UNIFY)
    targets = []
    for entry in models[0]:
        copies = [file.target(file.entries[entry.name]) for file in files]
        targets.append(replace(copies[0], pieces=tuple(piece for copy in copies for piece in copy.pieces)))
    names = {entry.name for entry in models[0]}
    findings = []
    if ranks == 1 and not checkpoint.topology.confirmed:
        message = "Only one rank has a folder. If the run had more ranks, this may be a part of the weights."
        findings.append(note(ExportCode.EXPORT_NEEDS_STRATEGY, message, path=checkpoint.name))
    others = [name for name in files[0].entries if name not in names]
    return replace(_weights(targets, left_out=others, findings=findings), must_agree=True)


# Unified files --------------------------------------------------------------------------------------------------------


def _of_unified(storage: Storage, checkpoint: Checkpoint) -> Weights:
    files = [read_stored(storage, shard.path) for shard in checkpoint.shards if shard.role is ShardRole.UNIFIED]
    targets = [file.target(entry) for file in files for entry in _model_in(file)]
    names = {target.name for target in targets}
    others = [name for file in files for name in file.entries if name not in names]
    return _weights(targets, left_out=others, described_by=(MAP_FILE,))


# What all of them need ------------------------------------------------------------------------------------------------


def _model_in(file: StoredTensors) -> list[TensorEntry]:
    """Return the tensors of a file that are weights, judged by their names and types."""
    return [
        entry
        for entry in file.entries.values()
        if entry.dtype not in _NO_NUMBERS and re.fullmatch(f"{_STATE}|{_COUNTER}", entry.name) is None
    ]


def _weights(
    targets: Iterable[Target],
    *,
    left_out: Iterable[str] = (),
    findings: Iterable[Finding] = (),
    described_by: tuple[str, ...] = (),
) -> Weights:
    names = tuple(left_out)
    return Weights(
        targets=tuple(targets),
        names_of="MindFormers' parameter names",
        is_loadable=False,
        left_out=(LeftOut(kind="optimizer tensors and counters", names=names),) if names else (),
        described_by=described_by,
        findings=tuple(findings),
    )


def _incomplete(path: str, message: str) -> NotExportableError:
    return incomplete(message, path=path, remedy=_RESTORE)
