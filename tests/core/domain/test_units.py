"""Times and durations in words."""

from __future__ import annotations

import pytest

from ckpttool.core.domain.units import lasting, moment


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (45.9, "45 s"),
        (119, "119 s"),
        (120, "2 min"),
        (42 * 60 + 59, "42 min"),
        (7199, "119 min"),
        (7200, "2 h"),
        (9000, "2.5 h"),
        (9.99 * 3600, "9.9 h"),
        (36000, "10 h"),
        (48 * 3600 - 1, "47 h"),
        (48 * 3600, "2 d"),
        (3.29 * 86400, "3.2 d"),
        (4000 * 86400, "4000 d"),
    ],
)
def test_a_duration_is_said_in_one_unit_and_never_rounded_up(seconds: float, words: str) -> None:
    assert lasting(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "1970-01-01T00:00:00Z"), (1_700_000_000.9, "2023-11-14T22:13:20Z"), (-62_135_596_800, "0001-01-01T00:00:00Z")],
)
def test_a_moment_is_said_in_utc_to_the_second(seconds: float, words: str) -> None:
    assert moment(seconds) == words


@pytest.mark.parametrize("seconds", [1e12, -1e12])
def test_a_moment_of_no_calendar_is_none(seconds: float) -> None:
    with pytest.raises(OverflowError):
        moment(seconds)
