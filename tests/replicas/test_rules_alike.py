"""Copies that are damaged alike, without any checksum: never is one of them taken for what another is rebuilt from."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from ckpttool.core.domain.finding import Finding, Severity, blocking
from ckpttool.core.domain.frozen import replace
from ckpttool.core.domain.replicas import TensorDigests
from ckpttool.core.domain.shard import ShardRole
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.domain.verdict import ShardReport
from ckpttool.replicas.comparing.findings import replica_findings
from ckpttool.replicas.comparing.judge import judge_replicas
from ckpttool.replicas.model import HealOrder, Place, SavedShards, ShardHealing, Target
from ckpttool.replicas.rules import find_donors
from tests.replicas.comparing.held import NAMES, changed, held, others
from tests.support.verifying import report

BLOCKS = [range(begin, begin + 100) for begin in range(0, 1000, 100)]
"""The seeds of cases; a commit tries a block for each number of known saves."""
NOW = 3

Saved = dict[int, dict[Rank, TensorDigests]]


def read(ranks: dict[Rank, TensorDigests], told: tuple[Finding, ...] = ()) -> dict[Place, ShardReport]:
    """What reading these files tells."""
    return {
        (rank, ShardRole.FULL): replace(
            report(rank, tensors=len(digests), findings=[finding for finding in told if finding.path == str(rank)]),
            path=str(rank),
            stamp=None,
            tensor_digests=digests,
        )
        for rank, digests in ranks.items()
    }


def healed(saves: Saved, world: int, known: int) -> tuple[ShardHealing, ...]:
    """Judge the last save, and ask for donors of what is lost or damaged."""
    now = saves[NOW]
    doubts = judge_replicas(now, others(NOW, saves, most=known)).suspicions
    told = blocking(replica_findings(doubts, {rank: str(rank) for rank in now}))
    damaged = {finding.path for finding in told if finding.severity is Severity.DAMAGE}
    target = [
        Target(rank=Rank(rank), role=ShardRole.FULL, path=str(rank), is_missing=rank not in now, findings=())
        for rank in range(world)
        if rank not in now or str(rank) in damaged
    ]
    witnesses = [
        SavedShards(name=str(step), step=Step(10 * step + 10), same_run=True, shards=read(saves[step]))
        for step in (2, 1, 0)[:known]
    ]
    return find_donors(target, read(now, told), witnesses, None, HealOrder())


def drawn(chance: Random) -> tuple[Saved, int, str]:
    """Damage up to half of a few copies alike, or most of them where a file tells of it; others each by itself."""
    world = chance.randint(2, 8)
    frozen = NAMES[: chance.choice([0, 0, 3])]
    saves = {step: held(range(world), step, frozen=frozen) for step in range(NOW + 1)}
    now = saves[NOW]
    ranks = chance.sample(range(world), world)
    how = chance.choice(["a bit", "a page", "an older step"])
    alike = chance.randint(0, world - 1 if how == "an older step" else world // 2)
    names = chance.sample(NAMES[:6], chance.randint(1, 2) if how == "a bit" else 4)
    for rank in map(Rank, ranks[:alike]):
        now[rank] = saves[1][rank] if how == "an older step" else changed(now[rank], *names, by=how)
    whole, *rest = ranks[alike:]  # where the last one is lost that is whole, nobody is left who could object
    for rank in map(Rank, rest[: chance.choice([0, 0, 1, 2])]):
        now[rank] = changed(now[rank], chance.choice(NAMES), by=rank)
    for gone in chance.sample(ranks, chance.choice([0, 0, 1, 2, world - 2])):
        if gone != whole:
            now.pop(Rank(gone), None)
    return saves, world, how


@pytest.mark.sample(3)
@pytest.mark.parametrize("seeds", BLOCKS)
@pytest.mark.parametrize("known", [1, 2, 3])
def test_no_donor_is_one_of_those_that_were_damaged_alike(known: int, seeds: range) -> None:
    tally: Counter[str] = Counter()
    for seed in seeds:
        chance = Random(seed)  # noqa: S311  the same case for the same seed, no secret
        saves, world, how = drawn(chance)
        whole = held([0], NOW, frozen=NAMES[:3])[Rank(0)], held([0], NOW)[Rank(0)]
        for shard in healed(saves, world, known):
            if shard.donor is None:
                tally["refused"] += 1
                continue
            assert saves[NOW][shard.donor.rank].digests in {each.digests for each in whole}, (seed, how, shard)
            tally[how] += 1
    assert known == 1 or min(tally["a bit"], tally["a page"], tally["refused"]) > len(seeds) // 20
