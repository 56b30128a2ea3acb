"""The weights of an OLMo-core save."""

from __future__ import annotations

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.weights import Weights, WeightsRequest
from ckpttool.core.storage.base import Storage
from ckpttool.trainers.export_findings import needs_conversion
from ckpttool.trainers.olmo_core import SLICES
from ckpttool.trainers.torch_dcp.weights import Names, dcp_weights


def weights(storage: Storage, checkpoint: Checkpoint, request: WeightsRequest) -> Weights:
    """Return the model in the folder of the model and the optimizer."""
    note = needs_conversion("The names are OLMo-core's module names, not those of a Hugging Face model.")
    names = Names("OLMo-core's module names", False, (note,))  # noqa: FBT003  a table
    return dcp_weights(storage, f"{checkpoint.name}/{SLICES}", request, names)
