"""Every fault of the table is made on a real tree and asked about on the command line; every proof is there."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import TESTS
from tests.faults import disks, hostile, makers, records
from tests.faults.scenes import CHANGES, CKPT, SCENES, Scene, Site, hear, nothing, patiently, stage
from tests.faults.table import FAULTS
from tests.pages import GUIDE
from tests.support.commands import ask

ROOT = TESTS.parent
NOTES = frozenset({"checksum-missing", "training-complete"})
"""What is said of a healthy tree: that a file without a checksum was not verified; and for which length of an epoch,
which nothing tells, the training is done."""
HEALTHY = {"struct-ok", "agreed", "verified", "clean", "the newest", "healthy", "written", "go", "0 to write", "4 go"}

LINES = {f"{fault.number:02}-{name}": lines for fault in FAULTS for name, lines in fault.lines.items()}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with ExitStack() as held:
        yield Site(folder=tmp_path / "here", patch=monkeypatch, held=held)


def told(one: Scene, site: Site, commands: Sequence[str]) -> list[str]:
    """Ask about the healthy tree, make the fault, ask again, and return what was said then.

    The ledger of what was verified is left on: what it remembers of the healthy tree must not hide the fault.
    """
    stage(one, site)
    healthy = {command: hear(patiently(command)) for command in commands}
    for each in healthy.values():
        assert each.said.code == 0
        assert not each.told.keys() - NOTES, each.told
        assert not each.heavy
        assert each.word in HEALTHY
    if any(command.split()[0] in CHANGES for command in commands):
        stage(one, site)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as held:
        one.make(Site(folder=site.folder, patch=patch, held=held))
        broken = {command: hear(command) for command in commands}
    for command, each in broken.items():
        assert each.elsewhere(healthy[command], one.where) == [], f"not told of {one.where}: {each.told}"
        assert one.words in " ".join(f"{each.said.stdout} {each.said.stderr}".split())
    one.after(site)
    return [f"{command} -> {each.beside(healthy[command])}" for command, each in broken.items()]


@pytest.mark.sample(16)
@pytest.mark.parametrize("name", LINES)
def test_fault(name: str, site: Site) -> None:
    commands = [line.partition(" -> ")[0] for line in LINES[name]]
    assert told(SCENES[name], site, commands) == list(LINES[name])


def test_the_table_is_whole_and_every_row_can_be_made() -> None:
    assert [fault.number for fault in FAULTS] == list(range(1, 39))
    assert all(fault.what and fault.seen and fault.says and fault.proofs for fault in FAULTS)
    assert LINES.keys() == SCENES.keys()
    modules = {scene.make.__module__ for scene in SCENES.values()}
    assert modules == {module.__name__ for module in (disks, hostile, makers, records)}


def test_every_proof_is_a_test_that_is_there() -> None:
    absent = [proof for fault in FAULTS for proof in fault.proofs if not is_there(proof)]
    assert absent == []


def test_what_cannot_be_seen_is_said_where_a_user_looks() -> None:
    limits, health = (" ".join((GUIDE / name).read_text().split()) for name in ("limits.md", "health.md"))
    assert "ckpttool does not detect a shard that was rewritten together with its manifest." in limits
    assert "An intact checkpoint is useless if training was already" in health
    assert "silent-data-corruption strike" in health
    assert "**Damage in tensor data.** Without a checksum, no level detects it." in limits
    said = " ".join(ask("verify", "--help").stdout.split())
    assert "detected only with a checksum" in said
    for what in ("changed tensor data", "a zeroed page", "another rank's shard of the same shape", "an older shard"):
        assert what in said


class TestTheJudge:
    """Which fails where it should."""

    def test_a_fault_that_was_not_made_is_not_told(self, site: Site) -> None:
        (line, *_) = LINES["02-shard-missing"]
        assert line.startswith("verify output -> missing")
        assert told(Scene(tree=CKPT, make=nothing), site, ["verify output"]) == ["verify output -> struct-ok, exit 0"]

    def test_a_tree_that_is_not_healthy_is_no_neighbour(self, site: Site) -> None:
        with pytest.raises(AssertionError, match="10> == 0"):
            told(Scene(tree=CKPT, make=nothing, prepare=makers.shard_missing), site, ["verify output"])

    def test_a_fault_that_is_told_of_another_rank_is_missed(self, site: Site) -> None:
        one = Scene(tree=CKPT, make=makers.shard_missing, where="rank_1/")
        with pytest.raises(AssertionError, match="not told of rank_1/"):
            told(one, site, ["verify output"])

    def test_words_that_are_not_said_are_missed(self, site: Site) -> None:
        one = Scene(tree=CKPT, make=makers.shard_missing, where="rank_3/", words="rank 7 has no shard")
        with pytest.raises(AssertionError, match="rank 7"):
            told(one, site, ["verify output"])

    def test_a_proof_that_is_not_there_is_missed(self) -> None:
        here = "tests/faults/test_faults.py"
        assert is_there(f"{here}::TestTheJudge::test_a_proof_that_is_not_there_is_missed")
        for absent in (
            f"{here}::test_a_proof_that_is_not_there_is_missed",
            f"{here}::TestTheJudge::test_of_nothing",
            "tests/test_nowhere.py::test_x",
            f"{here}::told",
        ):
            assert not is_there(absent)


def is_there(proof: str) -> bool:
    """Whether a node id of pytest names a test function."""
    path, *names = proof.split("::")
    return tuple(names) in _tests_of(ROOT / path)


@cache
def _tests_of(path: Path) -> frozenset[tuple[str, ...]]:
    if not path.exists():
        return frozenset()
    found: set[tuple[str, ...]] = set()
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.FunctionDef):
            found.add((node.name,))
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            found |= {(node.name, each.name) for each in node.body if isinstance(each, ast.FunctionDef)}
    return frozenset(names for names in found if names[-1].startswith("test_"))
