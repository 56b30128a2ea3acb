"""What every storage promises, whatever it reads: a new one is one line more in `STORAGES_UNDER_TEST`."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from ckpttool.core.storage.base import Kind, NotRegularError, OverLimitError, ShrankError, Storage, is_there
from ckpttool.core.storage.hidden import HiddenStorage
from ckpttool.core.storage.local import LocalStorage
from ckpttool.core.storage.stream import read_blocks
from tests.support.memory_storage import Bucket, MemoryStorage, Recording

CONTENT = bytes(range(256)) * 5


def local(folder: Path) -> Storage:
    return LocalStorage(str(folder))


def hidden(folder: Path) -> Storage:
    return HiddenStorage(LocalStorage(str(folder)))


def recording(folder: Path) -> Storage:
    return Recording(LocalStorage(str(folder)), [], Counter(), threading.local())


def memory(folder: Path) -> Storage:
    return MemoryStorage(f"memory://{folder.name}", Bucket.copied(folder))


STORAGES_UNDER_TEST: tuple[Callable[[Path], Storage], ...] = (local, hidden, recording, memory)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tree" / "rank_0").mkdir(parents=True)
    (tmp_path / "tree" / "empty").mkdir()
    (tmp_path / "tree" / "rank_0" / "shard.ckpt").write_bytes(CONTENT)
    (tmp_path / "tree" / "meta.json").write_bytes(b"{}")
    return tmp_path / "tree"


@pytest.fixture(params=STORAGES_UNDER_TEST, ids=lambda make: make.__name__)
def make(request: pytest.FixtureRequest) -> Callable[[Path], Storage]:
    made: Callable[[Path], Storage] = request.param
    return made


@pytest.fixture
def storage(make: Callable[[Path], Storage], folder: Path) -> Storage:
    return make(folder)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("", {("rank_0", Kind.FOLDER), ("empty", Kind.FOLDER), ("meta.json", Kind.FILE)}),
        ("rank_0", {("shard.ckpt", Kind.FILE)}),
        ("empty", set()),
    ],
)
def test_a_folder_is_listed_with_what_lies_in_it_and_no_deeper(
    storage: Storage, path: str, names: set[tuple[str, Kind]]
) -> None:
    assert {*storage.entries(path)} == names
    assert len(storage.entries(path)) == len(names)


def test_a_path_is_of_the_kind_that_the_listing_says(storage: Storage) -> None:
    assert storage.kind("") is Kind.FOLDER
    assert all(storage.kind(entry.name) is entry.kind for entry in storage.entries(""))
    assert is_there(storage, "rank_0/shard.ckpt")
    assert not is_there(storage, "rank_1/shard.ckpt")


def test_a_file_has_one_stamp_until_it_changes(make: Callable[[Path], Storage], folder: Path) -> None:
    storage = make(folder)
    stamp = storage.stamp("rank_0/shard.ckpt")
    assert stamp.size == len(CONTENT)
    assert stamp == storage.stamp("rank_0/shard.ckpt")
    assert hash(stamp) == hash(storage.stamp("rank_0/shard.ckpt"))
    with storage.open("rank_0/shard.ckpt") as source:
        assert source.stamp == stamp
    (folder / "rank_0" / "shard.ckpt").write_bytes(CONTENT[::-1])
    os.utime(folder / "rank_0" / "shard.ckpt", ns=(1, 1))
    assert make(folder).stamp("rank_0/shard.ckpt") != stamp


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 0), (0, 10), (1000, 280), (1000, 281), (1279, 99), (1280, 1), (9999, 1)]
)
def test_a_range_is_short_only_where_the_file_ends(storage: Storage, offset: int, length: int) -> None:
    buffer = bytearray(length)
    with storage.open("rank_0/shard.ckpt") as source:
        assert source.read(offset, length) == CONTENT[offset : offset + length]
        filled = source.read_into(offset, memoryview(buffer))
    assert buffer[:filled] == CONTENT[offset : offset + length]


def test_every_byte_comes_in_blocks_and_a_range_beyond_the_end_is_a_cut(storage: Storage) -> None:
    with storage.open("rank_0/shard.ckpt") as source:
        assert b"".join(bytes(block) for _, block in read_blocks(source, 0, len(CONTENT))) == CONTENT
        with pytest.raises(ShrankError):
            list(read_blocks(source, 0, len(CONTENT) + 1))


def test_a_record_is_read_whole_up_to_its_limit(storage: Storage) -> None:
    assert storage.small_file("meta.json", limit=2) == b"{}"
    with pytest.raises(OverLimitError):
        storage.small_file("meta.json", limit=1)
    with pytest.raises(OverLimitError):
        storage.small_file("rank_0/shard.ckpt", limit=1279)


@pytest.mark.parametrize("path", ["gone", "rank_1/shard.ckpt"])
def test_what_is_not_there_is_not_found(storage: Storage, path: str) -> None:
    for ask in (storage.entries, storage.kind, storage.stamp):
        with pytest.raises(FileNotFoundError):
            ask(path)
    with pytest.raises(FileNotFoundError):
        storage.small_file(path, limit=99)
    with pytest.raises(FileNotFoundError), storage.open(path):
        pass


def test_a_folder_is_no_file(storage: Storage) -> None:
    with pytest.raises(NotRegularError):
        storage.stamp("rank_0")
    with pytest.raises(NotRegularError), storage.open("rank_0"):
        pass
    with pytest.raises(OSError, match=r".") as error:
        storage.small_file("rank_0", limit=99)
    assert not isinstance(error.value, FileNotFoundError)
