"""The weights of a Lightning save: one file, a folder of slices, or a save by DeepSpeed."""

from __future__ import annotations

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.weights import Weights, WeightsRequest
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.common.loose_weights import loose_weights
from ckpttool.trainers.lightning import TAG
from ckpttool.trainers.lightning.deepspeed_saves import is_with_deepspeed
from ckpttool.trainers.torch_dcp import is_own
from ckpttool.trainers.torch_dcp.weights import Names, dcp_weights

_NAMES = "module names of the LightningModule"
_BEFORE_2_1 = "_forward_module."
"""Prefix of parameter names in Lightning before 2.1, which `convert_zero_checkpoint_to_fp32_state_dict` removes."""


def weights(storage: Storage, checkpoint: Checkpoint, request: WeightsRequest) -> Weights:
    """Return the model under the key `state_dict`."""
    if is_with_deepspeed(checkpoint):
        from ckpttool.trainers.deepspeed_tags.weights import tag_weights

        return tag_weights(storage, f"{checkpoint.name}/{TAG}", request, names_of=_NAMES, drops=_BEFORE_2_1)
    slices = [shard.path for shard in checkpoint.shards if is_own(shard.path.rpartition("/")[2])]
    if slices:
        return dcp_weights(storage, slices[0].rpartition("/")[0], request, Names(_NAMES, None))
    return replace(loose_weights(storage, checkpoint, request), names_of=_NAMES)
