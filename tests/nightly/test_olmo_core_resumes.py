"""The real OLMo-core resumes from what is said of its own choice, and reads the samples that it says."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.domain.data_position import DataEffect
from ckpttool.core.domain.plan import Outcome
from ckpttool.types import DataQuestion
from tests.nightly.borrowing import told_by_ranks, trainer_python
from tests.support.answers import goes_on, named, plan, scanned, simulated

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="installs a trainer: --nightly")

PACKAGES = ("torch==2.13.0", "ai2-olmo-core==3.0.0")
UNTIL = 14


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trainer_python(tmp_path_factory.mktemp("olmo_core") / "venv", *PACKAGES, borrows=False)


def run(python: str, folder: Path, *arguments: int) -> dict[str, Any] | None:
    """Train with two ranks; None where it stopped with an error."""
    answer: dict[str, Any] | None = told_by_ranks(python, "olmo_core_run.py", folder, *arguments)
    return answer


@pytest.fixture(scope="module")
def trained(python: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """Saves of steps 4, 8 and 12, and what an uninterrupted run reads."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    whole = run(python, folder, UNTIL + 4, 4)
    assert whole is not None
    shutil.rmtree(folder / "step16")
    shutil.rmtree(folder / f"step{UNTIL + 4}")
    return folder, whole["read"]


def copied(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained.parent, tmp_path / "copy")
    return tmp_path / "copy" / trained.name


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


SPOILED: dict[str, Callable[[Path], object]] = {
    "whole": lambda _: None,
    "no mark": lambda root: (root / "step12/.metadata.json").unlink(),
    "torn mark": lambda root: (root / "step12/.metadata.json").write_text("{"),
    "no first state": lambda root: (root / "step12/train/rank0.pt").unlink(),
    "no other state": lambda root: (root / "step12/train/rank1.pt").unlink(),
    "cut state": lambda root: cut(root / "step12/train/rank1.pt"),
    "cut slices": lambda root: cut(root / "step12/model_and_optim/__1_0.distcp"),
    "no record of slices": lambda root: (root / "step12/model_and_optim/.metadata").unlink(),
    "a copy under a higher number": lambda root: shutil.copytree(root / "step4", root / "step99"),
    "a temporary folder": lambda root: shutil.copytree(root / "step4", root / "step13-tmp"),
    "a broken link": lambda root: (root / "step20").symlink_to("nowhere"),
}


@pytest.mark.parametrize("fault", SPOILED)
def test_it_takes_what_is_said_of_its_own_choice(
    fault: str, python: str, trained: tuple[Path, list[list[int]]], tmp_path: Path
) -> None:
    folder, read = trained
    root = copied(folder, tmp_path)
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


def test_the_data_go_on_where_the_plan_says_with_another_batch_size(
    python: str, trained: tuple[Path, list[list[int]]], tmp_path: Path
) -> None:
    folder, read = trained
    root = copied(folder, tmp_path)
    shutil.rmtree(root / "step12")
    position = goes_on(plan(root, data=DataQuestion(new_global_batch=6, old_global_batch=4)))
    assert (position.effect, position.repeated) == (DataEffect.REPEATS, 32 % 6)
    did = run(python, root, 9, 100, 6)
    assert did is not None
    before = {sample for batch in read[:8] for sample in batch}
    assert len(before & {*did["read"][0]}) == position.repeated
