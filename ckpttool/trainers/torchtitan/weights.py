"""The weights of a torchtitan save."""

from __future__ import annotations

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.weights import Weights, WeightsRequest
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.export_findings import needs_conversion
from ckpttool.trainers.torch_dcp.weights import Names, dcp_weights


def weights(storage: Storage, checkpoint: Checkpoint, request: WeightsRequest) -> Weights:
    """Return the model, which torchtitan saves without a key of its own, beside its other states."""
    note = needs_conversion("The names are torchtitan's module names, not those of a Hugging Face model.")
    return dcp_weights(storage, checkpoint.name, request, Names("torchtitan's module names", False, (note,)))  # noqa: FBT003  a table
