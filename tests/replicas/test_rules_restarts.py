"""What may be healed in trainings that were started again: never from a rank that holds something else."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace as replaced
from random import Random

import pytest

from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.replicas import TENSOR_DIGEST_BYTES
from ckpttool.core.domain.shard import FormatName, ShardRole
from ckpttool.core.domain.units import ByteCount, Rank, Step
from ckpttool.core.domain.verdict import Level, ShardReport
from ckpttool.replicas.model import HealOrder, Place, SavedShards, ShardHealing, Target
from ckpttool.replicas.rules import find_donors
from tests.replicas.comparing.test_healthy import saved
from tests.support.parallel_trainings import Mesh, Training, drawn

TRAININGS = 20

Save = tuple[int, int, dict[Place, ShardReport]]
"""Start, step, and what each rank holds."""

TP2DP2 = Mesh(data=2, tensor=2, pipeline=1, tensor_last=True, experts=1, shards=1, weights_too=False)
FOUR = Mesh(data=4, tensor=1, pipeline=1, tensor_last=True, experts=1, shards=1, weights_too=False)


def saves_of(training: Training) -> list[Save]:
    """Every save of a training, as it is read."""
    return [
        (
            start,
            step,
            {
                (rank, ShardRole.FULL): ShardReport(
                    path=str(rank), rank=rank, role=ShardRole.FULL, level=Level.NUMERICS,
                    format=FormatName.MINDSPORE_CKPT, stamp=None, scalars=(), schema_hash=str(schema),
                    tensors=len(digests), checksum_matched=False, bytes_read=ByteCount(0), findings=(),
                    tensor_digests=digests,
                )
                for rank, (schema, digests) in ranks.items()
            },
        )
        for start, step, ranks in saved(training)
    ]  # fmt: skip


def healed(saves: list[Save], at: int, target: Collection[Rank], now: dict[Place, ShardReport]) -> list[ShardHealing]:
    """Ask for donors, with each number of other checkpoints that may be known."""
    start, step, _ = saves[at]
    others = [
        SavedShards(name=str(then), step=Step(then), same_run=their_start == start, shards=ranks)
        for their_start, then, ranks in sorted(
            (other for other in saves if other[1] != step and len(other[2]) == len(saves[at][2])),
            key=lambda other: (other[0] != start, abs(other[1] - step), other[1]),
        )
    ]
    orders = [Target(rank=rank, role=ShardRole.FULL, path=str(rank), is_missing=True, findings=()) for rank in target]
    return [
        shard
        for known in range(len(others) + 1)
        for shard in find_donors(orders, now, others[:known], None, HealOrder())
    ]


def damaged(report: ShardReport, at: int) -> ShardReport:
    """The same file with another content of one tensor."""
    held = report.tensor_digests
    assert held is not None
    place = at % len(held) * TENSOR_DIGEST_BYTES
    digests = held.digests[:place] + b"\xff" * TENSOR_DIGEST_BYTES + held.digests[place + TENSOR_DIGEST_BYTES :]
    return replace(report, tensor_digests=replace(held, digests=digests))


def donors(training: Training, *, is_lost: bool) -> Iterator[tuple[int, ShardHealing, bool]]:
    """Take ranks away, or damage a tensor of theirs, at every save.

    Yield the step, each donor that is proven then, and whether it holds what was lost.
    """
    chance = Random(training.seed)  # noqa: S311  the same ranks for the same seed, no secret
    saves = saves_of(training)
    for at, (_, step, ranks) in enumerate(saves):
        world = [rank for rank, _ in ranks]
        for most in (1, 1, len(world) // 2):
            target = sorted(chance.sample(world, max(1, most)))
            now = {place: report for place, report in ranks.items() if place[0] not in target}
            if not is_lost:
                place = chance.randrange(100)
                now |= {(rank, ShardRole.FULL): damaged(ranks[rank, ShardRole.FULL], place) for rank in target}
            for shard in healed(saves, at, target, now):
                if shard.donor is not None:
                    given, own = (ranks[rank, ShardRole.FULL] for rank in (shard.donor.rank, shard.target.rank))
                    same = (given.schema_hash, given.tensor_digests) == (own.schema_hash, own.tensor_digests)
                    yield step, shard, same


@pytest.mark.sample(2)
@pytest.mark.parametrize("quarter", range(4))
@pytest.mark.parametrize("is_lost", [True, False])
def test_no_donor_holds_another_slice_whatever_changed_between_starts(quarter: int, is_lost: bool) -> None:
    proven = 0
    for seed in range(quarter * TRAININGS // 4, (quarter + 1) * TRAININGS // 4):
        training = drawn(seed)
        for step, shard, is_right in donors(training, is_lost=is_lost):
            assert is_right, (training, step, shard)
            proven += 1
    assert proven


def restarted(*meshes: Mesh, saves: tuple[int, ...]) -> Training:
    """A plain training with one start for each arrangement; its slices begin equal."""
    return replaced(
        drawn(0), meshes=meshes, saves=saves, zero_start=False, same_seed=True, has_rng=False, has_counter=False,
        has_statistics=False, has_frozen=False, unfrozen_at=None, rare=False, skipped=frozenset(),
        shifting_batch=False,
    )  # fmt: skip


@pytest.mark.parametrize("is_lost", [True, False])
def test_the_first_two_saves_after_a_restart_can_be_healed(is_lost: bool) -> None:
    training = restarted(FOUR, FOUR, saves=(2, 2))
    steps = {(step, shard.donor.rest_agrees) for step, shard, _ in donors(training, is_lost=is_lost) if shard.donor}
    assert {step for step, _ in steps} == {10, 20, 30, 40}
    assert {rest for _, rest in steps} == ({False} if is_lost else {False, True})


@pytest.mark.parametrize("is_lost", [True, False])
def test_after_a_restart_in_another_order_of_ranks_the_earlier_saves_prove_nothing(is_lost: bool) -> None:
    other_order = replaced(TP2DP2, tensor_last=False)
    found = list(donors(restarted(TP2DP2, other_order, saves=(3, 2)), is_lost=is_lost))
    assert all(is_right for _, _, is_right in found)
    crossed = [step for step, shard, _ in found if shard.donor and not shard.donor.rest_agrees and step > 30]
    assert not crossed
    same = donors(restarted(TP2DP2, TP2DP2, saves=(3, 2)), is_lost=is_lost)
    assert any(step > 30 for step, _, _ in same)


def test_equal_by_chance_after_such_a_restart_is_no_copy() -> None:
    """Nothing was trained before the first save of the second start: there all ranks are equal."""
    first, second = saves_of(restarted(TP2DP2, replaced(TP2DP2, tensor_last=False), saves=(1, 2)))[::2]
    begun = restarted(TP2DP2, saves=(1,))
    (untrained,) = saves_of(replaced(begun, skipped=frozenset({10})))
    saves = [first, (1, 20, untrained[2]), second]
    for target in ([0], [1], [0, 2], [0, 3], [1, 3]):
        now = {place: report for place, report in second[2].items() if place[0] not in target}
        assert all(shard.donor is None for shard in healed(saves, 2, [Rank(rank) for rank in target], now))
