"""The weights in a folder of torch.distributed.checkpoint, of any writer.

Source:
    `torch/distributed/checkpoint/{filesystem,planner_helpers,default_planner}.py` of torch 2.13: each slice is one
    archive of `torch.save` with a single tensor, `MetadataIndex.offset` is its place in the complete tensor, and
    `planner_data` has the keys of each flattened name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from ckpttool.core.domain.weights import LeftOut, Piece, Target, Weights
from ckpttool.core.formats.torch.contents import named_dtype
from ckpttool.core.formats.torch.dcp import MOST_METADATA_BYTES, DcpMetadata, SplitTensor, read_dcp_metadata
from ckpttool.core.formats.torch.pickle_objects import BrokenPickleError, Tensor
from ckpttool.core.records import leads_out
from ckpttool.core.storage.base import ByteSource, Storage, is_there
from ckpttool.trainers.common.archives import read_archive
from ckpttool.trainers.common.companions import companions_in
from ckpttool.trainers.common.whole_files import MODEL_KEYS
from ckpttool.trainers.export_findings import ambiguous_part, incomplete, needs_model, not_understood
from ckpttool.trainers.torch_dcp import METADATA

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.weights import WeightsRequest
    from ckpttool.core.formats.torch.slice_machine import Slice

Keys = tuple[str, ...]
"""Keys of a tensor in the saved object."""

_STATE = re.compile(
    r"(?:optim|optimizer|lr_?scheduler|scheduler|data_?loader|train_?state|rng|scaler|grad_scaler|callbacks?)(?:s|_.*)?"
)
"""First keys of states that are not the model."""
_FLAT = re.compile(r"(?:.*\.)?_?flat_param(?:_[0-9]+)?")
_TORCH = "load the save with torch.distributed.checkpoint and save the model as safetensors"
_RESTORE = "restore the file from a copy, or export another checkpoint"


class Names(NamedTuple):
    """The origin and the use of the names in an output."""

    origin: str
    is_loadable: bool | None
    findings: tuple[Finding, ...] = ()


def dcp_weights(
    storage: Storage, folder: str, request: WeightsRequest, names: Names, *, companions: str | None = None
) -> Weights:
    """Return the model in a folder of torch.distributed.checkpoint.

    Args:
        storage: The tree.
        folder: The folder with `.metadata`, relative to the tree's root; empty for the root.
        request: The user's choice of weights; the part is the model's key in the saved object, such as `app.model`.
        names: The names' origin.
        companions: The folder with the model's further files; None for the same folder.

    Raises:
        NotExportableError: The model cannot be exported.
        OSError: The disk did not answer.
    """
    record = _below(folder, METADATA)
    metadata = read_metadata(storage, record)
    chosen = model_names(metadata, request.part, record)
    left_out = tuple(name for name in metadata.tensors if name not in chosen)
    return Weights(
        targets=dcp_targets(storage, folder, metadata, chosen),
        names_of=names.origin,
        is_loadable=names.is_loadable,
        left_out=(LeftOut(kind="tensors that are not the model's", names=left_out),),
        described_by=(record,),
        companions=companions_in(storage, folder if companions is None else companions),
        findings=names.findings,
    )


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def read_metadata(storage: Storage, record: str) -> DcpMetadata:
    """Read a record, and check that no two slices have one place, and that names and keys agree.

    Raises:
        NotExportableError: The record is missing or damaged.
        OSError: The disk did not answer.
    """
    if not is_there(storage, record):
        message = "The folder has no .metadata; the records of single ranks are not joined."
        raise not_understood(message, path=record, remedy=_TORCH)
    try:
        metadata = read_dcp_metadata(storage.small_file(record, limit=MOST_METADATA_BYTES), with_paths=True)
    except BrokenPickleError as error:
        raise incomplete(f"The record of the slices is damaged: {error}.", path=record, remedy=_RESTORE) from error
    places = {(slice_.path, slice_.offset) for slice_ in metadata.slices}
    if len(places) < len(metadata.slices):
        # Only an intact record shows which of the two is right: both may be archives of the same shape.
        raise incomplete("Two slices have the same place in a file.", path=record, remedy=_RESTORE)
    declared = {*metadata.tensors, *metadata.values}
    unknown = {slice_.name for slice_ in metadata.slices} - declared
    unknown |= {*metadata.paths} ^ declared if metadata.paths else set()
    if unknown:  # a damaged name would silently leave out a weight
        message = f"The parts of the record disagree about the name {min(unknown)!r}."
        raise incomplete(message, path=record, remedy=_RESTORE)
    for name, keys in (metadata.paths or {}).items():
        if ".".join(map(str, keys)) != name:
            message = f"The keys {'.'.join(map(str, keys))!r} do not form the name {name!r}."
            raise incomplete(message, path=record, remedy=_RESTORE)
    return metadata


def model_names(metadata: DcpMetadata, part: str | None, record: str) -> dict[str, str]:
    """Return the output's name of each of the model's tensors, in the order of the record.

    Args:
        metadata: The record, with paths.
        part: The model's key in the saved object; None if it is one of the usual ones.
        record: Path of the record, for findings.

    Raises:
        NotExportableError: There is no model, or there are several.
    """
    if metadata.paths is None:
        message = "The record does not show which tensors are the model's, because it has no keys."
        raise ambiguous_part(message, path=record, remedy=_TORCH)
    keys = {name: tuple(map(str, metadata.paths.get(name, (name,)))) for name in metadata.tensors}
    if part is not None:
        roots = [tuple(part.split("."))]
    else:
        roots = [root for root in MODEL_KEYS if any(_is_below(path, root) for path in keys.values())]
    if not roots:
        roots = [*_other_roots(keys.values())]
    if len(roots) == 1:
        root = roots[0]
        found = {name: ".".join(path[len(root) :]) for name, path in keys.items() if _belongs(path, root)}
        if found:
            return found
    words = sorted({path[0] for path in keys.values() if len(path) > 1} | {".".join(root) for root in roots if root})
    listed = ", ".join(words[:_MOST_WORDS])
    raise ambiguous_part(
        f"The save has tensors under the keys {listed}, and nothing shows which are the model to export.",
        path=record,
        remedy=f"name the model's key, such as --part {words[0]}" if words else _TORCH,
    )


_MOST_WORDS = 8


def _is_below(path: Keys, root: Keys) -> bool:
    return len(path) > len(root) and path[: len(root)] == root


def _belongs(path: Keys, root: Keys) -> bool:
    """Return whether a tensor belongs to a model; without a root, the model's names are the first keys."""
    return _is_below(path, root) if root else len(path) == 1 and not _is_state(path)


