"""A training of sixty saves, and a watch beside it that is killed thirty times."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.support.killed_watch import Course

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="watches for minutes: --nightly")


def test_each_of_sixty_saves_is_told_by_a_watch_that_is_killed_thirty_times_and_then_each_trouble(
    tmp_path: Path,
) -> None:
    with closing(Course(tmp_path, saves=60, pause=2.0, seed=18, patience=12)) as course:
        course.run(kills=30)
        course.assert_each_save_told_and_nothing_else()
        course.assert_troubles_are_told()
