"""A tree that lies in a save of another tree is a part of that save, whoever wrote the two."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpttool.core.storage.base import Kind
from ckpttool.trainers.below import trees_below
from ckpttool.trainers.locate import locate
from ckpttool.trainers.parts import recognised
from tests.trainers.test_detection import TREES, Names, below, claimed, listing, written


def save_in(names: Names) -> str | None:
    """A folder of one save, of which its layout says so; None where saves are no folders."""
    shown = listing(names)
    (layout,) = recognised(shown)
    folders = [entry.name for entry in shown.entries if entry.kind is Kind.FOLDER]
    parts = {name: layout.signs.part(shown, name, None) for name in folders}
    return next((name for name, part in parts.items() if getattr(part, "focus", None) is not None), None)


@pytest.mark.slow
def test_a_tree_in_a_save_of_another_changes_nothing_and_a_path_in_it_is_that_save(tmp_path: Path) -> None:
    wrong: dict[tuple[str, ...], set[str]] = {}
    for outer, (layout, names) in TREES.items():
        save = save_in(names)
        if save is None:
            continue
        for inner, (_, more) in TREES.items():
            if inner == outer:
                continue
            mixed = names | below(f"{save}/extra", more)
            if claimed(mixed) != {layout}:
                wrong[inner, "inside", outer] = claimed(mixed)
            root = written(tmp_path / outer / inner, mixed)
            found = locate(str(root / save / "extra"))
            if (found.layout.name, found.storage.root, found.focus) != (layout, str(root), save):
                wrong[inner, "inside", outer, "by path"] = {found.layout.name, found.storage.root}
            if [each.path for each in trees_below(str(root))] != [str(root)]:
                wrong[inner, "inside", outer, "by search"] = {each.path for each in trees_below(str(root))}
    assert wrong == {}
