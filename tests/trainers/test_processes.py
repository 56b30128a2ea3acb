"""Each launcher's processes know which they are, and where nothing tells for certain nobody guesses."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.node import Process
from ckpttool.core.errors import UsageError
from ckpttool.trainers.common.processes import VARIABLES, process_of
from tests.conftest import FIXTURES

RECORDED: dict[str, list[dict[str, str]]] = json.loads((FIXTURES / "launchers" / "recorded.json").read_text("utf-8"))

RUN = {"index": 1, "count": 2, "local_index": None, "local_count": None, "node": 1, "run": None, "attempt": 0}
KUBEFLOW = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0"}


def processes(title: str) -> list[Process]:
    found = [process_of({"HOME": "/root", **environment}) for environment in RECORDED[title]]
    return sorted((process for process in found if process is not None), key=lambda process: process.index)


@pytest.mark.parametrize(
    ("title", "launcher", "local"),
    [
        ("srun", "srun", [(0, 3), (1, 3), (2, 3), (0, 2), (1, 2), (0, 2), (1, 2)]),
        ("srun --mpi=pmi2", "srun", [(0, 1), (0, 1)]),
        ("mpirun of Open MPI", "Open MPI", [(0, 3), (1, 3), (2, 3)]),
        ("mpirun of Open MPI under Slurm", "Open MPI", [(0, 3), (1, 3), (2, 3)]),
        ("mpirun of MPICH", "MPICH", [(0, 3), (1, 3), (2, 3)]),
        ("mpirun of MPICH under Slurm", "MPICH", [(0, 3), (1, 3), (2, 3)]),
        ("torchrun", "torchrun", [(0, 2), (1, 2)]),
        ("torchrun under srun", "torchrun", [(0, 2), (1, 2)]),
    ],
)
def test_every_process_of_a_start_is_another_part(title: str, launcher: str, local: list[tuple[int, int]]) -> None:
    found = processes(title)
    assert [process.index for process in found] == list(range(len(local)))
    assert {process.count for process in found} == {len(local)}
    assert {process.launcher for process in found} == {launcher}
    assert [(process.local_index, process.local_count) for process in found] == local


def test_workers_of_one_machine_of_msrun_are_the_first_of_all_and_its_scheduler_is_none() -> None:
    assert sum(process_of(environment) is None for environment in RECORDED["msrun"]) == 1
    first = Process(launcher="msrun", index=0, count=4, local_index=0, local_count=None, node=0, run=None, attempt=0)
    assert processes("msrun")[0] == first
    assert [(process.index, process.local_index) for process in processes("msrun")] == [(0, 0), (1, 1)]


def test_runs_that_a_launcher_names_are_told_apart_and_those_that_it_does_not_have_no_name() -> None:
    assert {process.run for process in processes("srun")} == {"1.0"}
    (run,) = {process.run for process in processes("torchrun")}
    assert run is not None
    assert run.count("-") == 4
    assert {process.run for process in processes("mpirun of Open MPI")} == {None}
    static = {**RECORDED["torchrun"][0], "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "2"}
    process = process_of(static)  # what torchrun calls every run that nobody named
    assert process is not None
    assert (process.run, process.attempt) == (None, 2)


@pytest.mark.parametrize("title", ["sbatch", "salloc"])
def test_an_allocation_without_srun_is_never_part_1(title: str) -> None:
    (environment,) = RECORDED[title]
    with pytest.raises(UsageError, match=r"put srun before the command, or give .* --part I/N"):
        process_of(environment)
    with pytest.raises(UsageError, match="put srun before the command"):  # many a script exports these for torchrun
        process_of({**environment, "RANK": "0", "WORLD_SIZE": "6"})


def test_workers_of_msrun_that_share_a_rank_id_are_refused() -> None:
    workers = [one for one in RECORDED["msrun without --node_rank"] if one["MS_ROLE"] == "MS_WORKER"]
    assert [worker["RANK_ID"] for worker in workers] == ["0", "0"]
    for worker in workers:
        with pytest.raises(UsageError, match=r"without --node_rank.*--part I/N"):
            process_of(worker)


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [
        (KUBEFLOW, "Kubeflow"),
        # Where a pod starts eight processes WORLD_SIZE counts those, and RANK the pods.
        ({**KUBEFLOW, "WORLD_SIZE": "16", "PET_NODE_RANK": "1", "PET_NNODES": "2"}, "Kubeflow"),
        ({"VC_TASK_INDEX": "1", "VC_WORKER_NUM": "2", "VC_WORKER_HOSTS": "a,b"}, "Volcano"),
        ({"VC_TASK_INDEX": "1", "MA_NUM_HOSTS": "2"}, "Volcano"),
    ],
)
def test_a_pod_is_a_part(environment: dict[str, str], launcher: str) -> None:
    found = process_of(environment)
    assert found == Process(**{**RUN, "launcher": launcher, "local_index": 0, "local_count": 1})  # type: ignore[arg-type]


def test_an_indexed_job_is_told_its_size_and_every_other_launcher_agrees_with_what_is_said() -> None:
    job = {"JOB_COMPLETION_INDEX": "1"}
    with pytest.raises(UsageError, match="--part auto/N"):
        process_of(job)
    found = process_of(job, count=2)
    assert found == Process(**{**RUN, "launcher": "Kubernetes", "local_index": 0, "local_count": 1})  # type: ignore[arg-type]
    assert process_of(KUBEFLOW, count=2) is not None
    with pytest.raises(UsageError, match="WORLD_SIZE is 2, not 3"):
        process_of(KUBEFLOW, count=3)


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({}, "the environment does not show"),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "the environment does not show"),
        ({"RANK": "", "WORLD_SIZE": ""}, "the environment does not show"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "but there are 2"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK is not a whole number"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "but there are 0"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "--part auto/N"),
        ({"PET_NODE_RANK": "0", "PET_NNODES": "1:3"}, "PET_NNODES is not a whole number"),
        ({"TORCHELASTIC_RUN_ID": "a"}, "there is no RANK"),
        ({"VC_TASK_INDEX": "0", "VC_WORKER_NUM": "2", "VC_MASTER_NUM": "1"}, "VC_MASTER_NUM shows another kind"),
    ],
)
def test_what_cannot_be_is_an_error_with_the_way_on(environment: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=f"{why}.*--part|--part auto/N"):
        process_of(environment)


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_STEP_TASKS_PER_NODE": "3,2(x"},
        {"SLURM_STEP_TASKS_PER_NODE": ""},
        {"SLURM_NODEID": "7"},
        {"SLURM_NODEID": "x"},
        {"SLURM_LOCALID": "9"},
        {"SLURM_LOCALID": ""},
    ],
)
def test_nobody_relies_on_a_count_of_this_machine_that_cannot_be(changes: dict[str, str]) -> None:
    process = process_of({**RECORDED["srun"][0], **changes})
    assert process is not None
    assert process.local_count is None


@given(st.dictionaries(st.sampled_from(VARIABLES), st.one_of(st.text(), st.integers(0, 9).map(str))))
def test_whatever_stands_there_a_process_is_one_of_its_count(environment: dict[str, str]) -> None:
    process = None
    with suppress(UsageError):
        process = process_of(environment)
    if process is not None:
        assert 0 <= process.index < process.count
        assert process.local_count is None or process.local_index is not None
        assert process.local_count is None or 0 <= (process.local_index or 0) < process.local_count
