"""Code that several trainers share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ckpttool.core.domain.node import Job

LOOSE_FILE_LAYOUT = "loose-file"
"""Name of the layout of a file without a tree, in JSON and for `--layout`."""

TRACKER = "latest_checkpointed_iteration.txt"

SKYRL_TRACKER = "latest_ckpt_global_step.txt"

TRACKERS = {TRACKER: "Megatron-LM, verl or MindFormers", "latest": "DeepSpeed", SKYRL_TRACKER: "SkyRL"}
"""Files that name the last save, each with the trainers that write that file."""

LAUNCHERS_VARIABLES = (
    "LOCAL_WORLD_SIZE",
    "MS_SCHED_HOST",
    "MS_WORKER_NUM",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NNODES",
    "WORLD_SIZE",
)
"""The environment variables of launchers that ckpttool reads."""


def jobs_of(environment: Mapping[str, str]) -> tuple[Job, ...]:
    """Return the jobs, as reported by the launchers, that may run on more than one machine.

    A variable that is unset, or is not an integer above 0 (`2(x2)`, empty, a word), is ignored.

    Source:
        sbatch(1), mpirun(1) and torchrun's documentation; mindspore/parallel/cluster of 2.10 for msrun.
    """
    if not any(name in environment for name in LAUNCHERS_VARIABLES):  # the case on most machines, which needs no import
        return ()
    from ckpttool.trainers.common.launchers import jobs_in

    return tuple(jobs_in(environment))
