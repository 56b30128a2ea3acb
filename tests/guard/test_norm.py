"""The norm is the one that torch's clipping takes, and is there where torch has none."""

from __future__ import annotations

import math
from unittest.mock import patch

import pytest
import torch
from torch import nn

from ckpttool.guard import gradients
from ckpttool.guard.gradients import Losses, total_norm


def with_gradients(*gradients: torch.Tensor) -> list[torch.Tensor]:
    parameters: list[torch.Tensor] = []
    for gradient in gradients:
        parameter = nn.Parameter(torch.zeros(gradient.shape, dtype=gradient.dtype))
        parameter.grad = gradient
        parameters.append(parameter)
    return parameters


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_it_is_the_norm_of_torch_in_every_bit(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    parameters = [*with_gradients(torch.randn(7, 9).to(dtype), torch.randn(130).to(dtype)), nn.Parameter(torch.ones(2))]
    expected = nn.utils.clip_grad_norm_(parameters, math.inf)
    assert torch.equal(total_norm(parameters), expected)


def test_no_gradient_at_all_has_a_norm_of_zero() -> None:
    assert total_norm([nn.Parameter(torch.ones(2))]).item() == 0
    assert total_norm([]).item() == 0


def test_finite_gradients_of_float16_have_a_finite_norm() -> None:
    parameters = with_gradients(torch.full((1000,), 3e4, dtype=torch.float16), torch.full((2,), 1.0))
    assert total_norm(parameters).item() == pytest.approx(3e4 * math.sqrt(1000), rel=1e-3)
    parameters = with_gradients(torch.tensor([math.inf], dtype=torch.float16))
    assert total_norm(parameters).item() == math.inf


def test_sparse_gradients_have_the_norm_of_what_they_hold() -> None:
    embedding = nn.Embedding(10, 4, sparse=True)
    embedding(torch.tensor([1, 2, 2])).sum().backward()
    assert total_norm(list(embedding.parameters())).item() == pytest.approx(math.sqrt(4 * 1 + 4 * 4))


def test_the_sum_of_losses_is_read_with_the_norm_and_one_that_is_not_finite_is_not_hidden_by_another() -> None:
    losses = Losses()
    for loss in (torch.tensor(1.0, requires_grad=True), 1.0, torch.tensor([1.0, 0.5], dtype=torch.bfloat16)):
        losses.add(loss)
    reading = losses.read(torch.tensor(3.0))
    assert (reading.norm, reading.loss, reading.losses_finite) == (3.0, 3.5, True)
    for value in (math.inf, -math.inf):
        losses.add(torch.tensor(value))
    assert losses.read(1.0).losses_finite is False


@pytest.mark.parametrize("values", [[2.0], [2.0, 3.0]], ids=["one", "two"])
def test_a_loss_is_read_as_it_was_added_if_the_training_uses_its_memory_again(values: list[float]) -> None:
    losses, memory = Losses(), torch.zeros(())
    for value in values:
        losses.add(memory.fill_(value))
    memory.fill_(math.nan)
    reading = losses.read(torch.tensor(1.0))
    assert (reading.loss, reading.losses_finite) == (sum(values), True)


@pytest.mark.parametrize("before", [[], [1.0]], ids=["alone", "after a finite one"])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("is_here", [True, False])
def test_a_single_loss_that_is_not_finite_is_seen(before: list[float], bad: float, is_here: bool) -> None:
    losses = Losses()
    for value in (*before, bad):
        losses.add(torch.tensor(value))
    with patch.object(gradients, "_are_here", lambda *_: is_here):
        assert losses.read(torch.tensor(1.0)).losses_finite is False


@pytest.mark.parametrize("later", [1.0, torch.ones(2)], ids=["scalar", "vector"])
def test_a_first_loss_that_is_not_finite_stays_seen_after_a_later_one(later: torch.Tensor | float) -> None:
    losses = Losses()
    losses.add(torch.tensor(math.inf))
    losses.add(later)
    losses.add(torch.tensor(-math.inf))
    assert losses.read(1.0).losses_finite is False


def test_finite_losses_of_many_samples_are_finite_even_if_their_sum_is_not() -> None:
    losses = Losses()
    losses.add(torch.full((4,), 3e38))
    reading = losses.read(torch.tensor(1.0))
    assert (reading.loss, reading.losses_finite) == (math.inf, True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bad", [1.0, math.inf, math.nan])
def test_one_transfer_from_a_device_reads_what_is_read_here_one_by_one(dtype: torch.dtype, bad: float) -> None:
    def read() -> str:
        losses = Losses()
        for loss in (1 / 3, bad):
            losses.add(torch.tensor(loss, dtype=dtype))
        return repr(losses.read(torch.tensor([2 / 3], dtype=torch.float32).sum()))

    here = read()
    with patch.object(gradients, "_are_here", lambda *_: False):
        assert read() == here
