"""What is reached through a link, or lies on another disk, is neither moved nor replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckpttool.core.write.blockers import files_not_to_replace, files_to_move


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "rank_0").mkdir()
    (tmp_path / "rank_0" / "shard").write_bytes(b"12345")
    return tmp_path


def test_a_file_of_the_tree_may_be_moved_while_it_is_the_one_that_was_seen(root: Path) -> None:
    (file,) = files_to_move(str(root), ["rank_0/shard"])
    assert (file.path, file.blocker) == ("rank_0/shard", None)
    assert file.stamp is not None
    assert file.stamp.size == 5


def test_neither_a_link_nor_what_lies_behind_one_is_moved(root: Path) -> None:
    (root / "rank_0" / "link").symlink_to("shard")
    (root / "rank_1").symlink_to("rank_0")
    found = {file.path: file for file in files_to_move(str(root), ["rank_0/link", "rank_1/shard", "rank_0/shard"])}
    assert {path for path, file in found.items() if file.stamp is None} == {"rank_0/link", "rank_1/shard"}
    assert "rank_0/link is a link" in (found["rank_0/link"].blocker or "")
    assert "rank_1 is a link" in (found["rank_1/shard"].blocker or "")


def test_what_is_gone_is_no_file_to_move(root: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(files_to_move(str(root), ["rank_0/gone"]))


def test_a_record_may_be_written_where_there_is_none_or_a_plain_one(root: Path) -> None:
    (root / "rank_0" / "meta.json").write_text("{}")
    assert list(files_not_to_replace(str(root), ["rank_0/meta.json", "rank_0/new.json", "tracker"])) == []


def test_a_link_a_folder_or_a_fifo_in_a_record_s_place_stays(root: Path) -> None:
    (root / "rank_1").symlink_to("rank_0")
    (root / "link").symlink_to("rank_0/shard")
    os.mkfifo(root / "fifo")
    found = list(files_not_to_replace(str(root), ["rank_1/meta.json", "link", "fifo", "rank_0"]))
    assert [sentence.partition(",")[0] for sentence in found] == [
        "rank_1 is a link",
        "link is a link",
        "fifo is a FIFO or a device",
        "rank_0 is a folder",
    ]
