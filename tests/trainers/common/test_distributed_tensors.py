"""Parts of a weight are placed as torch records them, in the forms of all versions; other placements are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.tensor.placement_types import Shard
from torch.distributed.tensor.placement_types import _StridedShard as Strided

from ckpttool.core.domain.weights import NotExportableError, Record, Target
from ckpttool.core.formats.torch.pickle_objects import Global, Made, Stored, Tensor
from ckpttool.trainers.common.archives import Archive
from ckpttool.trainers.common.distributed_tensors import merged

SHAPE = (8, 6)


def made(name: str, state: object = None, args: tuple[object, ...] = ()) -> Made:
    value = Made(Global("torch", name), args)
    value.state = state
    return value


def shard(axis: int) -> Made:
    return made("Shard", {"dim": axis})


def strided(axis: int, factor: int) -> Made:
    return made("_StridedShard", {"dim": axis, "split_factor": factor})


def tensor(shape: tuple[int, ...]) -> Tensor:
    stride = torch.empty(shape).stride()
    return Tensor(Stored("0", "FloatStorage", 48), None, 0, shape, stride)


def newest(sizes: tuple[int, ...], place: tuple[int, ...]) -> dict[object, object]:
    axes = tuple(made("_FlatLayout", {"shape": (size,), "stride": (1,)}) for size in sizes)
    return {"_layout": made("_MeshLayout", {"axes": axes}), "_coordinate_on_dim": place}


def older(sizes: tuple[int, ...], place: tuple[int, ...]) -> dict[object, object]:
    return {"_layout": made("_MeshLayout", {"shape": sizes, "stride": sizes}), "_coordinate_on_dim": list(place)}


def nested(sizes: tuple[int, ...], place: tuple[int, ...]) -> dict[object, object]:
    layout = made("_MeshLayout", {"shape": tuple((size, 1) for size in sizes)})
    return {"_layout": layout, "_coordinate_on_dim": place}


def single(sizes: tuple[int, ...], place: tuple[int, ...]) -> dict[object, object]:
    return {"_layout": made("_MeshLayout", {"shape": sizes[0], "stride": 1}), "_coordinate_on_dim": place}


def oldest(sizes: tuple[int, ...], place: tuple[int, ...]) -> dict[object, object]:
    return {"mesh": tensor(sizes), "_coordinate_on_dim": list(place)}


def dtensor(mesh: object, placements: object, local: tuple[int, ...], **spec: object) -> Made:
    state = {"mesh": made("DeviceMesh", mesh), "placements": placements, **spec}
    args = (Global("torch.distributed.tensor", "DTensor"), Global("torch", "float32"), SHAPE, (6, 1), 0)
    contents = {"_local_tensor": tensor(local), "_spec": made("DTensorSpec", state)}
    value = made("_rebuild_wrapper_subclass", contents, args)
    value.by = Global("torch._utils", "_rebuild_wrapper_subclass")
    return value


def archive(value: object, rank: int = 0, name: str = "w") -> Archive:
    path = f"{rank}.pt"
    record = Record(path, 0, 192, rank)
    return Archive(path=path, tree={name: value}, storages={"0": record}, records=(), saved_as=str(rank))


def placed(*values: object) -> Target:
    (target,) = merged([archive(value, rank) for rank, value in enumerate(values)])
    return target


def refusal(*values: object) -> str:
    with pytest.raises(NotExportableError) as refused:
        placed(*values)
    assert refused.value.finding.remedy
    return f"{refused.value.finding.code}: {refused.value}"


PLACES = [(row, column) for row in range(2) for column in range(2)]


@pytest.mark.parametrize("mesh", [newest, older, nested, oldest])
@pytest.mark.parametrize(
    "placements",
    [
        (Shard(0), Shard(1)),
        (Shard(1), Shard(0)),
        (Shard(0), Shard(0)),
        (Strided(0, split_factor=2), Shard(0)),
        (Strided(0, split_factor=2), Shard(1)),
    ],
)
def test_parts_are_where_torch_puts_them(mesh: Any, placements: Any) -> None:  # noqa: ANN401  a form
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

    records = []
    for placement in placements:
        is_strided = isinstance(placement, Strided)
        records.append(strided(placement.dim, 2) if is_strided else shard(placement.dim))
    expected = [_compute_local_shape_and_global_offset(SHAPE, (2, 2), list(place), placements) for place in PLACES]
    values = [
        dtensor(mesh((2, 2), place), tuple(records), local) for place, (local, _) in zip(PLACES, expected, strict=True)
    ]
    if placements == (Strided(0, split_factor=2), Shard(1)):
        assert "are not contiguous" in refusal(*values)
        return
    assert [(piece.shape, piece.at) for piece in placed(*values).pieces] == expected


def test_a_mesh_with_one_axis_may_have_a_number_as_its_shape() -> None:
    values = [dtensor(single((2,), (rank,)), (shard(0),), (4, 6)) for rank in range(2)]
    assert [piece.at for piece in placed(*values).pieces] == [(0, 0), (4, 0)]


def whole(place: int = 0, **spec: object) -> Made:
    return dtensor(newest((1,), (place,)), (shard(0),), SHAPE, **spec)


def test_a_rank_beside_the_mesh_is_refused() -> None:
    assert len(placed(whole()).pieces) == 1
    assert "contradicts" in refusal(whole(1))


def test_shards_in_another_order_are_refused() -> None:
    order = made("ShardOrderEntry", None, (0, (0, 1)))
    assert placed(whole(shard_order=(order,))).pieces
    order.args = (0, (1, 0))
    assert "contradicts" in refusal(whole(shard_order=(order,)))
    assert "contradicts" in refusal(whole(shard_order=("?",)))


@pytest.mark.parametrize("word", ["_local_tensor", "mesh", "placements", "_coordinate_on_dim", "_layout"])
def test_a_part_without_a_record_of_its_place_is_refused(word: str) -> None:
    mesh = newest((1,), (0,))
    mesh.pop(word, None)
    value = dtensor(mesh, (shard(0),), SHAPE)
    assert isinstance(value.state, dict)
    value.state.pop(word, None)
    value.state["_spec"].state.pop(word, None)
    assert "missing, or contradicts" in refusal(value)


def test_a_part_of_another_shape_or_rank_is_refused() -> None:
    assert "contradicts" in refusal(dtensor(newest((1,), (0,)), (shard(0),), (4, 6)))
    mesh = {**newest((1,), (0,)), "_rank": 1}
    assert "contradicts" in refusal(dtensor(mesh, (shard(0),), SHAPE))
    assert "contradicts" in refusal(dtensor(newest((1,), (0,)), (shard(0), shard(1)), SHAPE))


@pytest.mark.parametrize(
    ("placement", "code"),
    [
        (made("Partial", {"reduce_op": "sum"}), "export-needs-model"),
        ("Shard(0)", "export-needs-model"),
        (shard(2), "export-incomplete"),
        (made("Shard"), "export-incomplete"),
    ],
)
def test_a_placement_without_a_place_is_refused(placement: object, code: str) -> None:
    assert code in refusal(dtensor(newest((1,), (0,)), (placement,), SHAPE))


@pytest.mark.parametrize("factor", [0, 3, 1 << 40])
def test_a_strided_placement_that_does_not_divide_evenly_is_refused(factor: int) -> None:
    assert "unevenly" in refusal(dtensor(newest((1,), (0,)), (strided(0, factor),), SHAPE))


def test_other_objects_are_not_weights() -> None:
    assert "export-not-understood" in refusal(made("Thing"))
    other = whole()
    other.args = (Global("torchao", "AffineQuantizedTensor"), *other.args[1:])
    assert "export-not-understood" in refusal(other)
    with pytest.raises(NotExportableError, match="not a dictionary"):
        merged([Archive(path="0.pt", tree=3, storages={}, records=(), saved_as="0")])


def test_a_weight_without_elements_is_refused_unless_it_has_none() -> None:
    nothing = dtensor(newest((2,), (1,)), (shard(0),), (0, 6))
    nothing.args = (*nothing.args[:2], (1, 6), *nothing.args[3:])
    assert "No rank has elements" in refusal(nothing)
    assert placed(tensor((0, 6))).pieces[0].shape == (0, 6)


def sharded(size: object = SHAPE, at: object = (0, 0), sizes: object = SHAPE, rank: object = 0) -> Made:
    metadata = made("ShardMetadata", (None, {"shard_offsets": at, "shard_sizes": sizes}))
    part = made("Shard", (None, {"tensor": tensor(SHAPE), "metadata": metadata}))
    group = made("ProcessGroupState", {"global_rank": rank})
    value = whole()
    value.args = (Global("torch.distributed._shard", "ShardedTensor"), *value.args[1:])
    value.state = ([part], made("ShardedTensorMetadata", {"size": size}), group, None, False)
    return value


def test_a_sharded_tensor_is_placed_by_its_offsets() -> None:
    assert placed(sharded()).pieces[0].at == (0, 0)


@pytest.mark.parametrize("change", [{"size": (8, 7)}, {"at": (0, -1)}, {"at": None}, {"sizes": (6, 8)}, {"rank": 1}])
def test_a_sharded_tensor_that_contradicts_itself_is_refused(change: dict[str, object]) -> None:
    assert "contradicts" in refusal(sharded(**change))
