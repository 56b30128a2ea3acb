"""The real Lightning resumes from what a plan names, at its step, and reads the samples that it says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.data_position import DataEffect, GoesOn
from ckpttool.core.domain.plan import Outcome, ResumePlan
from ckpttool.types import DataQuestion, TreeQuestion
from tests.nightly.borrowing import told, trainer_python
from tests.support.answers import plan

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="installs a trainer: --nightly")

BATCH, EPOCH = 4, 40

PACKAGES = (
    "lightning==2.6.6", "lightning-utilities", "torchmetrics", "torchdata", "tqdm", "fsspec", "packaging", "pyyaml",
)  # fmt: skip


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trainer_python(tmp_path_factory.mktemp("lightning") / "venv", *PACKAGES)


def trained(python: str, folder: Path, loader: str, steps: int = 14) -> Path:
    """Train until the given step; saves are made every fourth."""
    told(python, "lightning_run.py", str(folder), loader, str(steps))
    return folder / "checkpoints"


def asked(saves: Path) -> tuple[ResumePlan, GoesOn]:
    answer = plan(saves, data=DataQuestion(old_global_batch=BATCH))
    assert isinstance(answer.data, GoesOn)
    return answer, answer.data


def resumed(python: str, folder: Path, loader: str, answer: ResumePlan) -> dict[str, object]:
    path = answer.load.value("code:trainer.fit(..., ckpt_path)")
    until = str(answer.point.step + 2)
    found: dict[str, object] = told(python, "lightning_run.py", str(folder), loader, until, str(path))
    return found


def test_with_a_stateful_loader_the_data_go_on_behind_the_samples_that_the_plan_counts(
    python: str, tmp_path: Path
) -> None:
    answer, data = asked(trained(python, tmp_path, "stateful"))
    assert (answer.point.step, data.effect, data.samples) == (12, DataEffect.EXACT, 48)
    first = resumed(python, tmp_path, "stateful", answer)
    begin = (data.samples or 0) % EPOCH
    assert (first["step"], first["batch"]) == (12, list(range(begin, begin + BATCH)))


def test_with_a_plain_one_they_begin_the_epoch_again_and_its_end_is_never_read(python: str, tmp_path: Path) -> None:
    answer, data = asked(trained(python, tmp_path, "plain"))
    assert (answer.point.step, data.effect, data.repeated) == (12, DataEffect.RESTARTS, 8)
    first = resumed(python, tmp_path, "plain", answer)
    assert (first["step"], first["batch"]) == (12, list(range(BATCH)))


def test_a_stale_last_is_what_it_takes_and_the_plan_does_not(python: str, tmp_path: Path) -> None:
    saves = trained(python, tmp_path, "plain")
    (oldest,) = saves.glob("*step=4.ckpt")
    shutil.copyfile(oldest, saves / "last.ckpt")
    tree = TreeQuestion(path=str(saves))
    simulated = ckpttool.library.simulate(ckpttool.resolve(tree), None)
    assert (simulated.would_resume, simulated.outcome) == (oldest.name, Outcome.LOADS)
    assert told(python, "lightning_run.py", str(tmp_path), "plain", "6", "last")["step"] == 4
    answer, _ = asked(saves)
    assert resumed(python, tmp_path, "plain", answer)["step"] == 12


@pytest.mark.parametrize(("loader", "epoch"), [("plain", 2), ("stateful", 3)])
def test_at_the_end_of_an_epoch_the_next_one_begins_and_a_state_costs_an_empty_one(
    python: str, tmp_path: Path, loader: str, epoch: int
) -> None:
    trained(python, tmp_path, loader, steps=21)
    (ended,) = tmp_path.glob("checkpoints/*step=20.ckpt")
    answer, data = asked(ended)
    assert (answer.point.step, data.effect, data.samples) == (20, DataEffect.EXACT, 80)
    first = resumed(python, tmp_path, loader, answer)
    assert (first["step"], first["batch"], first["epoch"]) == (20, list(range(BATCH)), epoch)
