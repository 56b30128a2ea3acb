"""The rules of the house that no linter knows."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from ckpttool.trainers.registry import TRAINERS

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "ckpttool").rglob("*.py"))

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 50
MAX_COMMAND_LINES = 15

ALLOWED_AT_THE_TOP = {
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "action.yml",
    "benchmarks",
    "ckpttool",
    "fixtures",
    "pyproject.toml",
    "tests",
}

# Lines by room. They may fall, and only what makes the tool do more may raise them: lower them with what you delete.
MOST_LINES = {
    "__init__": 60,
    "__main__": 40,
    "api": 9630,
    "cli": 5930,
    "decide": 12500,
    "domain": 8510,
    "errors": 120,
    "formats": 6330,
    "guard": 6550,
    "guide": 140,
    "logs": 2100,
    "records": 4410,
    "render": 8740,
    "storage": 3920,
    "trainers": 1800,
    "trainers/hf_saves": 330,
    "trainers/common": 1110,
    "trainers/accelerate": 480,
    "trainers/deepspeed": 760,
    "trainers/huggingface": 1050,
    "trainers/lightning": 780,
    "trainers/megatron": 1020,
    "trainers/mindformers": 8220,
    "trainers/orbax": 550,
    "trainers/torch_dcp": 780,
    "trainers/torchtitan": 600,
    "trainers/verl": 500,
    "trainers/fp8": 2740,
    "verify": 8120,
    "write": 1390,
}

ROOMS_WITHOUT_TRAINERS = (
    "api",
    "decide",
    "domain",
    "errors",
    "formats",
    "logs",
    "records",
    "render",
    "storage",
    "verify",
    "write",
)
TRAINERS_NAMES = re.compile(
    r"mind_?formers|megatron|hugging ?face|transformers|deepspeed|lightning|torchtitan|orbax"
    r"|accelerate\b|\bverl\b|\bnemo\b|msrun",
    re.IGNORECASE,
)
NAMES_PACKAGES = "formats/torch/pickle_names.py"  # of which a pickle may name classes; some are trainers' too

# Spelled in pieces, for this file is searched too.
NAMES_OF_OUR_MACHINES = tuple(pieces.replace("|", "") for pieces in ("../|shared", "pypi|.org", "/wo|rk/"))

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tree_of(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"), str(module))


def functions_of(module: Path) -> Iterator[Function]:
    return (node for node in ast.walk(tree_of(module)) if isinstance(node, Function))


def imports_of(module: Path) -> Iterator[str]:
    """Yield what a module imports when it runs: what only a type checker reads need not be installed."""
    tree = tree_of(module)
    unread = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in unread:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def lines_between(first: ast.stmt, last: ast.stmt) -> int:
    return (last.end_lineno or last.lineno) - first.lineno + 1


def lines_of_body(function: Function) -> int:
    statements = function.body
    if ast.get_docstring(function) is not None and len(statements) > 1:
        statements = statements[1:]
    return lines_between(statements[0], function)


def place(module: Path, node: Function) -> str:
    return f"{module.relative_to(ROOT)}:{node.lineno}: {node.name}"


@cache
def project_files() -> tuple[str, ...]:
    """Return the paths that git tracks or would track, relative to the root."""
    try:
        listing = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a git checkout")
    return tuple(name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file())


def test_no_module_has_more_lines_than_one_can_keep_in_mind() -> None:
    sizes = {str(module.relative_to(ROOT)): len(module.read_text(encoding="utf-8").splitlines()) for module in MODULES}
    assert {name: size for name, size in sizes.items() if size > MAX_MODULE_LINES} == {}


def test_no_room_has_more_lines_than_it_is_allowed() -> None:
    lines: Counter[str] = Counter()
    for module in MODULES:
        room, *below = module.relative_to(ROOT / "ckpttool").with_suffix("").parts
        name = f"{room}/{below[0]}" if room == "trainers" and len(below) > 1 else room
        lines[name] += len(module.read_text(encoding="utf-8").splitlines())
    assert {room: count for room, count in lines.items() if count > MOST_LINES.get(room, 0)} == {}
    unused = {room: most for room, most in MOST_LINES.items() if lines[room] < most - max(20, most // 20)}
    assert unused == {}, "lower what is allowed with what you delete"


def test_no_function_is_longer_than_a_screen() -> None:
    # Of what it does: what has many parameters names each in a line, and says in its docstring what it is.
    sizes = {place(module, node): lines_of_body(node) for module in MODULES for node in functions_of(module)}
    assert {name: size for name, size in sizes.items() if size > MAX_FUNCTION_LINES} == {}


def test_commands_only_parse_call_and_exit() -> None:
    sizes = {
        place(module, node): lines_of_body(node)
        for module in MODULES
        if module.is_relative_to(ROOT / "ckpttool" / "cli")
        for node in functions_of(module)
        if node.decorator_list
    }
    assert {name: size for name, size in sizes.items() if size > MAX_COMMAND_LINES} == {}


def test_every_module_says_what_it_is_for() -> None:
    assert [str(module.relative_to(ROOT)) for module in MODULES if not ast.get_docstring(tree_of(module))] == []


@pytest.mark.parametrize(
    "package",
    [
        "click",  # typer carries its own copy; the real one is no dependency
        "pickle",  # loading one runs whatever its author wrote
        "pydantic",  # it would double the start
        "mindspore",  # a checkpoint must be readable where its trainer is not installed
        "mindformers",
    ],
)
def test_no_module_imports(package: str) -> None:
    importers = [
        str(module.relative_to(ROOT))
        for module in MODULES
        if any(name == package or name.startswith(f"{package}.") for name in imports_of(module))
    ]
    assert importers == []


DOCUMENTED = {"torch.utils._python_dispatch"}  # TorchDispatchMode, which torch tells its users to import from there


def test_no_module_imports_what_a_library_keeps_to_itself() -> None:
    private = [
        f"{module.relative_to(ROOT)}: {name}"
        for module in MODULES
        for name in imports_of(module)
        if name.partition(".")[0] not in sys.stdlib_module_names and "._" in name and name not in DOCUMENTED
    ]
    assert private == []


IMPORTED_AS = {"google-auth": "google", "prometheus-client": "prometheus_client", "pyyaml": "yaml"}
INSIDE_A_TRAINING = {"guard", "guide"}  # torch is there, an extra; `guide` ships an example
ADAPTED = {"lightning", "transformers"}  # as above, of the adapter that is named for it


def test_what_is_installed_with_ckpttool_is_what_ckpttool_imports() -> None:
    settings = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML").loads(
        (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    )
    names = {re.split(r"[<>=; ]", requirement)[0] for requirement in settings["project"]["dependencies"]}
    asked = {
        re.split(r"[<>=; ]", requirement)[0]
        for extra, requirements in settings["project"]["optional-dependencies"].items()
        if extra not in {"dev", "fuzz", "torch"}
        for requirement in requirements
    }
    extras = {IMPORTED_AS.get(name, name) for name in asked}
    foreign: dict[bool, set[str]] = {False: set(), True: set()}
    for module in MODULES:
        inside = module.relative_to(ROOT / "ckpttool").parts[0] in INSIDE_A_TRAINING
        foreign[inside] |= {name.partition(".")[0] for name in imports_of(module)}
    own = {*sys.stdlib_module_names, "ckpttool"}
    expected = {IMPORTED_AS.get(name, name) for name in names}
    assert foreign[False] - own - extras == expected
    assert foreign[True] - own - expected <= {"torch", *ADAPTED}


def test_no_room_but_the_trainers_and_the_commands_names_one() -> None:
    found = [
        f"{name}:{number}: {line.strip()}"
        for module in MODULES
        if (name := module.relative_to(ROOT / "ckpttool").as_posix()).partition("/")[0].removesuffix(".py")
        in ROOMS_WITHOUT_TRAINERS
        for number, line in enumerate(module.read_text(encoding="utf-8").splitlines(), 1)
        if TRAINERS_NAMES.search(line) and name != NAMES_PACKAGES
    ]
    assert found == []


def test_every_room_that_may_name_a_trainer_is_known() -> None:
    rooms = {module.relative_to(ROOT / "ckpttool").parts[0].removesuffix(".py") for module in MODULES}
    assert rooms - set(ROOMS_WITHOUT_TRAINERS) == {"__init__", "__main__", "cli", "guard", "guide", "trainers"}


def test_every_trainer_is_kept_from_the_others() -> None:
    settings = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML").loads(
        (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    )
    kept = {name for contract in settings["tool"]["importlinter"]["contracts"] for name in contract.get("modules", ())}
    packages = (ROOT / "ckpttool" / "trainers").glob("*/__init__.py")
    parts = {"ckpttool.trainers.common", "ckpttool.trainers.fp8", "ckpttool.trainers.hf_saves"}
    shared = {*parts, "ckpttool.trainers.torch_dcp"}  # layouts of several stand on these
    folders = {f"ckpttool.trainers.{file.parent.name}" for file in packages}
    assert kept == folders - shared
    assert {trainer.__class__.__module__ for trainer in TRAINERS} == folders - parts


def test_yaml_is_never_loaded_by_a_loader_that_builds_objects() -> None:
    unsafe = ("yaml.load(", "yaml.load_all(", "yaml.full_load", "yaml.unsafe_load", "UnsafeLoader")
    found = [
        f"{module.relative_to(ROOT)}: {call}"
        for module in MODULES
        for call in unsafe
        if call in module.read_text(encoding="utf-8")
    ]
    assert found == []


def test_no_file_names_a_machine_it_was_made_on() -> None:
    found = [
        f"{name}: {words}"
        for name in project_files()
        if not name.startswith("fixtures/")
        for words in NAMES_OF_OUR_MACHINES
        if words.encode() in (ROOT / name).read_bytes()
    ]
    assert found == []


def test_the_top_level_holds_nothing_else() -> None:
    top = {name.split("/", maxsplit=1)[0] for name in project_files()}
    assert {name for name in top if not name.startswith(".")} - ALLOWED_AT_THE_TOP == set()


def test_a_machine_runs_the_test_command_of_the_readme() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    command = lines[-1]
    assert command.endswith("python -m tests")
    assert command in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()


def test_nothing_of_the_night_runs_with_a_commit() -> None:
    ungated = [
        module.name
        for module in sorted((ROOT / "tests" / "nightly").glob("test_*.py"))
        if "skipif(\"not config.getoption('--nightly')\"" not in module.read_text(encoding="utf-8")
    ]
    assert ungated == ["test_mindformers_starts.py"], "which is skipped where nobody says where MindFormers is"
