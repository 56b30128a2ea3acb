"""A header that was read elsewhere tells its scalars, and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpttool.core.domain.scalars import RequestedScalar, ShardFacts
from ckpttool.core.domain.shard import FileStamp, FormatName
from ckpttool.core.formats import read_header
from ckpttool.nodes.storage import RecordedSource
from tests.support.verifying import report

STAMP = FileStamp.on_disk(size=9, mtime_ns=1, inode=1)
REPORT = replace(report(schema="aa"), format=None, stamp=STAMP, scalars=(("epoch_num", 3), ("step_num", 5)))


def test_a_shown_header_has_the_scalars_that_are_asked_for() -> None:
    source = RecordedSource("x", STAMP, {}, REPORT)
    asked = ShardFacts(scalars=(RequestedScalar(name="step_num"),))
    header = read_header(source, named=FormatName.SAFETENSORS, facts=asked)
    expected = ((("step_num", 5),), "aa", FormatName.SAFETENSORS)
    assert (header.scalars, header.schema_hash, header.format) == expected


def test_whoever_asks_for_more_is_told_that_it_was_not_looked_at() -> None:
    with pytest.raises(OSError, match="only its scalars"):
        read_header(RecordedSource("x", STAMP, {}, REPORT), named=FormatName.SAFETENSORS)
