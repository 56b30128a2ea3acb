"""The weights in a single file of any format, without the save around it."""

from __future__ import annotations

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.weights import Weights, WeightsRequest
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.common.companions import companions_in
from ckpttool.trainers.common.whole_files import whole_targets


def loop_weights(storage: Storage, checkpoint: Checkpoint, request: WeightsRequest) -> Weights:
    """Return the weights of a save by a training loop with `torch.save`, as `loose_weights` does."""
    return replace(loose_weights(storage, checkpoint, request), names_of="module names of the training loop")


def loose_weights(storage: Storage, checkpoint: Checkpoint, request: WeightsRequest) -> Weights:
    """Return the tensors of the files, as they are.

    Raises:
        NotExportableError: A file is damaged, or is not a dictionary of tensors.
        OSError: The disk did not answer.
    """
    paths = [shard.path for shard in checkpoint.shards]
    targets, tied, records = whole_targets(storage, paths, request.part)
    folder = paths[0].rpartition("/")[0]
    return Weights(
        targets=targets,
        names_of="names in the file",
        is_loadable=None,
        tied=tied,
        records=tuple(records),
        companions=companions_in(storage, folder),
    )
