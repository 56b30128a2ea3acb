"""The oldest dependencies that we allow, on every Python that we name: the floors in pyproject are no guesses."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from ckpttool import __version__

ROOT = Path(__file__).resolve().parent.parent.parent
MINORS = (10, 11, 12, 13)


@pytest.fixture(scope="module")
def uv(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program that resolves to the lowest versions; pip cannot."""
    found = shutil.which("uv")
    if found is not None:
        return found
    home = tmp_path_factory.mktemp("uv")
    venv.create(home, with_pip=True)
    done = run(str(home / "bin" / "python"), "-m", "pip", "install", "-q", "uv")
    if done.returncode:
        pytest.skip(f"there is no uv, and it cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return str(home / "bin" / "uv")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def interpreter(minor: int) -> str | None:
    """Return a Python of that version on this machine that starts: a shim may stand for none."""
    names = [sys.executable] if sys.version_info.minor == minor else []
    found = shutil.which(f"python3.{minor}")
    if found is not None:
        names += [found, *map(str, Path(found).parents[1].glob(f"versions/3.{minor}.*/bin/python"))]
    return next((name for name in names if not run(name, "-c", "").returncode), None)


@pytest.mark.skipif("not config.getoption('--nightly')", reason="installs from the package index: --nightly")
@pytest.mark.parametrize("minor", MINORS)
def test_the_oldest_dependencies_install_and_answer(minor: int, uv: str, tmp_path: Path) -> None:
    python = interpreter(minor)
    if python is None:
        pytest.skip(f"this machine has no Python 3.{minor}")
    home = tmp_path / "venv"
    made = run(uv, "venv", "-q", "-p", python, str(home))
    assert made.returncode == 0, made.stderr
    built = run(uv, "build", "-q", "--wheel", "-o", str(tmp_path), str(ROOT))
    assert built.returncode == 0, built.stderr
    (wheel,) = map(str, tmp_path.glob("*.whl"))
    # Nothing is compiled: whoever takes the oldest may have no compiler.
    lowest = ("--resolution", "lowest-direct", "--no-build", "-p", str(home / "bin" / "python"))
    done = run(uv, "pip", "install", "-q", *lowest, wheel)
    assert done.returncode == 0, done.stderr
    program = str(home / "bin" / "ckpttool")
    assert run(program, "--version").stdout.split()[-1] == __version__
    for fixture in ("sink2_ckpt", "sink2_safetensors"):
        answer = run(program, "verify", str(ROOT / "fixtures" / fixture / "output"), "--level", "numerics", "-q")
        assert (answer.returncode, answer.stdout.splitlines()[0]) == (0, "_1-30_2: agreed"), answer.stderr
    log = str(ROOT / "fixtures" / "logs" / "tensorboard" / "scalars.tfevents")
    replayed = run(program, "replay", log)
    said = replayed.stdout.splitlines()[:2]  # four steps are too few to judge one
    assert (replayed.returncode, said[0], said[1].partition(":")[0]) == (14, "Noticed: 1 nonfinite", "Not judged")
