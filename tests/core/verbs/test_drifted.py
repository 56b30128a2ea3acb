"""A copy that drifted is evidence against each save from there on, once somebody has read one of them."""

from __future__ import annotations

import random
import struct
from collections.abc import Collection
from pathlib import Path

import pytest

import ckpttool
from ckpttool.core.domain.finding import Code, Severity, blocking
from ckpttool.core.domain.health import Health
from ckpttool.core.domain.plan import ResumePlan
from ckpttool.core.domain.verdict import Level
from ckpttool.types import CheckQuestion, ResumeQuestion
from tests.support.trees import Tensor, TreeBuilder, safetensors_bytes, training_scalars

STEPS = (10, 20, 30, 40, 50, 60)
RANKS = 3


def trained(folder: Path, *, drifted: Collection[int] = (), steps: Collection[int] = STEPS, at: int = 0) -> str:
    """Save as three replicas do; at some steps rank 1 holds other weights, as after a device computed wrongly."""
    builder = TreeBuilder(folder).legacy(ranks=RANKS, fmt="safetensors")
    for step in steps:
        for rank in range(RANKS):
            chance = random.Random(step)  # noqa: S311
            values = [[chance.random() for _ in range(8)] for _ in range(6)]
            if rank == 1 and step in drifted:
                values[2][3] += step / 1000
            tensors = [
                Tensor(f"layer.{number}", "Float32", (8,), struct.pack("<8f", *row))
                for number, row in enumerate(values)
            ]
            path = builder.shard(rank, step // 2, 2)
            scalars = training_scalars(epoch=step // 2, true_step=step)
            data = safetensors_bytes([*tensors, *scalars], {"format": "ms"})
            builder.file(path, data, mtime_ns=(1_700_000_000 + at + step) * 10**9)
    return str(folder / "output")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def read(tree: str, *names: str) -> None:
    ckpttool.verify(tree, CheckQuestion(level=Level.CHECKSUM, name=names)).answer()


def chosen(tree: str, question: ResumeQuestion | None = None) -> int | None:
    decision = ckpttool.resolve(tree, question or ResumeQuestion()).decision
    return decision.point.step if isinstance(decision, ResumePlan) else None


def unhealthy(tree: str) -> list[int | None]:
    judged = ckpttool.health(tree).report.judgements
    assert {each.source for each in judged if each.health is Health.UNHEALTHY} <= {"replicas"}
    return [each.step for each in judged if each.health is Health.UNHEALTHY]


def test_resolve_goes_before_a_drift_that_verify_has_seen_and_health_says_so(tmp_path: Path) -> None:
    tree = trained(tmp_path, drifted=(40, 50), steps=STEPS[:-1])
    assert (chosen(tree), unhealthy(tree)) == (50, [])  # nobody has read it yet
    read(tree, "all")
    assert (chosen(tree), unhealthy(tree)) == (30, [40, 50])
    trained(tmp_path, drifted=(60,), steps=(60,))  # which nobody has read
    assert (chosen(tree), unhealthy(tree)) == (30, [40, 50, 60])
    newest = ckpttool.scan(tree).inventory.checkpoints[-1]
    assert {(each.code, each.severity, each.ranks) for each in blocking(newest.findings)} == {
        (Code.REPLICA_DRIFTED, Severity.SUSPECT, (1,))
    }


def test_whoever_ignores_health_takes_a_copy_that_drifted(tmp_path: Path) -> None:
    tree = trained(tmp_path, drifted=(40, 50, 60))
    read(tree, "all")
    assert chosen(tree, ResumeQuestion(ignore_health=True)) == 60
    assert chosen(tree, ResumeQuestion(evidence=Level.CHECKSUM)) == 30


def test_files_that_were_written_anew_are_doubted_no_more(tmp_path: Path) -> None:
    tree = trained(tmp_path, drifted=(40, 50, 60))
    read(tree, "all")
    trained(tmp_path, steps=(40, 50, 60), at=3600)
    assert (chosen(tree), unhealthy(tree)) == (60, [])
