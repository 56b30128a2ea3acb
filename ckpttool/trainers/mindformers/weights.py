"""The weights in saves of MindFormers: places of the model's tensors, from headers and metadata.json alone.

Saves of the iteration layout record how the ranks divide each tensor. Rank folders do not, so their tensors are
complete only if the run had one rank, or if the user states that all ranks have the same weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod
from typing import TYPE_CHECKING

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.finding import Finding, blocking, note
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.shard import ShardRole, TensorEntry
from ckpttool.core.domain.weights import LeftOut, NotExportableError, Piece, Record, Target, Weights
from ckpttool.core.formats import read_header
from ckpttool.core.formats.base import quoted
from ckpttool.core.formats.strict_json import ParseError
from ckpttool.core.storage.base import is_there
from ckpttool.trainers.export_findings import (
    ExportCode,
    incomplete,
    needs_strategy,
    not_in_output,
    not_understood,
)
from ckpttool.trainers.mindformers.layouts.names import ITERATION_LAYOUT, RANK_LAYOUT
from ckpttool.trainers.mindformers.layouts.unified import MAP_FILE

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.shard import Shard
    from ckpttool.core.domain.weights import WeightsRequest
    from ckpttool.core.storage.base import Storage
    from ckpttool.trainers.mindformers.layouts.fragments import FragmentedTensor, ModelRecord

_STATE = r"(?:optimizer\.)?(?:adam_[mv]|exp_avg(?:_sq)?|max_exp_avg_sq|main_param|muon_m|accu_grads)\..+"
"""Names of the optimizer's tensors: the name of a weight after the name of the state."""
_COUNTER = (
    r"epoch_num|step_num|global_batch_size|loss_scale|scale_sense|current_iterator_step|last_overflow_iterator_step"
    r"|(?:optimizer\.)?(?:global_step|learning_rate|beta[12]_power)|loss_scaling_manager\..+"
)
"""Names of tensors that are neither weights nor states of a weight."""

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
    if request.layout == ITERATION_LAYOUT:
        return _of_iteration(storage, checkpoint)
    if request.layout == RANK_LAYOUT:
        return _of_ranks(storage, checkpoint, is_replicated=request.is_replicated)
    return _of_unified(storage, checkpoint)


# One folder for all ranks ---------------------------------------------------------------------------------------------


def _of_iteration(storage: Storage, checkpoint: Checkpoint) -> Weights:
    models = {shard.path: shard for shard in checkpoint.shards if shard.role is ShardRole.MODEL}
    findings = _adapter_findings(storage, checkpoint.name)
    path = f"{checkpoint.name}/metadata.json"
    if not is_there(storage, path):
        if checkpoint.topology.world_size != 1 or len(models) != 1:
            message = "The save has no metadata.json, which records how the ranks divided the weights."
            raise _incomplete(checkpoint.name, message)
        (shard,) = models.values()
        file = _File(storage, shard)
        return _weights(map(file.target, file.entries.values()), findings=findings)
    record = _record(storage, checkpoint, path)
    files: dict[str, _File] = {}
    targets = []
    for name, tensor in record.tensors.items():
        pieces = []
        for fragment in tensor.fragments:
            paths = [f"{checkpoint.name}/{file}" for file in fragment.files]
            found = next((path for path in paths if path in models), None)
            if found is None:
                message = f"No file of the save has the part at {list(fragment.at)} of tensor {quoted(name)}."
                raise _incomplete(paths[0] if paths else checkpoint.name, message)
            if found not in files:
                files[found] = _File(storage, models[found])
            pieces.append(files[found].piece(_entry(files[found], name, tensor), fragment.at))
        whole = TensorEntry(name=name, dtype=tensor.dtype, shape=tensor.shape, spans=())
        targets.append(_target(path, whole, pieces))
    unrecorded = sorted({name for file in files.values() for name in file.entries} - record.tensors.keys())
    if unrecorded:
        first = f"{quoted(unrecorded[0])} and {len(unrecorded) - 1} more" if unrecorded[1:] else quoted(unrecorded[0])
        message = (
            f"metadata.json does not describe {first}, so these tensors of the model's files are not in the output."
        )
        findings = (*findings, not_in_output(message))
    return _weights(targets, left_out=record.others, findings=findings, described_by=(path,))


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


