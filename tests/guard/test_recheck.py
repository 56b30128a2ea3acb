"""Faults that are injected once, always on one device, or in the data: each is attributed to its cause."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn

import ckpttool
from ckpttool.core.domain.guarding import GuardEventKind
from ckpttool.core.domain.units import Step
from ckpttool.guard import CaptureSettings, Guard
from ckpttool.guard.model.attribution import Cause
from ckpttool.guard.model.capture import NanQuestion
from ckpttool.guard.model.report import GuardReport
from tests.guard import capturing
from tests.guard.faulty import FaultyDevice, flip
from tests.guard.loop import Told

BAD_STEP = 3
MM = "aten.addmm.default"
Fault = Callable[[], AbstractContextManager[object]]


def spoil(result: Tensor) -> None:
    result.view(-1)[0] = float("nan")


def once() -> AbstractContextManager[object]:
    """Be a device that errs once."""
    return FaultyDevice(MM, spoil, times=1)


def always() -> AbstractContextManager[object]:
    """Be a device that always errs in this operation."""
    return FaultyDevice(MM, spoil)


class Net(nn.Module):
    """Counts its calls and collects values, which a recomputation must not change."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1))
        self.calls = 0
        self.means: list[Tensor] = []
        self.seen = torch.zeros(1)

    def forward(self, items: Tensor) -> Tensor:
        self.calls += 1
        self.seen += len(items)
        told: Tensor = self.layers(items)
        self.means.append(told.detach().mean())
        self.latest = self.means[-1]
        return told.squeeze(-1)


def loss_of(model: nn.Module, batch: object) -> Tensor:
    assert isinstance(batch, Tensor)
    return cast("Tensor", (model(batch) - batch.sum(1)).square().mean())


def replay(_capture: object) -> object:
    model = Net()
    return ckpttool.guard.ReplayTask(model=model, loss=lambda batch: loss_of(model, batch))


