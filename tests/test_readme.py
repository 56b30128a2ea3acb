"""Every console block of the README is run, and must print what the README shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PLACE = Path("/tmp/ckpttool-readme")  # noqa: S108  the launch block shows absolute paths, so the place is fixed
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
BLOCK = re.compile(r"^```console\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def place() -> Iterator[Path]:
    """Lay out a folder as a reader's checkout, for all blocks one after the other; another checkout's tests wait."""
    with FileLock(f"{PLACE}.lock"):
        shutil.rmtree(PLACE, ignore_errors=True)
        PLACE.mkdir()
        shutil.copytree(ROOT / "fixtures", PLACE / "fixtures")
        yield PLACE


def run(command: str, place: Path) -> str:
    """Run one line as a reader would, and return what a terminal would show of its result."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=place, env=environment, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return TIME.sub("2026-11-20T03:00:00Z", done.stdout)


def replayed(body: str, place: Path) -> str:
    commands = [line.removeprefix("$ ") for line in body.splitlines() if line.startswith("$ ")]
    return "".join(f"$ {command}\n{run(command, place)}" for command in commands)


def test_every_console_block_prints_what_the_readme_shows(place: Path, request: pytest.FixtureRequest) -> None:
    text = README.read_text(encoding="utf-8")
    blocks = [match["body"] for match in BLOCK.finditer(text)]
    assert len(blocks) >= 7
    fresh = [replayed(body, place) for body in blocks]
    shutil.rmtree(place)
    if request.config.getoption("--update-goldens"):
        bodies = iter(fresh)
        README.write_text(BLOCK.sub(lambda _: f"```console\n{next(bodies)}```", text), encoding="utf-8")
        return
    assert fresh == blocks


def test_the_readme_names_every_exit_code_and_command() -> None:
    from ckpttool.cli.main import COMMANDS
    from ckpttool.errors import ExitCode

    text = README.read_text(encoding="utf-8")
    assert {int(code) for code in re.findall(r"^\| (\d+) \| ", text, re.MULTILINE)} == set(ExitCode)
    assert [command for command in COMMANDS if f"ckpttool {command}" not in text] == []
