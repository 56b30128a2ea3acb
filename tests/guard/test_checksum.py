"""Each matrix product of a training is looked at: wrong ones are named, and right ones never."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

from ckpttool.core.domain.guarding import EventValue, GuardEventKind
from ckpttool.core.domain.units import Rank, Step
from ckpttool.guard.checksum import MatmulChecksum
from tests.guard.faulty import FaultyDevice

PRODUCTS = 2 * (4 + 8) - 5
"""In a step of the model."""

Told = list[tuple[GuardEventKind, dict[str, EventValue]]]


class Block(nn.Module):
    """Attention by hand and in one kernel, a convolution, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 16, bias=False)
        self.conv = nn.Conv1d(16, 16, 1)

    def forward(self, batch: Tensor) -> Tensor:
        mixed = torch.softmax(torch.einsum("bij,bkj->bik", batch, batch) / 4, -1) @ batch
        heads = mixed.unsqueeze(1)
        mixed = mixed + nn.functional.scaled_dot_product_attention(heads, heads, heads).squeeze(1)
        mixed = self.second(torch.relu(self.first(mixed)))
        convolved: Tensor = self.conv(mixed.transpose(1, 2))
        return convolved


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, batch: Tensor) -> Tensor:
        for block in self.blocks:
            batch = batch + block(batch).transpose(1, 2)
        return batch


def double_one(result: Tensor) -> None:
    result.view(-1)[5] += 7.0


@pytest.fixture
def model() -> Model:
    torch.manual_seed(7)
    return Model()


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def step(
    model: nn.Module, *around: FaultyDevice, dtype: torch.dtype = torch.float32, told: Told | None = None
) -> MatmulChecksum:
    """One forward and backward under a checksum, with what is entered before it."""

    def emit(kind: GuardEventKind, /, *, step: Step, **values: EventValue) -> None:
        assert step == 41
        if told is not None:
            told.append((kind, values))

    checksum = MatmulChecksum(model, emit, rank=Rank(3))
    checksum.step = Step(41)
    model.zero_grad()
    torch.manual_seed(8)
    with ExitStack() as stack:
        for context in around:
            stack.enter_context(context)
        with checksum, torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
            model(torch.randn(4, 10, 16)).square().mean().backward()
    return checksum


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_healthy_step_is_told_nothing_of_and_changed_in_no_bit(model: Model, dtype: torch.dtype) -> None:
    torch.manual_seed(8)
    with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
        model(torch.randn(4, 10, 16)).square().mean().backward()
    plain, told = gradients(model), Told()
    checksum = step(model, dtype=dtype, told=told)
    assert all(torch.equal(left, right) for left, right in zip(plain, gradients(model), strict=True))
    assert told == []
    assert not checksum.take_abnormal()
    summary = checksum.summary()
    # Four of each block forward; backward two for each, but those for the batch itself. No attention, no convolution.
    assert summary["products"] == PRODUCTS
    assert (summary["suspicions"], summary["wrong"]) == (0, 0)
    assert isinstance(summary["covered_flops"], float)
    assert 0.4 < summary["covered_flops"] < 0.95
    assert checksum.summary() == {"products": 0, "suspicions": 0, "wrong": 0, "covered_flops": None}


@pytest.mark.parametrize(
    ("op", "after", "module", "phase"),
    [
        ("aten.addmm.default", 1, "blocks.1.first", "forward"),
        ("aten.bmm.default", 1, "blocks.0", "forward"),
        ("aten.mm.default", 0, "blocks.0.second", "forward"),
        ("aten.mm.default", 2, "blocks.1.second", "backward"),
        ("aten.mm.default", 8, "blocks.0.first", "backward"),
        ("aten.bmm.default", 4, "blocks.1", "backward"),
    ],
)
def test_a_persistent_fault_is_told_with_its_place(model: Model, op: str, after: int, module: str, phase: str) -> None:
    told = Told()
    faulty = FaultyDevice(op, double_one, after=after, times=2)  # the product, and when it is computed once more
    checksum = step(model, faulty, told=told)
    ((kind, values),) = told
    assert kind is GuardEventKind.CHECKSUM_ABNORMAL
    expected = {"rank": 3, "host": socket.gethostname(), "device": "cpu", "op": op, "module": module, "phase": phase}
    assert {key: values[key] for key in expected} == expected
    assert (values["row"], values["column"], values["batch"]) == (0, 5, 0)
    assert (values["fault"], values["healed"]) == ("persistent", False)
    assert isinstance(values["error_over_bound"], float)
    assert values["error_over_bound"] > 100
    assert checksum.take_abnormal()
    assert not checksum.take_abnormal()


