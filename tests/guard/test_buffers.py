"""Buffers are put back as they were, whatever a forward did to them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ckpttool.guard.buffers import Buffers
from tests.guard.loop import bits


class Holder(nn.Module):
    """Holds a buffer of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([1.0, float("nan"), -0.0]))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("narrow", torch.ones(2, dtype=torch.bfloat16), persistent=False)
        self.register_buffer("flag", torch.tensor([True, False]))
        self.register_buffer("spread", torch.ones(1).expand(4))
        self.register_buffer("empty", torch.ones(0))
        self.register_buffer("none", None)
        self.register_buffer("complex", torch.ones(2, dtype=torch.complex64))

    mean: Tensor
    count: Tensor
    narrow: Tensor
    flag: Tensor


def change(holder: Holder) -> None:
    holder.mean[:] = torch.tensor([float("inf"), 2.0, 0.0])
    holder.count += 1
    holder.narrow.mul_(3)
    holder.flag.logical_not_()


def test_every_bit_of_every_buffer_is_put_back() -> None:
    holder, buffers = Holder(), None
    buffers = Buffers(holder)
    before = bits(dict(holder.named_buffers()))
    for _ in range(5):
        buffers.take()
        change(holder)
        assert bits(dict(holder.named_buffers())) != before
        buffers.restore()
        assert bits(dict(holder.named_buffers())) == before
        buffers.forget()


def test_a_buffer_that_a_forward_replaced_is_the_old_one_again() -> None:
    holder = Holder()
    buffers, mean = Buffers(holder), holder.mean
    before = bits(mean)
    buffers.take()
    holder.mean = torch.zeros(9)
    buffers.restore()
    assert holder.mean is mean
    assert bits(mean) == before
    holder.mean = torch.zeros(9)
    buffers.take()
    holder.mean += 1
    buffers.restore()
    assert holder.mean.tolist() == [0.0] * 9, "what was replaced for good is what is kept from then on"


class Large(nn.Module):
    """Holds a large buffer that never changes, one that always does, and two small ones."""

    table: Tensor
    history: Tensor
    small: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(1000))
        self.register_buffer("history", torch.zeros(900))
        self.register_buffer("small", torch.zeros(10))


def test_of_buffers_that_are_too_large_those_are_kept_that_change() -> None:
    large = Large()
    buffers = Buffers(large, most_bytes=4000)
    assert left_out(buffers) == ["table"], "the smallest first, as long as nothing is known"
    large.table += 1
    assert left_out(buffers) == ["history", "small"]
    assert left_out(Buffers(Large(), most_bytes=40)) == ["table", "history"]


def left_out(buffers: Buffers) -> list[str]:
    buffers.take()
    return [*buffers.left_out]


@pytest.mark.parametrize("step", [2, 50, 100, 101])
def test_a_buffer_that_begins_to_change_is_found_at_the_next_look(step: int) -> None:
    large = Large()
    buffers = Buffers(large, most_bytes=4000)
    for number in range(1, 202):
        buffers.take()
        buffers.forget()
        if number == step:
            large.table += 1
    assert buffers.left_out == ("history", "small")


@pytest.mark.parametrize("how", ["joins", "deep", "replaces", "buffer", "leaves"])
def test_a_module_or_a_buffer_that_comes_later_is_put_back_from_its_first_step_on(how: str) -> None:
    model = nn.Sequential(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)))
    inner = model[0]
    assert isinstance(inner, nn.Sequential)
    buffers = Buffers(model)
    for _ in range(8):
        buffers.take()
        buffers.forget()
    late = Holder()
    if how == "joins":
        model.append(late)
    elif how == "deep":
        inner.append(late)
    elif how == "replaces":
        inner[1] = late
    elif how == "buffer":
        inner[1].register_buffer("mean", late.mean)
    else:
        del inner[0]
    before = bits(dict(model.named_buffers()))
    buffers.take()
    change(late)
    assert (bits(dict(model.named_buffers())) == before) is (how == "leaves")
    buffers.restore()
    assert bits(dict(model.named_buffers())) == before
