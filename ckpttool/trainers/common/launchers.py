"""What launchers leave in the environment about how many machines a job runs on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckpttool.core.domain.node import Job

VARIABLES = (
    "LOCAL_WORLD_SIZE",
    "MS_SCHED_HOST",
    "MS_WORKER_NUM",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NNODES",
    "WORLD_SIZE",
)
"""All that is looked at."""

_MOST_DIGITS = 9
_THIS_MACHINE = ("127.", "localhost", "::1")


def jobs_of(environment: Mapping[str, str]) -> tuple[Job, ...]:
    """Return what each launcher says, where that may be more than one machine.

    A variable that is not there, or holds no whole number above 0 (`2(x2)`, nothing, a word), says nothing.

    Source:
        sbatch(1), mpirun(1) and torchrun's documentation; mindspore/parallel/cluster of 2.10 for msrun.
    """
    if not any(name in environment for name in VARIABLES):  # so it is on most machines, and that needs no import
        return ()
    return tuple(_jobs(environment))


def _jobs(environment: Mapping[str, str]) -> Iterator[Job]:
    from ckpttool.core.domain.node import Job

    for name in ("SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        nodes = _count(environment, name)
        if nodes is not None and nodes > 1:
            yield Job(said_by=f"{name}={nodes}", several=True)
            break
    for whole, part in (
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ):
        ranks, here = _count(environment, whole), _count(environment, part)
        if ranks is None or ranks == here:
            continue
        if here is not None and here < ranks:
            said = f"{whole}={ranks} and {part}={here}"
            # One process a machine need not be a rank: it may start several.
            per_device = here > 1
            yield Job(said_by=said, several=True, ranks=ranks if per_device else None, counts_ranks=per_device)
        elif here is None and whole == "WORLD_SIZE":
            yield Job(said_by=f"{whole}={ranks}", several=False, ranks=ranks)
    workers = _count(environment, "MS_WORKER_NUM")
    if workers is not None and not environment.get("MS_SCHED_HOST", "").startswith(_THIS_MACHINE):
        yield Job(said_by=f"MS_WORKER_NUM={workers}", several=False, ranks=workers, counts_ranks=True)


def _count(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        return None
    return int(text) or None