def _entry(file: _File, name: str, tensor: FragmentedTensor) -> TensorEntry:
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
    files = [_File(storage, shard) for shard in checkpoint.shards]
    models = [file.model for file in files]
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
        remedy = "add --world-size 1 if the run had one rank"
        findings.append(note(ExportCode.EXPORT_NEEDS_STRATEGY, message, path=checkpoint.name, remedy=remedy))
    return _weights(targets, left_out=[name for name in files[0].entries if name not in names], findings=findings)


# Unified files --------------------------------------------------------------------------------------------------------


def _of_unified(storage: Storage, checkpoint: Checkpoint) -> Weights:
    files = [_File(storage, shard) for shard in checkpoint.shards if shard.role is ShardRole.UNIFIED]
    targets = [file.target(entry) for file in files for entry in file.model]
    names = {target.name for target in targets}
    others = [name for file in files for name in file.entries if name not in names]
    return _weights(targets, left_out=others, described_by=(MAP_FILE,))


# Files ----------------------------------------------------------------------------------------------------------------


class _File:
    """A file with tensors, of which only the header has been read."""

    def __init__(self, storage: Storage, shard: Shard) -> None:
        """Read the header.

        Raises:
            NotExportableError: The file is damaged.
            OSError: The disk could not be read.
        """
        with storage.open(shard.path) as source:
            header = read_header(source, named=shard.format)
        wrong = blocking(header.findings)
        if wrong:
            raise NotExportableError(replace(wrong[0], path=shard.path))
        self.path = shard.path
        self.entries: Mapping[str, TensorEntry] = {entry.name: entry for entry in header.entries}
        """Tensors by name, in file order."""
        self._record = None
        if header.checksum is not None and header.checksum.algorithm == "crc32-file":
            self._record = Record(shard.path, 0, header.checksum.end, header.checksum.value)

    @property
    def model(self) -> list[TensorEntry]:
        """The tensors that are weights, judged by their names."""
        return [entry for entry in self.entries.values() if re.fullmatch(f"{_STATE}|{_COUNTER}", entry.name) is None]

    def piece(self, entry: TensorEntry, at: tuple[int, ...]) -> Piece:
        """Return a tensor of this file as a box of a target."""
        stride = tuple(prod(entry.shape[axis + 1 :]) for axis in range(len(entry.shape)))
        return Piece(self.path, entry.spans[0][0], entry.dtype, entry.shape, stride, at, self._record)

    def target(self, entry: TensorEntry) -> Target:
        """Return a tensor of this file as a complete target; MindSpore splits large ones into several records.

        Raises:
            NotExportableError: The safetensors format does not have the type.
        """
        if len(entry.spans) == 1:
            return _target(self.path, entry, [self.piece(entry, (0,) * len(entry.shape))])
        pieces = []
        done = 0
        for begin, end in entry.spans:
            count, rest = divmod(end - begin, entry.dtype.bits // 8)
            if rest:
                message = f"Tensor {quoted(entry.name)} is split inside an element."
                raise _incomplete(self.path, message)
            pieces.append(Piece(self.path, begin, entry.dtype, (count,), (1,), (done,), self._record))
            done += count
        return replace(_target(self.path, entry, pieces), flat=True)


def _target(path: str, entry: TensorEntry, pieces: Iterable[Piece]) -> Target:
    if entry.dtype in _WITHOUT_NAME:
        message = f"Tensor {quoted(entry.name)} has the type {entry.dtype.value}, which safetensors does not have."
        raise not_understood(message, path=path, remedy=_OWN_WAY)
    return Target(name=entry.name, dtype=entry.dtype, shape=entry.shape, pieces=tuple(pieces))


_WITHOUT_NAME = frozenset({DType.I4X2, DType.HIF8, DType.C128, DType.STRING, DType.OPAQUE})
"""Types of MindSpore that safetensors does not have."""


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
