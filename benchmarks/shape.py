"""The shape of the code: its number of decisions, its density, and the depth of one command.

    python benchmarks/shape.py
    python benchmarks/shape.py FOLDER

Each row has the current figure and the target. Nothing here fails: the number of lines alone is not a measure, because
longer lines would meet a budget in lines. With FOLDER, which contains another package, only the figures from its text
are shown, without targets.

    decision points   if, for, while, except, case, each `and` and `or`, ternary, condition in a comprehension
    syntax nodes      of Python's own syntax tree, docstrings included
    comprehensions    each `for` in a comprehension
    called once       private functions whose name occurs once in their module besides the definition
    one importer      modules that one other module names: by an import, or as "package.module" or "package.module:name"
    chain, entered    of `resolve` on the tree of `ckpttool demo`: the greatest number of our functions that are open at
                      once in one thread; and the number of different ones that are entered
    imported          our modules that are imported when the command ends
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "ckpttool"
TREE = ROOT / "fixtures" / "sink2_ckpt" / "output"

DECIDES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case, ast.IfExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
EXCUSE = re.compile(r"#\s*(?:noqa\b|type:\s*ignore\b)")
REFERENCE = re.compile(r"\w+(?:\.\w+)+(?::\w+)?")


class Module(NamedTuple):
    """One file of a package."""

    name: str
    """Dotted name; for a package's `__init__.py`, the name of the package."""
    is_package: bool
    text: str
    tree: ast.Module


class Row(NamedTuple):
    """One line of the table."""

    what: str
    today: str
    aim: str = ""


def modules_of(package: Path) -> list[Module]:
    """Read a package, by path."""
    found = []
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        text = file.read_text(encoding="utf-8")
        name = ".".join(parts[:-1] if is_package else parts)
        found.append(Module(name, is_package, text, ast.parse(text, str(file))))
    return found


def line_count(modules: Iterable[Module]) -> int:
    """Count lines, including blank ones."""
    return sum(len(module.text.splitlines()) for module in modules)


def nodes(modules: Iterable[Module]) -> Iterator[ast.AST]:
    """Yield every node of the syntax trees."""
    for module in modules:
        yield from ast.walk(module.tree)


def decisions(node: ast.AST) -> int:
    """Count the decisions of one node, without those below it."""
    if isinstance(node, DECIDES):
        return 1
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return len(node.ifs)
    return 0


def private_functions(module: Module) -> tuple[int, int]:
    """Count the private functions and methods of a module, and those of them that it names once."""
    named: Counter[str] = Counter()
    private: list[str] = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name):
            named[node.id] += 1
        elif isinstance(node, ast.Attribute):
            named[node.attr] += 1
        elif isinstance(node, FUNCTIONS) and node.name.startswith("_") and not node.name.endswith("__"):
            private.append(node.name)
    return len(private), sum(named[name] == 1 for name in private)


def imports_of(module: Module, known: set[str]) -> set[str]:
    """Return which of the known modules a module names."""
    named: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            named.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                named.add(below if below in known else node.module)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and REFERENCE.fullmatch(node.value):
            named.add(node.value.partition(":")[0])
    return named & known - {module.name}


def with_one_importer(modules: Sequence[Module]) -> list[str]:
    """Return the modules that exactly one other names; a package's own `__init__` is left out."""
    known = {module.name for module in modules}
    importers: Counter[str] = Counter()
    for module in modules:
        importers.update(imports_of(module, known))
    return [module.name for module in modules if importers[module.name] == 1 and not module.is_package]


def excuses(module: Module) -> int:
    """Count comments that keep a linter or a type checker silent."""
    tokens = tokenize.generate_tokens(io.StringIO(module.text).readline)
    return sum(token.type == tokenize.COMMENT and EXCUSE.search(token.string) is not None for token in tokens)


def folders(modules: Sequence[Module]) -> dict[str, int]:
    """Return the lines of each folder of the package, and of the files beside them, the longest first."""
    lines: Counter[str] = Counter()
    for module in modules:
        parts = module.name.split(".")
        is_inside = len(parts) > 2 or (len(parts) == 2 and module.is_package)  # noqa: PLR2004  package, folder, module
        lines[f"{parts[1]}/" if is_inside else "files beside them"] += line_count([module])
    return dict(lines.most_common())


