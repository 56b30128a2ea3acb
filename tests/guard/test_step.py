"""The guard in a plain loop, by what it leaves of a step: nothing, or everything."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn, optim

from ckpttool.core.domain.guarding import GuardEventKind
from ckpttool.core.errors import UsageError
from ckpttool.guard import Guard, GuardStop
from ckpttool.guard.capture.store import CaptureSettings
from ckpttool.guard.model.capture import Capture
from ckpttool.health.policies.base import Policy
from ckpttool.health.policies.skip import SkipPolicy
from ckpttool.health.policies.zclip import ZClipPolicy
from ckpttool.library import inspect_nan
from tests.guard.loop import INFINITE, NOT_A_NUMBER, SmallNet, Told, Training, batches, bits, loss_of
from tests.guard.optimizers import every_way

adamw = partial(optim.AdamW, lr=0.01)

BADNESS = {
    "an infinite input": {4: INFINITE},
    "an input that is not a number": {4: NOT_A_NUMBER},
    "two in a row": {3: INFINITE, 4: NOT_A_NUMBER},
    "the first": {1: INFINITE},
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("clip", [0.05, None])
@pytest.mark.parametrize("bad", BADNESS.values(), ids=BADNESS)
def test_a_dropped_batch_is_as_if_never_seen(bad: dict[int, float], clip: float | None, accumulate: int) -> None:
    seen = Training(adamw, accumulate=accumulate, clip=clip).run(batches(7, bad=bad))
    usual = [batch for number, batch in enumerate(batches(7), 1) if number not in bad]
    never_seen = Training(adamw, accumulate=accumulate, clip=clip, guarded=False).run(usual)
    assert seen.everything() == never_seen.everything()
    assert seen.told.kinds() == ["nonfinite"] * len(bad)
    assert [line["skipped"] for line in seen.told.of(GuardEventKind.STEP)] == [number in bad for number in range(1, 8)]


@pytest.mark.parametrize("way", [way for way in every_way() if way[0] in {"SGD-single", "Adam-foreach", "AdamW-fused"}])
@pytest.mark.parametrize("closure", [False, True])
def test_no_optimizer_notices_a_dropped_update(way: tuple[str, Callable[..., optim.Optimizer]], closure: bool) -> None:
    assert_no_trace(way[1], closure=closure)


def assert_no_trace(updates: Callable[..., optim.Optimizer], *, closure: bool) -> None:
    """Shared with the nights, in which every optimizer is made in every way."""
    training = Training(updates, closure=closure)
    for number, batch in enumerate(batches(6, bad={1: INFINITE, 4: NOT_A_NUMBER}), 1):
        before = training.everything()
        training.step(batch)
        assert (training.everything() == before) == (number in {1, 4}), number


def test_without_the_guard_one_infinite_input_spoils_what_evaluation_rests_on() -> None:
    training = Training(adamw, guarded=False).run(batches(3, bad={2: INFINITE}))
    assert not torch.isfinite(training.model.usual.running_mean).all()  # type: ignore[arg-type]


def padding_only(model: nn.Module, batch: Tensor) -> Tensor:
    """Return the mean over no target: NaN, of which all gradients are zero."""
    targets = torch.full((len(batch),), -100)
    return nn.functional.cross_entropy(model(batch), targets, ignore_index=-100)


def test_an_update_is_dropped_where_the_loss_is_no_number_and_all_gradients_are_finite() -> None:
    training = Training(adamw)
    first, second, third = batches(3)
    training.step(first)
    before = training.everything()
    training.step(second, loss=padding_only)
    gradients = training.told.of(GuardEventKind.STEP)[-1]["global_norm"]
    assert gradients == 0, "no check of gradients sees it"
    assert training.everything() == before
    training.step(third)
    assert training.everything() != before


def test_a_spike_is_dropped_where_the_user_gave_a_limit_and_nowhere_else() -> None:
    limit = Training(adamw, policy=SkipPolicy(threshold=50.0))
    none = Training(adamw)
    for training in (limit, none):
        training.run(batches(4, bad={3: 1e6}))
    assert [line["skipped"] for line in limit.told.of(GuardEventKind.STEP)] == [False, False, True, False]
    assert not any(line["skipped"] for line in none.told.of(GuardEventKind.STEP))


def test_a_watching_guard_changes_nothing_and_says_what_it_would_have_dropped() -> None:
    watched = Training(adamw, mode="watch").run(batches(4, bad={3: INFINITE}))
    alone = Training(adamw, guarded=False).run(batches(4, bad={3: INFINITE}))
    assert watched.everything() == alone.everything()
    assert watched.told.of(GuardEventKind.NONFINITE)[0]["dropped"] is False


def test_ten_dropped_in_a_row_end_the_training_and_nine_do_not() -> None:
    nine, ten = dict.fromkeys(range(2, 11), INFINITE), dict.fromkeys(range(2, 12), INFINITE)
    assert "stop" not in Training(adamw).run(batches(15, bad=nine)).told.kinds()
    training = Training(adamw)
    with pytest.raises(GuardStop, match="step 11: 10 updates in a row were dropped"):
        training.run(batches(15, bad=ten))
    assert training.everything() == Training(adamw, guarded=False).run(batches(1)).everything()
    assert training.told.kinds()[-1] == "stop"


def test_a_trainer_that_ends_in_another_way_is_told_and_nothing_is_raised() -> None:
    training = Training(adamw, count_threshold=2)
    stops: list[GuardStop] = []
    training.the_guard.on_stop = stops.append
    training.run(batches(4, bad={2: INFINITE, 3: INFINITE}))
    assert [str(stop).partition(":")[0] for stop in stops] == ["step 3"]


def test_an_overflow_of_the_loss_scaler_is_its_own_business() -> None:
    training = Training(adamw, scale=2.0**127, count_threshold=2)
    for number, batch in enumerate(batches(8), 1):
        before = training.everything()
        training.step(batch, loss=lambda model, batch: 16 * loss_of(model, batch))
        overflowed = training.told.of(GuardEventKind.STEP)[-1]["overflow"]
        assert overflowed == (training.everything() == before) == (not training.the_guard.applied), number
    kinds = training.told.kinds()
    assert 2 < kinds.count("overflow") < 8
    assert {*kinds} == {"overflow"}
    assert training.the_guard.step == 8


@pytest.mark.parametrize("fused", [False, True])
def test_what_is_bad_without_the_scaler_is_dropped_with_it(fused: bool) -> None:
    def infinite_loss(model: nn.Module, batch: Tensor) -> Tensor:
        return loss_of(model, batch) + math.inf

    training = Training(partial(optim.AdamW, lr=0.01, fused=fused), scale=4.0).run(batches(2))
    before = training.everything()
    training.step(next(batches(1)), loss=infinite_loss)
    assert training.everything() == before
    assert training.told.kinds() == ["nonfinite"]
    assert training.run(batches(1)).everything() != before


def test_a_policy_that_clips_clips_further_than_the_training() -> None:
    def norms(policy: Policy | None) -> list[float]:
        training = Training(partial(optim.SGD, lr=0.0), clip=1e9, policy=policy)
        clipped: list[float] = []
        for batch in batches(40, bad={40: 100.0}):
            training.step(batch)
            clipped.append(
                nn.utils.get_total_norm(
                    [weight.grad for weight in training.model.parameters() if weight.grad is not None]
                ).item()
            )
        return clipped

    alone, clipped = norms(None), norms(ZClipPolicy())
    assert alone[:20] == clipped[:20]  # it warms up
    assert clipped[-1] < alone[-1] / 10


def test_a_scaler_whose_overflows_pass_by_is_told_of_once() -> None:
    training = Training(adamw, scale=4.0, clip=None).run(batches(3))
    assert [values["name"] for values in training.told.of(GuardEventKind.ALARM)] == ["decided-too-late"]
    assert "alarm" not in Training(adamw, scale=4.0).run(batches(3)).told.kinds()


@pytest.mark.parametrize("clip", [1.0, None])
def test_what_is_missed_without_micro_batches_is_told_once(clip: float | None, tmp_path: Path) -> None:
    model, told = SmallNet(), Told()
    optimizer = adamw(model.parameters())
    guard = Guard(model, optimizer, output=tmp_path, sinks=[told])
    for batch in batches(4, bad={3: INFINITE}):
        loss_of(model, batch).backward()
        if clip is not None:
            guard.clip_(clip)
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    assert told.kinds() == ["alarm", "capture", "nonfinite"]
    assert told.of(GuardEventKind.ALARM)[0]["name"] == "no-micro-batch"
    assert not torch.isfinite(cast("Tensor", model.usual.running_mean)).all(), "as it says"
    assert told.of(GuardEventKind.CAPTURE)[0]["level"] == "light"
    found = inspect_nan(str(told.of(GuardEventKind.CAPTURE)[0]["path"]))
    assert isinstance(found, Capture)
    assert ["its loss is unknown" in culprit.why for culprit in found.culprits] == [True]


@pytest.mark.parametrize("handed_over", [True, False])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_what_a_scaler_keeps_back_is_decided_on_one_step_late(
    handed_over: bool, accumulate: int, tmp_path: Path
) -> None:
    training = Training(adamw, scale=4.0 if handed_over else None, clip=None, accumulate=accumulate, output=tmp_path)
    training.scaler = training.scaler or torch.amp.GradScaler("cpu", init_scale=4.0)
    training.run(batches(7, bad={4: INFINITE}))
    usual = [batch for number, batch in enumerate(batches(7), 1) if number != 4]
    never_seen = Training(adamw, scale=4.0, clip=None, accumulate=accumulate, guarded=False).run(usual)
    assert training.everything() == never_seen.everything(), "no healthy step was dropped, and buffers are as they were"
    lines = training.told.of(GuardEventKind.STEP)
    assert [line["skipped"] for line in lines] == [number == 4 for number in range(1, 8)]
    assert training.the_guard.step == 7
    alarms = [values["name"] for values in training.told.of(GuardEventKind.ALARM)]
    assert alarms == ["decided-too-late"] if handed_over else ["scaler-not-given", "decided-too-late"]
    assert Path(str(training.told.of(GuardEventKind.CAPTURE)[0]["path"])).name == "nan-at-00000004"


def test_a_norm_that_the_trainer_took_is_decided_on() -> None:
    told = Told()
    model = SmallNet()
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    guard = Guard(model, optimizer, sinks=[told], policy=SkipPolicy(threshold=5.0))
    for norm, applied in ((1.0, True), (torch.tensor(7.0), False), (math.nan, False), (torch.tensor(2.0), True)):
        model(next(batches(1))).sum().backward()
        before = model.last.weight.detach().clone()
        assert guard.decide(norm) is applied
        optimizer.step()
        assert torch.equal(before, model.last.weight) is not applied
        optimizer.zero_grad()


def test_two_guards_share_a_model_and_each_drops_its_own_updates() -> None:
    model = SmallNet()
    halves = [model.first.parameters(), chain(model.usual.parameters(), model.last.parameters())]
    optimizers = [optim.SGD(half, lr=0.01) for half in halves]
    guards = [Guard(model, optimizer) for optimizer in optimizers]
    for number, batch in enumerate(batches(4, bad={2: INFINITE}), 1):
        guard, optimizer = guards[number % 2], optimizers[number % 2]
        with guard.micro(batch) as micro:
            micro.loss(model(batch).square().mean()).backward()
        optimizer.step()
        assert guard.applied is (number != 2)
        model.zero_grad()
    assert all(torch.isfinite(tensor).all() for tensor in model.state_dict().values())


class Engine(nn.Linear):
    """A model that its optimizer's engine has taken over."""

    def backward(self) -> None: ...

    def step(self) -> None: ...


