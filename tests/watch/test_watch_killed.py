"""A training that runs, and a watch beside it that is killed again and again; `tests/nightly` has a longer one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tests.support.killed_watch import Course


def test_each_save_is_told_by_a_watch_that_is_killed_again_and_again_and_then_each_trouble(tmp_path: Path) -> None:
    with closing(Course(tmp_path, saves=5, pause=1.5, seed=3, patience=8)) as course:
        course.run(kills=3)
        course.assert_each_save_told_and_nothing_else()
        course.assert_troubles_are_told()
