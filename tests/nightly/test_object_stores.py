"""Real stores, each as it is: trees in them are judged as on a disk, and what happens behind them is told as it is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpttool.core.errors import ExitCode
from ckpttool.core.storage import forget_listings, open_storage
from ckpttool.core.storage.base import ReplacedError
from tests.core.storage.test_storage_sees_all import QUESTIONS, TREES, plain
from tests.nightly.object_servers import Server, server
from tests.support.answers import FIXTURES
from tests.support.commands import Said, ask, shard_words

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="starts object stores: --nightly")
pytest.importorskip("obstore", reason="object stores are read by obstore, which is not installed")


@pytest.fixture(scope="module", params=["seaweedfs", "fake-gcs", "azurite"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(request.param, tmp_path_factory.mktemp("store") / request.param) as store:
        yield store


@pytest.fixture(scope="module")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server("rclone", tmp_path_factory.mktemp("store") / "rclone") as store:
        yield store


@pytest.fixture(autouse=True)
def known(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ckpttool.core.storage import objects

    store: Server = request.getfixturevalue("store" if "store" in request.fixturenames else "rclone")
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(objects, "_STORES", {})
    monkeypatch.setattr(objects, "_BUCKETS", {})


def upload(store: Server, folder: Path, place: str) -> str:
    """Put a tree into the store, oldest files first, and return its root."""
    files = sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_mtime_ns)
    for path in files:
        store.put(f"{place}/{path.relative_to(folder)}", path.read_bytes())
    return f"{store.url}/{place}"


def answer(question: str, root: str) -> Said:
    command, *options = QUESTIONS[question]
    return ask(command, root, *options, "--format", "json")


def timeless(document: str) -> str:
    """Leave out when files were written: a store tells when they were uploaded."""
    return "\n".join(line for line in document.splitlines() if '"saved_at"' not in line)


@pytest.mark.parametrize("tree", TREES)
def test_a_tree_is_judged_as_on_a_disk(tree: str, store: Server) -> None:
    root = upload(store, FIXTURES / tree, tree)
    for question in QUESTIONS:
        disk, said = answer(question, str(FIXTURES / tree)), answer(question, root)
        assert said.code == disk.code, said.stderr
        assert timeless(plain(said)) == timeless(plain(disk)).replace(str(FIXTURES / tree), root), question


def test_what_is_not_there_is_no_tree(store: Server) -> None:
    said = ask("resolve", f"{store.url}/nowhere/checkpoint")
    assert said.code == ExitCode.UNKNOWN_LAYOUT, said.stderr


def test_what_is_replaced_between_the_listing_and_the_read_is_refused(store: Server) -> None:
    store.put("replaced/shard.ckpt", b"a" * 200_000)
    forget_listings(store.url)
    with open_storage(f"{store.url}/replaced").open("shard.ckpt") as source:
        assert source.read(0, 4) == b"aaaa"
        store.put("replaced/shard.ckpt", b"b" * 200_000)
        with pytest.raises(ReplacedError):
            source.read(150_000, 4)


def test_a_byte_that_is_flipped_behind_the_server_is_found_or_withheld(store: Server, tmp_path: Path) -> None:
    folder, mark = Path(shutil.copytree(FIXTURES / "sink2_safetensors/output", tmp_path / "tree")), os.urandom(32)
    for shard in folder.rglob("*_1-30_2.safetensors"):  # so that the store keeps these bytes nowhere else
        _write_into_the_largest_tensor(shard, mark)
    root = upload(store, folder, "flipped")
    look = ["verify", root, "--level", "checksum"]
    assert ask(*look).code == 0
    assert any(_flip(path, mark) for path in store.folder.rglob("*") if path.is_file()), "they are kept otherwise"
    said = ask(*look)
    expected = ExitCode.INCOMPLETE if store.name == "seaweedfs" else ExitCode.DAMAGE
    assert said.code == expected, said.stdout + said.stderr


def _write_into_the_largest_tensor(shard: Path, mark: bytes) -> None:
    data = bytearray(shard.read_bytes())
    length = int.from_bytes(data[:8], "little")
    spans = [each["data_offsets"] for name, each in json.loads(data[8 : 8 + length]).items() if name != "__metadata__"]
    begin = 8 + length + max(spans, key=lambda span: span[1] - span[0])[0]
    data[begin : begin + len(mark)] = mark
    shard.write_bytes(data)


def _flip(path: Path, tail: bytes) -> bool:
    data = path.read_bytes()
    at = data.rfind(tail)
    if at < 0:
        return False
    with path.open("r+b") as file:
        file.seek(at + len(tail) // 2)
        file.write(bytes([tail[len(tail) // 2] ^ 1]))
    return True


def test_wrong_credentials_are_unknown_and_nothing_of_them_is_printed(
    store: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    if store.name != "seaweedfs":
        pytest.skip(f"{store.name} takes any credentials here, or has only one")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    said = ask("resolve", f"{store.url}/{TREES[0]}")
    assert said.code == ExitCode.INCOMPLETE
    assert "403" in said.stderr
    assert "not-the-secret" not in said.stderr + said.stdout
    assert "AKIA" not in said.stderr + said.stdout


@pytest.mark.parametrize("tree", TREES)
def test_of_rclone_which_answers_ranges_with_all_nothing_is_called_whole_damaged_or_not_there(
    tree: str, rclone: Server
) -> None:
    root = upload(rclone, FIXTURES / tree, tree)
    for question, (command, *options) in QUESTIONS.items():
        said, disk = ask(command, root, *options, "--format", "json"), answer(question, str(FIXTURES / tree))
        # What the names alone show is so there, too: a file that lacks, or that nothing does.
        assert said.code in {ExitCode.INCOMPLETE, *({disk.code} if disk.code or command == "scan" else ())}, question
        if command in {"verify", "resolve"}:
            assert "the store violated its protocol: it returned a range with the whole object" in said.stdout, question
        if command == "verify":
            assert shard_words(said) <= {"unreadable"}, question


def test_rclone_without_such_a_bucket_is_no_tree_and_with_a_wrong_secret_unknown(
    rclone: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask("resolve", "s3://another/tree").code == ExitCode.UNKNOWN_LAYOUT
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    monkeypatch.setattr("ckpttool.core.storage.objects._STORES", {})
    said = ask("resolve", f"{rclone.url}/{TREES[0]}")
    assert said.code == ExitCode.INCOMPLETE
    assert "403" in said.stderr
    assert "not-the-secret" not in said.stderr + said.stdout
