"""A listing that is believed as long as the folder's times stand still."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckpttool.core.storage.local import LocalStorage
from ckpttool.watch import listed
from ckpttool.watch.listed import ListedStorage


def test_a_folder_that_moved_a_moment_ago_is_listed_anew_for_what_comes_in_the_same_tick_shows_the_same_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = max(tmp_path.stat().st_mtime_ns, tmp_path.stat().st_ctime_ns)
    storage = ListedStorage(LocalStorage(str(tmp_path)))
    for later, moved in [(listed.TICK // 2, True), (2 * listed.TICK, False)]:
        monkeypatch.setattr(listed, "time_ns", lambda later=later: changed + later)
        assert storage.entries("") == []
        assert storage.moved() is moved
    (tmp_path / "new").touch()
    os.utime(tmp_path, ns=(changed + listed.SECOND, changed + listed.SECOND))
    assert storage.moved()


def test_of_a_disk_that_counts_whole_seconds_two_of_them_are_waited_for() -> None:
    then = 1_800_000_000 * listed.SECOND
    for later, fresh in [(listed.SECOND, True), (2 * listed.SECOND, False)]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(listed, "time_ns", lambda later=later: then + later)
            assert listed._is_fresh((then, then, 1)) is fresh  # noqa: SLF001
