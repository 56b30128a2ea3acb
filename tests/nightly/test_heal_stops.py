"""A heal that is stopped at every call, in every way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replicas.test_heal_interrupted import quick, stop_at_calls
from tests.support.prunable_trees import WAYS

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="stops at every call: --nightly")

__all__ = ["quick"]


@pytest.mark.parametrize("way", WAYS)
def test_wherever_it_stops_in_whatever_way_the_next_one_ends_it(way: str, tmp_path: Path) -> None:
    stop_at_calls(tmp_path, range(1, 1000), lambda _: way)
