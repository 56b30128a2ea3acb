"""The newest typer, beyond our pin: what speaks against it is only how long it takes to start."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TRIED = ("cli", "health/test_asd.py", "core/commands/test_settings.py")
ITS_OWN_WORDS = "wrong_value or a_number or cannot_be_meant"
"""Tests of what is said about a wrong value: typer 0.29 tells it in pydantic's words, which do not hold the value."""


@pytest.mark.skipif("not config.getoption('--nightly')", reason="installs from the package index: --nightly")
def test_the_command_line_works_with_the_newest_typer(tmp_path: Path) -> None:
    """Its packages go before those of this Python, so that pytest and all else are the same."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    done = subprocess.run(
        [home / "bin" / "python", "-m", "pip", "install", "-q", "--target", tmp_path / "newest", "typer"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"typer cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path / 'newest'}{os.pathsep}{ROOT}"}
    which = [sys.executable, "-c", "import typer; print(typer.__file__)"]
    found = subprocess.run(which, env=environment, capture_output=True, text=True, check=True).stdout
    assert found.startswith(str(tmp_path))
    tests = [str(ROOT / "tests" / name) for name in TRIED]
    how = ["-q", "-x", "-p", "no:cacheprovider", "-k", f"not ({ITS_OWN_WORDS})", f"--basetemp={tmp_path / 'tried'}"]
    tried = subprocess.run(
        [sys.executable, "-m", "pytest", *how, *tests],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert tried.returncode == 0, tried.stdout[-4000:]
