"""A command that waits longer for Python than for the disk is not asked twice. What a start imports is counted here."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

import ckpttool
from benchmarks.shape import walked
from ckpttool.__main__ import main
from ckpttool.trainers.registry import trainers
from tests.support import library_module
from tests.support.commands import environment
from tests.support.trees import TreeBuilder

# Each costs between a tenth and a hundred times what Python itself needs to start.
HEAVY = {
    "concurrent.futures",
    "filelock",
    "fractions",
    "isal",
    "jinja2",
    "markupsafe",
    "zstandard",
    "numpy",
    "prometheus_client",
    "obstore",
    "pydantic",
    "rich",
    "ruamel",
    "ruamel.yaml",
    "safetensors",
    "torch",
    "xxhash",
    "yaml",
}


@cache
def imported(*arguments: str, cwd: Path | None = None) -> frozenset[str]:
    """Run Python with these arguments and return the names of all modules that it imported."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return frozenset(line.rpartition("|")[2].strip() for line in lines)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    TreeBuilder(folder).legacy(ranks=4).save(epoch=10, step=2).save(epoch=15, step=2)
    return folder


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["scan", "--help"],
        ["explain", "shard-missing"],
        ["guide", "concepts"],
        ["resolve", "--format", "json"],
        ["scale-skip", "--old-gbs", "512", "--new-gbs", "768", "--steps", "10", "--format", "json"],
    ],
    ids=" ".join,
)
def test_a_start_imports_nothing_heavy(command: Sequence[str], tree: Path) -> None:
    modules = imported("-m", "ckpttool", *command, cwd=tree)
    assert "typer" in modules
    assert modules & HEAVY - allowed(command) == set()


SELDOM_NEEDED = {
    "dataclasses",
    "shlex",
    "ckpttool.core.domain.retention",
    "ckpttool.core.records.hashed_json",
    "ckpttool.core.records.journal",
    "ckpttool.trainers.abilities",
    "ckpttool.trainers.mindformers.counters",
    "ckpttool.core.domain.contents",
    "ckpttool.core.domain.node",
    "ckpttool.trainers.mindformers.train_config",
    "ckpttool.trainers.mindformers.layouts.iteration",
    "ckpttool.core.formats.safetensors.header",
    "ckpttool.core.records.manifest",
    "unicodedata",
    "ckpttool.core.decide.start",
    "ckpttool.trainers.mindformers.run_length",
    "ckpttool.trainers.mindformers.simulate.choice",
    "ckpttool.trainers.mindformers.simulate.versions",
    "ckpttool.trainers.mindformers.simulate.view",
    "ckpttool.core.storage.mounts",
    "ckpttool.core.formats.safe_yaml",
    "ckpttool.core.verify.kernels",
    "ckpttool.core.records.ledger",
}
"""For trees and questions that this one is not."""


def test_each_module_that_is_seldom_needed_is_there() -> None:
    assert [name for name in SELDOM_NEEDED if find_spec(name) is None] == []


def test_a_choice_imports_the_simulation_only_where_it_is_asked_for(tree: Path) -> None:
    plain = imported("-m", "ckpttool", "resolve", "--format", "json", cwd=tree)
    assert plain & SELDOM_NEEDED == set()
    assert "ckpttool.trainers.mindformers.own_names" in plain
    asked = imported("-m", "ckpttool", "resolve", "--format", "json", "--simulate-mindformers", "2.1", cwd=tree)
    assert "ckpttool.trainers.mindformers.simulate.choice" in asked


def test_of_other_trainers_a_choice_imports_no_more_than_what_tells_whose_a_tree_is(tree: Path) -> None:
    modules = walked("resolve", "--format", "json", cwd=tree).modules
    others = {trainer.layouts_at[0].partition(":")[0] for trainer in trainers() if trainer.name != "mindformers"}
    assert set(modules) >= others
    assert [name for name in set(modules) - others if name.rpartition(".")[0] in others] == []


def test_a_choice_imports_what_reads_manifests_and_safetensors_only_where_there_are_some(tmp_path: Path) -> None:
    TreeBuilder(tmp_path).legacy(ranks=2, fmt="safetensors").save(epoch=10, step=2)
    command = ["-m", "ckpttool", "resolve", "--format", "json"]
    assert imported(*command, cwd=tmp_path) & SELDOM_NEEDED == {"ckpttool.core.formats.safetensors.header"}
    imported("-m", "ckpttool", "seal", cwd=tmp_path)
    assert "ckpttool.core.records.manifest" in imported(*command, ".", cwd=tmp_path)


def allowed(command: Sequence[str]) -> set[str]:
    """A resolve that looks into shards hashes their schema; half a millisecond."""
    return {"xxhash"} if command[0] in {"scan", "resolve"} else set()


