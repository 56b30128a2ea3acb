"""Two thousand trees, each split, damaged and looked at in another way: the answer is that of one machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckpttool.core.domain.verdict import Level
from tests.nodes.test_split_trees import split_answers

nightly = pytest.mark.skipif("not config.getoption('--nightly')", reason="takes minutes: --nightly")

EACH = 50


@nightly
@pytest.mark.parametrize("first", range(2_000, 4_000, EACH))
def test_parts_of_a_tree_are_answered_as_the_tree_on_one_disk(
    first: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    levels = (Level.STRUCTURE, Level.CHECKSUM, Level.NUMERICS, Level.STRUCTURE, Level.CHECKSUM)
    different = {}
    for number in range(first, first + EACH):
        folder = tmp_path / str(number)
        folder.mkdir()
        whole, parts, done = split_answers(monkeypatch, folder, number, levels[number % len(levels)])
        if parts != whole:
            different[number] = done
        shutil.rmtree(folder)
    assert different == {}
