"""Real servers of files, read by fsspec's drivers: judged as on a disk, and what is withheld is never absent."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpttool.errors import ExitCode
from ckpttool.storage import look_anew, open_storage
from ckpttool.storage.base import ReplacedError
from tests.nightly.file_servers import PASSWORD, FileServer, drivers, file_server, served
from tests.storage.test_storage_sees_all import QUESTIONS, TREES, answer, plain
from tests.support.answers import FIXTURES
from tests.support.commands import ask, shard_words
from tests.support.fsspec_drivers import let_go

pytestmark = [
    pytest.mark.skipif("not config.getoption('--nightly')", reason="starts servers of files: --nightly"),
    # Drivers leave the closing of their sockets to whoever collects them.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
pytest.importorskip("fsspec", reason="drivers are fsspec's, which is not installed")

LOOK = ["--level", "checksum", "--checkpoint", "all", "--format", "json"]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with drivers(tmp_path_factory.mktemp("drivers") / "venv") as python:
        yield python


@pytest.fixture(params=["sftp", "ftp", "webdav"])
def server(
    request: pytest.FixtureRequest, python: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[FileServer]:
    from fsspec.config import conf

    from ckpttool.storage import driver_files

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(driver_files, "_SERVERS", {})
    with file_server(request.param, python) as server:
        monkeypatch.setitem(conf, server.scheme, server.options)
        yield server
    let_go()  # whoever still waits is answered by now: the server is gone
    gc.collect()  # here, where the warnings of it are not those of another test


def test_every_real_tree_is_judged_as_on_a_disk(server: FileServer) -> None:
    for tree in TREES:
        root = served(server, FIXTURES / tree, tree.replace("/", "-"))
        on_disk = str(server.folder / tree.replace("/", "-"))
        for question in QUESTIONS:
            disk, said = answer(question, on_disk), answer(question, root)
            assert said.code == disk.code, (tree, question, said.stderr)
            assert seconds(plain(said)) == seconds(plain(disk)).replace(on_disk, root), (tree, question)


def seconds(document: str) -> str:
    """Leave out what a server tells in whole seconds: when files were written."""
    return "\n".join(line for line in document.splitlines() if '"saved_at"' not in line and "_time" not in line)


@pytest.mark.parametrize(
    "hidden", ["checkpoint/rank_3", "checkpoint", "checkpoint/rank_3/llama2_7b_rank_3_1-30_2.ckpt"]
)
def test_what_may_not_be_read_is_unknown_and_never_damage_nor_absent(hidden: str, server: FileServer) -> None:
    root = served(server, FIXTURES / "sink2_ckpt/output", "tree")
    assert ask("verify", root, *LOOK).code == 0
    (server.folder / "tree" / hidden).chmod(0)
    for command in (["verify", root, *LOOK], ["resolve", root, "--format", "json", "--checkpoint", "_1-30_2"]):
        said = ask(*command)
        assert said.code == ExitCode.INCOMPLETE, (command, said.stdout, said.stderr)
        assert '"severity": "damage"' not in said.stdout
        assert PASSWORD not in said.stdout + said.stderr


def test_a_tree_that_is_not_there_is_unknown_with_the_reason(server: FileServer) -> None:
    served(server, FIXTURES / "sink2_ckpt/output", "tree")
    for path in ("typo", "tree/checkpoint/typo", "not/there"):
        said = ask("resolve", f"{server.url}/{path}")
        assert said.code == ExitCode.INCOMPLETE
        assert "whether something lies there is not known" in " ".join(said.stderr.split())


def test_what_lacks_beside_others_is_missing_and_what_is_damaged_is_found(server: FileServer) -> None:
    root = served(server, FIXTURES / "sink2_ckpt/output", "tree")
    shard = server.folder / "tree/checkpoint/rank_3/llama2_7b_rank_3_1-30_2.ckpt"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-40])
    assert ask("verify", root, *LOOK).code == ExitCode.DAMAGE
    shard.unlink()
    said = ask("verify", root, *LOOK)
    assert (said.code, '"shard-missing"' in said.stdout) == (ExitCode.DAMAGE, True)


def test_a_file_that_is_replaced_between_the_listing_and_the_end_of_the_read_is_refused(server: FileServer) -> None:
    root = served(server, FIXTURES / "sink2_ckpt/output", "tree")
    name = "checkpoint/rank_3/llama2_7b_rank_3_1-30_2.ckpt"
    shard = server.folder / "tree" / name
    storage = open_storage(root)
    assert storage.stamp(name).size == shard.stat().st_size
    for in_between in (False, True):
        opened = storage.open(name)
        source = opened.__enter__()
        if in_between:
            source.read(0, 8)
        new = shard.with_suffix(".new")
        new.write_bytes(shard.read_bytes()[::-1])
        os.utime(new, (1, 1))
        new.replace(shard)
        shard.chmod(0o644)
        source.read(1000, 8)
        with pytest.raises(ReplacedError):
            opened.__exit__(None, None, None)
        os.utime(shard)
        look_anew(root)
        assert storage.stamp(name).size == shard.stat().st_size


def test_a_server_that_dies_midway_leaves_all_that_was_not_read_unknown(server: FileServer) -> None:
    root = served(server, FIXTURES / "sink2_ckpt/output", "tree")
    storage = open_storage(root)
    names = [entry.name for entry in storage.entries("checkpoint/rank_0") if entry.name.endswith(".ckpt")]
    with storage.open(f"checkpoint/rank_0/{names[0]}") as source:
        assert source.read(0, 8)
    server.die()
    for name in names[1:]:
        with pytest.raises(OSError, match=r".") as error, storage.open(f"checkpoint/rank_0/{name}") as source:
            source.read(0, 8)
        assert not isinstance(error.value, (FileNotFoundError, ReplacedError))
    said = ask("resolve", root)
    assert said.code == ExitCode.INCOMPLETE
    assert PASSWORD not in said.stderr


def test_a_server_that_hangs_is_left_after_a_while(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    root = served(server, FIXTURES / "sink2_ckpt/output", "tree")
    assert ask("scan", root).code == 0
    monkeypatch.setattr("ckpttool.storage.driver_lanes.PATIENCE_SECONDS", 2.0)
    server.hang()
    said = ask("verify", root, *LOOK)
    assert said.code == ExitCode.INCOMPLETE
    assert "no answer within 2 s" in said.stdout + said.stderr


def test_whoever_is_not_let_in_is_told_so_and_no_secret_with_it(
    server: FileServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from fsspec.config import conf

    root = served(server, FIXTURES / "sink2_ckpt/output", "tree")
    wrong = {"password": "not-the-secret"}
    if server.scheme == "webdav":
        wrong = {"base_url": server.options["base_url"].replace(PASSWORD, "not-the-secret")}
    if server.scheme == "sftp":
        key = tmp_path / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        wrong = {"key_filename": str(key)}
    options = {name: wrong.get(name, value) for name, value in server.options.items()}
    monkeypatch.setitem(conf, server.scheme, options)
    said = ask("resolve", root)
    assert said.code == ExitCode.INCOMPLETE
    assert "not-the-secret" not in said.stdout + said.stderr


def test_a_shell_s_environment_is_enough(server: FileServer, python: str) -> None:
    root = served(server, FIXTURES / "sink2_ckpt/output", "tree")
    told = {name: value for name, value in server.options.items() if isinstance(value, str)}
    named = {f"FSSPEC_{server.scheme}_{name}".upper(): value for name, value in told.items()}
    environment = {**os.environ, **named}
    (place,) = Path(python).parents[1].glob("lib/python*/site-packages")
    environment["PYTHONPATH"] = str(place)
    command = [sys.executable, "-m", "ckpttool", "verify", root, *LOOK]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    assert json.loads(done.stdout)["level"] == "checksum"
    assert shard_words(ask("verify", root, *LOOK)) <= {"agreed", "struct-ok", "verified"}