def text_rows(modules: Sequence[Module]) -> list[Row]:
    """Measure the text of a package."""
    lines = line_count(modules)
    every = list(nodes(modules))
    ternaries = sum(isinstance(node, ast.IfExp) for node in every)
    loops = sum(isinstance(node, ast.comprehension) for node in every)
    private = [private_functions(module) for module in modules]
    functions, once = sum(each for each, _ in private), sum(each for _, each in private)
    rows = [
        Row("lines, in so many modules", f"{lines:,}, {len(modules):,}"),
        Row("decision points", f"{sum(map(decisions, every)):,}", "12,500"),
        Row("syntax nodes", f"{len(every):,}", "480,000"),
        Row("  a thousand lines", f"{1000 * len(every) / lines:,.0f}", "5,000"),
        Row("ternaries a thousand lines", f"{1000 * ternaries / lines:.1f}", "10"),
        Row("comprehensions a thousand lines", f"{1000 * loops / lines:.1f}", "15"),
        Row("private functions called once", f"{100 * once / max(functions, 1):.0f} %", "45 %"),
        Row("modules with one importer", f"{len(with_one_importer(modules)):,}", "60"),
        Row("noqa and type: ignore a thousand lines", f"{1000 * sum(map(excuses, modules)) / lines:.1f}", "1"),
    ]
    return [*rows, *(Row(f"lines of {folder}", f"{count:,}") for folder, count in folders(modules).items())]


WALK = """
import gc, json, sys, threading
from ckpttool.cli.main import run

gc.disable()  # CPython 3.11.2 may crash if it collects while a profiler has frames
package, told, sys.argv = sys.argv[1], sys.argv[2], ["ckpttool", *sys.argv[3:]]
entered, deepest, here = set(), [0], threading.local()

def note(frame, event, _):
    code = frame.f_code
    if not code.co_filename.startswith(package) or code.co_name.startswith("<"):
        return
    if event == "call":
        entered.add((code.co_filename, code.co_firstlineno))
        here.depth = getattr(here, "depth", 0) + 1
        deepest[0] = max(deepest[0], here.depth)
    elif event == "return":
        here.depth = getattr(here, "depth", 1) - 1

threading.setprofile(note)
sys.setprofile(note)
run()
sys.setprofile(None)
modules = [name for name in sys.modules if name.partition(".")[0] == "ckpttool"]
with open(told, "w") as file:
    json.dump({"modules": sorted(modules), "entered": len(entered), "deepest": deepest[0]}, file)
"""
"""Run by another Python, whose modules are those of one command."""


class Walked(NamedTuple):
    """The depth of a command in the code."""

    modules: tuple[str, ...]
    """Names of our modules that are imported when it ends."""
    entered: int
    deepest: int


def walked(*words: str, cwd: Path) -> Walked:
    """Run a command line of ckpttool and measure its depth.

    Raises:
        OSError: It failed.
    """
    told = cwd / "walked.json"
    told.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", WALK, f"{PACKAGE}/", str(told), *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},  # this checkout, whichever one is installed, if any
        capture_output=True,
        check=False,
    )
    if not told.exists():
        raise OSError(f"ckpttool {' '.join(words)}: {done.stderr.decode(errors='replace')}")
    seen = json.loads(told.read_text(encoding="utf-8"))
    return Walked(tuple(seen["modules"]), seen["entered"], seen["deepest"])


def walked_rows() -> list[Row]:
    """Measure the depth of some commands."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        walked("demo", "night", cwd=here)
        night = walked("resolve", "night/output", "-q", cwd=here)
        skip = walked("scale-skip", "--old-gbs", "512", "--new-gbs", "768", "--steps", "100", cwd=here)
        return [
            Row("deepest call chain of resolve", f"{night.deepest}", "35"),
            Row("functions entered by resolve", f"{night.entered:,}", "900"),
            Row("modules imported by scale-skip", f"{len(skip.modules)}", "25"),
            Row("modules imported by scan", f"{len(walked('scan', str(TREE), cwd=here).modules)}", "90"),
            Row("modules imported by resolve", f"{len(walked('resolve', str(TREE), cwd=here).modules)}", "110"),
            Row("modules imported by --version", f"{len(walked('--version', cwd=here).modules)}", "9"),
        ]


def main(words: Sequence[str]) -> None:
    """Print the table."""
    rows = text_rows(modules_of(Path(words[0]).resolve() if words else PACKAGE))
    if words:
        rows = [row._replace(aim="") for row in rows]
    else:
        rows += walked_rows()
    width = max(len(row.what) for row in rows)
    for row in rows:
        print(f"{row.what:{width}}  {row.today:>14}  {row.aim and 'aim ' + row.aim}".rstrip())


if __name__ == "__main__":
    main(sys.argv[1:])
