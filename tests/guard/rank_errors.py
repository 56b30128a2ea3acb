"""What each of several processes sees that train together while one of them computes wrongly."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ckpttool.core.domain.guarding import GuardEvent
from ckpttool.core.domain.metrics import LocalTime
from ckpttool.core.domain.units import Step
from ckpttool.guard import Guard, GuardStop
from ckpttool.guard.features import FeatureProbe
from ckpttool.guard.rules.detector import FeatureValueDetector
from tests.guard.faulty import FaultyDevice, flip
from tests.guard.loop import Told, bits

STEPS = 4
CULPRIT = 1
WRONG_AT = 12
FAULTY_FROM = 15
SENSITIVE = "enable:true,with_checksum:true,strikes_num:1,upper_thresh1:1000,upper_thresh2:10"

Seen = dict[str, Any]


def small_model(**settings: Any) -> DistributedDataParallel:  # noqa: ANN401  DDP's own
    torch.manual_seed(2)
    return DistributedDataParallel(nn.Sequential(nn.Linear(9, 33), nn.Tanh(), nn.Linear(33, 5)), **settings)


def hooked(
    rank: int,
    *,
    probe_of: type[FeatureProbe] | None,
    other: bool = False,
    views: bool = False,
    wrong: float = 1.0,
    steps: int = STEPS,
) -> Seen:
    """Train, and look at feature values by hand."""
    model = small_model(gradient_as_bucket_view=views, bucket_cap_mb=1e-4)
    if other:
        model.register_comm_hook(None, allreduce_hook)
    probe = None if probe_of is None else probe_of(model, interval=1)
    detector = FeatureValueDetector.of(SENSITIVE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(100 + rank)
    events: list[GuardEvent] = []
    finite: list[bool | None] = []
    errors = 0
    for step in range(1, steps + 1):
        factor = wrong if (rank, step) == (CULPRIT, WRONG_AT) else 1.0
        with model.no_sync():
            (model(torch.randn(6, 9)).square().mean() * factor).backward()
        model(torch.randn(6, 9)).square().mean().backward()
        if probe is not None:
            try:
                probe.take(Step(step))
            except ZeroDivisionError:
                errors += 1
            finite.append(probe.own_are_finite)
            events += detector.take(probe.values(), at=LocalTime(60.0 * step), step=Step(step))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if math.isfinite(wrong):
            optimizer.step()
        optimizer.zero_grad()
    return {
        "weights": bits(list(model.parameters())),
        "knows": (probe.is_before_reduction, probe.rank) if probe else None,
        "events": [(event.kind.value, event.step, event.values.get("rank")) for event in events],
        "not_finite": [step for step, is_finite in enumerate(finite, start=1) if is_finite is False],
        "errors": errors,
    }


def with_and_without_a_hook(rank: int) -> dict[str, Seen]:
    return {"hooked": hooked(rank, probe_of=FeatureProbe), "plain": hooked(rank, probe_of=None)}


def double(result: Tensor) -> None:
    result.view(-1)[5] += 7.0


def guarded(rank: int, **settings: Any) -> Seen:  # noqa: ANN401  the guard's own
    """Train under a guard; rank 1 has a wrong gradient once, and three steps later a device that computes wrongly."""
    model, told = small_model(), Told()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    guard = Guard(model, optimizer, sinks=[told], features=SENSITIVE, **settings)
    torch.manual_seed(100 + rank)
    stopped = None
    for step in range(1, 18):
        is_faulty = rank == CULPRIT and step >= FAULTY_FROM
        batch = torch.randn(6, 9)
        with FaultyDevice("aten.addmm.default", double) if is_faulty else nullcontext(), guard.micro(batch) as micro:
            loss = model(batch).square().mean() * (1e9 if (rank, step) == (CULPRIT, WRONG_AT) else 1.0)
            micro.loss(loss)
            loss.backward()
        if step == 9 and rank == CULPRIT:
            with torch.no_grad():
                flip(model.module[0].weight, (1, 1), 0)
        try:
            guard.clip_(1.0)
        except GuardStop as stop:
            stopped = (step, str(stop))
            break
        optimizer.step()
        optimizer.zero_grad()
    return {
        "stopped": stopped,
        "told": [(kind.value, step) for kind, step, _ in told.events if kind.value != "step"],
        "checked": [step for kind, step, values in told.events if "checked" in values],
        "values": [values for kind, _, values in told.events if kind.value != "step"],
    }
