"""An export that stops anywhere leaves a whole output or none, and the next one to the same folder finishes."""

from __future__ import annotations

import errno
import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from ckpttool.core.storage.local import LocalSource
from ckpttool.export.model import Exported, ExportQuestion
from ckpttool.export.verbs import export
from tests.conftest import FIXTURES
from tests.export.truth import exported
from tests.support.commands import ask
from tests.support.prunable_trees import WAYS, stopped

SAVE = FIXTURES / "layouts/titan_4ranks/checkpoint/step-10"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def run(out: Path) -> Exported:
    return export(str(SAVE), ExportQuestion(output=str(out), max_shard=1000))


@pytest.mark.sample(2)
@pytest.mark.parametrize("way", WAYS)
def test_wherever_it_stops_the_output_is_whole_or_absent_and_the_next_export_finishes(way: str, tmp_path: Path) -> None:
    run(tmp_path / "undisturbed")
    expected = exported(tmp_path / "undisturbed")
    names = {path.name for path in (tmp_path / "undisturbed").iterdir()}
    assert len(names) > 3
    for nth in range(1, 200):
        place = tmp_path / str(nth)
        place.mkdir()
        stop = stopped(partial(run, place / "out"), nth, way)
        if (place / "out").exists():
            assert exported(place / "out") == expected
        else:
            assert run(place / "out").output is not None
            assert exported(place / "out") == expected
        assert {path.name for path in (place / "out").iterdir()} - {".ckpttool-writing"} == names
        assert [path.name for path in place.iterdir()] == ["out"]
        shutil.rmtree(place)
        if not stop.happened:
            assert nth > 15
            return
    pytest.fail("more calls than an export should need")


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_source_that_cannot_be_read_is_unknown_and_not_damaged(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_into(_source: LocalSource, _offset: int, _buffer: memoryview) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(LocalSource, "read_into", read_into)
    said = ask("export", str(SAVE), "--output", str(tmp_path / "out"), "--json")
    assert said.code == 14
    assert {finding["code"] for finding in said.json["findings"]} == {"unreadable"}
    assert [*tmp_path.iterdir()] == []


def test_a_full_disk_is_a_failed_write_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(_fd: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(Exception, match="No space left on device; nothing was changed"):
        run(tmp_path / "out")
    assert [*tmp_path.iterdir()] == []
