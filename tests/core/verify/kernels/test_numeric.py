"""The numbers of a tensor are what torch says, for every bit pattern, in any cut and from any number of workers."""

from __future__ import annotations

import functools
import math
import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.dtype import DType
from ckpttool.core.domain.verdict import TensorStat
from ckpttool.core.verify.kernels.floats import FLOATS
from ckpttool.core.verify.kernels.fold import EXACT_ELEMENTS, WORDS, NumericFold, Scratch
from ckpttool.core.verify.kernels.numeric import NumericPartial, square_units, units

if TYPE_CHECKING:
    from numpy.typing import NDArray

TORCH = {
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F8_E4M3: torch.float8_e4m3fn,
    DType.F8_E5M2: torch.float8_e5m2,
}
SCRATCH = Scratch()
TOLERANCE = {DType.F64: 1e-12}
EVERY = pytest.mark.parametrize("dtype", list(FLOATS), ids=lambda dtype: dtype.value)
SMALL = pytest.mark.parametrize("dtype", [d for d in FLOATS if d.bits <= 16], ids=lambda dtype: dtype.value)


def doubles(dtype: DType, raw: bytes) -> NDArray[np.float64]:
    if not raw:
        return np.zeros(0)
    array: NDArray[np.float64] = torch.frombuffer(bytearray(raw), dtype=TORCH[dtype]).to(torch.float64).numpy()
    return array


def fold(dtype: DType, raw: bytes, cuts: tuple[int, ...] = (), *, shift: int = 0, begin: int = 0) -> NumericPartial:
    """Look at the bytes, cut where told, each piece `shift` bytes off any alignment, from `begin` of the tensor on."""
    folded = NumericFold(dtype, SCRATCH)
    for first, last in pairwise([0, *sorted(cuts), len(raw)]):
        moved = memoryview(bytes(shift) + raw[first:last])[shift:]
        folded.feed(begin + first, moved)
    return folded.partial()


def assert_is_what_torch_says(stats: TensorStat, raw: bytes) -> None:
    dtype = DType(stats.dtype)
    values = doubles(dtype, raw)
    finite = np.abs(values[np.isfinite(values)])
    absmax = float(finite.max()) if len(finite) else 0.0
    assert stats.elements == len(values)
    assert stats.nans == int(np.isnan(values).sum())
    assert stats.infinities == int(np.isinf(values).sum())
    assert stats.absmax == absmax
    assert stats.finite == bool(np.isfinite(values).all())
    # Scaled in two steps, because the smallest and the largest numbers have no reciprocal in F64.
    exponent = math.frexp(absmax)[1] if absmax else 0
    root = math.sqrt(math.fsum(np.ldexp(finite, -exponent) ** 2))
    try:
        expected = math.ldexp(root, exponent)
    except OverflowError:
        expected = math.inf
    assert stats.norm == pytest.approx(expected, rel=TOLERANCE.get(dtype, 1e-5), abs=0)


