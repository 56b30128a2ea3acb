"""Each part of the guard raises at each of its calls, one after the other, in a training that has bad batches."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from tests.guard.faulty import nth
from tests.guard.test_contain import NAMES, PARTS, trained

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="takes minutes: --nightly")


@pytest.mark.parametrize(("owner", "name"), PARTS, ids=NAMES)
def test_a_part_that_raises_at_any_one_call_ends_no_training(owner: object, name: str, tmp_path: Path) -> None:
    real, calls = getattr(owner, name), 0

    def counted(*values: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        return real(*values, **named)

    bad = {4: float("inf"), 7: float("nan")}
    with patch.object(owner, name, counted):
        trained(tmp_path / "whole", bad=bad)
    assert calls > 0
    for number in range(calls):
        with patch.object(owner, name, nth(owner, name, number)):
            training = trained(tmp_path / str(number), bad=bad)
        assert training.the_guard.step == 9, number
        assert "guard-off" not in training.told.kinds()
