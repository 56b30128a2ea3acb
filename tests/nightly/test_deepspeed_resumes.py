"""The real DeepSpeed resumes from what a plan names, at the step and the samples that it says."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from ckpttool.core.domain.data_position import GoesOn
from tests.nightly.borrowing import deepspeed_python
from tests.support.answers import plan

SCRIPT = Path(__file__).with_name("train_deepspeed.py")
RANKS = 2
SAMPLES = 8  # a step: two ranks, two micro batches of two

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="installs DeepSpeed: --nightly")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with DeepSpeed, which borrows torch from this one."""
    return Path(deepspeed_python(tmp_path_factory.mktemp("deepspeed") / "venv"))


def start(python: Path, *arguments: str, stage: int) -> dict[str, object]:
    """Run the script on all ranks; return what rank 0 says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": str(RANKS),
        "DS_ACCELERATOR": "cpu",
        "ZERO_STAGE": str(stage),
        "TORCH_EXTENSIONS_DIR": str(python.parent.parent / "extensions"),  # what it compiles takes minutes
    }
    ranks = [
        subprocess.Popen(
            [python, SCRIPT, *arguments],
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    said = [rank.communicate(timeout=1800)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * RANKS, said
    told: dict[str, object] = json.loads(next(line for line in said[0].splitlines() if line.startswith("{")))
    return told


def resumed(python: Path, root: Path, *, stage: int) -> tuple[str, int]:
    """Resume from the plan, and hold it against what DeepSpeed then counts; return what was loaded."""
    found = plan(root)
    assert isinstance(found.data, GoesOn)
    tag = found.load.value("code:load_checkpoint(..., tag)")
    told = start(python, found.load.path, str(found.point.step + 1), str(tag), stage=stage)
    assert (told["steps"], told["samples"]) == (found.point.step, found.data.samples)
    assert str(tag) in str(told["loaded"])
    return str(tag), found.point.step


@pytest.mark.parametrize("stage", [1, 3])
def test_it_goes_on_where_the_plan_says_before_and_after_the_newest_save_lost_a_file(
    python: Path, stage: int, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    start(python, str(root), "6", stage=stage)
    saves: Sequence[str] = sorted(path.name for path in root.glob("global_step*"))
    assert saves == ["global_step2", "global_step4", "global_step6"]
    assert resumed(python, root, stage=stage) == ("global_step6", 6)
    (root / "global_step6" / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    assert resumed(python, root, stage=stage) == ("global_step4", 4)
    assert plan(root).point.checkpoint.samples == 4 * SAMPLES
