"""`--dry-run`: every command takes it and writes no file, also none that its options name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import FIXTURES
from tests.support.commands import ask


@pytest.fixture
def place(here: Path) -> Path:
    """Inputs of all commands that write a file which an option names."""
    shutil.copytree(FIXTURES / "sink2_ckpt/output", here / "output")
    shutil.copytree(FIXTURES / "guard/output", here / "guarded")
    shutil.copy(FIXTURES / "configs/pretrain_sink2.yaml", here / "c.yaml")
    (here / "s.sh").write_text("torchrun pretrain_gpt.py --fp8-format hybrid --fp8-amax-history-len 1\n")
    return here


@pytest.mark.parametrize(
    "line",
    [
        "preflight output --config c.yaml --report json=new.json --report markdown=new.md",
        "lint c.yaml s.sh --report sarif=new.sarif",
        "lint-config c.yaml --report junit=new.xml",
        "fp8 lint s.sh --report json=new.json",
        "fp8 probe output --stats new.jsonl",
        "verify output --level numerics --stats new.jsonl",
        "guard report guarded --prometheus new.prom",
        "report output --output new.html",
        "launch output --config c.yaml --output new.yaml",
    ],
)
def test_no_file_that_an_option_names_is_written(line: str, place: Path) -> None:
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    planned = ask(*line.split(), "--dry-run")
    assert planned.code in {0, 10, 11}, planned.stderr
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    done = ask(*line.split())
    assert done.code == planned.code
    assert list(place.glob("new.*")) != []


@pytest.mark.parametrize(
    ("line", "reason"),
    [("health output --write", "--threshold"), ("lint c.yaml --report new.json", "--report takes FORMAT=FILE")],
)
def test_what_would_be_refused_is_refused(line: str, reason: str, place: Path) -> None:
    assert place.exists()
    planned, done = ask(*line.split(), "--dry-run"), ask(*line.split())
    assert (planned.code, planned.stderr) == (done.code, done.stderr)
    assert planned.code == 2
    assert reason in planned.stderr
