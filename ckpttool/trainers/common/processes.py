"""The number of this process among a launcher's processes, read from the environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.node import Process
from ckpttool.core.errors import UsageError

_Environment = Mapping[str, str]

_BY_HAND = "give the number of this part, from 1, with --part I/N"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One way to start processes, with the environment variables that it sets.

    Empty variables count as unset.
    """

    launcher: str
    needs: tuple[str, ...]
    """Required variables, each followed by `=` and a value if the value matters."""
    lacks: tuple[str, ...] = ()
    """Variables that must not be set."""
    index: str = ""
    count: tuple[str, ...] = ()
    """Variables with the count, of which the first that is set decides.

    If none is set, the user must specify the count.
    """
    local_index: str = ""
    local_count: str | Callable[[_Environment, int | None], int | None] = ""
    node: str = ""
    alone: bool = False
    """Whether the launcher starts one process per machine."""
    run: tuple[str, ...] = ()
    """Variables whose values, joined by dots, name the run."""
    attempt: str = ""
    looks: bool = True
    """False if the process only supervises others, and has no files to record."""
    refusal: str = ""
    """The reason why a process started this way cannot know its number."""


def _tasks_here(environment: _Environment, local_index: int | None) -> int | None:
    """Return the number of tasks on this node, parsed from `2(x3),1`; None if the value is implausible."""
    counts = environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    node = _whole_number(environment.get("SLURM_NODEID", ""))
    if node is None or local_index is None:
        return None
    for run in counts.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", run)
        if match is None:
            return None
        count, nodes = int(match[1]), int(match[2] or 1)
        if node < nodes:
            return count if local_index < count else None
        node -= nodes
    return None


