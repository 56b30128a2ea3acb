"""A root is opened by its spelling, and what nobody can open is said so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckpttool.errors import UsageError
from ckpttool.storage import STORAGES, above, open_storage, shortest
from ckpttool.storage.base import Kind, LostLinkError, is_there
from ckpttool.storage.hidden import HiddenStorage
from ckpttool.storage.local import LocalStorage


@pytest.mark.parametrize("root", [".", "/a/b", "output/checkpoint", "a:b", "://", "S3://bucket", "weird/s3://x"])
def test_what_has_no_scheme_is_a_folder(root: str) -> None:
    storage = open_storage(root)
    assert isinstance(storage, LocalStorage)
    assert storage.root == root


@pytest.mark.parametrize("root", ["s4://bucket/run", "gs://", "memory://a\nb"])
def test_a_scheme_that_nobody_opens_is_a_usage_error(root: str) -> None:
    with pytest.raises(UsageError, match=root.partition("/")[0]):
        open_storage(root)


def test_who_names_another_store_is_told_the_way_on() -> None:
    with pytest.raises(UsageError, match=r"reads obs://; set AWS_ENDPOINT_URL and say s3://"):
        open_storage("obs://bucket/run")


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
    for ask in (
        hidden.stamp,
        lambda path: hidden.small_file(path, limit=100),
        lambda path: hidden.open(path).__enter__(),
    ):
        with pytest.raises(FileNotFoundError):
            ask("folder/file")
    with pytest.raises(FileNotFoundError):
        hidden.entries("folder")
    assert is_there(hidden, "link")
