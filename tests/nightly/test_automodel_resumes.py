"""NeMo AutoModel's own loading takes what is said of its choice, and its loaders go on where they were."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.domain.plan import Outcome
from tests.nightly.borrowing import told_by_ranks, trainer_python
from tests.support.answers import named, scanned, simulated

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="installs a trainer: --nightly")

PACKAGES = ("torch==2.13.0", "nemo-automodel==0.7.0")
OLD, BEFORE, NEWEST = "epoch_0_step_3", "epoch_0_step_7", "epoch_1_step_11"
UNTIL = 14


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trainer_python(tmp_path_factory.mktemp("automodel") / "venv", *PACKAGES, borrows=False)


def run(python: str, folder: Path, *arguments: int) -> dict[str, Any] | None:
    """Train with two ranks; None where it stopped with an error."""
    answer: dict[str, Any] | None = told_by_ranks(python, "automodel_run.py", folder, *arguments)
    return answer


@pytest.fixture(scope="module")
def trained(python: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """Saves of steps 4, 8 and 12, and what an uninterrupted run reads."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    first = run(python, folder, 12, 4)
    whole = run(python, tmp_path_factory.mktemp("whole") / "run", UNTIL, 100)
    assert first is not None
    assert whole is not None
    return folder, whole["read"]


def relink(root: Path, name: str) -> None:
    (root / "LATEST").unlink()
    (root / "LATEST").symlink_to(name)


def in_a_text(root: Path) -> None:
    (root / "LATEST").unlink()
    (root / "LATEST.txt").write_text(BEFORE)


SPOILED: dict[str, Callable[[Path], object]] = {
    "whole": lambda _: None,
    "an older one is named": lambda root: relink(root, BEFORE),
    "none is named": lambda root: (root / "LATEST").unlink(),
    "one that is gone is named": lambda root: relink(root, "epoch_9_step_99"),
    "an older one is named in a text": in_a_text,
    "the newest is incomplete": lambda root: (root / NEWEST / ".incomplete").touch(),
    "no random state of a rank": lambda root: (root / NEWEST / "rng/rng_global_rank_1.pt").unlink(),
    "no loader state of a rank": lambda root: (root / NEWEST / "dataloader/dataloader_dp_rank_1.pt").unlink(),
    "no weights of a rank": lambda root: next((root / NEWEST / "model").glob("shard-00002*")).unlink(),
    "no counters": lambda root: (root / NEWEST / "step_scheduler.pt").unlink(),
    "no record of slices": lambda root: (root / NEWEST / "optim/.metadata").unlink(),
}


@pytest.mark.parametrize("fault", SPOILED)
def test_it_takes_what_is_said_of_its_own_choice(
    fault: str, python: str, trained: tuple[Path, list[list[int]]], tmp_path: Path
) -> None:
    folder, read = trained
    root = tmp_path / "run"
    shutil.copytree(folder, root, symlinks=True)
    SPOILED[fault](root)
    told, saves = simulated(root), scanned(root)
    did = run(python, root, UNTIL, 100)
    if told.outcome is Outcome.STOPS:
        assert did is None
        return
    assert did is not None
    step = named(saves, str(told.would_resume)).step
    assert did["step"] == step
    assert did["read"] == read[step:UNTIL]
