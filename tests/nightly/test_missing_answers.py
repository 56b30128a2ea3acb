"""mypy asks for every answer that a layout leaves out."""

from __future__ import annotations

import ast
import subprocess
import sys
from copy import copy
from pathlib import Path

import pytest

from ckpttool.trainers.base import Layout
from tests.trainers import toy

ROOT = Path(__file__).resolve().parents[2]


def _without_each_answer(module: ast.Module) -> dict[str, ast.ClassDef]:
    """The toy's layout with one answer left out, by the name of the class."""
    variants = {}
    complete = next(node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "ToyLayout")
    for answer in [name for name in vars(Layout) if not name.startswith("_")]:
        rest = [node for node in complete.body if _named(node) != answer]
        assert len(rest) == len(complete.body) - 1, f"the toy does not answer {answer}"
        variant = f"ToyLayout_without_{answer}"
        variants[variant] = copy(complete)
        variants[variant].name, variants[variant].body = variant, rest
    return variants


def _named(node: ast.stmt) -> str | None:
    match node:
        case (
            ast.FunctionDef(name=name)
            | ast.Assign(targets=[ast.Name(id=name)])
            | ast.AnnAssign(target=ast.Name(id=name))
        ):
            return name
        case _:
            return None


@pytest.mark.slow
def test_mypy_asks_for_every_answer_that_is_missing(tmp_path: Path) -> None:
    module = ast.parse(Path(toy.__file__).read_text(encoding="utf-8"))
    variants = _without_each_answer(module)
    module.body += variants.values()
    checks = [f"check_{name}: Layout = {name}()" for name in variants]
    complete = "complete_layout: Layout = ToyLayout()"
    imports = "from ckpttool.trainers.base import Layout"
    text = "\n".join([ast.unparse(ast.fix_missing_locations(module)), imports, complete, *checks, ""])
    file = tmp_path / "variants.py"
    file.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "--no-error-summary", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = text.splitlines()
    errors = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error: " in line}
    refused = {lines[number - 1] for number in errors}
    assert complete not in refused, done.stdout
    assert set(checks) <= refused, done.stdout