def _is_state(path: Keys) -> bool:
    """Return whether a tensor belongs to a state; a name with a dot and without keys is a parameter of a module."""
    return (len(path) > 1 or "." not in path[0]) and _STATE.fullmatch(path[0]) is not None


def _other_roots(paths: Iterable[Keys]) -> Iterator[Keys]:
    """Yield the possible places of the model if it has none of the usual keys; an empty root for names without keys."""
    others = {path[:1] if len(path) > 1 else () for path in paths if not _is_state(path)}
    yield from sorted(others)


def dcp_targets(storage: Storage, folder: str, metadata: DcpMetadata, names: Mapping[str, str]) -> tuple[Target, ...]:
    """Return the tensors with these names, and the places of their slices.

    Args:
        storage: The tree.
        folder: The folder of the record.
        metadata: The record.
        names: The output's name of each requested tensor, in order.

    Raises:
        NotExportableError: A slice is damaged, or has a form that is not supported.
        OSError: The disk did not answer.
    """
    pieces: dict[str, list[Piece]] = {name: [] for name in names}
    wanted = sorted((slice_ for slice_ in metadata.slices if slice_.name in names), key=attrgetter("path", "offset"))
    for file, slices in groupby(wanted, key=attrgetter("path")):
        path = _below(folder, file)
        if leads_out(file):
            message = f"The record names {file!r}, which is outside the folder."
            raise incomplete(message, path=_below(folder, METADATA), remedy=_RESTORE)
        with storage.open(path) as source:
            for slice_ in slices:
                pieces[slice_.name].append(_piece(source, path, slice_, metadata.tensors[slice_.name]))
    return tuple(_target(name, output, metadata.tensors[name], pieces[name]) for name, output in names.items())


def _target(name: str, output: str, tensor: SplitTensor, pieces: list[Piece]) -> Target:
    if _FLAT.fullmatch(name):
        message = f"The weights are joined in the flat parameter {name!r}, and only the model's code can divide them."
        remedy = "save future checkpoints with StateDictType.SHARDED_STATE_DICT; convert this one in the trainer"
        raise needs_model(message, remedy=remedy)
    dtype = named_dtype(tensor.dtype or "")
    if dtype is None:
        raise not_understood(f"The weight {name!r} has the type {tensor.dtype}.", remedy=_TORCH)
    return Target(name=output, dtype=dtype, shape=tensor.shape, pieces=tuple(pieces))


def _piece(source: ByteSource, path: str, slice_: Slice, tensor: SplitTensor) -> Piece:
    """Read the header of a slice, and compare it with the record.

    Raises:
        NotExportableError: The slice differs from the record, or has a form that is not supported.
    """
    if slice_.is_changed:
        message = f"The slices of {slice_.name!r} were compressed or encrypted when they were saved."
        raise not_understood(message, path=path, remedy=_TORCH)
    at = slice_.at
    if not at and len(tensor.chunks) == 1:
        at = tensor.chunks[0].offsets
    sizes = next((chunk.sizes for chunk in tensor.chunks if chunk.offsets == at), None)
    archive = read_archive(source, path, slice_.offset, slice_.offset + slice_.length)
    value = archive.tree
    if not isinstance(value, Tensor):
        message = f"The slice of {slice_.name!r} at byte {slice_.offset} is not a plain tensor."
        raise not_understood(message, path=path, remedy=_TORCH)
    if value.shape != sizes:
        expected = "no part there" if sizes is None else f"a part of {list(sizes)}"
        raise incomplete(
            f"The slice of {slice_.name!r} at byte {slice_.offset} has the shape {list(value.shape)}, but the record "
            f"has {expected}.",
            path=path,
            tensor=slice_.name,
            remedy=_RESTORE,
        )
    piece = archive.piece(value, at)
    if piece.dtype is not named_dtype(tensor.dtype or ""):
        message = f"The slice of {slice_.name!r} has the type {piece.dtype.value}, but the record {tensor.dtype}."
        raise incomplete(message, path=path, tensor=slice_.name, remedy=_RESTORE)
    return piece


def plain_weights(storage: Storage, checkpoint: Checkpoint, request: WeightsRequest) -> Weights:
    """Return the weights of a save by a training loop with torch.distributed.checkpoint."""
    return dcp_weights(storage, checkpoint.name, request, Names("module names of the training loop", None))
