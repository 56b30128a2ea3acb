"""What launchers leave in the environment: several machines are heard of, one is not, and nonsense says nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.node import Job
from ckpttool.trainers.common import LAUNCHERS_VARIABLES, jobs_of

ODD_WORDS = "2(x2) -2 +2 0 00 two 2.0 1e1 2,2 0x2 ² ٣"
ODD = (*ODD_WORDS.split(), "", " ", "9" * 400, "2 2", "\udcff", "\n")


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ({"SLURM_NNODES": "2"}, Job(said_by="SLURM_NNODES=2", several=True)),
        (
            {"SLURM_JOB_NUM_NODES": " 16 ", "SLURM_NNODES": "16"},
            Job(said_by="SLURM_JOB_NUM_NODES=16", several=True),
        ),
        ({"SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "4"}, Job(said_by="SLURM_NNODES=4", several=True)),
        (
            {"OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"},
            Job(
                said_by="OMPI_COMM_WORLD_SIZE=16 and OMPI_COMM_WORLD_LOCAL_SIZE=8",
                several=True,
                ranks=16,
                counts_ranks=True,
            ),
        ),
        (
            {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"},
            Job(said_by="WORLD_SIZE=2 and LOCAL_WORLD_SIZE=1", several=True),
        ),
        ({"WORLD_SIZE": "8"}, Job(said_by="WORLD_SIZE=8", several=False, ranks=8)),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "?"}, Job(said_by="WORLD_SIZE=8", several=False, ranks=8)),
        (
            {"MS_WORKER_NUM": "16", "MS_SCHED_HOST": "10.0.0.1"},
            Job(said_by="MS_WORKER_NUM=16", several=False, ranks=16, counts_ranks=True),
        ),
    ],
)
def test_more_than_one_machine_is_heard_of(environment: dict[str, str], job: Job) -> None:
    assert jobs_of({"HOME": "/root", **environment}) == (job,)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_NNODES": "1", "SLURM_JOB_NUM_NODES": "1"},
        {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"},
        {"OMPI_COMM_WORLD_SIZE": "8"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE": "8"},
        {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"},
        {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "8"},
        {"LOCAL_WORLD_SIZE": "8"},
        {"MS_WORKER_NUM": "8", "MS_SCHED_HOST": "127.0.0.1"},
        {"MS_WORKER_NUM": "8", "MS_SCHED_HOST": "localhost"},
    ],
)
def test_one_machine_says_nothing(environment: dict[str, str]) -> None:
    assert jobs_of(environment) == ()


def test_each_launcher_has_a_say() -> None:
    everything = {
        "SLURM_NNODES": "2", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "MS_WORKER_NUM": "16",
        "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    }  # fmt: skip
    assert [job.said_by.partition("=")[0] for job in jobs_of(everything)] == [
        "SLURM_NNODES",
        "OMPI_COMM_WORLD_SIZE",
        "WORLD_SIZE",
        "MS_WORKER_NUM",
    ]


@pytest.mark.parametrize("value", ODD)
def test_what_is_no_whole_number_says_nothing(value: str) -> None:
    assert jobs_of(dict.fromkeys(LAUNCHERS_VARIABLES, value)) == ()


@given(st.dictionaries(st.sampled_from(LAUNCHERS_VARIABLES), st.one_of(st.text(), st.integers().map(str))))
def test_nothing_that_stands_there_is_an_error(environment: dict[str, str]) -> None:
    for job in jobs_of(environment):
        assert job.several or (job.ranks or 0) >= 1
