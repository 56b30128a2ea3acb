"""Sums of rows find a wrong product, and never a right one."""

from __future__ import annotations

import math

import pytest
import torch

from ckpttool.guard.products import PRODUCTS, Product, can_be_checked, suspicious_rows, worst_element
from tests.guard.faulty import INTEGERS, clean_products, flip, product

addmm, baddbmm = torch.ops.aten.addmm.default, torch.ops.aten.baddbmm.default


def is_right(found: Product) -> bool:
    rows = suspicious_rows(found)
    return worst_element(found, rows) is None


def test_no_right_product_of_twelve_distributions_and_three_types_is_called_wrong() -> None:
    torch.manual_seed(3)
    rows = 0
    for name, found in clean_products([(16, 64, 64), (4, 600, 300), (8, 16, 2048)]):
        assert is_right(found), name
        rows += found.c.shape[1]
    assert rows == 28 * 36


@pytest.mark.parametrize(("dtype", "surely"), [(torch.float32, 15), (torch.bfloat16, 6), (torch.float16, 9)])
def test_a_flip_of_the_sign_or_of_a_high_bit_is_found_where_it_is(dtype: torch.dtype, surely: int) -> None:
    torch.manual_seed(4)
    a, b = torch.randn(4, 512).to(dtype), torch.randn(512, 256).to(dtype)
    width = INTEGERS[dtype].itemsize * 8
    for bit in range(width):
        found = product(a, b)
        column = int(found.c[0, 2].abs().argmax())
        flip(found.c[0], (2, column), bit)
        rows = suspicious_rows(found).tolist()
        wrong = worst_element(found, torch.tensor([[0, 2]]))
        if rows:
            assert rows == [[0, 2]]
            assert wrong is not None
            assert (wrong.row, wrong.column) == (2, column)
            assert wrong.ratio > 1
        else:
            assert bit < width - 1 - surely or wrong is None, f"bit {bit} was missed"
    assert is_right(product(a, b))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e38])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_finite_or_too_large_to_be_squared_does_not_hide_itself(dtype: torch.dtype, value: float) -> None:
    found = product(torch.randn(4, 64).to(dtype), torch.randn(64, 32).to(dtype))
    found.c[0, 1, 7] = value
    rows = suspicious_rows(found)
    assert rows.tolist() == [[0, 1]]
    wrong = worst_element(found, rows)
    assert wrong is not None
    assert (wrong.row, wrong.column) == (1, 7)


def test_infinity_is_right_where_the_result_overflows_and_nan_where_an_operand_is_one() -> None:
    ones = torch.ones(2, 256, dtype=torch.float16)
    overflown = product(ones * 300, ones.T.contiguous() * 300)
    assert overflown.c.isinf().all()
    assert is_right(overflown)
    a, b = torch.randn(3, 64), torch.randn(64, 8)
    a[1, 5] = math.nan
    assert is_right(product(a, b))
    b[3, 3] = math.inf
    assert len(suspicious_rows(product(a, b))) == 0  # no news, and not worth float64
    b[3, 3] = 0
    spoiled = product(a, b)
    spoiled.c[0, 0, 0] += 100.0  # beside the row that is NaN and may be
    assert suspicious_rows(spoiled).tolist() == [[0, 0]]


def test_added_terms_and_factors_belong_to_the_product() -> None:
    torch.manual_seed(5)
    a, b, bias = torch.randn(6, 64), torch.randn(64, 32), torch.randn(32)
    factors = {"alpha": 0.5, "beta": -3}
    found = PRODUCTS[addmm]((bias, a, b), factors, torch.addmm(bias, a, b, **factors))  # type: ignore[call-overload]
    assert is_right(found)
    assert not is_right(PRODUCTS[addmm]((bias, a, b), {}, found.c[0]))
    batches = torch.randn(3, 6, 32), torch.randn(3, 6, 64), torch.randn(3, 64, 32)
    for dtype in INTEGERS:
        wide = [tensor.to(dtype) for tensor in batches]
        result = torch.baddbmm(*wide)
        assert is_right(PRODUCTS[baddbmm](tuple(wide), {}, result))
        result[2, 4, 1] += 30
        spoiled = PRODUCTS[baddbmm](tuple(wide), {}, result)
        wrong = worst_element(spoiled, suspicious_rows(spoiled))
        assert wrong is not None
        assert (wrong.batch, wrong.row, wrong.column) == (2, 4, 1)


def test_a_bias_that_nearly_cancels_the_product_is_no_fault() -> None:
    for dtype in INTEGERS:
        a, b = torch.randn(8, 64).to(dtype), torch.randn(64, 32).to(dtype)
        bias = -(a @ b)
        assert is_right(PRODUCTS[addmm]((bias, a, b), {}, torch.addmm(bias, a, b)))


def test_nearly_equal_columns_are_suspicious_until_their_roundings_are_taken_to_add_up() -> None:
    torch.manual_seed(6)
    a, b = (0.3 + 1e-3 * torch.randn(32, 512)).bfloat16(), (0.3 + 1e-3 * torch.randn(512, 512)).bfloat16()
    found = product(a, b)
    rows = suspicious_rows(found)
    assert len(rows)
    assert worst_element(found, rows) is None
    assert len(suspicious_rows(found, roundings_add_up=True)) == 0
    found.c[0, 3, 3] *= 100
    assert suspicious_rows(found, roundings_add_up=True).tolist() == [[0, 3]]


def test_rows_of_b_that_add_up_to_nothing_leave_room_for_the_roundings_of_c() -> None:
    torch.manual_seed(7)
    column, row = torch.rand(64) + 0.5, torch.randn(256)
    found = product(column.expand(8, 64).contiguous(), column.outer(row - row.mean()))
    assert len(suspicious_rows(found)) == 0
    found.c[0, 3, 3] += 1.0
    assert suspicious_rows(found).tolist() == [[0, 3]]


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_products_of_fewer_bits_are_right_where_the_training_asked_for_them(precision: str) -> None:
    a, b = torch.randn(16, 256), torch.randn(256, 64)
    coarse = product(a.bfloat16().float(), b.bfloat16().float()).c
    found = Product(a=a[None], b=b[None], c=coarse)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        assert is_right(found) == (precision == "medium")
    finally:
        torch.set_float32_matmul_precision(before)


def test_what_has_no_bounds_or_multiplies_nothing_is_not_checked() -> None:
    assert can_be_checked(product(torch.randn(2, 2), torch.randn(2, 2)))
    assert not can_be_checked(product(torch.randn(2, 2).double(), torch.randn(2, 2).double()))
    assert not can_be_checked(product(torch.ones(2, 2, dtype=torch.int32), torch.ones(2, 2, dtype=torch.int32)))
    assert not can_be_checked(product(torch.randn(2, 0), torch.randn(0, 2)))
    assert not can_be_checked(product(torch.randn(0, 2), torch.randn(2, 2)))
