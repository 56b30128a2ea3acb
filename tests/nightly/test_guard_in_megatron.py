"""The guard in the real Megatron-core, on two ranks: an update is dropped as if an Inf was found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.nightly.borrowing import trainer_python
from tests.nightly.engines import PRECISIONS, Ran, bits, changeless, kinds, run

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="installs Megatron-core: --nightly")

MEGATRON = ("megatron-core==0.16.1", "numpy", "packaging")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trainer_python(tmp_path_factory.mktemp("megatron") / "venv", *MEGATRON)


@pytest.fixture(scope="module")
def ran(python: str, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    cases: dict[str, Any] = {}
    bad = {"3": "inf", "5": "spike"}
    for distributed in (0, 1):
        for precision in PRECISIONS:
            usual = {"precision": precision, "distributed": distributed, "steps": 6, "clip": 1.0}
            cases[f"{distributed}-{precision}-bad"] = usual | {"bad": bad, "policy": 20.0}
            cases[f"{distributed}-{precision}-healthy"] = usual | {"bad": {}, "policy": 20.0}
            cases[f"{distributed}-{precision}-alone"] = usual | {"bad": {}, "without": True}
        usual = {"precision": "bf16", "distributed": distributed, "steps": 6, "clip": 0.0}
        cases[f"{distributed}-tensor"] = usual | {"bad": bad, "policy": 20.0, "tensor": True}
        cases[f"{distributed}-experts"] = usual | {"bad": bad, "policy": 20.0, "experts": True}
        cases[f"{distributed}-zclip"] = usual | {"bad": {"5": "spike"}, "policy": "zclip"}
        cases[f"{distributed}-watch"] = usual | {"bad": {"5": "spike"}, "policy": 20.0, "mode": "watch"}
        cases[f"{distributed}-watched"] = usual | {"bad": {"5": "spike"}, "without": True}
        cases[f"{distributed}-overflow"] = usual | {"bad": {}, "precision": "16", "scale": 2.0**30}
    return run(python, "megatron_guard.py", tmp_path_factory.mktemp("ran"), cases, *cases)


@pytest.mark.parametrize("distributed", [0, 1])
@pytest.mark.parametrize("name", [*(f"{precision}-bad" for precision in PRECISIONS), "tensor", "experts"])
def test_a_dropped_update_is_dropped_on_all_ranks(ran: Ran, distributed: int, name: str) -> None:
    for rank in ran[f"{distributed}-{name}"]:
        assert changeless(rank) == [3, 5]
        assert kinds(rank) == [("nonfinite", 3), ("skip", 5)]
        assert [step["applied"] for step in rank["seen"]] == [True, True, False, True, False, True]
    assert len(ran[f"{distributed}-{name}"][0]["parts"]) == (2 if name == "experts" else 1)


@pytest.mark.parametrize("distributed", [0, 1])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_healthy_training_is_equal_in_every_bit(ran: Ran, distributed: int, precision: str) -> None:
    healthy, alone = (ran[f"{distributed}-{precision}-{name}"] for name in ("healthy", "alone"))
    assert bits(healthy) == bits(alone)
    assert [kinds(rank) for rank in healthy] == [[], []]
    assert [step["norm"] for step in healthy[0]["seen"]] == [step["norm"] for step in alone[0]["seen"]]


@pytest.mark.parametrize("distributed", [0, 1])
def test_a_policy_clips_and_a_guard_that_watches_changes_nothing(ran: Ran, distributed: int) -> None:
    watched = bits(ran[f"{distributed}-watched"])
    assert bits(ran[f"{distributed}-watch"]) == watched
    for own, other in zip(bits(ran[f"{distributed}-zclip"]), watched, strict=True):
        assert (own[:4] == other[:4], own[4] == other[4]) == (True, False)


@pytest.mark.parametrize("distributed", [0, 1])
def test_an_overflow_is_the_business_of_its_loss_scaler(ran: Ran, distributed: int) -> None:
    for rank in ran[f"{distributed}-overflow"]:
        assert kinds(rank) == [("overflow", step) for step in range(1, 7)]
        assert rank["seen"][-1]["scale"] == 2.0**24


def test_the_environment_alone_guards_it(ran: Ran, python: str, tmp_path: Path) -> None:
    usual = {"precision": "bf16", "distributed": 1, "steps": 6, "clip": 1.0, "without": True}
    cases = {"bad": usual | {"bad": {"3": "inf"}}, "healthy": usual | {"bad": {}}}
    guarded = run(python, "megatron_guard.py", tmp_path, cases, *cases, guard=f"{tmp_path}/events")
    assert [changeless(rank) for rank in guarded["bad"]] == [[3], [3]]
    assert bits(guarded["healthy"]) == bits(ran["1-bf16-alone"])
