"""A capture is never resumed from, by no layout's pattern, and no tree is seen otherwise for lying around one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckpttool.trainers.registry import LAYOUT_NAMES
from tests.conftest import FIXTURES
from tests.support.commands import ask
from tests.support.trainer_trees import healthy, layout_of_tree, truths

CAPTURES = FIXTURES / "nan" / "output" / "guard" / "captures"
NAME = "nan-at-00000007"
ONE_OF_EACH = sorted({layout_of_tree(tree): tree for tree in sorted(truths(), reverse=True)}.values())
MINDFORMERS = ("sink2_ckpt", "newfmt_4rank", "unified")


def told(command: str, root: Path) -> tuple[int, object]:
    """Return what a command says, without the note that a folder called `guard` is no part of any save."""
    said = ask(command, str(root), "--json")
    document = said.json if said.stdout else {}
    return said.code, _without(document)


def _without(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without(item) for key, item in value.items() if key not in {"seconds", "disk"}}
    if isinstance(value, list):
        return [_without(item) for item in value if item != "guard" and not _is_note(item)]
    return value


def _is_note(item: object) -> bool:
    return isinstance(item, dict) and (item.get("path"), item.get("severity")) == ("guard", "note")


@pytest.mark.sample(5)
@pytest.mark.parametrize("layout", [None, *LAYOUT_NAMES])
def test_a_capture_is_none_of_the_saves_of_a_layout(layout: str | None) -> None:
    options = [] if layout is None else ["--layout", layout]
    for folder in (CAPTURES / NAME, CAPTURES, CAPTURES.parent, CAPTURES.parent.parent):
        said = ask("resolve", str(folder), *options)
        assert (said.code, said.stdout) == (12, ""), folder


@pytest.mark.sample(4)
@pytest.mark.parametrize("tree", ONE_OF_EACH)
def test_a_tree_with_captures_in_it_is_as_without(tree: str, tmp_path: Path) -> None:
    assert_undisturbed(healthy(tree, tmp_path))


@pytest.mark.parametrize("tree", MINDFORMERS)
def test_an_output_folder_with_captures_in_it_is_as_without(tree: str, tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / tree, tmp_path / "run")
    assert_undisturbed(tmp_path / "run" / "output" if (tmp_path / "run" / "output").is_dir() else tmp_path / "run")


def assert_undisturbed(root: Path) -> None:
    before = [told(command, root) for command in ("resolve", "scan")]
    shutil.copytree(CAPTURES, root / "guard" / "captures")
    assert [told(command, root) for command in ("resolve", "scan")] == before


def test_no_name_in_a_capture_looks_like_one_of_a_save() -> None:
    words = ("rank_", "step-", "step_", "iter", "checkpoint", "global_step", "epoch", ".ckpt", ".pt", ".pth", ".bin")
    names = [NAME, *(path.name for path in (CAPTURES / NAME).iterdir())]
    assert [(name, word) for name in names for word in words if word in name] == []
    for record in (CAPTURES / NAME).glob("*.json"):
        assert '"resumable": false' in record.read_text()
