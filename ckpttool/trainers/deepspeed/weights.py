"""The weights in a tag of DeepSpeed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpttool.trainers.deepspeed_tags.weights import tag_weights
from ckpttool.trainers.export_findings import assert_no_part

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.weights import Weights, WeightsRequest
    from ckpttool.core.storage.base import Storage


def weights(storage: Storage, checkpoint: Checkpoint, request: WeightsRequest) -> Weights:
    """Return the FP32 master weights in a tag, or the 16-bit copy.

    Raises:
        NotExportableError: The weights cannot be exported.
        OSError: The disk could not be read.
    """
    assert_no_part(request, checkpoint.name)
    return tag_weights(storage, checkpoint.name, request, names_of="module names of the training script's model")
