"""The guard in engines that drop updates themselves; tests/nightly runs it in the real DeepSpeed and Megatron-core.

The stand-ins here have only the methods that the adapters use, in the same order.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from ckpttool.core.errors import UsageError
from ckpttool.guard import Guard, SkipPolicy, ZClipPolicy
from ckpttool.guard.adapters import deepspeed, megatron
from tests.guard.loop import Told


def rows(model: nn.Module) -> list[list[float]]:
    return [weight.flatten().tolist() for weight in model.parameters()]


class TestAGuardWhoseTrainerDrops:
    def test_decides_and_leaves_the_gradients_alone(self) -> None:
        model = nn.Linear(2, 1)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        guard = Guard(model, optimizer, policy=SkipPolicy(threshold=5.0), trainer_drops=True)
        model(torch.ones(1, 2)).sum().backward()
        assert [guard.decide(norm) for norm in (1.0, 9.0, math.nan, 2.0)] == [True, False, False, True]
        assert guard.limit is None
        before = rows(model)
        assert model.weight.grad is not None
        guard.decide(9.0)
        optimizer.step()
        assert rows(model) != before  # that was the trainer's task

    def test_gives_the_limit_of_a_policy_that_clips(self) -> None:
        model = nn.Linear(2, 1)
        guard = Guard(model, optim.SGD(model.parameters()), policy=ZClipPolicy(warm_up=3), trainer_drops=True)
        for norm in (1.0, 1.1, 0.9, 1.0):
            assert guard.decide(norm)
            assert guard.limit is None
        assert guard.decide(500.0)
        assert guard.limit == pytest.approx(1.0, abs=0.2)


class Scaler:
    dynamic = True
    min_scale = 1.0

    def __init__(self) -> None:
        self.cur_scale = 4.0


class Zero:
    """What the adapter needs of a ZeRO optimizer."""

    def __init__(self, model: nn.Module, clip: float) -> None:
        self.optimizer = optim.SGD(model.parameters(), lr=0.1)
        self.loss_scaler = Scaler()
        self.clip_grad = clip
        self.overflow = False
        self.clipped_to: list[float] = []

    @property
    def loss_scale(self) -> float:
        return self.loss_scaler.cur_scale

    def scaled_global_norm(self) -> Tensor:
        grads = [weight.grad for group in self.optimizer.param_groups for weight in group["params"]]
        return torch.nn.utils.get_total_norm(grads) * self.loss_scale

    def _update_scale(self, has_overflow: bool = False) -> None:  # noqa: FBT002  DeepSpeed's form
        if has_overflow:
            self.loss_scaler.cur_scale /= 2

    def step(self) -> None:
        self.overflow = False
        norm = self.scaled_global_norm()
        if not math.isfinite(norm):
            self.overflow = True
        self._update_scale(self.overflow)
        if not self.overflow:
            self.clipped_to.append(self.clip_grad)
            self.optimizer.step()
        self.optimizer.zero_grad()


class DeepSpeedEngine(nn.Module):
    """What the adapter needs of an engine."""

    def __init__(self, stage: int = 1, clip: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.module = nn.Linear(3, 1)
        self.optimizer: Any = Zero(self.module, clip)
        self.global_steps = 0
        self._stage = stage

    def forward(self, items: Tensor) -> Any:  # noqa: ANN401  a loss
        return self.module(items).sum()

    def zero_optimization_stage(self) -> int:
        return self._stage

    @staticmethod
    def gradient_accumulation_steps() -> int:
        return 1

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self) -> None:
        self.optimizer.step()
        self.global_steps += 1

    def train_on(self, *items: Tensor) -> list[list[list[float]]]:
        seen = []
        for each in items:
            self.backward(self(each))
            self.step()
            seen.append(rows(self.module))
        return seen


GOOD, HUGE = torch.ones(1, 3), torch.full((1, 3), 1e4)
BAD = torch.full((1, 3), math.inf)


class TestDeepSpeed:
    def test_a_dropped_update_becomes_an_overflow(self, tmp_path: Path) -> None:
        engine, told = DeepSpeedEngine(), Told()
        engine.global_steps = 7  # as after `load_checkpoint`
        guard = deepspeed.attach(engine, output=tmp_path, policy=SkipPolicy(threshold=100.0), sinks=[told])
        before = rows(engine.module)
        first, second, third = engine.train_on(GOOD, HUGE, GOOD)
        assert before != first == second != third
        assert (engine.optimizer.loss_scale, guard.step) == (2.0, 10)
        assert [(kind.value, step) for kind, step, _ in told.events if kind.value != "step"] == [("skip", 9)]

    def test_the_loss_scale_never_falls_below_its_minimum(self) -> None:
        engine = DeepSpeedEngine()
        deepspeed.attach(engine, policy=SkipPolicy(threshold=100.0))
        engine.train_on(*[HUGE] * 5)
        assert engine.optimizer.loss_scale == 1.0

    def test_an_overflow_stays_that_of_the_loss_scaler(self) -> None:
        engine, told = DeepSpeedEngine(), Told()
        deepspeed.attach(engine, sinks=[told])
        with torch.no_grad():
            engine.module.weight.fill_(0.5)
        engine.backward(engine(GOOD))
        engine.module.weight.grad = torch.full_like(engine.module.weight, math.inf)
        engine.step()
        assert "overflow" in {kind.value for kind, _, _ in told.events}
        assert engine.optimizer.loss_scale == 2.0

    def test_a_policy_clips_only_the_step_that_it_limits(self) -> None:
        engine = DeepSpeedEngine(clip=50.0)
        deepspeed.attach(engine, policy=ZClipPolicy(warm_up=3))
        engine.train_on(GOOD, 1.1 * GOOD, GOOD, GOOD, HUGE, GOOD)
        *usual, limited, after = engine.optimizer.clipped_to
        assert usual == [50.0] * 4
        assert limited < 10.0
        assert after == engine.optimizer.clip_grad == 50.0

    def test_watching_drops_nothing(self) -> None:
        watched, alone = DeepSpeedEngine(), DeepSpeedEngine()
        deepspeed.attach(watched, policy=SkipPolicy(threshold=100.0), mode="watch")
        assert watched.train_on(GOOD, HUGE, GOOD) == alone.train_on(GOOD, HUGE, GOOD)

    def test_an_engine_has_one_guard(self) -> None:
        engine = DeepSpeedEngine()
        assert deepspeed.attach(engine) is deepspeed.attach(engine)
        assert deepspeed.is_engine(engine)
        assert not deepspeed.is_engine(engine.module)

    def test_without_zero_it_is_refused(self) -> None:
        with pytest.raises(UsageError, match="without ZeRO"):
            deepspeed.attach(DeepSpeedEngine(stage=0))

    def test_an_optimizer_of_another_form_is_refused(self) -> None:
        engine = DeepSpeedEngine()
        engine.optimizer = SimpleNamespace(optimizer=None)
        with pytest.raises(UsageError, match="no overflow path"):
            deepspeed.attach(engine)

    def test_zero_3_captures_nothing_and_zero_1_does(self, tmp_path: Path) -> None:
        for stage, captures in ((1, 1), (3, 0)):
            engine, output = DeepSpeedEngine(stage), tmp_path / str(stage)
            deepspeed.attach(engine, output=output)
            engine.train_on(GOOD, BAD)
            assert len([*output.glob("guard/captures/nan-at-00000002")]) == captures

    def test_feature_values_are_not_checked_which_is_said(self, capsys: pytest.CaptureFixture[str]) -> None:
        deepspeed.attach(DeepSpeedEngine(), features="enable:true")
        assert "feature values are not checked" in capsys.readouterr().err


class MegatronOptimizer:
    """What the adapter needs of an optimizer of Megatron-core."""

    grad_scaler = None

    def __init__(self, model: nn.Module, clip: float = 0.0) -> None:
        self.optimizer = optim.SGD(model.parameters(), lr=0.1)
        self.config = SimpleNamespace(clip_grad=clip)
        self.norms = 0
        self.clipped_to: list[float] = []

    def get_loss_scale(self) -> Tensor:
        return torch.tensor(1.0)

    def prepare_grads(self) -> bool:
        return False

    def get_grad_norm(self) -> float:
        self.norms += 1
        grads = [weight.grad for group in self.optimizer.param_groups for weight in group["params"]]
        return float(torch.nn.utils.get_total_norm(grads))

    def step_with_ready_grads(self) -> bool:
        self.optimizer.step()
        return True

    def step(self) -> tuple[bool, float | None, None]:
        if self.prepare_grads():
            return False, None, None
        norm = self.get_grad_norm()
        self.clipped_to.append(self.config.clip_grad)
        return self.step_with_ready_grads(), norm, None


class TestMegatron:
    @staticmethod
    def train(model: nn.Module, optimizer: MegatronOptimizer, *items: Tensor) -> list[bool]:
        applied = []
        for each in items:
            optimizer.optimizer.zero_grad()
            model(each).sum().backward()
            applied.append(optimizer.step()[0])
        return applied

    def test_an_update_is_dropped_as_if_an_inf_was_found(self) -> None:
        model, told = nn.Linear(3, 1), Told()
        optimizer = MegatronOptimizer(model)
        megatron.attach([model], optimizer, policy=SkipPolicy(threshold=100.0), sinks=[told], step=40)
        assert self.train(model, optimizer, GOOD) == [True]
        before = rows(model)
        assert self.train(model, optimizer, HUGE, BAD) == [False, False]
        assert rows(model) == before
        assert self.train(model, optimizer, GOOD) == [True]
        found = [(kind.value, step) for kind, step, _ in told.events if kind.value != "step"]
        assert found == [("skip", 42), ("nonfinite", 43)]

    def test_the_norm_is_computed_once_per_step(self) -> None:
        model = nn.Linear(3, 1)
        optimizer = MegatronOptimizer(model)
        megatron.attach(model, optimizer)
        self.train(model, optimizer, GOOD, GOOD)
        assert optimizer.norms == 2

    def test_a_policy_clips_only_the_step_that_it_limits(self) -> None:
        model = nn.Linear(3, 1)
        optimizer = MegatronOptimizer(model, clip=50.0)
        megatron.attach(model, optimizer, policy=ZClipPolicy(warm_up=3))
        self.train(model, optimizer, GOOD, 1.1 * GOOD, GOOD, GOOD, HUGE, GOOD)
        assert [limit == 50.0 for limit in optimizer.clipped_to] == [True, True, True, True, False, True]

    def test_a_chain_is_dropped_together(self) -> None:
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
        parts = [MegatronOptimizer(layer) for layer in model]

        class Chain(MegatronOptimizer):
            chained_optimizers = parts

            def step_with_ready_grads(self) -> bool:
                return all([part.step_with_ready_grads() for part in self.chained_optimizers])  # noqa: C419  all of them

        chain = Chain(model)
        megatron.attach(model, chain, policy=SkipPolicy(threshold=100.0))
        before = rows(model)
        assert self.train(model, chain, HUGE) == [False]
        assert rows(model) == before
        assert self.train(model, chain, GOOD) == [True]
        assert all(own != other for own, other in zip(rows(model), before, strict=True))

    def test_any_other_optimizer_is_refused(self) -> None:
        model = nn.Linear(3, 1)
        with pytest.raises(UsageError, match="SGD is not an optimizer of Megatron-core"):
            megatron.attach(model, optim.SGD(model.parameters()))
