"""What a training holds comes back to the last bit, or is refused by its path before a byte is written."""

from __future__ import annotations

import json
import math
import struct
from collections import OrderedDict, defaultdict
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from ckpttool.core.formats.strict_json import Json, parse_json
from ckpttool.guard.state_tree import MAX_DEPTH, Sharded, UnreadableState, Unsaveable, read, spell

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
    torch.uint16, torch.uint32,
]  # fmt: skip


class Point(NamedTuple):
    x: int


@st.composite
def any_tensor(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    count = math.prod(shape) * dtype.itemsize
    content = draw(st.binary(min_size=count, max_size=count))
    if dtype is torch.bool:
        content = bytes(byte & 1 for byte in content)
    flat = torch.tensor(list(content), dtype=torch.uint8)
    tensor = flat.view(dtype).reshape(shape) if count else torch.zeros(shape, dtype=dtype)
    return tensor.permute(draw(st.permutations(range(len(shape)))))


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.floats(width=64).map(lambda value: struct.unpack(">d", struct.pack(">d", value))[0])
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
    | st.sampled_from([torch.float32, torch.bfloat16, torch.device("cpu"), torch.Size([2, 3]), np.dtype("<i4")])
    | st.sampled_from([np.float64(-0.0), np.int32(7), np.bool_(1), np.array([[1, 2]], ">u2"), np.zeros((0, 3))])
)
KEYS = st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])) | st.binary()
VALUES = st.recursive(
    SCALARS | any_tensor(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(st.text("ab.", max_size=3), inner, max_size=4).map(OrderedDict)
    ),
    max_leaves=12,
)


def stored(value: object, prefix: str = "") -> object:
    """Through the bytes of a JSON file, with tensors that share no memory with the old ones."""
    told = spell(value, prefix)
    tree: Json = parse_json(json.dumps(told.tree).encode(), where="a file")
    return read(
        tree, {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in told.tensors.items()}
    )


