"""No optimizer notices an update that was dropped, in whichever way it is made."""

from __future__ import annotations

import pytest

from tests.guard.loop import Updates
from tests.guard.optimizers import every_way
from tests.guard.test_step import assert_no_trace

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="every optimizer in every way: --nightly")

WAYS = dict(every_way())


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("updates", WAYS.values(), ids=WAYS)
def test_no_optimizer_notices_a_dropped_update(updates: Updates, closure: bool) -> None:
    assert_no_trace(updates, closure=closure)


def test_each_way_of_eight_optimizers_and_more_is_tried() -> None:
    assert len({name.partition("-")[0] for name in WAYS}) >= 8
    assert {name.partition("-")[2] for name in WAYS} == {"single", "foreach", "fused"}