class StepsInBackward(optim.SGD):
    def fused_backward(self) -> None: ...


def test_a_closure_that_is_called_many_times_is_one_step_of_a_guard_that_watches(tmp_path: Path) -> None:
    bad, calls = {3: NOT_A_NUMBER}, []

    def counted_loss(model: nn.Module, batch: Tensor) -> Tensor:
        calls.append(1)
        return loss_of(model, batch)

    watched = Training(optim.LBFGS, mode="watch", closure=True, output=tmp_path)
    alone = Training(optim.LBFGS, closure=True, guarded=False)
    for batch in batches(4, bad=bad):
        watched.step(batch, loss=counted_loss)
        alone.step(batch)
    assert len(calls) > 8, "it is called more than once a step"
    assert watched.the_guard.step == 4
    assert bits(watched.model.state_dict()) == bits(alone.model.state_dict())
    assert [step for kind, step, _ in watched.told.events if kind is GuardEventKind.STEP] == [1, 2, 3, 4]
    assert next(step for kind, step, _ in watched.told.events if kind is GuardEventKind.NONFINITE) == 3
    assert "stop" not in watched.told.kinds()
    watched.the_guard.close()


@pytest.mark.parametrize(
    ("model", "kind"), [(nn.Linear(1, 1), StepsInBackward), (Engine(1, 1), optim.SGD), (nn.Linear(1, 1), optim.LBFGS)]
)
def test_an_update_that_cannot_be_dropped_can_be_watched_alone(model: nn.Module, kind: type[optim.SGD]) -> None:
    optimizer = kind(model.parameters(), lr=0.1)
    with pytest.raises(UsageError, match="watch"):
        Guard(model, optimizer)
    Guard(model, optimizer, mode="watch")


