"""When a record of who holds which slice is credible_record."""

from __future__ import annotations

import pytest

from ckpttool.core.domain.replicas import TENSOR_DIGEST_BYTES, RecordedSlices, TensorDigests
from ckpttool.core.domain.units import Rank
from ckpttool.replicas.comparing.model import credible_record


@pytest.mark.parametrize(
    ("other", "is_believed"),
    [
        pytest.param({}, True, id="nobody"),
        pytest.param({4: "X"}, True, id="one rank in one tensor"),
        pytest.param({4: "X" * 12}, True, id="one rank in all tensors"),
        pytest.param({3: "X", 4: "Y"}, False, id="two ranks in one tensor"),
        pytest.param({3: "XXXXX", 4: "-----YYYYY"}, False, id="two ranks in many tensors"),
    ],
)
def test_who_differs_tells_whether_a_record_of_the_start_is_of_another_arrangement(
    other: dict[int, str], is_believed: bool
) -> None:
    """Five ranks that should hold the same twelve tensors, and letters in which some differ from the others."""
    names = tuple(f"layer.{number}" for number in range(12))
    ranks = [Rank(rank) for rank in range(5)]
    digests = {rank: f"{other.get(rank, ''):-<12}" for rank in ranks}
    held = {
        rank: TensorDigests(names=names, digests="".join(letter * TENSOR_DIGEST_BYTES for letter in letters).encode())
        for rank, letters in digests.items()
    }
    record = RecordedSlices(source="strategy", slices=dict.fromkeys(names, dict.fromkeys(ranks, 0)), is_of_save=False)
    assert (credible_record(record, held) is record) is is_believed
