"""What `export` writes of saves by the real DeepSpeed is what its own converter makes of them."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.export.truth import exported, of_tensors
from tests.nightly.borrowing import SCRIPTS, deepspeed_python
from tests.support.commands import ask

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="installs DeepSpeed: --nightly")
FROZEN = {"frozen.weight", "frozen.bias"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with DeepSpeed, which borrows torch from this one."""
    return Path(deepspeed_python(tmp_path_factory.mktemp("deepspeed") / "venv"))


def save(python: Path, out: Path, ranks: int, *arguments: str) -> dict[str, Any]:
    """Train on several ranks and save; return the tensors of the real converter."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": str(ranks),
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "TORCH_EXTENSIONS_DIR": str(python.parent.parent / "extensions"),
    }
    processes = [
        subprocess.Popen(
            [python, SCRIPTS / "zero_saves.py", str(out), *arguments],
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    said = [process.communicate(timeout=1800)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * ranks, said[0][-3000:]
    loaded: dict[str, Any] = torch.load(f"{out}.truth.pt", weights_only=False)
    return loaded


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_every_tensor_equals_that_of_zero_to_fp32(
    python: Path, stage: int, dtype: str, ranks: int, tmp_path: Path
) -> None:
    real = of_tensors(save(python, tmp_path / "run", ranks, str(stage), dtype))
    said = ask("export", str(tmp_path / "run"), "--output", str(tmp_path / "out"))
    assert said.code == 0, said.output
    mine = exported(tmp_path / "out")
    assert real.pop("head.weight") == real["emb.weight"]
    assert {name: mine[name] for name in real} == real
    assert mine.keys() - real.keys() == (FROZEN if stage == 1 else set())
