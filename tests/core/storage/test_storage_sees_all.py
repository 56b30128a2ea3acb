"""Nothing of a tree is read but through its storage: none is opened beside it, and trees on no disk are read alike."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckpttool.core.errors import ExitCode
from ckpttool.core.storage import STORAGES
from ckpttool.core.storage.local import LocalStorage
from tests.support.answers import FIXTURES
from tests.support.commands import Said, ask
from tests.support.memory_storage import Bucket, MemoryStorage, Recording

TREES = (
    "async_ckpt/output",
    "health_pp2/output",
    "newfmt_1rank/output",
    "newfmt_4rank/output",
    "newfmt_tp2dp2/output",
    "nosink_ckpt/output",
    "sink2_ckpt/output",
    "sink2_safetensors/output",
    "unified/merged",
    "unified/ranks",
)
"""Every tree that a real training wrote."""

QUESTIONS = {
    "scan": ["scan"],
    "structure": ["verify", "--checkpoint", "all", "--level", "structure"],
    "checksum": ["verify", "--checkpoint", "all", "--level", "checksum"],
    "numerics": ["verify", "--checkpoint", "all", "--level", "numerics"],
    "resolve": ["resolve"],
    "resolve by the log": ["resolve", "--health-threshold", "5"],
    "health": ["health", "--threshold", "5", "--from-weights"],
}

CHANGES = (
    ["seal"],
    ["prune", "--keep-last", "1", "--apply"],
    ["repair-meta", "--apply"],
    ["health", "--threshold", "5", "--write"],
    ["heal", "--apply"],
)
"""Commands that change a tree on a disk."""

READS_LOGS = {"resolve by the log", "health"}

pytestmark = pytest.mark.slow
"""Python 3.11 fails to begin coverage in a thread while what listens to its events lets another thread work."""


def answer(question: str, root: str) -> Said:
    command, *options = QUESTIONS[question]
    return ask(command, root, *options, "--format", "json")


class Watch:
    """What Python opens or lists below a folder, and which of it no storage asked for."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.past: list[str] = []
        """Opened or listed by something else than a storage."""
        self.notes: list[tuple[str, str]] = []
        self.read: Counter[str] = Counter()
        self.asking = threading.local()
        sys.addaudithook(self._heard)  # there is no way to take it off again

    def _heard(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.folder is None or event not in {"open", "os.listdir", "os.scandir"}:
            return
        path = arguments[0]
        if not isinstance(path, (str, bytes)) or getattr(self.asking, "begun", False):
            return
        full = os.path.realpath(os.fsdecode(path))
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        synced = event == "open" and Path(full).is_dir()
        if full.startswith(f"{self.folder}/") and not writes and not synced:
            self.past.append(full)

    @contextmanager
    def over(self, folder: Path) -> Iterator[None]:
        self.folder = os.path.realpath(folder)
        self.past.clear()
        self.notes.clear()
        self.read.clear()
        try:
            yield
        finally:
            self.folder = None


WATCH = Watch()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Let every folder be opened as a storage that notes what it is asked for."""
    monkeypatch.setitem(STORAGES, "", lambda root: Recording(LocalStorage(root), WATCH.notes, WATCH.read, WATCH.asking))
    return WATCH


def copied(tree: str, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(FIXTURES / tree, tmp_path / "tree"))
    if tree == "health_pp2/output":  # no real tree has both
        (folder / "strategy").mkdir()
        (folder / "strategy" / "ckpt_strategy_rank_3.ckpt").touch()
        (folder / "log" / "rank_0").mkdir(parents=True)
        shutil.copy(FIXTURES / "logs" / "mindformers_health_stage0_made.log", folder / "log" / "rank_0" / "info.log")
    return folder


def shards(folder: Path) -> list[Path]:
    root = folder / "checkpoint" if (folder / "checkpoint").exists() else folder
    return [path.resolve() for path in root.rglob("*") if path.suffix in {".ckpt", ".safetensors"}]


@pytest.mark.parametrize("tree", TREES)
def test_a_storage_is_asked_for_everything_that_is_read_of_a_tree(tree: str, tmp_path: Path, recorded: Watch) -> None:
    folder = copied(tree, tmp_path)
    for question in QUESTIONS:
        with recorded.over(folder):
            said = answer(question, str(folder))
        assert said.code in {0, 10, 11, 14}, said.stderr
        assert recorded.past == [], question
        opened = {Path(path).name for what, path in recorded.notes if what == "open"}
        assert opened, question
        assert ("info.log" in opened) is (question in READS_LOGS and tree.startswith("health")), question
        if question in {"checksum", "numerics"}:
            assert [path for path in shards(folder) if recorded.read[str(path)] < path.stat().st_size] == [], question


def test_a_reader_beside_the_storage_is_noticed(tmp_path: Path, recorded: Watch) -> None:
    (tmp_path / "file").touch()
    with recorded.over(tmp_path):
        (tmp_path / "file").read_bytes()
        LocalStorage(str(tmp_path)).open("file").__exit__()
        os.listdir(tmp_path)  # noqa: PTH208  it is what shall be noticed
    assert recorded.past == [f"{tmp_path.resolve()}/file"] * 2
    assert recorded.notes == []


@pytest.mark.parametrize("tree", ["sink2_ckpt/output", "newfmt_4rank/output"])
def test_a_storage_is_asked_for_all_that_is_sealed(tree: str, tmp_path: Path, recorded: Watch) -> None:
    folder = copied(tree, tmp_path)
    for again in (False, True):
        with recorded.over(folder):
            assert ask("seal", str(folder), "--checkpoint", "all").code == 0
        assert recorded.past == []
        opened = {path for what, path in recorded.notes if what == "open"}
        assert {str(path) for path in shards(folder)} <= opened
        assert any(path.endswith(".manifest.json") for path in opened) or not again


@pytest.mark.parametrize("timeless", [False, True], ids=["with-times", "without-times"])
@pytest.mark.parametrize("tree", TREES)
def test_a_tree_in_memory_is_judged_as_the_same_tree_on_a_disk(
    tree: str, timeless: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = copied(tree, tmp_path)
    bucket = Bucket.copied(folder, timeless=timeless)
    monkeypatch.setitem(STORAGES, "memory", lambda root: MemoryStorage(root, bucket))
    for question in QUESTIONS:
        disk, memory = answer(question, str(folder)), answer(question, "memory://tree")
        assert memory.code == disk.code in {0, 10, 11, 14}, memory.stderr
        expected = plain(disk).replace(str(folder), "memory://tree")
        if timeless:  # what a storage does not tell is unknown
            expected = re.sub(r'"saved_at": "[^"]*"', '"saved_at": null', expected)
        assert plain(memory) == expected, question


def plain(said: Said) -> str:
    """The document without what no two runs share."""
    return json.dumps({key: value for key, value in said.json.items() if key not in {"seconds", "copy"}}, indent=1)


@pytest.mark.parametrize("command", CHANGES, ids=" ".join)
def test_nothing_is_changed_but_in_a_folder_of_this_machine(
    command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = copied("health_pp2/output", tmp_path)
    bucket = Bucket.copied(folder)
    monkeypatch.setitem(STORAGES, "memory", lambda root: MemoryStorage(root, bucket))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    said = ask(command[0], "memory://tree", *command[1:])
    assert said.code == ExitCode.UNSAFE
    assert "is read-only: ckpttool changes only folders of this machine" in said.stderr
    assert list((tmp_path / "here").iterdir()) == []


def test_prune_plans_in_a_bucket_what_it_would_do_on_a_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = copied("health_pp2/output", tmp_path)
    monkeypatch.setitem(STORAGES, "memory", lambda root: MemoryStorage(root, Bucket.copied(folder)))
    order = ["--keep-last", "1", "--grace", "0"]
    disk, memory = ask("prune", str(folder), *order, "--json"), ask("prune", "memory://tree", *order, "--json")
    assert memory.code == disk.code == 0, memory.stderr
    assert memory.json["checkpoints"] == disk.json["checkpoints"]
    assert "on their machine: " in ask("prune", "memory://tree", *order).stdout
    before = {path for path in folder.rglob("*") if path.is_file()}
    assert ask("prune", str(folder), *order, "--apply").code == 0
    gone = sorted(str(path.relative_to(folder / "checkpoint")) for path in before if not path.exists())
    places = memory.json["elsewhere"]
    assert isinstance(places, list)
    assert gone == sorted(path for place in places for path in place["paths"])
    assert gone
    assert {place["host"] for place in places} == {None}


def test_a_preflight_judges_what_is_no_folder_and_says_that_nothing_can_start_from_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bucket = Bucket.copied(copied("sink2_ckpt/output", tmp_path))
    monkeypatch.setitem(STORAGES, "memory", lambda root: MemoryStorage(root, bucket))
    base = str(FIXTURES / "configs" / "pretrain_sink2.yaml")
    said = ask("preflight", "memory://tree", "--config", base, "--format", "json")
    assert said.code == ExitCode.INCOMPLETE
    checks = {check["name"]: check for check in said.json["checks"]}
    assert {name for name, check in checks.items() if check["outcome"] != "passed"} == {"start"}
    assert [finding["code"] for finding in checks["start"]["findings"]] == ["start-unknown"]
    assert "step 60 (_1-30_2), intact on all 4 ranks" in checks["checkpoint"]["summary"]
    assert "copy the tree to one" in checks["launch"]["summary"]
    assert "unknown" in checks["disk"]["summary"]
    accepted = ask("preflight", "memory://tree", "--config", base, "--allow", "start-unknown")
    assert (accepted.code, accepted.stdout[:4]) == (ExitCode.OK, "GO: ")


def test_no_training_is_started_from_what_is_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bucket = Bucket.copied(copied("sink2_ckpt/output", tmp_path))
    monkeypatch.setitem(STORAGES, "memory", lambda root: MemoryStorage(root, bucket))
    monkeypatch.chdir(tmp_path)
    base = str(FIXTURES / "configs" / "pretrain_sink2.yaml")
    said = ask("launch", "memory://tree", "--config", base, "--output", "out.yaml")
    assert said.code == ExitCode.USAGE
    assert "a training run loads from a local folder, but memory://tree/checkpoint is not one" in " ".join(
        f"{said.stdout}{said.stderr}".split()
    )
    assert not (tmp_path / "out.yaml").exists()