def test_a_skip_by_numbers_that_are_given_imports_nothing_that_looks_at_a_tree(tree: Path) -> None:
    modules = imported(
        "-m", "ckpttool", "scale-skip", "--old-gbs", "512", "--new-gbs", "768", "--steps", "10", cwd=tree
    )
    rooms = {".".join(name.split(".")[:3]) for name in modules if name.startswith("ckpttool.core.")}
    assert "ckpttool.core.decide" in rooms
    assert not rooms & {f"ckpttool.core.{room}" for room in ("formats", "records", "storage", "verify")}
    assert not modules & {"rich", "json"}
    asked = imported("-m", "ckpttool", "scale-skip", "--new-gbs", "768", cwd=tree)
    assert "ckpttool.core.storage.local" in asked


def test_a_table_is_drawn_by_rich(tree: Path) -> None:
    assert "rich" in imported("-m", "ckpttool", "resolve", cwd=tree)


def test_help_loads_no_command_and_no_room_but_its_own(tree: Path) -> None:
    modules = {name for name in imported("-m", "ckpttool", "--help", cwd=tree) if name.startswith("ckpttool.")}
    rooms = {".".join(name.split(".")[1:3]) for name in modules}
    assert rooms <= {"__main__", "cli", "cli.main", "core", "core.commands", "core.domain", "core.errors"}


def test_the_package_alone_loads_none_of_its_rooms() -> None:
    modules = imported("-c", "import ckpttool; print(ckpttool.__version__)")
    assert [name for name in modules if name.startswith("ckpttool.")] == []
    assert "typing" not in modules


def test_a_noun_loads_no_room_but_the_domain() -> None:
    modules = imported("-c", "from ckpttool.types import Code, Finding, Severity")
    rooms = {".".join(name.split(".")[1:3]) for name in modules if name.startswith("ckpttool.")}
    assert rooms <= {"codes", "core", "core.domain", "core.errors", "core.findings", "types"}


def test_every_public_name_is_there() -> None:
    public = vars(ckpttool)["__all__"]
    assert {"scan", "resolve", "verify", "CkptToolError", "checkpoint_writer"} <= set(public)
    assert len(public) <= 31
    for package in (ckpttool, ckpttool.library, ckpttool.types):
        names = vars(package)["__all__"]
        assert [name for name in names if getattr(package, name, None) is None] == []
        assert set(names) <= set(dir(package))
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("file", library_module.WITH_TABLES, ids=lambda file: file.name)
def test_the_names_that_a_module_imports_for_type_checkers_are_those_that_it_finds(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert library_module.with_table(text) == text
    fewer = re.sub(r"(?<=^_PLACES = \{\n).*?(?=^\}$)", "", text, flags=re.MULTILINE | re.DOTALL)
    assert fewer != text == library_module.with_table(fewer)


def test_a_name_that_is_not_public_is_missed_as_usual() -> None:
    with pytest.raises(AttributeError, match=r"module 'ckpttool' has no attribute 'resolv'$"):
        vars(ckpttool)["__getattr__"]("resolv")
    with pytest.raises(AttributeError, match=r"no attribute 'TreeQuestion': it is ckpttool\.types\.TreeQuestion"):
        vars(ckpttool)["__getattr__"]("TreeQuestion")


@pytest.mark.parametrize("names", ["verify, scan", "CkptToolError, verify, launch"])
def test_verify_is_the_verb_whatever_was_imported_before_it(names: str) -> None:
    code = f"from ckpttool import {names}; import ckpttool; assert callable(verify); assert callable(ckpttool.verify)"
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())


@pytest.fixture
def collector_as_before() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("collector_as_before")
@pytest.mark.parametrize(("command", "code"), [(["--version"], 0), (["explain", "nothing"], 2)])
def test_the_process_ends_with_the_code_and_with_every_byte_written(
    command: list[str], code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(sys, "argv", ["ckpttool", *command])
    monkeypatch.setattr(os, "_exit", codes.append)
    main()
    assert codes == [code]
    said = capfd.readouterr()
    assert said.out + said.err


@pytest.mark.parametrize("command", ["scan", "replay"])
def test_a_command_s_help_reads_no_shard_no_log_and_no_layout(command: str, tree: Path) -> None:
    modules = imported("-m", "ckpttool", command, "--help", cwd=tree)
    for room in ("core.formats", "core.logs", "core.storage", "core.records", "health.policies.base"):
        assert f"ckpttool.{room}" not in modules
    assert "ckpttool.trainers.mindformers.layouts.rank" not in modules
    assert "ckpttool.core.commands.options" in modules
