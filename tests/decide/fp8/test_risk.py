"""Which tensors FP8 is asked about."""

from __future__ import annotations

import pytest

from ckpttool.decide.fp8.risk import is_wanted
from ckpttool.domain.dtype import DType
from ckpttool.domain.shard import TensorEntry


@pytest.mark.parametrize(("name", "wanted"), [("model.fc1.weight", True), ("model.fc1._extra_state", False)])
def test_the_history_of_a_layers_scales_is_none_of_its_weights(name: str, wanted: bool) -> None:
    entry = TensorEntry(name=name, dtype=DType.F32, shape=(6, 1024), spans=((0, 24576),))
    assert is_wanted(entry, optimizer=True) is wanted
