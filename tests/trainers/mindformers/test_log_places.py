"""Logs beside a tree: found where MindFormers writes them, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpttool.trainers.mindformers.logs.places import MindFormersLogs


def touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def found(root: Path) -> list[list[str]]:
    return [
        [str(Path(path).relative_to(root)) for path in logs]
        for logs in MindFormersLogs().near(str(root / "output/checkpoint"))
    ]


def test_ranks_come_in_the_order_of_their_numbers_and_rotated_logs_oldest_first(tmp_path: Path) -> None:
    touch(tmp_path, "output/log/rank_10/info.log", "output/log/rank_2/info.log")
    touch(tmp_path, "output/log/rank_2/info.log.1", "output/log/rank_2/info.log.12")
    assert found(tmp_path) == [
        ["output/log/rank_2/info.log.12", "output/log/rank_2/info.log.1", "output/log/rank_2/info.log"],
        ["output/log/rank_10/info.log"],
    ]


def test_msruns_logs_are_taken_where_the_trainers_own_are_not_there(tmp_path: Path) -> None:
    touch(tmp_path, "output/msrun_log/worker_10.log", "output/msrun_log/worker_9.log")
    assert found(tmp_path) == [["output/msrun_log/worker_9.log"], ["output/msrun_log/worker_10.log"]]
    touch(tmp_path, "output/log/rank_0/info.log")
    assert found(tmp_path) == [["output/log/rank_0/info.log"]]


@pytest.mark.parametrize(
    "name",
    [
        "log/rank_0/error.log",
        "log/rank_0_bak/info.log",
        "log/rank_0/info.log.bak",
        "msrun_log/scheduler.log",
        "msrun_log/worker_0.log.old",
        "log/info.log",
    ],
)
def test_what_only_looks_like_one_is_left_alone(name: str, tmp_path: Path) -> None:
    touch(tmp_path, f"output/{name}")
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        ("log", ["rank_0/info.log", "rank_1/info.log"]),
        ("log/rank_0", ["info.log"]),
        ("msrun_log", ["worker_0.log"]),
        ("nothing", []),
    ],
)
def test_a_folder_of_logs_may_be_named(folder: str, names: list[str], tmp_path: Path) -> None:
    touch(tmp_path, "log/rank_0/info.log", "log/rank_1/info.log", "msrun_log/worker_0.log", "nothing/a.txt")
    assert MindFormersLogs().inside(str(tmp_path / folder)) == tuple(str(tmp_path / folder / name) for name in names)
