"""A sharded weight is put together from its parts, and a shape that they cannot fill is refused before it is made."""

from __future__ import annotations

import pytest
import torch

from ckpttool.guard.capture.shard import put_together
from ckpttool.guard.state_tree import Sharded


def part(rows: int, shape: tuple[int, ...]) -> Sharded:
    return Sharded(
        local=torch.ones(rows, 2), shape=shape, stride=(2, 1), mesh_shape=(2,), mesh_names=("data",),
        placements=("shard:0",), device_type="cpu",
    )  # fmt: skip


def test_parts_make_the_whole() -> None:
    assert put_together([part(2, (3, 2)), part(1, (3, 2))]).shape == (3, 2)


@pytest.mark.parametrize("shape", [(10**12, 2), (10**30, 10**30), (5, 2)])
def test_a_shape_that_the_parts_cannot_fill_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="fewer elements"):
        put_together([part(2, shape), part(2, shape)])