def special_patterns(dtype: DType) -> st.SearchStrategy[int]:
    layout = FLOATS[dtype]
    edges = {0, 1, layout.smallest_normal - 1, layout.smallest_normal, layout.largest_finite, layout.magnitude_mask}
    edges |= {layout.largest_finite + 1, layout.magnitude_mask // 2}
    sign = layout.magnitude_mask + 1
    return st.sampled_from(sorted(edges | {edge | sign for edge in edges}))


@st.composite
def tensors(draw: st.DrawFn, dtype: DType) -> bytes:
    """Random bits, special values alone, or a few special values among ordinary ones."""
    nbytes = FLOATS[dtype].nbytes
    kind = draw(st.sampled_from(["bits", "special", "mixed"]))
    if kind == "bits":
        return draw(st.binary(max_size=50).map(lambda raw: raw[: len(raw) // nbytes * nbytes]))
    special = draw(st.lists(special_patterns(dtype), max_size=12))
    raw = [pattern.to_bytes(nbytes, "little") for pattern in special]
    if kind == "mixed":
        seed, scale = draw(st.integers(0, 2**32 - 1)), draw(st.integers(-40, 30))
        ordinary = np.random.default_rng(seed).normal(size=draw(st.integers(1, 200))) * 2.0**scale
        data = torch.from_numpy(ordinary).to(TORCH[dtype]).view(torch.uint8).numpy().tobytes()
        raw += [data[at : at + nbytes] for at in range(0, len(data), nbytes)]
    return b"".join(raw)


@EVERY
@given(data=st.data())
def test_any_tensor_in_any_cut_has_the_numbers_of_torch(dtype: DType, data: st.DataObject) -> None:
    raw = data.draw(tensors(dtype))
    cuts = tuple(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    assert_is_what_torch_says(fold(dtype, raw, cuts, shift=data.draw(st.integers(0, 9))).stats("weight"), raw)


@pytest.mark.sample(3)
@EVERY
@given(data=st.data())
def test_parts_join_to_the_same_numbers_in_any_order_and_grouping(dtype: DType, data: st.DataObject) -> None:
    raw = data.draw(tensors(dtype))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), min_size=1, max_size=5)))
    parts = [fold(dtype, raw[a:b], begin=a) for a, b in pairwise([0, *cuts, len(raw)])]
    from_left = functools.reduce(NumericPartial.join, parts)
    from_right = functools.reduce(lambda joined, part: part.join(joined), reversed(parts))
    data.draw(st.randoms()).shuffle(parts)
    assert from_left == from_right == functools.reduce(NumericPartial.join, parts)
    assert_is_what_torch_says(from_left.stats("weight"), raw)


@pytest.mark.slow
@SMALL
def test_every_bit_pattern_alone_has_the_numbers_of_torch(dtype: DType) -> None:
    nbytes = FLOATS[dtype].nbytes
    for pattern in range(1 << dtype.bits):
        raw = pattern.to_bytes(nbytes, "little")
        folded, value = fold(dtype, raw).stats("weight"), doubles(dtype, raw)[0]
        assert (folded.nans, folded.infinities) == (math.isnan(value), math.isinf(value)), hex(pattern)
        finite = abs(float(value)) if math.isfinite(value) else 0.0
        assert folded.absmax == finite
        assert folded.norm == pytest.approx(finite, rel=1e-7, abs=0)
        smallest = float(torch.finfo(TORCH[dtype]).smallest_normal)
        assert folded.denormal_only == (0 < finite < smallest)
        cut = fold(dtype, raw, (1,) if nbytes > 1 else ()).stats("weight")
        assert (cut.nans, cut.infinities, cut.absmax) == (folded.nans, folded.infinities, folded.absmax)


@pytest.mark.sample(1)
@SMALL
def test_every_bit_pattern_beside_a_larger_and_a_smaller_one_is_seen(dtype: DType) -> None:
    nbytes = FLOATS[dtype].nbytes
    shuffled = list(range(1 << dtype.bits))
    random.Random(5).shuffle(shuffled)  # noqa: S311  (no secret)
    for begin in range(0, len(shuffled), 7):
        raw = b"".join(pattern.to_bytes(nbytes, "little") for pattern in shuffled[begin : begin + 7])
        assert_is_what_torch_says(fold(dtype, raw, shift=begin % 5).stats("weight"), raw)


@pytest.mark.sample(4)
@EVERY
@pytest.mark.parametrize("scale", [-1000, -300, -140, -70, -56, -54, -20, -3, 0, 12, 54, 56, 100, 600, 1000])
def test_large_tensors_of_any_size_of_numbers_have_the_norm_of_f64(dtype: DType, scale: int) -> None:
    elements = 3 * WORDS + EXACT_ELEMENTS + 3
    values = np.ldexp(np.random.default_rng(scale + 2000).normal(size=elements), scale)
    with np.errstate(over="ignore"):
        raw = torch.from_numpy(values).to(TORCH[dtype]).view(torch.uint8).numpy().tobytes()
    cuts = tuple(range(1 << 20, len(raw), 1 << 20))
    assert_is_what_torch_says(fold(dtype, raw, cuts, shift=1).stats("weight"), raw)


@EVERY
def test_one_nan_and_one_infinity_deep_inside_are_counted(dtype: DType) -> None:
    layout = FLOATS[dtype]
    healthy = bytearray(torch.ones(100_000).to(TORCH[dtype]).view(torch.uint8).numpy().tobytes())
    assert fold(dtype, bytes(healthy)).stats("weight").finite
    negative_nan = (layout.magnitude_mask * 2 + 1).to_bytes(layout.nbytes, "little")
    healthy[layout.nbytes * 77_777 : layout.nbytes * 77_778] = negative_nan
    stats = fold(dtype, bytes(healthy)).stats("weight")
    assert (stats.nans, stats.infinities, stats.absmax) == (1, 0, 1.0)
    assert stats.norm == pytest.approx(math.sqrt(99_999), rel=1e-5)
    if layout.infinity is not None:
        negative = (layout.infinity | (layout.magnitude_mask + 1)).to_bytes(layout.nbytes, "little")
        healthy[: layout.nbytes] = negative
        assert fold(dtype, bytes(healthy)).stats("weight").infinities == 1


@EVERY
def test_denormal_only_is_told_from_tensors_that_are_nearly_so(dtype: DType) -> None:
    layout = FLOATS[dtype]
    zero = bytes(layout.nbytes)
    minus_zero = (layout.magnitude_mask + 1).to_bytes(layout.nbytes, "little")
    subnormal = (layout.smallest_normal - 1).to_bytes(layout.nbytes, "little")
    normal = layout.smallest_normal.to_bytes(layout.nbytes, "little")
    nan = layout.magnitude_mask.to_bytes(layout.nbytes, "little")

    def told(*elements: bytes) -> bool:
        return fold(dtype, b"".join(elements)).stats("weight").denormal_only

    assert told(zero, subnormal, zero)
    assert not told(zero, minus_zero, zero)
    assert not told(zero, subnormal, normal)
    assert not told(zero, nan)
    assert not told(subnormal, nan)
    assert not told()


def test_a_worker_border_at_a_block_changes_no_bit_of_the_norm() -> None:
    raw = np.random.default_rng(11).normal(size=1 << 19).astype(np.float32).tobytes()
    whole = fold(DType.F32, raw, (1 << 20,))
    halves = fold(DType.F32, raw[: 1 << 20]).join(fold(DType.F32, raw[1 << 20 :], begin=1 << 20))
    assert whole == halves


def test_numbers_of_a_tensor_that_lacks_a_byte_are_refused() -> None:
    with pytest.raises(ValueError, match="the tensor is incomplete"):
        fold(DType.F32, bytes(7)).stats("weight")


def test_parts_of_tensors_of_two_types_do_not_join() -> None:
    with pytest.raises(ValueError, match="differ in type"):
        NumericPartial(dtype=DType.F32).join(NumericPartial(dtype=DType.F16))


def test_a_type_that_is_no_float_is_refused() -> None:
    with pytest.raises(KeyError):
        NumericFold(DType.I32, SCRATCH)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_units_lose_nothing_of_any_number(value: float) -> None:
    assert square_units(value) == square_units(-value)
    numerator, denominator = abs(value).as_integer_ratio()
    assert square_units(value) * denominator**2 == numerator**2 << 2148
    assert units(abs(value)) * denominator == numerator << 2148


def test_the_norm_of_the_largest_numbers_is_infinite_and_does_not_raise() -> None:
    raw = np.full(4, np.finfo(np.float64).max).tobytes()
    assert fold(DType.F64, raw).stats("weight").norm == math.inf
    assert fold(DType.F64, raw[:8]).stats("weight").norm == pytest.approx(np.finfo(np.float64).max, rel=1e-15)


def test_the_norm_of_the_smallest_number_is_that_number() -> None:
    raw: Any = np.full(1, 5e-324)
    assert fold(DType.F64, raw.tobytes()).stats("weight").norm == 5e-324