def test_a_transient_fault_is_healed_and_the_step_is_the_one_without_it(model: Model) -> None:
    step(model)
    plain, told = gradients(model), Told()
    for op, after in (("aten.addmm.default", 0), ("aten.mm.default", 3)):
        faulty = FaultyDevice(op, double_one, after=after, times=1)
        checksum = step(model, faulty, told=told)
        assert faulty.spoiled == 1
        assert checksum.take_abnormal()
        assert all(torch.equal(left, right) for left, right in zip(plain, gradients(model), strict=True))
    assert [(values["fault"], values["healed"]) for _, values in told] == [("transient", True)] * 2


def test_a_fault_that_comes_back_elsewhere_is_transient_but_not_healed(model: Model) -> None:
    places = iter(range(1000))

    def wander(result: Tensor) -> None:
        result.view(-1)[next(places)] = float("nan")

    told = Told()
    step(model, FaultyDevice("aten.addmm.default", wander, times=2), told=told)
    assert (told[0][1]["fault"], told[0][1]["healed"]) == ("transient", False)


def test_a_broken_device_is_told_a_hundred_times_and_counted_on(model: Model) -> None:
    told = Told()

    def emit(kind: GuardEventKind, /, *, step: Step, **values: EventValue) -> None:  # noqa: ARG001
        told.append((kind, values))

    checksum = MatmulChecksum(model, emit, rank=Rank(0))
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    with FaultyDevice("aten.mm.default", double_one), checksum:
        for _ in range(120):
            _ = a @ b
    assert len(told) == 100
    assert checksum.summary()["wrong"] == 120


def test_a_false_suspicion_is_never_reported_and_the_third_changes_the_bound_of_its_place_alone(model: Model) -> None:
    told = Told()

    def emit(kind: GuardEventKind, /, *, step: Step, **values: EventValue) -> None:  # noqa: ARG001
        told.append((kind, values))

    checksum = MatmulChecksum(model, emit, rank=Rank(0))
    torch.manual_seed(6)
    a, b = (0.3 + 1e-3 * torch.randn(32, 512)).bfloat16(), (0.3 + 1e-3 * torch.randn(512, 512)).bfloat16()
    seen = []
    with checksum:
        for _ in range(5):
            _ = a @ b
            seen.append(checksum._suspicions)  # noqa: SLF001  how many so far
    assert seen == [1, 2, 3, 3, 3]
    assert [kind for kind, _ in told] == [GuardEventKind.CHECKSUM_SUSPICION]
    assert not checksum.take_abnormal()
    with checksum:
        _ = torch.cat([a, a]) @ b  # another place
    assert checksum.summary()["suspicions"] == 4


def test_a_check_that_fails_leaves_the_training_alone(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    step(model)
    plain = gradients(model)

    def broken(*_arguments: object, **_settings: object) -> Tensor:
        raise RuntimeError("out of memory")

    failed = []

    def contained(call: Callable[[], Any]) -> Any:  # noqa: ANN401
        try:
            return call()
        except RuntimeError as error:
            failed.append(str(error))

    monkeypatch.setattr("ckpttool.guard.checksum.suspicious_rows", broken)
    model.zero_grad()
    torch.manual_seed(8)
    with MatmulChecksum(model, lambda *_, **__: None, rank=Rank(0), contained=contained):
        model(torch.randn(4, 10, 16)).square().mean().backward()
    assert len(failed) == PRODUCTS
    assert all(torch.equal(left, right) for left, right in zip(plain, gradients(model), strict=True))


@pytest.fixture
def mesh(one_process_group: None) -> DeviceMesh:  # noqa: ARG001  it is asked for before
    return init_device_mesh("cpu", (1,))


def test_the_local_products_of_tensors_spread_over_ranks_are_seen(mesh: DeviceMesh) -> None:
    a, b = (DTensor.from_local(torch.randn(8, 8), mesh, [Replicate()]) for _ in range(2))
    told = Told()

    def emit(kind: GuardEventKind, /, *, step: Step, **values: EventValue) -> None:  # noqa: ARG001
        told.append((kind, values))

    checksum = MatmulChecksum(nn.Linear(1, 1), emit, rank=Rank(0))
    with FaultyDevice("aten.mm.default", double_one, times=1), checksum:
        healed = a @ b
    assert checksum.summary()["products"] == 1
    assert len(told) == 1
    assert isinstance(healed, DTensor)
    assert torch.equal(healed.to_local(), a.to_local() @ b.to_local())
