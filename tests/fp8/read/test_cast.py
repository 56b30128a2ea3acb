"""The cast to FP8: bit by bit what torch's own gives, on every pattern there is of 16 bits and many of 32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from xxhash import xxh3_64_hexdigest

from ckpttool.fp8.model.fp8 import Fp8Format, Recipe
from ckpttool.fp8.read.kernel_cast import LIMITS, cast, scales

F32 = NDArray[np.float32]

TORCH = {Fp8Format.E4M3: torch.float8_e4m3fn, Fp8Format.E5M2: torch.float8_e5m2}


def of_bf16() -> F32:
    return (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)


def of_f16() -> F32:
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def at_random() -> F32:
    return np.random.default_rng(1).integers(0, 1 << 32, 1_000_000, dtype=np.uint64).astype(np.uint32).view(np.float32)


def at_every_code() -> F32:
    """Every code, the middle between two, and the neighbours of both, of either format."""
    found = []
    for kind in TORCH.values():
        codes = torch.arange(256, dtype=torch.uint8).view(kind).float().numpy()
        codes = np.unique(codes[np.isfinite(codes)]).astype(np.float32)
        points = np.concatenate([codes, (codes[1:] + codes[:-1]) / 2])
        found += [points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-np.inf))]
    return np.concatenate(found)


@pytest.mark.parametrize("format_", Fp8Format)
@pytest.mark.parametrize("numbers", [of_bf16, of_f16, at_random, at_every_code])
def test_a_cast_is_what_torch_makes_of_a_clamped_number_in_every_bit(
    numbers: Callable[[], F32], format_: Fp8Format
) -> None:
    values, largest = numbers(), LIMITS[format_].largest
    ours = cast(values, format_)
    theirs = torch.from_numpy(values).clamp(-largest, largest).to(TORCH[format_]).float().numpy()
    assert np.array_equal(np.isnan(ours), np.isnan(values))
    there = ~np.isnan(values)
    assert np.array_equal(ours[there].view(np.uint32), theirs[there].view(np.uint32))


FROZEN = {Fp8Format.E4M3: "a30fa0bf9878f9b6", Fp8Format.E5M2: "1d5e925451682353"}
"""xxh3 of what torch 2.13 makes of all patterns of BF16, clamped; of NaN one alone."""


@pytest.mark.parametrize("format_", Fp8Format)
def test_the_table_of_all_patterns_of_bf16_is_the_frozen_one(format_: Fp8Format) -> None:
    found = cast(of_bf16(), format_)
    found[np.isnan(found)] = np.float32(np.nan)
    assert xxh3_64_hexdigest(found.astype("<f4").tobytes()) == FROZEN[format_]


@pytest.mark.parametrize(("format_", "largest"), [(Fp8Format.E4M3, 448.0), (Fp8Format.E5M2, 57344.0)])
def test_a_scale_brings_the_largest_magnitude_to_the_largest_number(format_: Fp8Format, largest: float) -> None:
    amax = np.array([1.0, 3.0, 1e-3, 448.0], np.float32)
    assert np.array_equal(scales(amax, format_, Recipe.TENSORWISE), (np.float32(largest) / amax).astype(np.float32))


@pytest.mark.parametrize("recipe", Recipe)
def test_what_has_no_largest_magnitude_is_not_scaled_and_what_is_tiny_by_no_infinity(recipe: Recipe) -> None:
    amax = np.array([0.0, np.nan, np.inf, 1e-45], np.float32)
    found = scales(amax, Fp8Format.E4M3, recipe)
    assert found[:3].tolist() == [1.0, 1.0, 1.0]
    assert np.isfinite(found[3])
    assert found[3] >= 2.0**126


@pytest.mark.parametrize("recipe", [Recipe.ROWWISE, Recipe.BLOCKWISE, Recipe.MXFP8, Recipe.MXFP8_FLOOR])
def test_powers_of_two_are_such_and_let_nothing_saturate_but_those_of_the_standard(recipe: Recipe) -> None:
    amax = of_bf16()
    amax = amax[np.isfinite(amax) & (amax > 2.0**-100) & (amax < 2.0**100)]
    found = scales(amax, Fp8Format.E4M3, recipe)
    assert np.array_equal(np.frexp(found)[0], np.full_like(found, 0.5))
    scaled = amax * found
    assert scaled.min() > 112
    assert bool(scaled.max() <= 448) is (recipe is not Recipe.MXFP8_FLOOR)


def test_cutting_a_mantissa_and_rounding_a_scale_up_are_the_same_on_every_magnitude_of_bf16() -> None:
    amax = of_bf16()
    amax = amax[np.isfinite(amax) & (amax > 2.0**-100) & (amax < 2.0**100)]
    cut, rounded = (scales(amax, Fp8Format.E4M3, recipe) for recipe in (Recipe.BLOCKWISE, Recipe.MXFP8))
    assert np.array_equal(cut, rounded)


def test_a_number_is_scaled_before_it_is_cast() -> None:
    values: Any = np.array([[1.0, -0.001]], np.float32)
    assert cast(values, Fp8Format.E4M3, scale=448.0).tolist() == [[448.0, -0.4375]]
