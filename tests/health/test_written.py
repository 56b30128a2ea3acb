"""When saves were written, on the clock of the logs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpttool.core.domain.checkpoint import Checkpoint
from ckpttool.core.domain.shard import FileStamp
from ckpttool.core.domain.units import ByteCount
from ckpttool.health.read.logs import written
from tests.support.inventories import checkpoint


def saved(name: str, modified_ns: int) -> Checkpoint:
    save = checkpoint(name)
    stamp = FileStamp(size=ByteCount(100), token=(), modified_ns=modified_ns)
    return replace(save, shards=tuple(replace(shard, stamp=stamp) for shard in save.shards))


@pytest.mark.parametrize("modified_ns", [10**21, -(10**21), 10**40])
def test_a_save_of_a_year_that_no_calendar_has_is_left_out_and_its_neighbour_is_not(modified_ns: int) -> None:
    odd, usual = saved("10_2", modified_ns), saved("20_2", 1_700_000_000 * 10**9)
    assert set(written([odd, usual])) == {usual.key}
