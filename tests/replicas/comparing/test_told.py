"""Of which files another save of the same start tells which tensors change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpttool.core.domain.units import Step
from ckpttool.core.domain.verdict import Level, ShardReport
from ckpttool.core.verify.copies import tensors_of
from ckpttool.replicas.comparing.compare import SavedTensors, compare_replicas
from tests.replicas.comparing.held import held
from tests.support.verifying import report


def reports(step: int) -> list[ShardReport]:
    """Two ranks that hold the same, as a check at a step finds them."""
    return [
        replace(report(rank), level=Level.CHECKSUM, stamp=None, tensor_digests=digests)
        for rank, digests in held(range(2), step).items()
    ]


@pytest.mark.parametrize(
    ("step", "same_run", "is_told"), [(1, True, True), (None, True, True), (0, True, False), (1, False, False)]
)
def test_a_save_of_step_0_or_of_another_start_is_no_witness_of_what_trains(
    step: int | None, is_told: bool, same_run: bool
) -> None:
    other = SavedTensors(
        name="other",
        step=None if step is None else Step(step),
        older=True,
        same_run=same_run,
        shards=tensors_of(reports(1)),
    )
    assert set(compare_replicas(reports(2), [other]).compared_paths) == (
        {"rank_0/now", "rank_1/now"} if is_told else set()
    )
