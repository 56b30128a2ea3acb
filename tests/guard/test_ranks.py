"""All ranks decide the same, and a fault of the guard on one rank stops nobody: with two real processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from ckpttool.decide.asd.detector import FeatureValueDetector
from ckpttool.decide.guarding import SpikeGuard
from ckpttool.decide.policies.base import Policy
from ckpttool.decide.policies.olmo import OlmoPolicy
from ckpttool.guard import Guard, GuardStop
from ckpttool.guard.agree import Ranks
from ckpttool.guard.buffers import Buffers
from ckpttool.guard.capture.remember import StepMemory
from ckpttool.guard.capture.store import CaptureStore
from ckpttool.guard.features import FeatureProbe
from ckpttool.guard.norm import Losses
from ckpttool.guard.replicas import ReplicaCheck
from ckpttool.records.events import EventFile
from tests.guard.loop import INFINITE, NOT_A_NUMBER, SmallNet, Told, batches, bits, loss_of
from tests.guard.ranks import on_two_ranks

Seen = dict[str, Any]


def train(
    rank: int,
    *,
    steps: int = 6,
    bad: dict[int, float] | None = None,
    losses: dict[int, float] | None = None,
    spoil: Callable[[int, nn.Module], None] | None = None,
    wrap: Callable[[nn.Module], nn.Module] = DistributedDataParallel,
    slow: float = 0,
    parts: int = 1,
    scale: float | None = None,
    policy: Policy | None = None,
    mode: str = "act",
    count_threshold: int = 10,
    features: str | None = None,
    output: str | None = None,
) -> Seen:
    """Train in step with the other rank; what is bad is rank 1's alone, and in its first part."""
    told = Told()
    model = wrap(SmallNet())
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    guard = Guard(
        model,
        optimizer,
        sinks=[told],
        policy=policy,
        mode=mode,
        count_threshold=count_threshold,
        scaler=scaler,
        features=features,
        output=output,
        replica_every=2,
    )
    applied: list[bool] = []
    weights: list[object] = []
    stopped, norm = None, torch.tensor(0.0)
    for number, batch in enumerate(batches(steps, seed=rank, bad=bad if rank == 1 else None), 1):
        optimizer.zero_grad()
        for last, part in enumerate(reversed(batch.chunk(parts)), 1 - parts):
            apart = isinstance(model, DistributedDataParallel) and last != 0
            with model.no_sync() if apart else nullcontext(), guard.micro(part) as micro:  # type: ignore[operator]
                loss = loss_of(model, part) / parts
                micro.loss(loss + (losses or {}).get(number, 0.0) if rank == 1 else loss)
                scaler.scale(loss).backward()
        if spoil is not None and rank == 1:
            spoil(number, model)
        if slow and rank == 1:
            time.sleep(slow)
        scaler.unscale_(optimizer)
        try:
            norm = guard.clip_(1.0)
        except GuardStop as stop:
            stopped = str(stop)
            break
        scaler.step(optimizer)
        scaler.update()
        applied.append(guard.applied)
        weights.append([bits(whole(weight)) for weight in model.parameters()])
    return {
        "applied": applied,
        "kinds": told.kinds(),
        "events": [(kind.value, step, values) for kind, step, values in told.events],
        "weights": weights,
        "norm": bits(norm),
        "buffers": bits(list(model.buffers())),
        "stopped": stopped,
    }


def whole(weight: Tensor) -> Tensor:
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight


def raising(*_: object, **__: object) -> None:
    raise RuntimeError("the guard itself")


def fault_in(owner: type, name: str, rank: int) -> Seen:
    """Let a part of rank 1 raise whenever it is called, and a batch be bad before and after it is switched off."""
    real = getattr(owner, name)
    with patch.object(owner, name, raising if rank == 1 else real):
        return train(
            rank, bad={2: INFINITE, 6: INFINITE}, steps=7, features="enable:true", output=owner.__name__ + name
        )


def once_in(owner: type, name: str, rank: int) -> Seen:
    """Let a part of rank 1 raise at its second call alone, in a step that is bad."""
    real, calls = getattr(owner, name), iter(range(1000))

    def second(*values: object, **named: object) -> object:
        if next(calls) == 1:
            raising()
        return real(*values, **named)

    with patch.object(owner, name, second if rank == 1 else real):
        return train(rank, bad={2: INFINITE, 4: INFINITE}, features="enable:true", output="once")


