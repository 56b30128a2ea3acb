"""A root is opened by its spelling, and what nobody can open is said so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckpttool.core.errors import ExitCode, UsageError
from ckpttool.core.storage import STORAGES, above, open_storage, shortest
from ckpttool.core.storage.base import Kind, LostLinkError, is_there
from ckpttool.core.storage.hidden import HiddenStorage
from ckpttool.core.storage.local import LocalStorage
from tests.support.commands import ask

SECRET = "a-secret-that-nobody-prints"  # noqa: S105  that is the test


@pytest.mark.parametrize("root", [".", "/a/b", "output/checkpoint", "a:b", "://", "S3://bucket", "weird/s3://x"])
def test_what_has_no_scheme_is_a_folder(root: str) -> None:
    storage = open_storage(root)
    assert isinstance(storage, LocalStorage)
    assert storage.root == root


@pytest.mark.parametrize("root", ["s4://bucket/run", "gs://", "memory://a\nb"])
def test_a_scheme_that_nobody_opens_is_a_usage_error(root: str) -> None:
    with pytest.raises(UsageError, match=root.partition("/")[0]):
        open_storage(root)


@pytest.mark.parametrize(
    ("root", "way"),
    [
        ("sftp://me@host/data/run", "mount it or copy it to a disk, and give that folder"),
        ("hdfs://host:8020/run", "mount it or copy it to a disk, and give that folder"),
        ("file:///data/run", "give only the path of the folder"),
        ("oss://bucket/run", "set AWS_ENDPOINT_URL to its address and give the folder as s3://BUCKET/FOLDER"),
        ("obs://bucket/run", "set AWS_ENDPOINT_URL to its address and give the folder as s3://BUCKET/FOLDER"),
        ("s3a://bucket/run", "write s3:// for this store"),
        ("abfs://container/run", "write az:// for this store"),
    ],
)
@pytest.mark.parametrize("command", [["resolve"], ["seal"], ["part", "--part", "1/1", "--run-id", "x", "--out", "p"]])
def test_who_names_another_place_is_told_the_way_on_in_one_line(command: list[str], root: str, way: str) -> None:
    said = ask(command[0], root, *command[1:])
    assert (said.code, said.stdout, said.stderr.count("\n")) == (ExitCode.USAGE, "", 1)
    assert f"{root} cannot be read: " in said.stderr
    assert way in said.stderr


@pytest.mark.parametrize("place", ["user:{}@server", "user:a/{}@server", "user:{}@server:22", ":{}@server"])
@pytest.mark.parametrize("scheme", ["s3", "nobodys"])
def test_a_password_in_a_url_is_refused_and_never_shown(scheme: str, place: str) -> None:
    root = f"{scheme}://{place.format(SECRET)}/tree"
    for command in (
        ["resolve"],
        ["verify", "--json"],
        ["scan", "--all"],
        ["prune", "--keep-last", "1"],
        ["inspect", "-v"],
    ):
        said = ask(command[0], root, *command[1:])
        assert said.code == ExitCode.USAGE, said.stderr
        assert SECRET not in said.stdout + said.stderr


@pytest.mark.parametrize("root", ["s3://user@bucket/tree@2/x:y", "s3://bucket:9000/run"])
def test_a_name_and_a_port_are_no_password(root: str) -> None:
    assert shortest(root) == root


def test_a_scheme_is_one_entry_of_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(STORAGES, "here", lambda root: LocalStorage(root.replace("here:/", str(tmp_path))))
    (tmp_path / "a").mkdir()
    assert open_storage("here://a").kind("") is Kind.FOLDER


@pytest.mark.parametrize(
    ("root", "short", "folder"),
    [
        ("a/b", "a/b", "a"),
        ("a//b/./c/", "a/b/c", "a/b"),
        ("a", "a", "."),
        (".", ".", ".."),
        ("..", "..", "../.."),
        ("/", "/", "/"),
        ("s3://bucket/run/./checkpoint/", "s3://bucket/run/checkpoint", "s3://bucket/run"),
    ],
)
def test_the_folder_above_is_found_by_letters(root: str, short: str, folder: str) -> None:
    assert (shortest(root), above(root)) == (short, folder)


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("folder/file")
    (tmp_path / "lost").symlink_to("gone")
    (tmp_path / "loop").symlink_to("loop")
    return LocalStorage(str(tmp_path))


@pytest.mark.parametrize(
    ("path", "kind"),
    [("", "folder"), ("folder", "folder"), ("folder/file", "file"), ("link", "file"), ("pipe", "other")],
)
def test_a_path_is_of_one_kind_links_followed(storage: LocalStorage, path: str, kind: str) -> None:
    assert storage.kind(path) is Kind(kind)
    assert is_there(storage, path)


@pytest.mark.parametrize("path", ["lost", "loop"])
def test_a_link_that_leads_nowhere_is_there(storage: LocalStorage, path: str) -> None:
    with pytest.raises(LostLinkError):
        storage.kind(path)
    assert is_there(storage, path)


@pytest.mark.parametrize("path", ["gone", "folder/file/below"])
def test_what_is_not_there_is_not_there(storage: LocalStorage, path: str) -> None:
    assert not is_there(storage, path)


def test_what_is_hidden_is_not_there_nor_what_lies_in_it(storage: LocalStorage) -> None:
    hidden = HiddenStorage(storage)
    assert is_there(hidden, "folder/file")
    hidden.hidden = {"folder"}
    assert not is_there(hidden, "folder")
    assert not is_there(hidden, "folder/file")
    for asked in (
        hidden.stamp,
        lambda path: hidden.small_file(path, limit=100),
        lambda path: hidden.open(path).__enter__(),
    ):
        with pytest.raises(FileNotFoundError):
            asked("folder/file")
    with pytest.raises(FileNotFoundError):
        hidden.entries("folder")
    assert is_there(hidden, "link")
