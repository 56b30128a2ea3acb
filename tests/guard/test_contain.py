"""What fails in the guard stays in it: each public part raises, always or once, and the training goes on."""

from __future__ import annotations

import json
from functools import cache, partial
from pathlib import Path
from unittest.mock import patch

import pytest
from torch import optim

from ckpttool.core.domain.guarding import GuardEventKind
from ckpttool.guard import contain, step
from ckpttool.guard.buffers import Buffers
from ckpttool.guard.capture.memory import StepMemory
from ckpttool.guard.capture.store import CaptureStore
from ckpttool.guard.checksum import MatmulChecksum
from ckpttool.guard.contain import Containment, Pace, Part
from ckpttool.guard.features import FeatureProbe, SilentErrors
from ckpttool.guard.files.events import EventFile
from ckpttool.guard.gradients import Losses, Updated
from ckpttool.guard.rules.detector import FeatureValueDetector
from ckpttool.guard.rules.guarding import SpikeGuard
from tests.guard.faulty import nth, raising
from tests.guard.loop import INFINITE, NOT_A_NUMBER, Told, Training, batches

adamw = partial(optim.AdamW, lr=0.01)

PARTS: list[tuple[object, str]] = [
    (step, "total_norm"),
    (Losses, "add"),
    (Losses, "read"),
    (SpikeGuard, "propose"),
    (SpikeGuard, "settle"),
    (Buffers, "take"),
    (Buffers, "restore"),
    (Updated, "drop"),
    (FeatureProbe, "take"),
    (FeatureProbe, "values"),
    (FeatureValueDetector, "take"),
    (FeatureValueDetector, "agree"),
    (StepMemory, "micro"),
    (StepMemory, "loss"),
    (StepMemory, "forget"),
    (CaptureStore, "__init__"),
    (CaptureStore, "capture"),
    (Pace, "share"),
    (EventFile, "__init__"),
    (EventFile, "emit"),
]
NAMES = [f"{getattr(owner, '__name__', '').rpartition('.')[2]}.{name}" for owner, name in PARTS]


def trained(output: Path, *, bad: dict[int, float] | None = None) -> Training:
    training = Training(adamw, features="enable:true", output=output, clip=0.5)
    training.run(batches(9, bad=bad))
    training.the_guard.close()
    return training


@cache
def unguarded(steps: int, clip: float) -> object:
    return Training(adamw, guarded=False, clip=clip).run(batches(steps)).everything()


@pytest.mark.sample(10)
@pytest.mark.parametrize(("owner", "name"), PARTS, ids=NAMES)
def test_a_part_that_always_raises_changes_no_bit_of_a_training(owner: object, name: str, tmp_path: Path) -> None:
    with patch.object(owner, name, raising):
        training = trained(tmp_path)
    assert training.everything() == unguarded(9, 0.5)
    assert training.the_guard.step == 9


@pytest.mark.sample(10)
@pytest.mark.parametrize(("owner", "name"), PARTS, ids=NAMES)
def test_a_part_that_always_raises_ends_no_training_of_bad_batches(owner: object, name: str, tmp_path: Path) -> None:
    with patch.object(owner, name, raising):
        trained(tmp_path, bad={2: INFINITE, 5: NOT_A_NUMBER, 8: INFINITE})


@pytest.mark.sample(6)
@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize(("owner", "name"), PARTS, ids=NAMES)
def test_a_part_that_raises_once_costs_that_step_alone(owner: object, name: str, number: int, tmp_path: Path) -> None:
    with patch.object(owner, name, nth(owner, name, number)):
        training = trained(tmp_path, bad={8: INFINITE})
    assert training.the_guard.step == 9
    assert "guard-off" not in training.told.kinds()
    assert training.told.of(GuardEventKind.STEP)[-2]["skipped"] is True, "it is there again"