@pytest.mark.parametrize("as_number", [False, True])
def test_a_loss_may_be_told_as_the_number_it_is(tmp_path: Path, *, as_number: bool) -> None:
    model, told = SmallNet(), Told()
    optimizer = adamw(model.parameters())
    guard = Guard(model, optimizer, output=tmp_path, sinks=[told])
    for batch in batches(3, bad={2: NOT_A_NUMBER}):
        with guard.micro(batch) as micro:
            loss = loss_of(model, batch)
            micro.loss(cast("Tensor", loss.item()) if as_number else loss)
            loss.backward()
        guard.clip_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    assert told.kinds() == ["capture", "nonfinite"]


@pytest.mark.parametrize(
    ("setting", "says"),
    [({"policy": "zscore"}, "a policy must be an object"), ({"policy": SkipPolicy}, "a policy must be an object")]
    + [({"mode": "sleep"}, "'act' or 'watch', not 'sleep'")]
    + [({"step": step}, "step must be the number of completed steps") for step in ("3", -1, True, 1.5)]
    + [({"capture": capture}, "capture must be CaptureSettings") for capture in (True, False, CaptureSettings)]
    + [({"scaler": scaler}, "scaler must be a loss scaler") for scaler in (3, True, 1024.0)]
    + [({"output": output}, "output must be a path") for output in (b"output", 3)]
    + [({"policy": SkipPolicy(threshold=limit)}, "above 0") for limit in (NOT_A_NUMBER, -1, 0, cast("float", "x"))]
    + [({"count_threshold": count}, "must be 1 or more dropped updates") for count in ("x", 0, True)],
)
def test_a_setting_that_cannot_be_meant_is_an_error_at_the_start(setting: dict[str, Any], says: str) -> None:
    model = SmallNet()
    with pytest.raises(UsageError, match=says):
        Guard(model, adamw(model.parameters()), **setting)
    fitting: dict[str, Any] = {"capture": CaptureSettings(), "scaler": torch.amp.GradScaler("cpu")}
    Guard(model, adamw(model.parameters()), policy=SkipPolicy(threshold=INFINITE), step=3, **fitting).close()


