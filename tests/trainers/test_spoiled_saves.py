"""A real tree, what is done to its newest save, and what is said of that: the rows of `spoiled_saves.toml`.

Damages that a real trainer was run with are in `test_real_layouts`; questions for every layout in `test_every_layout`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ckpttool.core.domain.plan import ResumePlan
from tests.support.answers import decide, named, reasons, scanned, why_not
from tests.support.trainer_trees import edit, healthy

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TREES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("spoiled_saves.toml").read_text())
ROWS = [
    (tree, end, what) for tree, row in TREES.items() for end in ("passed_over", "taken") for what in row.get(end, {})
]
ENDS = {"passed_over": "before", "taken": "newest"}


@pytest.mark.parametrize(("tree", "end", "what"), ROWS)
def test_a_spoiled_save_is_told_by_codes_and_paths(tree: str, end: str, what: str, tmp_path: Path) -> None:
    root, newest = healthy(tree, tmp_path), TREES[tree]["newest"]
    edits = dict(TREES[tree][end][what])
    told = edits.pop("told")
    for name, where in edits.items():
        for path in where:
            edit(root, name, path, *([where[path]] if isinstance(where, dict) else []))
    answer = decide(root)
    assert isinstance(answer, ResumePlan)
    assert answer.point.checkpoint.name == TREES[tree][ENDS[end]]
    is_rejected = newest in dict(why_not(answer))
    findings = reasons(answer, newest) if is_rejected else named(scanned(root), newest).findings
    assert sorted({f"{each.code.value} {each.path}" for each in findings}) == told
