"""Feature values of real gradients: of which parameters, when, and whose."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ckpttool.core.domain.units import Rank, Step
from ckpttool.guard.features import FeatureProbe


class Stack(nn.Module):
    """Seven matrices, vectors between them, one that is never used, and one in float16."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(7))
        self.unused = nn.Linear(8, 8, bias=False)
        self.narrow = nn.Parameter(torch.zeros(8, 8, dtype=torch.float16))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            batch = torch.tanh(layer(batch))
        return batch


def gradient(model: nn.Module, name: str) -> torch.Tensor:
    found = model.get_parameter(name).grad
    assert found is not None
    return found


def backward(model: nn.Module, factor: float = 1.0) -> None:
    (model(torch.randn(4, 8)).square().mean() * factor).backward()


def test_every_third_matrix_is_looked_at_and_its_largest_gradient_squared_is_its_value() -> None:
    torch.manual_seed(1)
    model = Stack()
    probe = FeatureProbe(model, interval=3)
    assert probe.names == ("layers.0.weight", "layers.3.weight", "layers.6.weight")
    assert probe.rank == 0
    backward(model)
    probe.take(Step(1))
    expected = [float(gradient(model, name).abs().max()) ** 2 for name in probe.names]
    model.zero_grad()  # what was taken stays, whatever becomes of the gradients
    values = probe.values()
    assert [(value.name, value.step, value.rank) for value in values] == [(name, 1, 0) for name in probe.names]
    assert [value.value for value in values] == expected
    assert probe.values() == ()


def test_a_parameter_without_a_gradient_has_no_value_and_one_with_a_nan_has_that() -> None:
    model = Stack()
    probe = FeatureProbe(model, interval=1)
    assert "unused.weight" in probe.names
    assert "narrow" not in probe.names  # what overflows there is the scaler's business
    backward(model)
    gradient(model, "layers.2.weight")[3, 3] = math.nan
    gradient(model, "layers.4.weight")[0, 0] = -math.inf
    probe.take(Step(1), scale=1024.0)
    values = {value.name: value.value for value in probe.values()}
    assert "unused.weight" not in values
    assert math.isnan(values["layers.2.weight"])
    assert values["layers.4.weight"] == math.inf
    assert 0 < values["layers.0.weight"] < math.inf


def test_a_step_that_overflowed_can_be_forgotten_before_anybody_judges_it() -> None:
    model = Stack()
    probe = FeatureProbe(model)
    for step, factor in ((1, 1.0), (2, math.inf), (3, 1.0)):
        model.zero_grad()
        backward(model, factor)
        probe.take(Step(step))
        if step == 2:
            probe.forget()
    assert {value.step for value in probe.values()} == {1, 3}


def test_bfloat16_matrices_and_sparse_gradients_are_looked_at() -> None:
    model = nn.ModuleDict({"wide": nn.Linear(4, 4), "words": nn.Embedding(5, 4, sparse=True)}).bfloat16()
    probe = FeatureProbe(model, interval=1)
    model["wide"](model["words"](torch.tensor([1, 1, 3]))).sum().backward()
    probe.take(Step(1))
    assert {value.name for value in probe.values()} == {"wide.weight", "words.weight"}


@pytest.mark.usefixtures("one_process_group")
def test_a_second_hook_of_torchs_own_leaves_the_first_alone() -> None:
    model = DistributedDataParallel(nn.Linear(4, 4))
    allreduce = dist.BuiltinCommHookType.ALLREDUCE  # type: ignore[attr-defined]
    model._register_builtin_comm_hook(allreduce)  # noqa: SLF001  the public way takes none of these
    probe = FeatureProbe(model, interval=1)
    assert (probe.is_before_reduction, probe.rank) == (False, Rank(0))
    model(torch.ones(2, 4)).sum().backward()
    probe.take(Step(1))
    assert len(probe.values()) == 1


@pytest.mark.parametrize("in_buckets", [False, True])
@pytest.mark.usefixtures("one_process_group")
def test_a_closed_probe_leaves_the_averaging_and_takes_nothing(in_buckets: bool) -> None:
    model = DistributedDataParallel(nn.Linear(4, 4), gradient_as_bucket_view=in_buckets)
    probe = FeatureProbe(model, interval=1)
    assert probe.is_before_reduction
    probe.close()
    model(torch.ones(2, 4)).sum().backward()
    probe.take(Step(1))
    assert probe.values() == ()
    assert model.module.weight.grad is not None
