"""The weights of a Composer save: one file of rank 0, or a folder of slices."""

from __future__ import annotations

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.domain.weights import Weights, WeightsRequest
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.common.loose_weights import loose_weights
from ckpttool.trainers.torch_dcp.weights import Names, dcp_weights

_NAMES = "module names of the ComposerModel"


def weights(storage: Storage, checkpoint: Checkpoint, request: WeightsRequest) -> Weights:
    """Return the model under the key `state.model`."""
    if checkpoint.format is FormatName.TORCH_ZIPS:
        folder = checkpoint.shards[0].path.rpartition("/")[0]
        return dcp_weights(storage, folder, request, Names(_NAMES, None))
    return replace(loose_weights(storage, checkpoint, request), names_of=_NAMES)
