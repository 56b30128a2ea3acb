"""Training scripts that run on two ranks in an engine's own Python, and what they wrote."""

from __future__ import annotations

import json
import os
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from tests.nightly.borrowing import SCRIPTS

RANKS = (0, 1)
PRECISIONS = ("32", "bf16", "16")

Ran: TypeAlias = dict[str, list[dict[str, Any]]]
"""By the name of a case, what each rank wrote."""


def run(python: str, script: str, folder: Path, asked: object, *names: str, guard: str = "") -> Ran:
    """Run a script on two ranks, and return what it wrote under each name."""
    launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, str(SCRIPTS / script), str(folder), json.dumps(asked)]
    compiled = str(Path(python).parent.parent / "extensions")  # DeepSpeed compiles a part of its own
    environment = {**os.environ, "CKPTTOOL_GUARD": guard, "OMP_NUM_THREADS": "1", "TORCH_EXTENSIONS_DIR": compiled}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return {
        name: [json.loads((folder / name / f"rank{rank}.json").read_text()) for rank in RANKS]
        for name in names or ("",)
    }


def changeless(rank: dict[str, Any]) -> list[int]:
    """Return the steps after which all that a rank trains was the same in every bit as before."""
    seen = rank["seen"]
    return [after["step"] for before, after in pairwise(seen) if before["bits"] == after["bits"]]


def bits(ranks: list[dict[str, Any]]) -> list[list[str]]:
    return [[step["bits"] for step in rank["seen"]] for rank in ranks]


def kinds(rank: dict[str, Any]) -> list[tuple[str, int]]:
    return [(event[0], event[1]) for event in rank["events"] if event[0] not in {"step", "capture"}]
