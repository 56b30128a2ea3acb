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

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.domain.weights import LeftOut, Weights, WeightsRequest
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.export_findings import needs_conversion, needs_model
from ckpttool.trainers.torch_dcp import METADATA
from ckpttool.trainers.torch_dcp.weights import dcp_targets, read_metadata

_STATE = re.compile(
    r"(?:optimizer|chained_\d+|rng_state|rerun_state_machine_state|opt_param_scheduler)(?:[./].*)?|.*/shard_.*"
)


def weights(storage: Storage, checkpoint: Checkpoint, request: WeightsRequest) -> Weights:
    """Return the model of a save, with its stacked layers as they are stored."""
    del request  # a save has one model
    if checkpoint.format is not FormatName.TORCH_ZIPS:
        raise needs_model(
            "The legacy format does not record along which axis each weight is divided among the ranks.",
            path=checkpoint.name,
            remedy="save with --ckpt-format torch_dist, or convert with Megatron-LM's tools/checkpoint/convert.py",
        )
    record = f"{checkpoint.name}/{METADATA}"
    metadata = read_metadata(storage, record)
    names = {name: name for name in metadata.tensors if not _STATE.fullmatch(name)}
    note = needs_conversion(
        "The names are Megatron-Core's: layers of equal shape are stacked in one tensor, and the vocabulary may be "
        "padded."
    )
    left_out = tuple(name for name in metadata.tensors if name not in names)
    return Weights(
        targets=dcp_targets(storage, checkpoint.name, metadata, names),
        names_of="Megatron-Core's names",
        is_loadable=False,
        left_out=(LeftOut(kind="tensors that are not the model's", names=left_out),),
        described_by=(record,),
        findings=(note,),
    )
