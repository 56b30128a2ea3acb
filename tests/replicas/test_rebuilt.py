"""A file and the one that it was rebuilt from are one witness, whoever was rebuilt from whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from ckpttool.core.domain.manifest import ShardSeal
from ckpttool.core.domain.replicas import Healed, Proof, TensorDigests, Trust
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.domain.units import ByteCount, Rank
from ckpttool.core.domain.verdict import ShardReport
from ckpttool.replicas.rebuilt import rebuilt_from
from tests.support.verifying import report

AT = "2025-01-31T23:59:59Z"


def holding(rank: int, content: int = 1) -> ShardReport:
    return replace(report(rank), tensor_digests=TensorDigests(names=("w",), digests=bytes([content] * 8)))


def seals(healed: Mapping[int, int]) -> dict[str, ShardSeal]:
    """What a manifest has of ranks: from which other one each was rebuilt."""
    made = {}
    for rank, origin in healed.items():
        record = Healed(rank=Rank(origin), proof=Proof.LEARNED, trust=Trust.NUMERICS, at=AT)
        path = report(rank).path
        made[path] = ShardSeal(
            path=path, size=ByteCount(1), xxh3_128="0", chunks=(), format=FormatName.SAFETENSORS, schema_hash=None,
            scalars=(), first_seen=AT, healed=record,
        )  # fmt: skip
    return made


@pytest.mark.parametrize(
    ("healed", "expected"),
    [
        ({}, {}),
        ({1: 0}, {1: 0}),
        ({1: 0, 2: 0}, {1: 0, 2: 0}),
        ({1: 0, 2: 1}, {1: 0, 2: 0}),
        ({1: 2, 2: 0}, {1: 0, 2: 0}),
        ({1: 0, 0: 1}, {0: 1}),
        ({0: 1, 1: 2, 2: 0}, {0: 2, 1: 2}),
        ({1: 7}, {}),
    ],
)
def test_every_file_that_comes_from_another_names_the_first_one(
    healed: dict[int, int], expected: dict[int, int]
) -> None:
    found = rebuilt_from([holding(rank) for rank in range(3)], seals(healed))
    assert found == {report(rank).path: report(origin).path for rank, origin in expected.items()}


def test_one_that_differs_from_its_donor_by_now_speaks_for_itself() -> None:
    assert rebuilt_from([holding(0, 2), holding(1)], seals({1: 0})) == {}
    assert rebuilt_from([report(0), holding(1)], seals({1: 0})) == {}
    assert rebuilt_from([report(0), report(1)], seals({1: 0})) == {}


def test_files_that_were_rebuilt_from_one_that_changed_since_or_is_lost_are_one_witness() -> None:
    expected = {report(2).path: report(1).path}
    assert rebuilt_from([holding(0, 2), holding(1), holding(2)], seals({1: 0, 2: 0})) == expected
    assert rebuilt_from([holding(1), holding(2)], seals({1: 0, 2: 0})) == expected
    assert rebuilt_from([holding(1), holding(2, 2)], seals({1: 0, 2: 0})) == {}
    assert rebuilt_from([holding(1), holding(2)], seals({1: 0, 2: 3})) == {}
