"""What the shell offers after TAB."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from ckpttool.core.commands import completing
from ckpttool.core.extensions import rows
from ckpttool.trainers.registry import LAYOUT_NAMES
from tests.support.commands import Said, environment
from tests.support.situations import SITUATIONS
from tests.test_startup import HEAVY, imported

SCRIPT = Path(sys.executable).with_name("ckpttool")  # `python -m ckpttool` has another name, and completes nothing


def asked(*words: str) -> dict[str, str]:
    """Return what bash says in the environment: the last word is the one that TAB was pressed behind."""
    line = {"COMP_WORDS": " ".join(("ckpttool", *words)), "COMP_CWORD": str(len(words))}
    return environment({"_CKPTTOOL_COMPLETE": "complete_bash", **line})


def offered(*words: str, cwd: Path | None = None) -> Said:
    done = subprocess.run([SCRIPT], env=asked(*words), cwd=cwd, capture_output=True, text=True, check=False, timeout=60)
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("resolve", "--checkpoint", ""), ["_1-30_2", "_1-25_2", "20_2", "15_2", "10_2"]),
        (("sc",), ["scan", "scale-skip", "schema"]),
        (("verify", "output", "--checkpoint", "1"), ["15_2", "10_2"]),
        (("diff", "--tree", "output", "--checkpoint", "2"), ["20_2"]),
        (("inspect", "output", "--checkpoint", "2"), ["20_2"]),
        (("verify", "nowhere", "--checkpoint", ""), []),
        (("verify", "other", "--checkpoint", ""), ["15_2", "10_2", "5_2"]),
        (("explain", "shard-m"), ["shard-missing"]),
        (("replay", "--policy", "zc"), ["zclip"]),
        (("scan", "--layout", ""), list(LAYOUT_NAMES)),
        (("schema", "li"), ["lint"]),
    ],
)
def test_what_can_follow_is_offered(words: tuple[str, ...], names: list[str], here: Path) -> None:
    SITUATIONS["unhealthy"](here)
    (here / "output").rename(here / "other")
    SITUATIONS["whole"](here)
    said = offered(*words, cwd=here)
    assert (said.stdout.split(), said.stderr) == (names, "")


def test_the_tree_of_the_environment_is_looked_into(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SITUATIONS["whole"](here)
    (here / "output").rename(here / "other")
    monkeypatch.setenv("CKPTTOOL_DIR", "other")
    assert offered("verify", "--checkpoint", "2", cwd=here).stdout.split() == ["20_2"]


def test_every_code_can_follow_explain() -> None:
    assert offered("explain", "").stdout.split() == [row.value for row in rows()]


def test_nothing_is_offered_and_nothing_said_where_there_is_no_tree(here: Path) -> None:
    said = offered("resolve", "--checkpoint", "", cwd=here)
    assert (said.stdout.strip(), said.stderr) == ("", "")


def test_a_prompt_does_not_wait_for_a_disk_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(_: typer.Context) -> Iterator[str]:
        yield "a"
        time.sleep(60)

    monkeypatch.setattr(completing, "PATIENCE", 0.05)
    began = time.monotonic()
    assert completing._offered(hangs)(typer.Context(typer.main.get_command(typer.Typer(callback=print))), "") == []  # noqa: SLF001
    assert time.monotonic() - began < 30


@pytest.mark.sample(1)
@pytest.mark.parametrize("words", [("explain", "sh"), ("resolve", "--checkpoint", ""), ("scan", "--layout", "")])
def test_it_imports_nothing_heavy(words: tuple[str, ...], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SITUATIONS["whole"](here)
    for name, value in asked(*words).items():
        monkeypatch.setenv(name, value)
    assert imported(str(SCRIPT), cwd=here) & HEAVY <= {"xxhash"}  # as a scan
