"""Environment variables of launchers that show how many machines a job runs on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckpttool.core.domain.node import Job

_MOST_DIGITS = 9
_THIS_MACHINE = ("127.", "localhost", "::1")


def jobs_in(environment: Mapping[str, str]) -> Iterator[Job]:
    """Yield the job of each launcher that may run on more than one machine; see `jobs_of`."""
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
            # One process per machine need not be a rank: it may start several.
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
