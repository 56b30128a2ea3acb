"""A Python of its own for a trainer that needs torch: it borrows that of these tests, and installs the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

DEEPSPEED = "0.19.8"
DEEPSPEED_NEEDS = (
    "annotated-types", "einops", "hjson", "msgpack", "ninja", "packaging", "psutil", "py-cpuinfo", "pydantic",
    "pydantic-core", "setuptools<80", "tqdm", "typing-extensions", "typing-inspection", "wheel",
)  # fmt: skip
SCRIPTS = Path(__file__).resolve().parent / "inject"


def trainer_python(home: Path, *packages: str, borrows: bool = True) -> str:
    """Make a virtual environment and return its Python; the test is skipped where a package cannot be installed.

    Args:
        home: Where to make it.
        packages: What to install, each without what it depends on where torch is borrowed: torch itself is not to be
            installed anew.
        borrows: Whether what these tests run with is seen there, too.
    """
    venv.create(home, with_pip=True)
    python = str(home / "bin" / "python")
    if borrows:
        own = _asked(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
        places = {sysconfig.get_path("purelib"), str(Path(pytest.__file__).parents[1])}
        (Path(own) / "borrowed.pth").write_text("".join(f"{place}\n" for place in sorted(places)))
    alone = ["--no-deps"] if borrows else []
    done = subprocess.run(
        [python, "-m", "pip", "install", "-q", *alone, *packages], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return python


def deepspeed_python(home: Path, *packages: str) -> str:
    """Make such an environment with DeepSpeed, whose build needs its helpers first."""
    python = trainer_python(home, *DEEPSPEED_NEEDS, *packages)
    build = [python, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", f"deepspeed=={DEEPSPEED}"]
    environment = os.environ | {"DS_BUILD_OPS": "0"}
    done = subprocess.run(build, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"DeepSpeed cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return python


def told(python: str, script: str, *arguments: str) -> Any:  # noqa: ANN401  JSON
    """Run a script beside these tests in a trainer's Python, and return the JSON that it prints last."""
    return json.loads(_asked(python, str(SCRIPTS / script), *arguments).splitlines()[-1])


def told_by_ranks(python: str, script: str, *arguments: object) -> Any:  # noqa: ANN401  JSON
    """Run a script beside these tests with two ranks; None where it stopped with an error."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "--"]
    command = [python, *launch, str(SCRIPTS / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if done.returncode == 0 else None


def _asked(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()
