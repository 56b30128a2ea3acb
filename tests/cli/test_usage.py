"""What cannot be meant, or is not there, is one line, in plain words, and changes nothing; `usage.txt` lists them."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from tests.conftest import FIXTURES
from tests.support.commands import ask
from tests.support.situations import whole

WORDS = {
    "LOG": str(FIXTURES / "logs" / "bloom176b_chronicles.log"),
    "CONFIG": str(FIXTURES / "configs" / "pretrain_sink2.yaml"),
}
TABLE = Path(__file__).with_name("usage.txt").read_text("utf-8").splitlines()
ROWS = [tuple(row.split(" | ")) for row in TABLE if row and not row.startswith("#")]
OF_A_VALUE = (" takes a ", " is not one of ")
"""What typer says of a wrong value; a newer one says it in its own words."""


def name(line: str, words: str) -> str:
    """Name a row by its command line, so that rows about a wrong value can be left out."""
    return f"wrong_value: {line}" if any(each in words for each in OF_A_VALUE) else line


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trees and an empty folder."""
    folder = tmp_path_factory.mktemp("usage")
    whole(folder)
    shutil.copytree(folder / "output", folder / "second")
    (folder / "empty").mkdir()
    return folder


def files(place: Path) -> set[Path]:
    return {path for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("code", "line", "words"), ROWS, ids=[name(line, words) for _, line, words in ROWS])
def test_it_is_one_line(code: str, line: str, words: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    before = files(place)
    said = ask(*(WORDS.get(word, word) for word in shlex.split(line)))
    assert (said.code, said.stdout) == (int(code), "")
    told = [each for each in said.stderr.splitlines() if not each.startswith("ckpttool: checking ")]
    assert len(told) == 1, said.stderr
    assert told[0].startswith("ckpttool: error: ")
    assert words in told[0]
    assert files(place) == before
