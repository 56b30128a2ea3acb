"""`launch --after-failed-starts` counts launches in the tree, and leaves a save from which none got any further."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from ckpttool.core.domain.verdict import Level
from ckpttool.core.records import STARTS
from ckpttool.core.write import files
from ckpttool.core.write.files import locked
from tests.conftest import FIXTURES
from tests.marks.test_mark import marks_of
from tests.support.commands import Said, ask
from tests.support.split_trees import parts_of
from tests.support.trees import writable

CONFIG = str(FIXTURES / "configs/pretrain_sink2.yaml")
HOUR = 3600


@pytest.fixture
def tree(tmp_path: Path) -> str:
    return str(writable(FIXTURES / "sink2_ckpt/output", tmp_path / "output"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """The clock of launches, which begins now and is set forward by hand."""
    import time

    now = [time.time()]
    monkeypatch.setattr("ckpttool.marks.launches.time.time", lambda: now[0])

    def forward(seconds: float) -> None:
        now[0] += seconds

    return forward


def launch(tree: str, *options: str) -> Said:
    new = Path(tree).parent / "new.yaml"
    return ask("launch", tree, "--config", CONFIG, "--output", str(new), "--force", *options)


def launched(tree: str, *options: str) -> str:
    """Return the step from which the written config resumes."""
    said = launch(tree, *options)
    assert said.code == 0, said.output
    return said.stdout.partition("from step ")[2].partition(" ")[0]


def record(tree: str) -> Path:
    return Path(tree, "checkpoint", STARTS)


def test_without_the_option_nothing_is_counted(tree: str) -> None:
    launched(tree)
    assert not record(tree).parent.exists()


def test_after_n_starts_without_a_newer_save_the_older_save_is_launched(tree: str) -> None:
    steps = [launched(tree, "--after-failed-starts", "2") for _ in range(5)]
    assert steps == ["60", "60", "50", "50", "40"]
    assert marks_of(tree) == {"_1-30_2": ("bad", "counts"), "_1-25_2": ("bad", "counts")}
    (first, _) = ask("mark", tree, "--json").json["marks"][::-1]
    assert first["automatic"]
    assert first["reason"].startswith("2 starts in a row from step 60 (_1-30_2) made no newer checkpoint: by ckpttool")


def test_trainers_without_a_config_are_counted_too(tmp_path: Path) -> None:
    tree = str(writable(FIXTURES / "layouts/hf_single", tmp_path / "tree"))
    for _ in range(3):
        assert "checkpoint-12" in ask("launch", tree, "--after-failed-starts", "3").stdout
    assert marks_of(tree) == {}
    assert "checkpoint-8" in ask("launch", tree, "--after-failed-starts", "3").stdout
    assert marks_of(tree) == {"checkpoint-12": ("bad", "counts")}


def test_a_dry_run_and_a_refused_launch_are_no_starts(tree: str) -> None:
    for _ in range(3):
        launch(tree, "--after-failed-starts", "1", "--dry-run")
    assert not record(tree).exists()
    Path(tree, "checkpoint/rank_3/llama2_7b_rank_3_1-30_2.ckpt").write_bytes(b"")
    assert launch(tree, "--after-failed-starts", "1", "--strict").code == 10
    assert not record(tree).exists()


def test_a_newer_save_ends_the_row_even_a_damaged_one(tree: str, clock: Callable[[float], None]) -> None:
    for path in Path(tree).glob("checkpoint/rank_*/*_1-30_2.ckpt"):
        path.rename(path.with_suffix(".away"))
    clock(HOUR)
    assert launched(tree, "--after-failed-starts", "2") == "50"
    clock(HOUR)
    for path in Path(tree).glob("checkpoint/rank_*/*.away"):
        back = path.with_suffix(".ckpt")
        path.rename(back)
        if "rank_3" in path.name:
            back.write_bytes(b"")
        os.utime(back, (back.stat().st_mtime + 1.5 * HOUR, back.stat().st_mtime + 1.5 * HOUR))
    assert launched(tree, "--after-failed-starts", "2") == "50"
    assert marks_of(tree) == {}


def test_a_start_of_another_save_ends_the_row(tree: str) -> None:
    launched(tree, "--after-failed-starts", "2")
    launched(tree, "--after-failed-starts", "2", "--before", "50")
    launched(tree, "--after-failed-starts", "2")
    assert marks_of(tree) == {}


@pytest.mark.parametrize("way", ["--clear", "--good"])
def test_launches_before_a_person_judged_the_save_do_not_count(
    tree: str, clock: Callable[[float], None], way: str
) -> None:
    for _ in range(3):
        launched(tree, "--after-failed-starts", "2")
    clock(HOUR)
    ask("mark", "_1-30_2", tree, way)
    clock(HOUR)
    assert [launched(tree, "--after-failed-starts", "2") for _ in range(3)] == ["60", "60", "50"]


def test_mark_judges_the_counted_launches_too(tree: str) -> None:
    launched(tree, "--after-failed-starts", "9")
    launched(tree, "--after-failed-starts", "9")
    said = ask("mark", "--after-failed-starts", "3", tree, "--json")
    assert "2 of 3 launches in a row" in said.json["unchanged"]
    said = ask("mark", "--after-failed-starts", "2", tree, "--json")
    assert said.json["written"]["name"] == "_1-30_2"


@pytest.mark.parametrize("content", [b"", b"{}", b'{"schema": "ckpttool/starts/1", "starts": []}'])
def test_a_damaged_record_is_never_taken_for_no_starts(tree: str, content: bytes) -> None:
    launched(tree, "--after-failed-starts", "2")
    record(tree).write_bytes(content)
    said = launch(tree, "--after-failed-starts", "2", "-q")
    assert said.code == 14
    assert "remove it to count from 0 again" in said.stderr
    assert said.stderr.count("\n") == 1
    assert ask("mark", "--after-failed-starts", "2", tree).code == 14
    assert launched(tree) == "60"
    record(tree).unlink()
    assert launched(tree, "--after-failed-starts", "2") == "60"


def test_the_record_stays_small(tree: str) -> None:
    for _ in range(3):
        launched(tree, "--after-failed-starts", "500")
    from ckpttool.marks import launches

    starts = json.loads(record(tree).read_bytes())["starts"]
    assert len(starts) == 3
    many = [launches.LaunchedStart(label="x.0", step=None, at=number) for number in range(300)]
    record(tree).write_bytes(launches.encode_starts(many))
    launched(tree, "--after-failed-starts", "500")
    assert len(json.loads(record(tree).read_bytes())["starts"]) == 100


def test_a_held_lock_is_waited_for(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launched(tree, "--after-failed-starts", "2")
    monkeypatch.setattr("ckpttool.marks.launches.PATIENCE_SECONDS", 0.0)
    with locked(str(record(tree)), timeout=0):
        assert launch(tree, "--after-failed-starts", "2").code == 13


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
def test_whichever_call_fails_the_record_is_the_old_or_the_new_one(
    tree: str, monkeypatch: pytest.MonkeyPatch, call: str, error: int
) -> None:
    launched(tree, "--after-failed-starts", "9")
    before = record(tree).read_bytes()
    real = files.replace

    def failing(path: str, data: bytes, **options: bool) -> None:
        with pytest.MonkeyPatch.context() as patch:

            def fails(*_: object, **__: object) -> None:
                raise OSError(error, os.strerror(error))

            patch.setattr(os, call, fails)
            real(path, data, **options)

    with monkeypatch.context() as patch:
        patch.setattr("ckpttool.marks.launches.write", failing)
        assert launch(tree, "--after-failed-starts", "9").code in {1, 16}
    assert record(tree).read_bytes() == before
    assert not [path for path in record(tree).parent.iterdir() if path.suffix == ".tmp"]
    assert launched(tree, "--after-failed-starts", "9") == "60"
    assert len(json.loads(record(tree).read_bytes())["starts"]) == 2


def test_a_tree_that_cannot_be_written_is_refused(tree: str, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    for number, part in enumerate(
        parts_of(Path(tree), Path(tree, "checkpoint"), 2, Random(1), Level.STRUCTURE)  # noqa: S311
    ):
        (parts / f"{number}.ckptpart").write_bytes(part)
    assert ask("launch", str(parts), "--after-failed-starts", "2").code == 15


def test_launches_count_if_a_wrong_clock_dated_the_files_in_the_future(tmp_path: Path) -> None:
    tree = writable(FIXTURES / "layouts/hf_single", tmp_path / "tree")
    for file in tree.rglob("*"):
        os.utime(file, (4e9, 4e9))
    for step in (12, 12, 8):
        said = ask("launch", str(tree), "--after-failed-starts", "2")
        assert f"To resume from step {step} " in said.stdout, said.output
