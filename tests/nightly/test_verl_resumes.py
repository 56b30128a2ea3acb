"""verl's real SFT trainer resumes from what a plan names, at its step, and reads the samples that it says."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.domain.data_position import DataEffect
from tests.nightly.borrowing import told, trainer_python
from tests.support.answers import chosen, goes_on, plan, simulated

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="installs a trainer: --nightly")

BATCHES = 5  # an epoch
ALL, NEVER = 3 * BATCHES, 99


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = tmp_path_factory.mktemp("verl") / "venv"
    return trainer_python(
        home, "torch==2.13.0", "verl==0.9.1", "torchdata==0.11.0", "uvicorn", "fastapi", borrows=False
    )


def trained(python: str, saves: Path, freq: int, last: int, path: str | None = None) -> dict[str, Any]:
    answer: dict[str, Any] = told(
        python, "verl_sft_run.py", str(saves), str(freq), str(last), *([] if path is None else [path])
    )
    return answer


@pytest.fixture(scope="module")
def order(python: str, tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """The samples of each step of a run without a stop."""
    read: list[list[int]] = trained(python, tmp_path_factory.mktemp("all"), NEVER, NEVER)["read"]
    assert len(read) == ALL
    return read


@pytest.mark.parametrize("spoilt", [None, "optim_world_size_2_rank_1.pt", "data_1.pt"])
def test_within_an_epoch_the_data_go_on_behind_the_chosen_save(
    python: str, order: list[list[int]], tmp_path: Path, spoilt: str | None
) -> None:
    trained(python, tmp_path, 4, 12)
    if spoilt is not None:
        (tmp_path / "global_step_12" / spoilt).unlink()
    answer = plan(tmp_path)
    assert (answer.point.step, goes_on(answer).effect) == (12 if spoilt is None else 8, DataEffect.EXACT)
    resumed = trained(python, tmp_path, NEVER, NEVER, answer.load.path)
    assert (resumed["step"], resumed["read"]) == (answer.point.step, order[answer.point.step :])


def test_by_itself_it_loads_a_save_without_a_loader_s_state(
    python: str, order: list[list[int]], tmp_path: Path
) -> None:
    trained(python, tmp_path, 4, 12)
    (tmp_path / "global_step_12" / "data_1.pt").unlink()
    assert simulated(tmp_path).would_resume == "global_step_12"
    resumed = trained(python, tmp_path, NEVER, NEVER)
    assert (resumed["step"], resumed["read"] != order[12:]) == (12, True)


def test_at_an_epoch_s_end_it_skips_the_next_and_the_remedy_prevents_that(
    python: str, order: list[list[int]], tmp_path: Path
) -> None:
    tree, again = tmp_path / "first", tmp_path / "again"
    trained(python, tree, BATCHES, BATCHES)
    assert goes_on(plan(tree)).exact_if[0] == f"an epoch has more than {BATCHES} batches"
    shutil.copytree(tree, again)
    assert trained(python, tree, NEVER, NEVER)["read"] == order[2 * BATCHES :]
    for state in (again / f"global_step_{BATCHES}").glob("data_*.pt"):
        state.unlink()
    assert (chosen(plan(again))[1], trained(python, again, NEVER, NEVER)["read"]) == (BATCHES, order[BATCHES:])