_TABLE = (
    _Row(
        launcher="torchrun",
        needs=("TORCHELASTIC_RUN_ID",),
        index="RANK",
        count=("WORLD_SIZE",),
        local_index="LOCAL_RANK",
        local_count="LOCAL_WORLD_SIZE",
        node="GROUP_RANK",
        run=("TORCHELASTIC_RUN_ID",),
        attempt="TORCHELASTIC_RESTART_COUNT",
    ),
    _Row(
        launcher="Open MPI",
        needs=("OMPI_COMM_WORLD_RANK",),
        index="OMPI_COMM_WORLD_RANK",
        count=("OMPI_COMM_WORLD_SIZE",),
        local_index="OMPI_COMM_WORLD_LOCAL_RANK",
        local_count="OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Row(  # under Slurm it also has srun's variables, but those of the single task that started all processes
        launcher="MPICH",
        needs=("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
        index="PMI_RANK",
        count=("PMI_SIZE",),
        local_index="MPI_LOCALRANKID",
        local_count="MPI_LOCALNRANKS",
    ),
    _Row(launcher="msrun", needs=("MS_ROLE=MS_SCHED",), looks=False),
    # RANK_ID is not reliable: if msrun does not know the node's rank, it exports 0 to all workers.
    _Row(
        launcher="msrun",
        needs=("MS_ROLE=MS_WORKER", "MS_NODE_ID"),
        index="MS_NODE_ID",
        count=("MS_WORKER_NUM",),
        local_index="DEVICE_ID",
        node="MS_NODE_RANK",
    ),
    _Row(
        launcher="msrun",
        needs=("MS_ROLE=MS_WORKER",),
        refusal=(
            "msrun was started without --node_rank, so this worker does not know its number: start msrun with "
            "--node_rank on each machine, or"
        ),
    ),
    _Row(  # srun's own tasks; `--mpi=pmi2` adds PMI_RANK, but no variable for the tasks on the same machine
        launcher="srun",
        needs=("SLURM_STEP_ID", "SLURM_PROCID"),
        index="SLURM_PROCID",
        count=("SLURM_STEP_NUM_TASKS",),
        local_index="SLURM_LOCALID",
        local_count=_tasks_here,
        node="SLURM_NODEID",
        run=("SLURM_JOB_ID", "SLURM_STEP_ID"),
        attempt="SLURM_RESTART_COUNT",
    ),
    _Row(
        launcher="sbatch",
        needs=("SLURM_JOB_ID",),
        refusal=(
            "this is Slurm's batch script or allocation, which runs only on its first machine: put srun before the "
            "command, or"
        ),
    ),
    _Row(
        launcher="Kubeflow",
        needs=("PET_NODE_RANK", "PET_NNODES"),
        lacks=("LOCAL_RANK",),
        index="PET_NODE_RANK",
        count=("PET_NNODES",),
        alone=True,
    ),
    _Row(
        launcher="Kubeflow",
        needs=("RANK", "WORLD_SIZE"),
        lacks=("LOCAL_RANK",),
        index="RANK",
        count=("WORLD_SIZE",),
        alone=True,
    ),
    _Row(
        launcher="Volcano",
        needs=("VC_TASK_INDEX",),
        index="VC_TASK_INDEX",
        count=("MA_NUM_HOSTS", "VC_WORKER_NUM"),
        alone=True,
    ),
    _Row(launcher="Kubernetes", needs=("JOB_COMPLETION_INDEX",), index="JOB_COMPLETION_INDEX", alone=True),
)
"""The ways to start processes. The first row that matches decides, so inner launchers come first.

Recorded from actual starts, except for the last four rows.
"""

_MOST_DIGITS = 10

_LARGEST_STEP = 0xFFFFFFF0
"""Slurm's own steps, such as the shell of an allocation, have higher numbers; they run without srun."""


def _variables() -> Iterator[str]:
    for row in _TABLE:
        yield from (need.partition("=")[0] for need in (*row.needs, *row.lacks, *row.count, *row.run))
        yield from (name for name in (row.index, row.local_index, row.node, row.attempt) if name)
        if isinstance(row.local_count, str) and row.local_count:
            yield row.local_count
    yield "SLURM_STEP_TASKS_PER_NODE"


VARIABLES = tuple(sorted({*_variables()}))
"""All variables that are read, except `VC_…_NUM`."""


def process_of(environment: Mapping[str, str], *, count: int | None = None) -> Process | None:
    """Return the number of this process in its launcher; None if the process only supervises others.

    Args:
        environment: The environment of this process.
        count: Number of processes according to the user, if any; a number that the launcher reports must agree.

    Raises:
        UsageError: This environment matches no known launcher, or has invalid values.

    Source:
        Recorded from torchrun 2.13, Open MPI 4.1, MPICH 4.0, MindSpore 2.10's msrun and Slurm 22.05; read in
        Kubeflow's, Volcano's and Kubernetes' documentation.
    """
    present = {name: value for name, value in environment.items() if value}
    if _is_slurms_own(present):
        del present["SLURM_STEP_ID"]
    row = next((row for row in _TABLE if _fits(row, present)), None)
    if row is None:
        raise UsageError(f"the environment does not show the number of this part or how many there are: {_BY_HAND}")
    if row.refusal:
        raise UsageError(f"{row.refusal} {_BY_HAND}")
    return _process(row, present, count) if row.looks else None


def _is_slurms_own(present: _Environment) -> bool:
    return (_whole_number(present.get("SLURM_STEP_ID", "")) or 0) > _LARGEST_STEP


def _fits(row: _Row, present: _Environment) -> bool:
    for need in row.needs:
        name, _, value = need.partition("=")
        if name not in present or (value and present[name] != value):
            return False
    return not any(name in present for name in row.lacks)


def _process(row: _Row, present: _Environment, count: int | None) -> Process:
    index = _needed(row, present, row.index)
    count_name = next((name for name in row.count if name in present), None)
    if count_name is not None:
        needed = _needed(row, present, count_name)
        if count not in {None, needed}:
            _refuse(row, f"{count_name} is {needed}, not {count} as in --part")
        count = needed
    if count is None:
        which = f"{row.launcher} gives the number of this process ({index}, from 0), but not how many there are"
        raise UsageError(f"{which}: use --part auto/N")
    if index >= count:
        _refuse(row, f"{row.index} is {index}, but there are {count}")
    _not_of_several_kinds(row, present)
    local_index, local_count = _local(row, present)
    names = [present[name] for name in row.run if name in present]
    return Process(
        launcher=row.launcher,
        index=index,
        count=count,
        local_index=local_index,
        local_count=local_count,
        node=index if row.alone else _whole_number(present.get(row.node, "")),
        run=_run(".".join(names)) if names and names != ["none"] else None,
        attempt=_whole_number(present.get(row.attempt, "")) or 0,
    )


def _local(row: _Row, present: _Environment) -> tuple[int | None, int | None]:
    """Return this process's number on its machine, and the process count there; (None, None) if they disagree."""
    if row.alone:
        return 0, 1
    index = _whole_number(present.get(row.local_index, ""))
    if callable(row.local_count):
        count = row.local_count(present, index)
    else:
        count = _whole_number(present.get(row.local_count, ""))
    if index is None or (count is not None and index >= count):
        return None, None
    return index, count


def _not_of_several_kinds(row: _Row, present: _Environment) -> None:
    """Refuse if a different kind of pod also counts from 0, because two pods would then record the same part."""
    if row.launcher != "Volcano":
        return
    kinds = sorted(name for name in present if re.fullmatch(r"VC_[A-Z0-9_]+_NUM", name) and name != "VC_WORKER_NUM")
    if kinds:
        _refuse(row, f"{row.index} counts the pods of only one kind, and {kinds[0]} shows another kind")


def _needed(row: _Row, present: _Environment, name: str) -> int:
    number = _whole_number(present.get(name, ""))
    if number is None:
        _refuse(row, f"{name} is not a whole number" if name in present else f"there is no {name}")
    return number


def _refuse(row: _Row, why: str) -> NoReturn:
    raise UsageError(f"{row.launcher} started this, but {why}: {_BY_HAND}")


def _run(text: str) -> str:
    """Turn an arbitrary run name into a valid file name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)[:64].strip(".-") or "run"


def _whole_number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None
