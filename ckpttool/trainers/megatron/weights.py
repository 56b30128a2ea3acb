"""The weights of a Megatron-LM save in the format `torch_dist`.

Source:
    `megatron/core/dist_checkpointing/strategies/torch.py`: the record has no keys of the saved object; the model's
    tensors have no prefix, and those of the optimizer and the random-number state have one. Layers of equal shape are
    stacked in one tensor, and the vocabulary is padded.

The legacy format records no global shapes: equal tensors on two ranks may be replicas or divided, and `linear_fc1` of a
gated activation is interleaved. It is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.domain.weights import LeftOut, Piece, Target, Weights, WeightsRequest
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.common.archives import read_archive
from ckpttool.trainers.common.saved_values import count_at
from ckpttool.trainers.export_findings import assert_no_part, needs_conversion, needs_model
from ckpttool.trainers.megatron import COMMON
from ckpttool.trainers.torch_dcp import METADATA
from ckpttool.trainers.torch_dcp.weights import dcp_targets, read_metadata

_STACKED = re.compile(r"(.*\blayers\.)(?!\d+\.)(.+)")
"""Names in which a number of the layer is missing."""
_STATE = re.compile(
    r"(?:optimizer|chained_\d+|rng_state|rerun_state_machine_state|opt_param_scheduler)(?:[./].*)?|.*/shard_.*"
)


def weights(storage: Storage, checkpoint: Checkpoint, request: WeightsRequest) -> Weights:
    """Return the model of a save, with its stacked layers as they are stored."""
    assert_no_part(request, checkpoint.name)
    if checkpoint.format is not FormatName.TORCH_ZIPS:
        raise needs_model(
            "The legacy format does not record along which axis each weight is divided among the ranks.",
            path=checkpoint.name,
            remedy="save with --ckpt-format torch_dist, or convert with Megatron-LM's tools/checkpoint/convert.py",
        )
    record = f"{checkpoint.name}/{METADATA}"
    metadata = read_metadata(storage, record)
    names = {name: name for name in metadata.tensors if not _STATE.fullmatch(name)}
    targets = dcp_targets(storage, checkpoint.name, metadata, names)
    stacked = "layers of equal shape are stacked in one tensor (--unstack divides them), and "
    described_by = [record]
    if request.is_unstacked:
        common = f"{checkpoint.name}/{COMMON}"
        targets = tuple(unstacked(targets, _layers(storage, common)))
        stacked = ""
        described_by.append(common)
    note = needs_conversion(f"The names are Megatron-Core's: {stacked}the vocabulary may be padded.")
    left_out = tuple(name for name in metadata.tensors if name not in names)
    return Weights(
        targets=targets,
        names_of="Megatron-Core's names",
        is_loadable=False,
        left_out=(LeftOut(kind="tensors that are not the model's", names=left_out),),
        described_by=tuple(described_by),
        findings=(note,),
    )


def _layers(storage: Storage, path: str) -> int:
    """Return the number of layers in the arguments of the run."""
    with storage.open(path) as source:
        count = count_at(read_archive(source, path).tree, "args", "num_layers")
    if not count:
        raise needs_model(
            "The arguments of the run do not record the number of layers, so nothing shows which tensors are stacked.",
            path=path,
            remedy="export without --unstack",
        )
    return count


def unstacked(targets: Iterable[Target], layers: int) -> Iterator[Target]:
    """Divide each tensor of stacked layers along its first axis; yield all other tensors unchanged.

    Args:
        targets: The tensors as they are stored.
        layers: Number of layers of the model.

    Raises:
        NotExportableError: A tensor of the layers has another number of layers.
    """
    for target in targets:
        match = _STACKED.fullmatch(target.name)
        if match is None:
            yield target
            continue
        if target.shape[:1] != (layers,):
            raise needs_model(
                f"{target.name!r} has the shape {list(target.shape)}, but the model has {layers} layers.",
                remedy="export without --unstack",
            )
        pieces: list[list[Piece]] = [[] for _ in range(layers)]
        for piece in target.pieces:
            step = piece.stride[0] * (piece.dtype.bits // 8)
            for number in range(piece.shape[0]):
                place = piece._replace(
                    begin=piece.begin + number * step, shape=piece.shape[1:], stride=piece.stride[1:], at=piece.at[1:]
                )
                pieces[piece.at[0] + number].append(place)
        for layer, own in enumerate(pieces):
            name = f"{match[1]}{layer}.{match[2]}"
            yield Target(name=name, dtype=target.dtype, shape=target.shape[1:], pieces=tuple(own))
