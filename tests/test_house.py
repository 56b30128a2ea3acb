"""The rules of the house that no linter knows."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from ckpttool.trainers.registry import TRAINERS

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "ckpttool").rglob("*.py"))

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

MAY_NAME_A_TRAINER = re.compile(
    r"__|cli/|core/commands/|fp8/frameworks/|guard/|guide/|trainers/|[a-z0-9]+/commands|[a-z0-9]+/findings\.py|codes\.py"
    r"|library\.py|types\.py"
)
"""`findings.py` has texts of the manual, `codes.py` and `types.py` names, `library.py` the commands' options."""
TRAINERS_NAMES = re.compile(
    r"mind_?formers|megatron|hugging ?face|transformers|deepspeed|lightning|torchtitan|orbax"
    r"|accelerate\b|\bverl\b|\bnemo\b|msrun",
    re.IGNORECASE,
)
NAMES_PACKAGES = "core/formats/torch/pickle_names.py"  # of which a pickle may name classes; some are trainers' too

# Spelled in pieces, for this file is searched too.
NAMES_OF_OUR_MACHINES = tuple(pieces.replace("|", "") for pieces in ("../|shared", "pypi|.org", "/wo|rk/"))


IMPORT = re.compile(r"^ *(?:from ([\w.]+) import|import ([\w., ]+?)(?: as \w+)?(?: *#.*)?$)", re.MULTILINE)
FOR_TYPES_ALONE = re.compile(r"^( *)if TYPE_CHECKING:\n(?:\1 +.*\n|\n(?=\1 ))+", re.MULTILINE)


@cache
def imports_of(module: Path) -> tuple[str, ...]:
    """Return what a module imports when it runs: what only a type checker reads need not be installed."""
    text = FOR_TYPES_ALONE.sub("", module.read_text(encoding="utf-8"))
    return tuple(name for found in IMPORT.finditer(text) for name in (found[1] or found[2]).split(", "))


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


IMPORTED_AS = {"prometheus-client": "prometheus_client", "pyyaml": "yaml"}
INSIDE_A_TRAINING = {"guard", "guide"}  # torch is there, an extra; `guide` ships an example
ADAPTED = {"lightning", "transformers", "wrapt"}  # as above, of the adapter that is named for it; with the extra


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
        if (name := module.relative_to(ROOT / "ckpttool").as_posix()) != NAMES_PACKAGES
        and not MAY_NAME_A_TRAINER.match(name)
        for number, line in enumerate(module.read_text(encoding="utf-8").splitlines(), 1)
        if TRAINERS_NAMES.search(line)
    ]
    assert found == []


def test_every_trainer_is_kept_from_the_others() -> None:
    settings = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML").loads(
        (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    )
    kept = {name for contract in settings["tool"]["importlinter"]["contracts"] for name in contract.get("modules", ())}
    kept = {name for name in kept if name.startswith("ckpttool.trainers.")}
    packages = (ROOT / "ckpttool" / "trainers").glob("*/__init__.py")
    parts = {"ckpttool.trainers.common", "ckpttool.trainers.deepspeed_tags", "ckpttool.trainers.hf_saves"}
    parts.add("ckpttool.trainers.loader_states")
    shared = {*parts, "ckpttool.trainers.torch_dcp"}  # layouts of several stand on these
    folders = {f"ckpttool.trainers.{file.parent.name}" for file in packages}
    assert kept == folders - shared
    homes = (str(where).partition(":")[0].split(".") for where in TRAINERS)
    assert {
        ".".join(home[:3]) for home in homes
    } == folders - parts  # SkyRL is in the folder of verl, whose files it has


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
        if not re.search(
            r"skipif\(\"not config.getoption\('--nightly'\)\"|mark\.slow", module.read_text(encoding="utf-8")
        )
    ]
    of_mindformers = [
        "test_mindformers_own_starts.py",
        "test_mindformers_starts.py",
        "test_pynative_own_starts.py",
        "test_pynative_starts.py",
    ]
    assert ungated == of_mindformers, "which are skipped where nobody says where MindFormers is"
