"""What the page on the guard walks through is what a reader gets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import GUIDE
from tests.test_readme import replayed

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="trains three times: --nightly")

PAGE = GUIDE / "guard.md"
BLOCK = re.compile(r"^```text\n(?P<body>\$ .*?)^```$", re.MULTILINE | re.DOTALL)
FRACTION = re.compile(r"\d+\.\d+%?")  # another processor rounds otherwise
INSTALLED = re.compile(r"…?/\S*(?=/guide/char_lm/train\.py)")


def alike(text: str) -> str:
    """Return a block without what differs between machines."""
    return " ".join(FRACTION.sub("#", INSTALLED.sub("ckpttool", text)).split())


def test_every_block_of_the_walk_prints_what_the_page_shows(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    fresh = [replayed(body, tmp_path) for body in BLOCK.findall(text)]
    assert len(fresh) == 3
    if request.config.getoption("--update-goldens"):
        bodies = iter(fresh)
        shown = BLOCK.sub(lambda _: f"```text\n{next(bodies)}```", text)
        PAGE.write_text(INSTALLED.sub("…/ckpttool", shown), encoding="utf-8")
        return
    assert [alike(body) for body in fresh] == [alike(body) for body in BLOCK.findall(text)]
