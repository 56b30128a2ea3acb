"""When products are checked, and what a guard refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ckpttool.core.domain.guarding import GuardEventKind
from ckpttool.core.errors import UsageError
from ckpttool.guard import Guard, GuardStop
from tests.guard.faulty import FaultyDevice
from tests.guard.loop import Told
from tests.guard.rank_errors import double


def guard_of(**settings: Any) -> tuple[nn.Module, Guard, Told]:  # noqa: ANN401  the guard's own
    torch.manual_seed(1)
    model, told = nn.Linear(9, 5), Told()
    return model, Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), sinks=[told], **settings), told


def step(model: nn.Module, guard: Guard) -> None:
    with guard.micro() as micro:
        micro.loss(model(torch.randn(4, 9)).square().mean()).backward()
    guard.clip_(1.0)
    guard.optimizer.step()
    guard.optimizer.zero_grad()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"patrol": -1}, "patrol must be a number of steps"),
        ({"replica_every": True}, "replica_every must be a number of steps"),
        ({"on_abnormal": "panic"}, "'warn' or 'stop', not 'panic'"),
        ({"features": "enable: true"}, "enable must be exactly true or false"),
    ],
)
def test_settings_that_cannot_be_meant_are_an_error_at_start(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        guard_of(**settings)


def test_without_patrol_and_strike_nothing_is_checked_and_with_a_fault_nothing_seen() -> None:
    model, guard, told = guard_of()
    with FaultyDevice("aten.addmm.default", double):
        step(model, guard)
    assert told.kinds() == []
    assert "checked" not in told.of(GuardEventKind.STEP)[0]


def test_a_patrol_checks_one_step_of_so_many() -> None:
    model, guard, told = guard_of(patrol=3)
    for _ in range(7):
        step(model, guard)
    assert ["checked" in values for values in told.of(GuardEventKind.STEP)] == [False, False, True] * 2 + [False]


def test_after_a_result_that_was_not_finite_and_then_was_the_next_twenty_steps_are_checked() -> None:
    model, guard, told = guard_of()
    step(model, guard)
    guard.tell(GuardEventKind.TRANSIENT, step=guard.step)
    for _ in range(25):
        step(model, guard)
    assert ["checked" in values for values in told.of(GuardEventKind.STEP)] == [False] + [True] * 20 + [False] * 5


def test_a_wrong_product_on_patrol_stops_a_training_that_asked_for_it_before_its_update() -> None:
    model, guard, told = guard_of(patrol=2, on_abnormal="stop")
    step(model, guard)
    before = model.get_parameter("weight").clone()
    with FaultyDevice("aten.addmm.default", double), pytest.raises(GuardStop, match="a matrix product was wrong"):
        step(model, guard)
    guard.optimizer.step()  # as a loop that does not end at once
    assert torch.equal(before, model.get_parameter("weight"))
    (values,) = told.of(GuardEventKind.CHECKSUM_ABNORMAL)
    assert (values["module"], values["phase"], values["fault"]) == ("", "forward", "persistent")


def test_a_step_that_ended_by_an_exception_leaves_no_check_behind() -> None:
    model, guard, told = guard_of(patrol=1)
    with pytest.raises(ZeroDivisionError), guard.micro():
        raise ZeroDivisionError
    guard.begin(None)  # as a trainer whose end of a batch is not told after an exception
    step(model, guard)
    assert _get_current_dispatch_mode_stack() == []
    assert told.kinds() == []