@pytest.mark.parametrize("norm", [None, "x"])
def test_to_decide_by_what_is_no_norm_is_an_error_and_by_a_number_is_not(norm: Any) -> None:  # noqa: ANN401
    training = Training(adamw)
    with pytest.raises(UsageError, match="a norm must be a number or a tensor with one element"):
        training.the_guard.decide(norm)
    assert training.the_guard.step == 0
    assert training.the_guard.decide(1)
    assert not training.the_guard.decide(torch.tensor(NOT_A_NUMBER))


@pytest.mark.parametrize(
    "asked",
    [
        "from ckpttool.guard import Guard",
        "import ckpttool.guard.adapters.lightning",
        "import ckpttool; ckpttool.checkpoint_writer('x', prefix='p', model=None, optimizer=None)",
        "import ckpttool; ckpttool.resume_training('x', model=None, optimizer=None, fresh_ok=True)",
    ],
)
def test_without_torch_one_line_says_what_is_missing(asked: str) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import importlib.util as util; found = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'torch' else found(name, *rest)\n"
        "import ckpttool.guard.commands\n"  # to look at what a guarded training wrote needs none
    )
    done = subprocess.run([sys.executable, "-c", code + asked], check=False, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith("pip install 'ckpttool[torch]'")


@pytest.mark.parametrize(
    ("features", "is_silent"),
    [
        ("with_checksum:true", False),
        ("enabled:true", False),
        ("enable=true", False),
        ("enable:false", True),
        ("", True),
    ],
)
def test_features_that_detect_nothing_by_mistake_are_an_alarm_once(features: str, *, is_silent: bool) -> None:
    training = Training(adamw, features=features).run(batches(3))
    told = [str(values["message"]) for values in training.told.of(GuardEventKind.ALARM)]
    assert sum("nothing is detected" in message for message in told) == (0 if is_silent else 1)
    assert (told == []) is is_silent
