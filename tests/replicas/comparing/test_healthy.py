"""No training in which nothing went wrong may raise an alarm, however its model is shared out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpttool.core.domain.finding import Code, Finding, blocking
from ckpttool.core.domain.replicas import RecordedSlices, TensorDigests
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.domain.verdict import Level
from ckpttool.replicas.comparing.findings import replica_findings
from ckpttool.replicas.comparing.judge import judge_replicas
from ckpttool.replicas.comparing.model import Sample, credible_record
from tests.replicas.comparing.held import digest
from tests.support.healthy_trees import alarms
from tests.support.parallel_trainings import Training, drawn, parallel_tree

TRAININGS = 60
"""A share of those that `tests/nightly` looks at."""
TREES = 3

BY_REPLICAS = frozenset({Code.REPLICA_DIFFERS, Code.REPLICA_STALE, Code.REPLICA_DRIFTED})

Schema = tuple[tuple[str, tuple[int, ...]], ...]


def saved(training: Training) -> Iterator[tuple[int, int, dict[Rank, tuple[Schema, TensorDigests]]]]:
    """Return start, step and what each rank holds of every save."""
    for start, step in training.steps():
        ranks = {}
        for rank in range(training.meshes[start].world):
            held = sorted(training.held(start, rank, step).items())
            schema = tuple((name, tuple(shape)) for name, (shape, _) in held)
            # Equal contents of different lengths are no equal bytes.
            digests = b"".join(digest(content, tuple(shape)) for _, (shape, content) in held)
            ranks[Rank(rank)] = schema, TensorDigests(names=tuple(name for name, _ in held), digests=digests)
        yield start, step, ranks


def said(training: Training, recorded: int | None = None) -> Iterator[tuple[int, int, Finding]]:
    """Judge every save with as many others as may be known; yield its step, how many were known, and what is said.

    Args:
        training: What was saved.
        recorded: The start whose arrangement is recorded beside all of it; None: there is no record.
    """
    record = None if recorded is None else record_of(training, recorded)
    saves = list(saved(training))
    for start, step, ranks in saves:
        near = sorted(saves, key=lambda other: (abs(other[1] - step), other[1]))
        others = [other for other in near if other[1] != step and len(other[2]) == len(ranks)]
        for known in range(len(others) + 1):
            witnesses = [
                Sample(
                    name=str(then),
                    step=Step(then),
                    older=then < step,
                    same_run=their_start == start,
                    tensors={rank: held for rank, (schema, held) in told.items() if schema == ranks[rank][0]},
                )
                for their_start, then, told in others[:known]
            ]
            now = {rank: held for rank, (_, held) in ranks.items()}
            # Whoever reads strategy files takes none of another number of ranks.
            told = None if recorded is None or training.meshes[recorded].world != len(now) else record
            judged = judge_replicas(now, witnesses, credible_record(told, now))
            paths = {rank: f"rank_{rank}" for rank in ranks}
            yield from ((step, known, finding) for finding in replica_findings(judged.suspicions, paths))


def record_of(training: Training, start: int) -> RecordedSlices:
    """What the strategy files of a start tell, beside the saves of all starts."""
    slices = training.recorded(start)
    of_ranks = {name: {Rank(rank): number for rank, number in held.items()} for name, held in slices.items()}
    return RecordedSlices(source="../strategy", slices=of_ranks, is_of_save=False)


@pytest.mark.slow
@pytest.mark.parametrize("tenth", range(10))
def test_no_healthy_training_raises_an_alarm_whichever_start_s_arrangement_is_recorded(tenth: int) -> None:
    for seed in range(tenth * TRAININGS // 10, (tenth + 1) * TRAININGS // 10):
        training = drawn(seed)
        for start in range(len(training.meshes)):
            wrong = [(step, known, finding) for step, known, finding in said(training, start) if blocking([finding])]
            assert not wrong, (training, start, wrong[0])


@pytest.mark.sample(3)
@pytest.mark.parametrize("tenth", range(10))
def test_no_healthy_training_raises_an_alarm_whatever_others_are_known(tenth: int) -> None:
    for seed in range(tenth * TRAININGS // 10, (tenth + 1) * TRAININGS // 10):
        training = drawn(seed)
        wrong = [(step, known, finding) for step, known, finding in said(training) if blocking([finding])]
        assert not wrong, (training, wrong[0])


@pytest.mark.parametrize("seed", range(TREES))
def test_no_healthy_tree_of_files_raises_an_alarm(tmp_path: Path, seed: int) -> None:
    folder = parallel_tree(tmp_path, drawn(seed, most=8))
    assert not [finding for finding in alarms(folder, Level.CHECKSUM) if finding.code in BY_REPLICAS]