def bits(value: object) -> object:
    """Return something equal exactly where two values are the same in type and in every bit."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        return ("tensor", value.dtype, value.shape, value.requires_grad, bytes(flat.tolist()))
    if isinstance(value, (np.ndarray, np.generic)):
        return (type(value), value.dtype, value.shape, value.tobytes())
    if isinstance(value, float):
        return (type(value), struct.pack(">d", value))
    if isinstance(value, dict):
        return (type(value), [(bits(key), bits(item)) for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value), [bits(item) for item in value])
    return (type(value), value)


@given(VALUES)
def test_what_is_spelled_comes_back_in_every_bit(value: object) -> None:
    assert bits(stored(value)) == bits(value)


@given(any_tensor().filter(torch.Tensor.numel), st.sampled_from(["", "rng"]))
@example(torch.ones(1, 2, 2, dtype=torch.complex128).mT, "")
def test_the_same_tensor_is_stored_once_and_is_one_again(tensor: torch.Tensor, prefix: str) -> None:
    value = {"wte": tensor, "lm_head": tensor, "other": tensor.clone()}
    told = spell(value, prefix)
    assert len(told.tensors) == 2
    back = stored(value, prefix)
    assert isinstance(back, dict)
    assert back["wte"] is back["lm_head"]
    assert back["wte"] is not back["other"]


def test_a_view_of_other_elements_is_not_taken_for_the_same() -> None:
    whole = torch.arange(6)
    value = [whole, whole[:3], whole[3:], whole.view(2, 3), whole.view(3, 2).t()]
    assert bits(stored(value)) == bits(value)
    assert len(spell(value).tensors) == 5


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(3, 8)[:, :5],
        torch.randn(5, 1).expand(5, 7),
        torch.randn(4, 6).t(),
        torch.randn(4, 6, dtype=torch.complex128).t(),
    ],
    ids=["channels last", "a slice", "expanded", "transposed", "complex"],
)
def test_strides_come_back_for_another_order_is_another_kernel(tensor: torch.Tensor) -> None:
    back = stored(tensor)
    assert isinstance(back, torch.Tensor)
    assert back.stride() == tensor.stride()
    assert torch.equal(back, tensor)


def test_of_overlapping_elements_and_of_a_needle_in_a_haystack_the_elements_are_kept() -> None:
    for tensor in (torch.arange(6.0).unfold(0, 3, 1), torch.randn(1000, 1000)[::500, ::500]):
        back = stored(tensor)
        assert isinstance(back, torch.Tensor)
        assert back.is_contiguous()
        assert torch.equal(back, tensor)


def test_tensors_are_named_by_their_way_and_two_ways_of_one_name_are_two() -> None:
    told = spell({"a": {"b": torch.ones(1)}, "a.b": torch.zeros(1), "__metadata__": torch.ones(2)}, "")
    assert [*told.tensors] == ["a.b", "a.b~2", "__metadata__~2"]
    assert [*spell({"layer.weight": torch.ones(1)}, "model").tensors] == ["model.layer.weight"]
    assert [*spell([torch.ones(1)], "rng").tensors] == ["rng[0]"]


def _recursive() -> list[object]:
    value: list[object] = []
    value.append(value)
    return value


def _deep() -> object:
    value: object = 1
    for _ in range(MAX_DEPTH + 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        ({"a": [1, {2}]}, "a[1]", "set"),
        ({"a": Point(1)}, "a", "tests.guard.test_state_tree.Point"),
        (defaultdict(list), "the value", "collections.defaultdict"),
        ({"f": len}, "f", "builtin_function_or_method"),
        ({"t": torch.eye(2).to_sparse()}, "t", "torch.sparse_coo"),
        ({"t": torch.ones(2, device="meta")}, "t", "meta"),
        ({"a": np.array([object()])}, "a", "object"),
        ({"a": np.array(["text"])}, "a", "<U4"),
        (_recursive(), "[0]", "contains itself"),
        (_deep(), "[0]" * MAX_DEPTH, "deeper than"),
        ("\ud800", "the value", "UTF-8"),
        ({"\ud800": 1}, "the value", "UTF-8"),
        (1 << 20_000, "the value", "20001 bits"),
        ({1 << 20_000: 1}, "the value", "20001 bits"),
        ({torch.ones(1): 1}, "the value", "a key"),
        (True.__class__, "the value", "type"),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_what_would_need_a_class_is_refused_by_its_path(value: object, path: str, reason: str) -> None:
    with pytest.raises(Unsaveable) as refused:
        spell(value)
    assert str(refused.value).startswith(f"{path}: ")
    assert reason in refused.value.reason


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"pickle": "gASVBQ=="},
        {"dict": []},
        {"dict_pairs": [[1]]},
        {"dict_pairs": [[[], 1]]},
        {"tensor": "elsewhere"},
        {"tensor": 3},
        {"tensor": "t", "shape": [2], "stride": [1 << 60]},
        {"tensor": "t", "shape": [4], "stride": [1]},
        {"tensor": "t", "shape": [2], "stride": [1, 1]},
        {"tensor": "m", "shape": [2, 2], "stride": [1, 1]},
        {"tensor": "t", "requires_grad": 1},
        {"tensor": "i", "requires_grad": True},
        {"array": "t", "of": "|O8", "shape": [1]},
        {"array": "t", "of": "<f8", "shape": [7]},
        {"array": "t", "of": "<f99", "shape": [1]},
        {"float": "1.0"},
        {"bytes": "*"},
        {"dtype": "nn"},
        {"device": "system:rm"},
        {"size": [-1]},
        {"tuple": {}},
        {"numpy_dtype": "O"},
        {"sharded": {"tensor": "t"}, "shape": [1], "stride": [1], "mesh_shape": [1], "mesh_names": [],
         "placements": ["os.system"], "device_type": "cpu"},
    ],
    ids=str,
)  # fmt: skip
def test_a_tree_that_nobody_spelled_is_refused(tree: Json) -> None:
    with pytest.raises(UnreadableState):
        read(tree, {"t": torch.ones(2), "m": torch.ones(2, 2), "i": torch.ones(2, dtype=torch.int64)})


def test_a_shard_of_a_dtensor_says_of_what(one_process_group: None) -> None:
    del one_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    whole = torch.randn(4, 6)
    back = stored({"weight": distribute_tensor(whole, mesh, [Replicate(), Shard(1)])})
    assert isinstance(back, dict)
    part = back["weight"]
    assert isinstance(part, Sharded)
    assert torch.equal(part.local, whole)
    assert (part.shape, part.mesh_shape, part.mesh_names) == ((4, 6), (1, 1), ("dp", "tp"))
    assert part.placements == ("replicate", "shard:1")
