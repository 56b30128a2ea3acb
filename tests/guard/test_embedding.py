"""A save's health is what its embedding's gradient was before any clip, at the last update that was applied."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import ckpttool
from ckpttool.core.domain.health import Health
from ckpttool.core.errors import UsageError
from ckpttool.guard import Guard
from ckpttool.health.model.events import HealthReport
from ckpttool.health.model.questions import HealthQuestion
from ckpttool.types import TreeQuestion

THRESHOLD = 270.0
HEALTHY, UNHEALTHY, UNKNOWN = Health.HEALTHY, Health.UNHEALTHY, Health.UNKNOWN


def trained(
    output: Path,
    squares: dict[int, float],
    *,
    max_norm: float = 1.0,
    bad: int | None = None,
    mode: str = "act",
    before: Callable[[int, Guard], object] = lambda _step, _guard: None,
) -> list[float | None]:
    """Train with a sum of squares at each step, saving each, and return what the events tell of the embedding."""
    embedding = nn.Embedding(10, 4)
    model = nn.Sequential(embedding, nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    guard = Guard(model, optimizer, output=output, capture=None, mode=mode)
    with ckpttool.checkpoint_writer(
        str(output), prefix="p", model=model, optimizer=optimizer, guard=guard,
        embedding="0.weight", health_threshold=THRESHOLD,
    ) as writer:  # fmt: skip
        for step, value in squares.items():
            batch = torch.randint(10, (4, 3))
            before(step, guard)
            with guard.micro(batch) as micro:
                loss = micro.loss(model(batch).square().mean())
                loss.backward()
            gradient = embedding.weight.grad
            assert gradient is not None
            gradient.zero_()
            gradient[0, 0] = value**0.5
            if step == bad:
                gradient[0, 1] = float("nan")
            guard.clip_(max_norm)
            optimizer.step()
            optimizer.zero_grad()
            writer.save()
    guard.close()
    lines = map(json.loads, (output / "guard/events-00000.jsonl").read_text(encoding="utf-8").splitlines())
    return [line.get("embedding_local_norm") for line in lines if line["kind"] == "step"]


def recorded(output: Path) -> list[Health]:
    return [save.health for save in ckpttool.scan(TreeQuestion(path=str(output))).inventory.checkpoints]


def judged(output: Path, threshold: float | None = None) -> HealthReport:
    tree = ckpttool.scan(TreeQuestion(path=str(output)))
    return ckpttool.health(tree, HealthQuestion(threshold=threshold)).report


@pytest.mark.parametrize("max_norm", [1.0, 1e9])
def test_the_embedding_is_measured_before_the_clip(tmp_path: Path, max_norm: float) -> None:
    told = trained(tmp_path, {1: 100.0, 2: 300.0, 3: 100.0}, max_norm=max_norm)
    assert told == pytest.approx([100.0, 300.0, 100.0])
    assert recorded(tmp_path) == [HEALTHY, UNHEALTHY, HEALTHY]


@pytest.mark.parametrize(("applied", "health"), [(100.0, HEALTHY), (300.0, UNHEALTHY)])
def test_a_dropped_update_leaves_the_health_of_the_one_before(tmp_path: Path, applied: float, health: Health) -> None:
    trained(tmp_path, {1: applied, 2: 100.0}, bad=2)
    assert recorded(tmp_path) == [health, health]
    by_log = judged(tmp_path, THRESHOLD)
    assert [(each.health, each.source) for each in by_log.judgements] == [(health, "log")] * 2
    assert by_log.findings == ()


def test_an_update_that_is_only_watched_marks_its_save(tmp_path: Path) -> None:
    trained(tmp_path, {1: 100.0, 2: 100.0}, bad=2, mode="watch")
    assert recorded(tmp_path) == [HEALTHY, UNHEALTHY]


def test_health_judges_the_guards_own_run_by_another_threshold(tmp_path: Path) -> None:
    trained(tmp_path, {1: 100.0, 2: 300.0, 3: 200.0})
    report = judged(tmp_path, 150.0)
    assert [(each.health, each.source) for each in report.judgements] == [
        (HEALTHY, "log"), (UNHEALTHY, "log"), (UNHEALTHY, "log"),
    ]  # fmt: skip
    assert [each.embedding_local_norm for each in report.judgements] == pytest.approx([100.0, 300.0, 200.0])


def test_a_guard_that_was_switched_off_leaves_health_unknown(tmp_path: Path) -> None:
    def switch_off(step: int, guard: Guard) -> None:
        guard._contain.is_off = step > 1  # noqa: SLF001  as its third failure does

    trained(tmp_path, {1: 100.0, 2: 300.0}, before=switch_off)
    assert recorded(tmp_path) == [HEALTHY, UNKNOWN]


@pytest.mark.parametrize("scale", [None, 1024.0])
def test_without_a_guard_the_embedding_is_measured_before_the_clip(tmp_path: Path, scale: float | None) -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    scaler = torch.amp.GradScaler("cpu", enabled=scale is not None, init_scale=scale or 1.0)
    with ckpttool.checkpoint_writer(
        str(tmp_path), prefix="p", model=model, optimizer=optimizer, scaler=scaler,
        embedding="0.weight", health_threshold=THRESHOLD,
    ) as writer:  # fmt: skip
        for step, slope in ((1, 10.0), (2, 20.0), (3, float("inf"))):
            scaler.scale(model[0](torch.tensor([1]))[0, 0] * slope).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if scale is not None or step < 3:
                scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            writer.save(step=step)
    assert recorded(tmp_path) == [HEALTHY, UNHEALTHY, UNHEALTHY], "the third update was not applied"


def test_what_cannot_be_measured_is_refused_at_the_start(tmp_path: Path) -> None:
    embedding = nn.Embedding(10, 4)
    model = nn.Sequential(embedding, nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer)

    def writer(embedding: str, *, guarded: bool) -> None:
        ckpttool.checkpoint_writer(
            str(tmp_path), prefix="p", model=model, optimizer=optimizer, guard=guard if guarded else None,
            embedding=embedding, health_threshold=1.0,
        ).close()  # fmt: skip

    writer("0.weight", guarded=True)
    with pytest.raises(UsageError, match="one embedding per guard"):
        writer("1.weight", guarded=True)
    embedding.weight.requires_grad = False
    with pytest.raises(UsageError, match="is not trained"):
        writer("0.weight", guarded=False)
    embedding.weight.full_tensor = lambda: None  # type: ignore[attr-defined]  # as a DTensor has it
    with pytest.raises(UsageError, match="pass guard="):
        writer("0.weight", guarded=False)