STATES: list[tuple[type, str]] = [
    (kind, name) for kind in (SpikeGuard, SilentErrors, CaptureStore) for name in ("saved", "restore")
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("owner", "name"), STATES, ids=[f"{kind.__name__}.{name}" for kind, name in STATES])
def test_a_state_that_cannot_be_kept_ends_no_training(owner: object, name: str, tmp_path: Path) -> None:
    def again() -> Training:
        following = Training(adamw, features="enable:true", output=tmp_path)
        following.the_guard.restore(json.loads(json.dumps(trained(tmp_path).the_guard.saved())))
        return following.run(batches(3, bad={2: INFINITE}))

    assert "guard-error" not in again().told.kinds()
    with patch.object(owner, name, raising):
        following = again()
    assert following.the_guard.step == 12
    assert [line["skipped"] for line in following.told.of(GuardEventKind.STEP)] == [False, True, False]
    if name == "restore":
        assert following.told.of(GuardEventKind.GUARD_ERROR)[0]["part"] == "state"


def test_the_third_failure_of_a_part_switches_it_off_and_the_first_tells_where_it_came_from() -> None:
    training = Training(adamw)
    with patch.object(Buffers, "take", raising):
        training.run(batches(6))
    errors = training.told.of(GuardEventKind.GUARD_ERROR)
    assert [error["error"] for error in errors] == ["RuntimeError: the guard itself"] * 3
    assert ["traceback" in error for error in errors] == [True, False, False]
    assert "in raising" in str(errors[0]["traceback"])
    off = training.told.of(GuardEventKind.GUARD_OFF)
    assert [(values["part"], values["whole_guard"]) for values in off] == [("buffers", False)]


@pytest.mark.parametrize("name", ["__enter__", "__exit__", "_checked", "summary", "take_abnormal"])
def test_a_checksum_that_raises_ends_no_training_and_changes_no_bit_of_it(name: str) -> None:
    real = getattr(MatmulChecksum, name)

    def does_and_raises(*values: object, **named: object) -> None:
        real(*values, **named)
        raising()

    with patch.object(MatmulChecksum, name, raising if name == "__enter__" else does_and_raises):
        training = Training(adamw, patrol=1).run(batches(6))
    assert training.everything() == unguarded(6, 1.0)
    assert "guard-error" in training.told.kinds()
    assert "guard-error" not in Training(adamw, patrol=1).run(batches(6)).told.kinds()


def test_what_nothing_can_be_decided_without_switches_the_whole_guard_off() -> None:
    training = Training(adamw)
    with patch.object(SpikeGuard, "propose", raising):
        training.run(batches(6))
    assert training.told.of(GuardEventKind.GUARD_OFF)[0]["whole_guard"] is True
    before = training.everything()
    training.run(batches(1, bad={1: INFINITE}))
    assert training.everything() != before, "it is applied: there is no guard"


def test_a_sink_that_raises_is_left_out_and_the_others_hear_of_it() -> None:
    told = Told()
    training = Training(adamw)
    training.the_guard.sinks[:] = [raising, told]
    training.run(batches(5))
    assert training.the_guard.sinks == [told]
    assert [error["part"] for error in told.of(GuardEventKind.GUARD_ERROR)] == ["sink"]
    assert len(told.of(GuardEventKind.STEP)) == 5


def test_what_ends_a_process_is_not_contained() -> None:
    containment = Containment(Told())

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        containment.run(Part.EVENTS, interrupted)


def slow_steps(training: Training, share: float, count: int, *, unnoticed: float = 0.0) -> None:
    with (
        patch.object(Pace, "share", lambda *_: share),
        patch.object(contain, "SLOW_STEPS", 10),
        patch.object(contain, "UNNOTICED", unnoticed),
    ):
        training.run(batches(count))


def test_features_that_cost_too_much_are_taken_seldom_and_then_not_at_all() -> None:
    training = Training(adamw, features="enable:true")
    slow_steps(training, 0.05, 9)
    assert training.told.kinds() == []
    slow_steps(training, 0.05, 1)
    assert training.told.of(GuardEventKind.ALARM)[0]["name"] == "guard-too-slow"
    slow_steps(training, 0.05, 10)
    assert [values["part"] for values in training.told.of(GuardEventKind.GUARD_OFF)] == ["features"]
    slow_steps(training, 0.02, 20)
    assert training.told.kinds().count("alarm") == 2, "without features it may take less, and says so once"
