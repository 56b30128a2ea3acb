"""The weights of a Lightning save: one file, a folder of slices, or a save by DeepSpeed."""

from __future__ import annotations

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.weights import Weights, WeightsRequest
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.common.loose_weights import loose_weights
from ckpttool.trainers.export_findings import not_understood
from ckpttool.trainers.lightning.deepspeed_saves import is_with_deepspeed
from ckpttool.trainers.torch_dcp import is_own
from ckpttool.trainers.torch_dcp.weights import Names, dcp_weights

_NAMES = "module names of the LightningModule"


def weights(storage: Storage, checkpoint: Checkpoint, request: WeightsRequest) -> Weights:
    """Return the model under the key `state_dict`."""
    if is_with_deepspeed(checkpoint):
        message = "The save was written with DeepSpeed's strategy, whose parts are not joined here."
        remedy = "convert it with lightning.pytorch.utilities.deepspeed.convert_zero_checkpoint_to_fp32_state_dict"
        raise not_understood(message, path=checkpoint.name, remedy=remedy)
    slices = [shard.path for shard in checkpoint.shards if is_own(shard.path.rpartition("/")[2])]
    if slices:
        return dcp_weights(storage, slices[0].rpartition("/")[0], request, Names(_NAMES, None))
    return replace(loose_weights(storage, checkpoint, request), names_of=_NAMES)