def sharded(model: nn.Module) -> nn.Module:
    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)
    return model


def sharded_as_before(model: nn.Module) -> nn.Module:
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)


def by_hand(model: nn.Module) -> nn.Module:
    """Average gradients as a training without a wrapper does."""
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(_average)
    return model


def _average(weight: Tensor) -> None:
    assert weight.grad is not None
    dist.all_reduce(weight.grad)


def one_gradient_differs(number: int, model: nn.Module) -> None:
    weight = next(model.parameters())
    assert weight.grad is not None
    if number in {3, 5}:
        weight.grad[0, 0] += 0.5


def only_rank_0_sees_a_spike(rank: int) -> Seen:
    """OLMo's rule looks at the local loss, so that ranks do not want the same."""
    return train(rank, steps=140, losses={138: 1e3}, policy=OlmoPolicy())


def partly_sharded(_rank: int) -> Seen:
    """Clip where torch cannot: it takes no list of both kinds. With one batch for both ranks plain gradients agree."""
    model = SmallNet()
    fully_shard(model.last)
    guard = Guard(model, optim.SGD(model.parameters(), lr=0.0))
    loss_of(model, next(batches(1))).backward()
    gradients = [whole(weight.grad) for weight in model.parameters() if weight.grad is not None]
    expected = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    norm = guard.clip_(0.5)
    clipped = [whole(weight.grad) for weight in model.parameters() if weight.grad is not None]
    return {
        "norm": norm.item(),
        "expected": expected.item(),
        "clipped": torch.cat([one.flatten() for one in clipped]).norm().item(),
    }


PARTS: list[tuple[type, str]] = [
    (Losses, "add"),
    (Losses, "read"),
    (SpikeGuard, "propose"),
    (SpikeGuard, "settle"),
    (Buffers, "take"),
    (Buffers, "restore"),
    (FeatureProbe, "take"),
    (FeatureValueDetector, "take"),
    (StepMemory, "micro"),
    (CaptureStore, "capture"),
    (ReplicaCheck, "hashes"),
    (EventFile, "__init__"),
]

CASES: dict[str, Callable[[int], Any]] = {
    "healthy": train,
    "infinite batch": partial(train, bad={3: INFINITE, 5: NOT_A_NUMBER}),
    "loss alone": partial(train, losses={3: NOT_A_NUMBER}),
    "in parts": partial(train, bad={3: INFINITE}, parts=3),
    "overflow": partial(train, bad={3: 1e15}, scale=2.0**40, parts=2),
    "slow": partial(train, bad={3: INFINITE}, slow=0.2),
    "stop": partial(train, bad={2: INFINITE, 3: INFINITE}, count_threshold=2),
    "watch": partial(train, losses={3: NOT_A_NUMBER}, mode="watch"),
    "one sees a spike": only_rank_0_sees_a_spike,
    "by hand": partial(train, wrap=by_hand),
    "one gradient differs": partial(train, wrap=by_hand, spoil=one_gradient_differs),
    "sharded": partial(train, wrap=sharded, bad={3: INFINITE}),
    "sharded as before": partial(train, wrap=sharded_as_before, bad={3: INFINITE}),
    "sharded and healthy": partial(train, wrap=sharded),
    "partly sharded": partly_sharded,
    **{f"fault in {owner.__name__}.{name}": partial(fault_in, owner, name) for owner, name in PARTS},
    **{f"once in {owner.__name__}.{name}": partial(once_in, owner, name) for owner, name in PARTS},
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Seen]]:
    results = on_two_ranks(CASES, tmp_path_factory.mktemp("ranks"))
    failed = {name: told for name, told in results.items() if any(isinstance(result, str) for result in told)}
    assert failed == {}
    return results


@pytest.mark.slow
def test_ranks_that_are_healthy_drop_nothing(ran: dict[str, list[Seen]]) -> None:
    for name in ("healthy", "by hand", "sharded and healthy"):
        for told in ran[name]:
            assert told["kinds"] == []
            assert told["applied"] == [True] * 6


