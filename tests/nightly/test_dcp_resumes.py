"""torch itself resumes from what the plan names: the step and the samples that it loads are those that were told."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ckpttool
from ckpttool.core.domain.data_position import GoesOn
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.verdict import Level
from ckpttool.types import ResumeQuestion, TreeQuestion
from tests.support.trainer_trees import damaged, faults, healthy

nightly = pytest.mark.skipif("not config.getoption('--nightly')", reason="loads with torch: --nightly")

BATCH, SAVES, EACH = 4, 3, 5
"""Samples a batch, how often it saves, and after how many steps."""


def load(folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    """Load as a script does, in one process."""
    from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process only
        dcp_load(state, checkpoint_id=str(folder), no_dist=True)
    return state


class Loop:
    """A training of one's own: it reads the samples in turn, and saves where it stands."""

    def __init__(self) -> None:
        import torch

        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.step = self.samples = 0
        self.read: list[int] = []

    def train(self, steps: int) -> None:
        import torch

        for _ in range(steps):
            batch = range(self.samples, self.samples + BATCH)
            self.read += batch
            inputs = torch.tensor([[float(number % 7)] * 4 for number in batch])
            self.model(inputs).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step, self.samples = self.step + 1, self.samples + BATCH

    def state(self) -> dict[str, Any]:
        own = {"step": self.step, "consumed_samples": self.samples, "global_batch_size": BATCH}
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "app": own}

    def save(self, folder: Path) -> None:
        from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp_save(self.state(), checkpoint_id=str(folder), no_dist=True)

    def resume(self, folder: Path) -> None:
        self.train(1)  # so that the optimizer has states to load into
        loaded = load(folder, self.state())
        self.model.load_state_dict(loaded["model"])
        self.optimizer.load_state_dict(loaded["optimizer"])
        self.step, self.samples = loaded["app"]["step"], loaded["app"]["consumed_samples"]
        self.read.clear()


def plan(root: Path, level: Level) -> ResumePlan:
    decision = ckpttool.resolve(TreeQuestion(path=str(root)), ResumeQuestion(evidence=level)).decision
    assert isinstance(decision, ResumePlan)
    return decision


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    at = data.index(b"archive/data/0") + 64  # of the first tensor's numbers
    data[at + 64] ^= 1
    file.write_bytes(data)


@nightly
@pytest.mark.parametrize(
    ("spoil", "level", "step"),
    [
        (None, Level.STRUCTURE, 15),
        (lambda save: (save / ".metadata").unlink(), Level.STRUCTURE, 10),
        (lambda save: (save / "__0_0.distcp").write_bytes(b""), Level.STRUCTURE, 10),
        (lambda save: flip(save / "__0_0.distcp"), Level.STRUCTURE, 15),
        (lambda save: flip(save / "__0_0.distcp"), Level.CHECKSUM, 10),
    ],
    ids=["whole", "not finished", "emptied", "flipped, by headers", "flipped, by checksums"],
)
def test_a_loop_goes_on_at_the_step_and_the_sample_that_the_plan_names(
    tmp_path: Path,
    spoil: Callable[[Path], object] | None,
    level: Level,
    step: int,
) -> None:
    first = Loop()
    for save in range(1, SAVES + 1):
        first.train(EACH)
        first.save(tmp_path / "saves" / f"step_{save * EACH}")
    if spoil is not None:
        spoil(tmp_path / "saves" / f"step_{SAVES * EACH}")
    found = plan(tmp_path / "saves", level)
    assert found.point.step == step
    assert isinstance(found.data, GoesOn)
    again = Loop()
    again.resume(Path(found.load.path))
    assert (again.step, again.samples) == (step, found.data.samples)
    again.train(1)
    assert (again.step, again.read[0]) == (found.next_step, found.data.samples)
    # Nothing is lost or read twice: together both runs read the samples as one would.
    assert first.read[: step * BATCH] + again.read == list(range((step + 1) * BATCH))


@nightly
@pytest.mark.parametrize(
    ("tree", "key"),
    [("dcp_fsdp2_4ranks", "app.step"), ("dcp_plain_2ranks", "iteration"), ("titan_4ranks", "train_state.step")],
)
def test_torch_loads_the_step_that_is_told_of_a_real_save(tmp_path: Path, tree: str, key: str) -> None:
    root = healthy(tree, tmp_path)
    found = plan(root, Level.STRUCTURE)
    assert load(Path(found.load.path), {key: 0}) == {key: found.point.step}


@nightly
@pytest.mark.parametrize("fault", [name for name in sorted(faults()) if name.startswith(("dcp_", "titan_"))])
def test_of_a_damaged_tree_torch_loads_what_is_chosen(tmp_path: Path, fault: str) -> None:
    key = "app.step" if fault.startswith("dcp_") else "train_state.step"
    found = plan(damaged(fault, tmp_path), Level.CHECKSUM)
    assert load(Path(found.load.path), {key: 0}) == {key: found.point.step}
