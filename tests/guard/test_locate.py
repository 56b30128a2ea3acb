"""Where a NaN began is named; masks, and infinities that were thrown away, are not blamed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ckpttool.guard.model.capture import OriginKind
from ckpttool.guard.replay.locate import Event, Locator, far_off

Computes: TypeAlias = "Callable[[Tensor, Net], Tensor]"

ROWS = torch.tensor([True, False, False, True])
NEVER = float("-inf")


class Part(nn.Module):
    def __init__(self, computes: Computes) -> None:
        super().__init__()
        self.computes = computes

    def forward(self, items: Tensor, net: Net) -> Tensor:
        return self.computes(items, net)


class Net(nn.Module):
    buffer: Tensor
    mask: Tensor

    def __init__(self, computes: Computes) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.part = Part(computes)
        self.register_buffer("buffer", torch.ones(4))
        self.register_buffer("mask", torch.triu(torch.full((3, 3), NEVER), diagonal=1))

    def forward(self, items: Tensor) -> Tensor:
        return cast("Tensor", self.part(self.first(items), self))


class Divides(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, items: Tensor) -> Tensor:  # noqa: ANN401  torch's signature
        ctx.save_for_backward(items)
        return items * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ANN401  as above
        (items,) = ctx.saved_tensors
        return cast("Tensor", gradient / (items - items))


def located(
    computes: Computes, *, items: Tensor | None = None, poison: Callable[[Net], object] | None = None
) -> tuple[Event | None, bool]:
    """Return the origin, and whether anything was not finite at the end."""
    torch.manual_seed(0)
    net = Net(computes)
    with torch.no_grad():
        _ = poison(net) if poison is not None else None
    given = torch.randn(3, 4) if items is None else items
    locator = Locator(net)
    locator.know_inputs({"items": given})
    with locator.watching():
        loss = net(given).sum()
        loss.backward()
    wrong = [] if bool(torch.isfinite(loss)) else [loss.detach()]
    gradients = [each.grad for each in net.parameters() if each.grad is not None]
    wrong += [gradient for gradient in gradients if not bool(torch.isfinite(gradient).all())]
    return locator.origin(wrong), bool(wrong)


def zero(items: Tensor) -> Tensor:
    return items * 0


def sdpa(items: Tensor, **options: Any) -> Tensor:  # noqa: ANN401  torch's own options
    one = items[None, None]
    return functional.scaled_dot_product_attention(one, one, one, **options)


def attention(items: Tensor, mask: Tensor) -> Tensor:
    return functional.softmax(items @ items.t() + mask, -1) @ items


BAD: dict[str, tuple[Computes, str, str]] = {
    "sqrt of zero": (lambda x, _: torch.sqrt(zero(x)), "sqrt", "backward"),
    "sqrt of zero, checkpointed": (
        lambda x, _: cast("Tensor", checkpoint(lambda y: torch.sqrt(zero(y)), x, use_reentrant=False)),
        "sqrt", "backward",
    ),
    "log of zero": (lambda x, _: torch.log(zero(x)), "log", "forward"),
    "zero times log of zero, over a mask": (lambda x, _: ROWS * torch.log(zero(x)), "log", "forward"),
    "half overflows": (lambda x, _: x.half() * 60000 * 60000, "mul", "forward"),
    "half overflows in a product": (lambda x, _: (x.half() * 3000) @ (x.half().t() * 3000), "mm", "forward"),
    "an overflow in place": (lambda x, _: x.clone().mul_(1e38).mul_(1e38), "mul", "forward"),
    "divided by a norm of zero": (lambda x, _: zero(x) / zero(x).norm(), "div", "forward"),
    "a row masked whole": (
        lambda x, _: functional.softmax(x.masked_fill(torch.ones(3, 4, dtype=torch.bool), NEVER), -1),
        "softmax", "forward",
    ),
    "a row masked whole by a sum": (
        lambda x, _: functional.softmax(x + torch.full((3, 4), NEVER), -1), "softmax", "forward",
    ),
    "a batch of padding": (
        lambda x, _: functional.cross_entropy(x, torch.full((3,), -100)), "nll_loss", "forward",
    ),
    "a mean over nothing": (lambda x, _: zero(x).sum() / (ROWS & ~ROWS).sum(), "div", "forward"),
    "a backward of one's own": (lambda x, _: cast("Tensor", cast("Any", Divides).apply(x)), "Divides", "backward"),
    "exp, of which the finite part is taken": (
        lambda x, _: torch.minimum(torch.exp(x * 1e4), torch.ones(())), "exp", "forward",
    ),
    "infinity minus infinity": (lambda x, _: (x + float("inf")) - (x + float("inf")), "add", "forward"),
    "a power of a negative number": (lambda x, _: torch.pow(-x.abs() - 1, 0.5), "pow", "forward"),
}  # fmt: skip


@pytest.mark.sample(10)
@pytest.mark.parametrize("case", BAD)
def test_the_operation_in_which_it_began_is_named_with_module_and_line(case: str) -> None:
    computes, name, phase = BAD[case]
    origin, is_bad = located(computes)
    assert is_bad
    assert origin is not None
    assert (origin.name, origin.phase) == (name, phase)
    assert origin.module == "part (Part)"
    assert origin.nan + origin.inf > 0
    assert origin.line is not None
    assert f"{__file__}:" in origin.line


GIVEN: dict[str, tuple[Callable[[Net], object] | None, Tensor | None, str, str]] = {
    "a weight": (lambda net: net.first.weight[0, 0].fill_(float("nan")), None, "parameter", "first.weight"),
    "a buffer": (lambda net: net.buffer[0].fill_(float("nan")), None, "buffer", "buffer"),
    "a batch": (None, torch.tensor([[1.0, 2.0, float("inf"), 3.0]]), "input", "items"),
}


@pytest.mark.parametrize("case", GIVEN)
def test_what_was_not_finite_when_it_came_is_given_by_name(case: str) -> None:
    poison, items, kind, name = GIVEN[case]
    origin, is_bad = located(lambda x, net: x * net.buffer, items=items, poison=poison)
    assert is_bad
    assert origin is not None
    assert (origin.kind.value, origin.name) == (kind, name)


HEALTHY: dict[str, Computes] = {
    "causal attention": lambda x, _: sdpa(x, is_causal=True),
    "attention with a row masked whole": lambda x, _: sdpa(
        x, attn_mask=torch.tensor([[True] * 3, [False] * 3, [True] * 3])
    ),
    "attention with a mask of numbers": lambda x, net: sdpa(x, attn_mask=net.mask),
    "a mask by hand": lambda x, _: functional.softmax(
        (x @ x.t()).masked_fill(torch.triu(torch.ones(3, 3, dtype=torch.bool), 1), NEVER), -1
    ),
    "a mask that is added": lambda x, _: attention(x, torch.triu(torch.full((3, 3), NEVER), 1)),
    "a mask that is a buffer": lambda x, net: attention(x, net.mask),
    "a mask that was moved": lambda x, net: attention(x, net.mask[:, :3].clone().to(torch.float64).float()),
    "a mask by where": lambda x, _: functional.softmax(torch.where(ROWS, x, NEVER), -1),
    "a mask filled in place": lambda x, _: functional.softmax(x.clone().masked_fill_(ROWS, NEVER), -1),
    "a mask of two": lambda x, net: attention(x, torch.cat([net.mask[:1], net.mask[1:]])),
    "a mask before a log of zero": lambda x, _: torch.log(zero(x).masked_fill(ROWS | ~ROWS, 1.0)),
    "an infinity thrown away": lambda x, _: torch.minimum(x, torch.full((4,), float("inf"))),
    "the largest so far": lambda x, _: torch.maximum(x, torch.full((4,), NEVER)),
    "a guarded log": lambda x, _: torch.log(zero(x).clamp(min=1e-6)),
    "a guarded square root": lambda x, _: torch.sqrt(zero(x) + 1e-8),
    "a guarded norm": lambda x, _: zero(x) / (zero(x).square().sum() + 1e-8).sqrt(),
    "log of a sum of exponentials": lambda x, _: torch.logsumexp(x.masked_fill(ROWS, NEVER), -1),
    "a softmax of large numbers": lambda x, _: functional.softmax(x * 1e30, -1),
    "a maximum pool over padding": lambda x, _: functional.max_pool1d(x[None], 3, padding=1),
    "infinity in a comparison": lambda x, _: x * (x < float("inf")),
    "nothing special": lambda x, _: torch.tanh(x),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_a_step_that_is_finite_has_no_origin(case: str) -> None:
    origin, is_bad = located(HEALTHY[case])
    assert not is_bad
    assert origin is None


@pytest.mark.parametrize(
    "case", ["a mask that is added", "a mask that is a buffer", "a mask by where", "causal attention"]
)
def test_a_mask_is_not_blamed_for_what_happens_behind_it(case: str) -> None:
    origin, is_bad = located(lambda x, net: torch.log(zero(HEALTHY[case](x, net))))
    assert is_bad
    assert origin is not None
    assert origin.name == "log"


def farthest(*values: Tensor) -> tuple[str, float | None] | None:
    found = far_off(OriginKind.PARAMETER, ((f"w{number}", value) for number, value in enumerate(values)))
    return None if found is None else (found.name, found.value)


def usual(*odd: float, count: int = 1000, dtype: torch.dtype = torch.float32) -> Tensor:
    tensor = torch.randn(count, generator=torch.Generator().manual_seed(0)).to(dtype) / 10
    tensor[: len(odd)] = torch.tensor(odd, dtype=dtype)
    return tensor


@pytest.mark.parametrize(
    ("tensor", "value"),
    [
        (usual(-3e37), -3e37),
        (usual(3e37, 2e37, 1e30), 3e37),
        (usual(1e7, dtype=torch.float64), 1e7),
        (torch.tensor([0.0, 0.0, 2.0]), 2.0),  # a bias that was never trained
        (torch.tensor([1e37, 0.1]), 1e37),
        (torch.complex(usual(), usual(1e20)), 1e20),
    ],
)
def test_a_value_beyond_a_million_times_the_others_is_far_off(tensor: Tensor, value: float) -> None:
    found = farthest(usual(), tensor)
    assert found is not None
    assert found[0] == "w1"
    assert found[1] == pytest.approx(value)


@pytest.mark.parametrize(
    "tensor",
    [
        usual(1e4),
        torch.tensor([0.0, 0.0, 1.0]),  # a bias that has just begun to move
        torch.tensor([1e37]),  # no others exist
        torch.full((40,), 1e30),
        torch.tensor([1, 10**9, 1]),
        torch.zeros(0),
        usual(float("inf")),  # told as what is not finite
    ],
)
def test_a_value_like_the_others_is_not_far_off(tensor: Tensor) -> None:
    assert farthest(usual(), tensor) is None