class Training:
    """A guarded loop of six steps, with a fault around the third."""

    def __init__(self, output: Path, loss: Callable[[nn.Module, object], Tensor] | None = loss_of) -> None:
        torch.manual_seed(1)
        self.output, self.told = output, Told()
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        settings = CaptureSettings(loss_of=loss)
        self.guard = Guard(self.model, self.optimizer, output=output, sinks=[self.told], capture=settings)

    def run(self, *, fault: Fault = nullcontext, data: Callable[[Tensor], object] | None = None) -> Training:
        for step in range(1, 7):
            batch = torch.randn(6, 8)
            if step == BAD_STEP and data is not None:
                data(batch)
            with fault() if step == BAD_STEP else nullcontext():
                self.step(batch)
        self.guard.close()
        return self

    def step(self, batch: Tensor) -> None:
        with self.guard.micro(batch) as micro:
            micro.loss(loss := loss_of(self.model, batch))
            loss.backward()
        self.guard.clip_(1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def report(self) -> GuardReport:
        return ckpttool.library.guard_report(str(self.output))


@contextmanager
def another_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be a machine with another name, as far as a replay can tell."""
    with monkeypatch.context() as patched:
        patched.setattr(platform, "node", lambda: "another")
        yield


def replayed(output: Path) -> None:
    path = capturing.place(output, BAD_STEP)
    ckpttool.library.replay_nan(NanQuestion(path=path, entry="tests.guard.test_recheck:replay", record=True))


def test_a_device_that_errs_once_is_transient(tmp_path: Path) -> None:
    answer = Training(tmp_path).run(fault=once).report()
    (found,) = answer.attributions
    assert (found.step, found.rank, found.host, found.device) == (BAD_STEP, 0, platform.node(), "cpu")
    assert (found.cause, found.suspicion) == (Cause.TRANSIENT, "nonfinite")
    assert found.why.endswith("; the next step, recomputed as a control, had the same bits")
    (row,) = answer.causes
    assert (row.transient, row.persistent, row.data_or_model, row.unknown) == (1, 0, 0, 0)
    assert row.advice == f"keep training, and drain {platform.node()} if cpu of {platform.node()} errs again"


def test_a_device_that_always_errs_is_persistent_once_another_machine_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path).run(fault=always)
    (found,) = training.report().attributions
    assert (found.cause, "not finite again" in found.why) == (Cause.UNKNOWN, True)
    replayed(tmp_path)  # on the same machine, which decides nothing
    assert training.report().attributions[0].cause is Cause.UNKNOWN
    with another_machine(monkeypatch):
        replayed(tmp_path)
    answer = training.report()
    (found,) = answer.attributions
    assert found.cause is Cause.PERSISTENT
    assert "it happened twice on that rank's device" in found.why
    assert answer.causes[0].advice == f"drain {platform.node()}, and test cpu before it trains again"


def test_nan_in_the_data_is_not_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(tmp_path).run(data=lambda batch: batch.view(-1)[:1].fill_(float("nan")))
    (found,) = training.report().attributions
    assert found.cause is Cause.UNKNOWN
    with another_machine(monkeypatch):
        replayed(tmp_path)
    answer = training.report()
    assert [found.cause for found in answer.attributions] == [Cause.DATA_OR_MODEL]
    assert answer.causes[0].advice == "check the data and the model of the captured step; the device is not the cause"


def test_a_healthy_training_has_no_suspicious_step(tmp_path: Path) -> None:
    answer = Training(tmp_path).run().report()
    assert (answer.attributions, answer.causes) == ((), ())


def test_without_a_loss_function_the_cause_is_unknown_and_says_why(tmp_path: Path) -> None:
    (found,) = Training(tmp_path, None).run(fault=once).report().attributions
    assert found.cause is Cause.UNKNOWN
    assert "not recomputed: the loss function is unknown; CaptureSettings(loss_of=...)" in found.why


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (torch.OutOfMemoryError("no"), "the device has too little free memory"),
        (KeyError("labels"), "recomputing it raised KeyError: 'labels'"),
    ],
)
def test_a_recomputation_that_fails_says_why_and_the_step_is_captured(
    tmp_path: Path, error: Exception, why: str
) -> None:
    def failing(_model: nn.Module, _batch: object) -> Tensor:
        raise error

    training = Training(tmp_path, failing).run(fault=once)
    (found,) = training.report().attributions
    assert (found.cause, why in found.why) == (Cause.UNKNOWN, True)
    assert training.told.kinds() == ["capture", "nonfinite"]


def test_two_recomputations_that_differ_accuse_nobody(tmp_path: Path) -> None:
    draws = iter(range(1000))

    def drifting(model: nn.Module, batch: object) -> Tensor:
        return loss_of(model, batch) + next(draws)

    (found,) = Training(tmp_path, drifting).run(fault=once).report().attributions
    assert (found.cause, "nondeterministic kernels" in found.why) == (Cause.UNKNOWN, True)


def test_code_that_changes_gradients_after_backward_accuses_nobody(tmp_path: Path) -> None:
    training = Training(tmp_path)

    def changes(step: int) -> None:
        for parameter in training.model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(float("nan") if step == BAD_STEP else 0.5)

    for step in range(1, 5):
        batch = torch.randn(6, 8)
        with training.guard.micro(batch) as micro:
            micro.loss(loss := loss_of(training.model, batch)).backward()
            assert loss.isfinite()
        changes(step)
        training.guard.clip_(1.0)
        training.optimizer.step()
        training.optimizer.zero_grad()
    training.guard.close()
    (found,) = training.report().attributions
    assert (found.cause, "code that changes gradients" in found.why) == (Cause.UNKNOWN, True)


def test_a_recomputation_leaves_no_trace(tmp_path: Path) -> None:
    """Neither in the random numbers, nor in what modules collect: the run without it is equal in every bit."""
    again, alone = Training(tmp_path / "a").run(fault=once), Training(tmp_path / "b", None).run(fault=once)
    assert again.model.calls == alone.model.calls == 6
    assert len(again.model.means) == 6
    assert torch.equal(again.model.seen, alone.model.seen)
    for one, other in zip(again.model.state_dict().values(), alone.model.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def flipped() -> AbstractContextManager[object]:
    """Be a device that flips one bit of one product."""
    return FaultyDevice(MM, lambda result: flip(result, (0, 0), 12), times=1)


@pytest.mark.parametrize(
    ("fault", "cause", "why"),
    [
        (flipped, Cause.TRANSIENT, "had other bits, and the step after it had the same"),
        (nullcontext, Cause.UNKNOWN, "had the same bits"),
    ],
)
@pytest.mark.parametrize("kind", [GuardEventKind.SDC_STRIKE, GuardEventKind.REPLICAS_DISAGREE])
def test_after_a_strike_or_a_disagreement_the_next_step_is_compared_with_itself(
    tmp_path: Path, kind: GuardEventKind, fault: Fault, cause: Cause, why: str
) -> None:
    training = Training(tmp_path)
    training.step(torch.randn(6, 8))
    training.guard.tell(kind, step=Step(1), ranks=[0]) if kind is GuardEventKind.REPLICAS_DISAGREE else None
    training.guard.tell(kind, step=Step(1), rank=0) if kind is GuardEventKind.SDC_STRIKE else None
    with fault():
        training.step(torch.randn(6, 8))
    training.step(torch.randn(6, 8))
    training.guard.close()
    (found,) = training.report().attributions
    assert (found.suspicion, found.cause) == (kind.value, cause)
    assert why in found.why


def test_a_loss_function_that_is_not_the_trainings_accuses_nobody(tmp_path: Path) -> None:
    training = Training(tmp_path, lambda model, batch: 2 * loss_of(model, batch))
    training.step(torch.randn(6, 8))
    training.guard.tell(GuardEventKind.SDC_STRIKE, step=Step(1), rank=0)
    for _ in range(3):
        training.step(torch.randn(6, 8))
    training.guard.close()
    (found,) = training.report().attributions
    assert (found.cause, "a loss_of that differs from the training" in found.why) == (Cause.UNKNOWN, True)


def test_a_strike_of_another_rank_does_not_concern_this_one(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.guard.tell(GuardEventKind.SDC_STRIKE, step=Step(1), rank=5)
    training.step(torch.randn(6, 8))
    assert training.told.kinds() == ["sdc-strike"]
