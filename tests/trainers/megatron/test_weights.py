"""Stacked layers of `torch_dist` are divided where the save says so, and only there."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.weights import NotExportableError, Piece, Target
from ckpttool.trainers.megatron.weights import unstacked
from tests.conftest import FIXTURES
from tests.export.test_bands import Files, written
from tests.export.truth import exported
from tests.support.commands import ask

TREE = FIXTURES / "layouts/mcore_dist_tp2dp2"


def stacked(name: str, values: np.ndarray, pieces: tuple[Piece, ...]) -> Target:
    return Target(name=name, dtype=DType.F32, shape=values.shape, pieces=pieces)


@given(st.integers(1, 5), st.integers(0, 5), st.integers(1, 4), st.permutations((0, 1, 2)))
def test_each_layer_is_a_row_of_the_stack_whatever_the_stages_and_the_tensor_parallelism(
    layers: int, cut: int, rows: int, order: list[int]
) -> None:
    values = np.arange(layers * rows * 4, dtype="<u4").reshape(layers, rows, 4)
    files, places = Files(), sorted({0, min(cut, layers), layers})
    pieces = tuple(
        files.store(values[begin:end, :, column : column + 2], tuple(order), (begin, 0, column), DType.F32, 1)
        for begin, end in pairwise(places)
        for column in (0, 2)
    )
    found = [*unstacked([stacked("decoder.layers.mlp.linear_fc1.weight", values, pieces)], layers)]
    assert [each.name for each in found] == [f"decoder.layers.{layer}.mlp.linear_fc1.weight" for layer in range(layers)]
    for layer, target in enumerate(found):
        assert written(target, files, 64) == values[layer].tobytes()


def test_what_is_not_stacked_stays_and_another_number_of_layers_is_refused() -> None:
    values, files = np.zeros((2, 3), "<u4"), Files()
    piece = files.store(values, (0, 1), (0, 0), DType.F32, 0)
    others = [stacked(name, values, (piece,)) for name in ("embedding.weight", "decoder.layers.1.mlp.weight")]
    assert [*unstacked(others, 2)] == others
    with pytest.raises(NotExportableError, match="the model has 3 layers"):
        [*unstacked([stacked("encoder.layers.mlp.weight", values, (piece,))], 3)]


def test_a_real_save_is_divided_on_request(tmp_path: Path) -> None:
    for name, options in (("stacked", ()), ("divided", ("--unstack",))):
        assert ask("export", str(TREE), "--output", str(tmp_path / name), *options).code == 0
    whole, divided = exported(tmp_path / "stacked"), exported(tmp_path / "divided")
    assert len(whole) == len(divided) == 16
    for name, (dtype, shape, data) in whole.items():
        if ".layers." in name:
            assert divided[name.replace(".layers.", ".layers.0.")] == (dtype, shape[1:], data)
        else:
            assert divided[name] == (dtype, shape, data)
