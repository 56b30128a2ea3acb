"""The journal comes back as it was written, or is not believed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.retention import Batch, Move
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.errors import IncompleteError
from ckpttool.core.records import JOURNAL
from ckpttool.core.records.hashed_json import closed
from ckpttool.core.records.journal import journal_bytes, read_journal, trash_folders
from ckpttool.core.storage.base import Entry, Kind, Storage
from ckpttool.core.storage.local import LocalStorage

NAMES = st.binary(min_size=1, max_size=20).filter(lambda name: not {0, 47} & set(name) and name not in {b".", b".."})
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda parts: os.fsdecode(b"/".join(parts)))
STAMPS = st.builds(FileStamp.on_disk, size=st.integers(0, 2**63), mtime_ns=st.integers(), inode=st.integers(0, 2**64))
BATCHES = st.lists(
    st.builds(
        Batch,
        trash=NAMES.map(lambda name: f".ckpttool/trash/{os.fsdecode(name)}"),
        moves=st.lists(st.builds(Move, path=PATHS, stamp=STAMPS), max_size=4).map(tuple),
    ),
    max_size=3,
).map(tuple)


class OneFile(LocalStorage):
    """A storage of one journal, without a disk."""

    def __init__(self, data: bytes) -> None:
        super().__init__("nowhere")
        self.data = data

    def small_file(self, path: str, *, limit: int) -> bytes:
        assert (path, limit > len(self.data)) == (JOURNAL, True)
        return self.data


@given(BATCHES)
def test_whatever_bytes_a_name_has_it_comes_back(batches: tuple[Batch, ...]) -> None:
    assert read_journal(OneFile(journal_bytes(batches))) == batches


@given(BATCHES.filter(bool), st.data())
def test_a_flipped_bit_is_seen(batches: tuple[Batch, ...], data: st.DataObject) -> None:
    spelled = bytearray(journal_bytes(batches))
    bit = data.draw(st.integers(0, len(spelled) * 8 - 1))
    spelled[bit // 8] ^= 1 << bit % 8
    with pytest.raises(IncompleteError, match="cannot be trusted"):
        read_journal(OneFile(bytes(spelled)))


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ('"schema": "ckpttool/prune-journal/2"', "another version of ckpttool wrote it"),
        ('"schema": "ckpttool/prune-journal/1", "batches": {}', "expected a list"),
        ('"schema": "ckpttool/prune-journal/1", "batches": [{"trash": "rank_0", "moves": []}]', "names a trash folder"),
        (
            '"schema": "ckpttool/prune-journal/1", "batches": [{"trash": ".ckpttool/trash/../..", "moves": []}]',
            "is outside the tree",
        ),
        (
            '"schema": "ckpttool/prune-journal/1", "batches": [{"trash": ".ckpttool/trash/x", "moves": [["/",1,1,1]]}]',
            "is outside the tree",
        ),
        (
            '"schema": "ckpttool/prune-journal/1", "batches": [{"trash": ".ckpttool/trash/x", "moves": [["x", 1]]}]',
            "not encoded as ckpttool encodes it",
        ),
        (
            '"schema": "ckpttool/prune-journal/1", "batches": [{"trash": ".ckpttool/trash/\\u4e00", "moves": []}]',
            "not encoded as ckpttool encodes it",
        ),
    ],
)  # fmt: skip
def test_what_ckpttool_would_not_write_is_not_followed(members: str, words: str) -> None:
    with pytest.raises(IncompleteError, match=words):
        read_journal(OneFile(closed(f"{{{members}")))


def test_a_journal_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    assert read_journal(LocalStorage(str(tmp_path))) == ()
    (tmp_path / JOURNAL).mkdir(parents=True)
    with pytest.raises(IncompleteError, match="cannot be read"):
        read_journal(LocalStorage(str(tmp_path)))


def test_a_trash_that_cannot_be_listed_is_not_taken_for_empty(tmp_path: Path) -> None:
    assert list(trash_folders(LocalStorage(str(tmp_path)))) == []
    (tmp_path / ".ckpttool").mkdir()
    (tmp_path / ".ckpttool/trash").write_text("not a folder")
    with pytest.raises(IncompleteError, match="cannot be listed"):
        list(trash_folders(LocalStorage(str(tmp_path))))


def test_only_folders_that_begin_with_a_time_are_ours() -> None:
    class Listed(LocalStorage):
        def entries(self, folder: str) -> list[Entry]:
            assert folder == ".ckpttool/trash"
            return [
                Entry("20260131T235959Z-20_2", Kind.FOLDER),
                Entry("20251231T000000Z-10_2+", Kind.FOLDER),
                Entry("20260131T235959Z-5_2", Kind.FILE),
                Entry("20261331T235959Z-5_2", Kind.FOLDER),
                Entry("20260131T235959Z-", Kind.FOLDER),
                Entry("old-20260131T235959Z-5_2", Kind.FOLDER),
            ]

    storage: Storage = Listed("nowhere")
    found = list(trash_folders(storage))
    assert [one.name for one in found] == ["20251231T000000Z-10_2+", "20260131T235959Z-20_2"]
    assert found[1].since - found[0].since == 32 * 86400 - 1
