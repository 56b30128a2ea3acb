"""A loop that saves each time to one file with torch.save: what is resumed from, and that the loop goes on there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ckpttool
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.verdict import Level
from ckpttool.types import ResumeQuestion, TreeQuestion
from tests.support.trainer_trees import flip_tensor

nightly = pytest.mark.skipif("not config.getoption('--nightly')", reason="loads with torch: --nightly")
EACH, SAVES = 4, 3
STOPS = (RuntimeError, OSError, EOFError)


class Loop:
    """A loop of one's own: its batches are drawn from its own random numbers, whose state it saves."""

    def __init__(self) -> None:
        import torch

        torch.manual_seed(1)
        self.model = torch.nn.Linear(8, 8)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.random = torch.Generator().manual_seed(2)
        self.step = 0

    def train(self, steps: int) -> list[float]:
        import torch

        losses = []
        for _ in range(steps):
            batch = torch.randn(4, 8, generator=self.random)
            loss = (self.model(batch) - batch).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
            self.step += 1
        return losses

    def save(self, file: Path) -> None:
        import torch

        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**state, "random": self.random.get_state(), "step": self.step}, file)

    def resume(self, file: str) -> None:
        import torch

        saved: dict[str, Any] = torch.load(file)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.random.set_state(saved["random"])
        self.step = saved["step"]


def plan(root: Path, level: Level) -> ResumePlan:
    decision = ckpttool.resolve(TreeQuestion(path=str(root)), ResumeQuestion(evidence=level)).decision
    assert isinstance(decision, ResumePlan)
    return decision


def zero(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


@nightly
@pytest.mark.parametrize(
    ("spoil", "level", "step", "stops"),
    [
        (lambda _: None, Level.STRUCTURE, 12, False),
        (lambda file: os.truncate(file, file.stat().st_size - 1), Level.STRUCTURE, 8, True),
        (lambda file: os.truncate(file, 900), Level.STRUCTURE, 8, True),
        (lambda file: os.truncate(file, 0), Level.STRUCTURE, 8, True),
        (zero, Level.STRUCTURE, 8, True),
        (flip_tensor, Level.STRUCTURE, 12, False),
        (flip_tensor, Level.CHECKSUM, 8, False),
        (
            lambda file: shutil.copy(file.with_name("ckpt_4.pt"), file.with_name("ckpt_99.pt")),
            Level.STRUCTURE,
            12,
            False,
        ),
    ],
    ids=["whole", "cut by a byte", "cut", "emptied", "zeroed", "flipped", "flipped, by checksums", "an older copy"],
)
def test_a_loop_goes_on_from_the_file_that_the_plan_names(
    tmp_path: Path, spoil: Callable[[Path], object], level: Level, step: int, *, stops: bool
) -> None:
    import torch

    first, losses = Loop(), []
    for save in range(1, SAVES + 1):
        losses += first.train(EACH)
        first.save(tmp_path / f"ckpt_{save * EACH}.pt")
    newest = tmp_path / f"ckpt_{SAVES * EACH}.pt"
    spoil(newest)
    found = plan(tmp_path, level)
    assert found.point.step == step
    if stops:
        with pytest.raises(STOPS):
            torch.load(newest)
    else:
        torch.load(newest)
    again = Loop()
    again.resume(found.load.path)
    assert (again.step, found.next_step) == (step, step + 1)
    if level is Level.CHECKSUM or spoil is not flip_tensor:
        assert again.train(4) == (losses + first.train(4))[step : step + 4]
