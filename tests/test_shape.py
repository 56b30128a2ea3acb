"""The figures of `benchmarks/shape.py`, on a package whose every branch can be counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import shape
from ckpttool.trainers.registry import TRAINERS

RULES = '''
"""Rules."""

from small.nouns.step import Step  # noqa: F401


def told(values):
    found = [value for value in values if value and value > 0]
    for value in found or ():
        while value > 1 and value < 9:
            value = _half(value) if value % 2 else _half(_half(value))
    match found:
        case []:
            return "none"
        case _:
            return _spelled(found)


def _half(value):
    try:
        return value / 2
    except TypeError:
        return 0


def _spelled(found):
    return "# noqa: no comment" if found else str(found)  # type: ignore[no-any-return]
'''

DECISIONS = {"for": 1, "or": 1, "while": 1, "and": 2, "ternary": 2, "condition": 1, "case": 2, "except": 1}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Make a package of two folders, of whose modules one is imported once, one twice, and one by a reference."""
    package = tmp_path / "small"
    files = {
        "__init__.py": "",
        "__main__.py": "from small.rules.told import told\nfrom small.nouns import step\n",
        "late.py": "",
        "nouns/__init__.py": "",
        "nouns/step.py": "Step = int\nLATE = 'small.late:run'\nTEXT = 'small.rules.told is a module'\n",
        "rules/__init__.py": "",
        "rules/told.py": RULES,
    }
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text, encoding="utf-8")
    return package


def test_every_decision_of_a_sample_is_counted_and_nothing_else(small: Path) -> None:
    found = shape.modules_of(small)
    assert sum(map(shape.decisions, shape.nodes(found))) == sum(DECISIONS.values())


def test_a_private_function_is_called_once_or_more_often(small: Path) -> None:
    (rules,) = (each for each in shape.modules_of(small) if each.name == "small.rules.told")
    assert shape.private_functions(rules) == (2, 1)


def test_modules_with_one_importer_are_found_by_imports_and_by_references(small: Path) -> None:
    assert shape.with_one_importer(shape.modules_of(small)) == ["small.late", "small.rules.told"]


def test_an_excuse_in_a_text_is_none(small: Path) -> None:
    assert sum(map(shape.excuses, shape.modules_of(small))) == 2


def test_lines_are_those_of_each_folder(small: Path) -> None:
    expected = {"rules/": len(RULES.splitlines()), "nouns/": 3, "files beside them": 2}
    assert shape.folders(shape.modules_of(small)) == expected


def test_the_table_of_a_package_is_printed(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape.main([str(small)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("decision points")] == ["11"]
    assert not any("aim" in line for line in lines)


def test_a_command_is_followed_to_its_end(tmp_path: Path) -> None:
    found = shape.walked("--version", cwd=tmp_path)
    assert 0 < found.deepest <= found.entered


TREE = str(shape.TREE)
MOST_MODULES = {
    "--version": 9,
    "scale-skip --old-gbs 512 --new-gbs 768 --steps 100": 34,
    f"scan {TREE}": 87 + len(TRAINERS),
    f"resolve {TREE}": 119 + len(TRAINERS),
}
"""Of ours that a command may import: what its answer needs and, of each trainer, the signs of its trees; no more."""


@pytest.mark.parametrize(("command", "most"), MOST_MODULES.items(), ids=["version", "scale-skip", "scan", "resolve"])
def test_a_command_imports_no_more_of_our_modules_than_it_did(command: str, most: int, tmp_path: Path) -> None:
    found = shape.walked(*command.split(), cwd=tmp_path).modules
    assert "ckpttool.cli.main" in found
    assert len(found) <= most, found
