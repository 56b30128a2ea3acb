"""A replay takes over the settings of a capture, and nothing that no machine has."""

from __future__ import annotations

import pytest
import torch

from ckpttool.guard.environment import differences, environment, take_over
from ckpttool.guard.model.capture import Setting

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threads", 10**8),
        ("threads", 10**30),
        ("threads", -2),
        ("threads", "many"),
        ("default_dtype", "load"),
        ("default_dtype", "no_such"),
    ],
)
def test_a_setting_that_no_machine_has_stays_a_difference(name: str, value: Setting) -> None:
    before = environment(CPU)
    take_over({name: value})
    here = environment(CPU)
    assert here == before
    assert [each.what for each in differences({**before, name: value}, here)] == [name]


def test_the_threads_of_a_larger_machine_are_taken_over() -> None:
    take_over({"threads": 3})
    assert environment(CPU)["threads"] == 3