@pytest.mark.parametrize(
    ("name", "dropped"),
    [
        ("infinite batch", {3, 5}),
        ("loss alone", {3}),
        ("slow", {3}),
        ("in parts", {3}),
        ("overflow", {3}),
        ("sharded", {3}),
        ("sharded as before", {3}),
    ],
)
def test_what_one_rank_sees_all_ranks_drop(ran: dict[str, list[Seen]], name: str, dropped: set[int]) -> None:
    first, second = ran[name]
    assert first["norm"] == second["norm"]
    assert first["applied"] == second["applied"] == [number not in dropped for number in range(1, 7)]
    if name != "sharded as before":  # of those each rank has its own part
        assert first["weights"] == second["weights"]
    for number, told in product(dropped, ran[name]):
        assert told["weights"][number - 1] == told["weights"][number - 2]
    assert first["kinds"] == second["kinds"] == ["overflow" if name == "overflow" else "nonfinite"] * len(dropped)


def test_the_rank_is_named_whose_loss_is_not_finite(ran: dict[str, list[Seen]]) -> None:
    for name in ("infinite batch", "loss alone", "sharded", "in parts"):
        for told in ran[name]:
            named = [values["ranks"] for kind, _, values in told["events"] if kind == "nonfinite"]
            assert {*map(tuple, named)} == {(1,)}


def test_all_ranks_stop_at_the_same_step(ran: dict[str, list[Seen]]) -> None:
    assert [told["stopped"].partition(":")[0] for told in ran["stop"]] == ["step 3", "step 3"]


def test_watching_ranks_apply_everything(ran: dict[str, list[Seen]]) -> None:
    assert [told["applied"] for told in ran["watch"]] == [[True] * 6] * 2
    assert [told["kinds"] for told in ran["watch"]] == [["nonfinite"]] * 2


def test_what_only_one_ranks_policy_wants_all_ranks_do(ran: dict[str, list[Seen]]) -> None:
    first, second = ran["one sees a spike"]
    assert first["applied"] == second["applied"]
    assert first["applied"][137] is False
    assert first["weights"][-1] == second["weights"][-1]


def test_a_norm_that_differs_from_rank_to_rank_is_told_by_each(ran: dict[str, list[Seen]]) -> None:
    for told in ran["one gradient differs"]:
        assert [step for kind, step, _ in told["events"] if kind == "replicas-disagree"][:1] == [3]


def test_the_norm_of_sharded_gradients_is_equal_in_every_bit(ran: dict[str, list[Seen]]) -> None:
    for name in ("sharded", "sharded and healthy"):
        first, second = ran[name]
        assert first["norm"] == second["norm"]
        assert first["weights"] == second["weights"]


def test_gradients_of_which_some_are_sharded_are_clipped_together(ran: dict[str, list[Seen]]) -> None:
    for told in ran["partly sharded"]:
        assert told["norm"] == pytest.approx(told["expected"])
        assert told["clipped"] == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("part", [f"{owner.__name__}.{name}" for owner, name in PARTS])
def test_a_fault_of_the_guard_on_one_rank_stops_nobody(ran: dict[str, list[Seen]], part: str) -> None:
    first, second = ran[f"fault in {part}"]
    assert len(first["applied"]) == len(second["applied"]) == 7
    assert first["applied"] == second["applied"]
    assert first["weights"] == second["weights"]
    assert "guard-error" in second["kinds"]
    assert "guard-error" not in first["kinds"]
    off = [
        [(step, values["part"]) for kind, step, values in told["events"] if kind == "guard-off"]
        for told in (first, second)
    ]
    assert off[0] == off[1]


@pytest.mark.parametrize("part", [f"{owner.__name__}.{name}" for owner, name in PARTS])
def test_one_fault_of_the_guard_on_one_rank_hides_no_bad_batch(ran: dict[str, list[Seen]], part: str) -> None:
    first, second = ran[f"once in {part}"]
    assert first["applied"] == second["applied"]
    assert first["weights"] == second["weights"]
    assert "guard-off" not in first["kinds"] + second["kinds"]
    assert [first["applied"][number - 1] for number in (2, 4)] == [False, False], "the other rank saw it"


def test_ranks_without_a_process_group_are_one() -> None:
    ranks = Ranks(None, torch.device("cpu"))
    assert (ranks.count, ranks.gather(7)) == (1, [7])
