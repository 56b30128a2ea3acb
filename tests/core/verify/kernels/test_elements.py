"""A tensor's elements come piece by piece, however its bytes are cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.shard import TensorEntry
from ckpttool.core.verify.kernels.elements import NUMBERS, Measure, doubles, pieces
from ckpttool.inspect.kernel_distance import Comparison
from tests.support.shard_writers import MemorySource


@given(st.lists(st.integers(0, 30), max_size=8), st.integers(1, 9), st.integers(0, 3))
def test_pieces_are_whole_elements_whatever_spans_and_blocks_cut(lengths: list[int], elements: int, gap: int) -> None:
    data = bytes(range(256))
    spans, at = [], 0
    for length in lengths:
        if at + length > len(data):
            break
        spans.append((at, at + length))
        at += length + gap
    content = b"".join(data[begin:end] for begin, end in spans)
    content = content[: len(content) // 4 * 4]
    entry = TensorEntry(name="w", dtype=DType.F32, shape=(len(content) // 4,), spans=tuple(spans))
    found = [bytes(piece) for piece in pieces(MemorySource(data), entry, elements=elements)]
    assert b"".join(found)[: len(content)] == content
    assert {len(piece) for piece in found[:-1]} <= {4 * elements}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float16])
def test_every_pattern_is_the_number_that_torch_makes_of_it(dtype: torch.dtype) -> None:
    width = dtype.itemsize
    bits = np.arange(1 << 8 * width, dtype=f"<u{width}")
    expected = torch.from_numpy(bits.view(f"<i{width}").copy()).view(dtype).double().numpy()
    names = {torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.bfloat16: "BF16", torch.float16: "F16"}
    np.testing.assert_array_equal(doubles(DType(names[dtype]), memoryview(bits.tobytes())), expected)


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype in NUMBERS])
def test_a_tensor_is_no_distance_from_itself(dtype: DType) -> None:
    data = bytes(np.random.default_rng(3).integers(0, 2 if dtype is DType.BOOL else 50, 64, dtype=np.uint8))
    entry = TensorEntry(name="w", dtype=dtype, shape=(64 * 8 // dtype.bits,), spans=((0, 64),))
    found = Comparison(MemorySource(data), MemorySource(data), numerics=True).distance(entry, entry)
    assert found is not None
    assert (found.equal, found.moved, found.largest) == (True, 0.0, 0.0)
    stats = Measure(MemorySource(data)).stats(entry)
    assert stats is not None
    assert stats.elements == entry.shape[0]
    if found.squares is not None:
        assert stats.norm == pytest.approx(found.squares**0.5, rel=1e-5)


@pytest.mark.parametrize(
    ("dtype", "other", "shape"),
    [(DType.C64, DType.F32, (8,)), (DType.F32, DType.F32, (16,)), (DType.HIF8, DType.U8, (64,))],
)
def test_what_is_no_number_or_has_another_shape_is_not_compared(dtype: DType, other: DType, shape: tuple[int]) -> None:
    source = MemorySource(bytes(64))
    ours = TensorEntry(name="w", dtype=dtype, shape=(8,), spans=((0, 64),))
    theirs = TensorEntry(name="w", dtype=other, shape=shape, spans=((0, 64),))
    assert Comparison(source, source, numerics=True).distance(ours, theirs) is None
    assert Measure(source).stats(TensorEntry(name="w", dtype=DType.C64, shape=(8,), spans=((0, 64),))) is None
