"""Every console block of the README and of the manual is run, and must print what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from filelock import FileLock

from tests.pages import GUIDE, PAGES, ROOT
from tests.support.commands import ask

PLACE = Path("/tmp/ckpttool-readme")  # noqa: S108  the launch block shows absolute paths, so the place is fixed
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
MINUTE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d")
TWO_HOURS = 7205  # and some seconds, while the blocks are run
AGE = re.compile(r"(?<=UTC, )[0-9.]+ \w+(?= ago)")  # of a copy that a block made
IN_PROCESS = re.compile(r"ckpttool (?P<words>(?:'[^']*'|[^|;&<>()$`*?~\['])*)(?P<rest>|[|;].*)")
IN_FOLDER = re.compile(r"\(cd (?P<folder>\S+) && (?P<command>ckpttool [^()]*)\)")
BLOCK = re.compile(r"^```console\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def checkout() -> Iterator[Path]:
    """Lay out a folder as a reader's checkout; another checkout's tests wait."""
    with FileLock(f"{PLACE}.lock"):
        shutil.rmtree(PLACE, ignore_errors=True)
        PLACE.mkdir()
        shutil.copytree(ROOT / "fixtures", PLACE / "fixtures", symlinks=True)
        for path in (PLACE / "fixtures").rglob("*"):
            os.utime(path, (time.time() - TWO_HOURS, time.time() - TWO_HOURS))
        yield PLACE
        shutil.rmtree(PLACE)


@pytest.fixture
def place(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Take away what a page's blocks made: the next page begins in a fresh checkout, too."""
    monkeypatch.chdir(checkout)
    yield checkout
    for path in checkout.iterdir():
        if path.is_dir() and path.name != "fixtures":
            shutil.rmtree(path)
        elif path.is_file():
            path.unlink()


def run(command: str, place: Path) -> str:
    """Run one line as a reader would, and return what a terminal would show of its result."""
    if inside := IN_FOLDER.fullmatch(command):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(place / inside["folder"])
            return run(inside["command"], Path.cwd())
    found, answer = IN_PROCESS.fullmatch(command), ""
    if found is not None:  # what bash would hand on as it stands needs no program of its own
        said = ask(*shlex.split(found["words"]))
        assert "Traceback" not in said.stderr, said.stderr
        if not found["rest"]:
            return without_times(said.stdout)
        command, answer = f"(cat; exit {said.code}) {found['rest']}", said.stdout
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=place,
        env=environment,
        input=answer,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return without_times(done.stdout)


def without_times(text: str) -> str:
    return MINUTE.sub("2026-11-20 03:00", AGE.sub("2 h", TIME.sub("2026-11-20T03:00:00Z", text)))


def replayed(body: str, place: Path) -> str:
    commands = [line.removeprefix("$ ") for line in body.splitlines() if line.startswith("$ ")]
    return "".join(f"$ {command}\n{run(command, place)}" for command in commands)


def test_every_example_of_the_library_prints_what_the_page_shows(place: Path, request: pytest.FixtureRequest) -> None:
    (setting_up, *_) = BLOCK.findall((GUIDE / "resolve.md").read_text(encoding="utf-8"))
    replayed(setting_up, place)
    page = GUIDE / "library.md"
    text = page.read_text(encoding="utf-8")
    example = re.compile(r"(^```python\n(.*?)^```$.*?^```\n)(.*?)^```$", re.MULTILINE | re.DOTALL)

    def printed(code: str) -> str:
        with redirect_stdout(StringIO()) as said:
            exec(compile(code, str(page), "exec"), {})  # noqa: S102  a reader's own program
        return without_times(said.getvalue())

    fresh = example.sub(lambda found: f"{found[1]}{printed(found[2])}```", text)
    assert fresh.count("```python") == len(example.findall(text)) > 1
    if request.config.getoption("--update-goldens"):
        page.write_text(fresh, encoding="utf-8")
        return
    assert fresh == text


TRAINS = GUIDE / "nan.md"  # with torch, in a program of its own
WITH_BLOCKS = [
    pytest.param(page, marks=[pytest.mark.slow] if page == TRAINS else [], id=str(page.relative_to(ROOT)))
    for page in PAGES
    if BLOCK.search(page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("page", WITH_BLOCKS)
def test_every_console_block_prints_what_the_page_shows(
    page: Path, place: Path, request: pytest.FixtureRequest
) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = [match["body"] for match in BLOCK.finditer(text)]
    fresh = [replayed(body, place) for body in blocks]
    if request.config.getoption("--update-goldens"):
        bodies = iter(fresh)
        page.write_text(BLOCK.sub(lambda _: f"```console\n{next(bodies)}```", text), encoding="utf-8")
        return
    assert fresh == blocks
