"""The real Composer resumes from what a plan names, and by itself does with damaged trees what was said of it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.domain.data_position import DataEffect, GoesOn
from ckpttool.core.domain.plan import Outcome
from ckpttool.types import DataQuestion
from tests.nightly.borrowing import SCRIPTS, trainer_python
from tests.support.answers import plan, simulated
from tests.support.trainer_trees import damaged, faults, healthy

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="installs a trainer: --nightly")

PACKAGES = (
    "mosaicml==0.32.1", "torchmetrics==1.7.4", "lightning-utilities", "torch-optimizer==0.3.0", "pytorch-ranger",
    "tqdm", "requests", "urllib3", "certifi", "idna", "charset-normalizer", "psutil", "coolname", "tabulate==0.9.0",
    "py-cpuinfo", "packaging", "importlib-metadata<9", "zipp", "pillow", "pyyaml",
)  # fmt: skip
AUTORESUME = {"autoresume": True, "run_name": "run"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trainer_python(tmp_path_factory.mktemp("composer") / "venv", *PACKAGES)


def started(python: str, starts: Sequence[Mapping[str, object]], *, ranks: int | None = None) -> list[dict[str, Any]]:
    """Make starts and return their answers.

    Ranks that wait for one that stopped are stopped, so the last start may give no answer but an error.

    Args:
        python: Composer's Python.
        starts: What each start is given.
        ranks: How many ranks to start with torchrun; None for one process without it.
    """
    launcher = [python] if ranks is None else [python, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*launcher, str(SCRIPTS / "composer_start.py")],
        input="".join(f"{json.dumps(start)}\n" for start in starts),
        env=os.environ | {"NODE_RANK": "0", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if ranks is not None and len(starts) == 1 and not rows and done.returncode:
        return [{"error": done.stderr[-1000:]}]
    assert len(rows) == len(starts), done.stderr[-2000:]
    return rows


def of_outcome(row: Mapping[str, Any]) -> Outcome:
    if "error" in row:
        return Outcome.STOPS
    return Outcome.LOADS if row["step"] else Outcome.SCRATCH


SINGLE = [fault for fault in sorted(faults()) if fault.startswith("composer_single--")]
SHARDED = [fault for fault in sorted(faults()) if fault.startswith("composer_fsdp--")]


def test_damaged_files_end_as_simulated(python: str, tmp_path: Path) -> None:
    roots = {fault: damaged(fault, tmp_path / fault) for fault in SINGLE}
    told = {fault: simulated(root) for fault, root in roots.items()}
    rows = started(python, [{"folder": str(root), "until": 16, **AUTORESUME} for root in roots.values()])
    assert {fault: each.outcome for fault, each in told.items()} == dict(zip(roots, map(of_outcome, rows), strict=True))


@pytest.mark.parametrize("fault", SHARDED)
def test_damaged_folders_end_as_simulated(fault: str, python: str, tmp_path: Path) -> None:
    root = damaged(fault, tmp_path)
    told = simulated(root)
    start = {"folder": str(root), "until": 14, "sharded": True, "save_interval": "6ba", **AUTORESUME}
    (row,) = started(python, [start], ranks=2)
    assert of_outcome(row) is told.outcome, row


@pytest.mark.parametrize("fault", ["composer_single--cut", "composer_single--newest-missing"])
def test_the_settings_of_a_plan_load_what_it_names(fault: str, python: str, tmp_path: Path) -> None:
    root = damaged(fault, tmp_path)
    answer = plan(root)
    assert isinstance(answer.data, GoesOn)
    settings = {each.place.name: each.value for each in answer.load.settings if each.place.kind.value == "config"}
    (row,) = started(python, [{"folder": str(root), "until": 14, **settings}])
    assert (row["step"], row["optimizer"], row["batches"]) == (12, True, [[8, 9, 10, 11], [12, 13, 14, 15]])
    assert (answer.point.step, answer.data.samples) == (12, 48)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_folders_load_with_any_number_of_ranks(ranks: int, python: str, tmp_path: Path) -> None:
    root = healthy("composer_fsdp", tmp_path)
    path = plan(root).load.value("config:load_path")
    start = {"folder": str(root), "until": 14, "sharded": True, "save_interval": "6ba", "load_path": path}
    (row,) = started(python, [start], ranks=ranks)
    assert (row["step"], row["optimizer"], row["batches"]) == (12, True, [[8, 9, 10, 11], [12, 13, 14, 15]])


@pytest.mark.parametrize("tree", ["composer_single", "composer_streamed"])
@pytest.mark.parametrize("batch", [2, 4, 8])
def test_the_data_go_on_where_the_plan_says(tree: str, batch: int, python: str, tmp_path: Path) -> None:
    root = healthy(tree, tmp_path)
    answer = plan(root, data=DataQuestion(new_global_batch=batch))
    assert isinstance(answer.data, GoesOn)
    kind = "streamed" if tree == "composer_streamed" else "plain"
    (row,) = started(python, [{"folder": str(root), "until": 16, "data": kind, "batch": batch, **AUTORESUME}])
    ahead = (answer.data.lost or 0) - (answer.data.repeated or 0)
    begin = 56 % 40 + ahead
    assert row["batches"][0] == list(range(begin, begin + batch))
    if kind == "plain" and batch != 4:
        assert answer.data.effect is (DataEffect.LOSES if batch == 8 else DataEffect.REPEATS)
