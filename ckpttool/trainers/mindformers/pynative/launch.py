"""The start of the PyNative trainer: its config, the command, and the folder of its next saves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ckpttool.core.domain.finding import Code, suspect
from ckpttool.core.domain.preflight import NextSaves
from ckpttool.core.errors import UsageError
from ckpttool.trainers.mindformers.pynative_load import LOAD_BALANCED, LOAD_PATH, NO_LOAD_OPTIM

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.plan import ResumePlan
    from ckpttool.core.render.yaml_edit import Scalar
    from ckpttool.trainers.mindformers.pynative.config import PyNativeConfig

MODE = ("--mode", "1")
"""Options that select the PyNative trainer.

Without them, `run_mindformer.py` passes the same config to the static trainer.
"""

_STAYS = "a resumed run of MindFormers removes only its own checkpoints"


def wanted_settings(document: Mapping[str, object], plan: ResumePlan) -> dict[str, Scalar]:
    """Return the required value of each key, most important first.

    Raises:
        UsageError: The config has no section for these keys.
    """
    if not isinstance(document.get("checkpoint"), dict):
        raise UsageError("the base config has no `checkpoint:` section: write one, with the save_path of the training")
    return {LOAD_PATH: plan.load.path, NO_LOAD_OPTIM: False, LOAD_BALANCED: False}


def other_devices(config: PyNativeConfig, devices: int) -> Iterator[Finding]:
    """Report a number of devices with which a config does not start.

    Source: `_compute_data_parallel_size` and `ParallelDims` of MindFormers 2.1.0.
    """
    started = config.started_on(devices)
    ranks = config.ranks_per_replica
    if started.micro_batch is None or devices % ranks:
        yield suspect(
            Code.CONFIG_DISAGREES,
            f"the config needs a multiple of {ranks} devices (tensor x pipeline x context parallel), but {devices} "
            "will start: the start stops with a ValueError",
            path=config.path,
            remedy=f"start a multiple of {ranks} devices",
            line=config.line("parallelism"),
        )
        return
    sizes = [config.global_batch_size or 1]
    if config.ramp_up is not None:
        levels = range(min(config.ramp_up.levels, 1) + 1)
        sizes += [config.ramp_up.start + level * config.ramp_up.increment for level in levels]
    wrong = next((size for size in sizes if size % started.micro_batch), None)
    if wrong is not None:
        yield suspect(
            Code.CONFIG_DISAGREES,
            f"a global batch of {wrong} samples cannot be divided into micro-batches of {started.micro_batch} "
            f"({started.replicas} data-parallel ranks x local_batch_size {config.local_batch_size}): the start stops "
            "with a ValueError",
            path=config.path,
            remedy="change training.local_batch_size, or the number of devices",
            line=config.line("training.global_batch_size"),
        )


def next_saves(config: PyNativeConfig, root: str) -> NextSaves:
    """Return the folder that the next saves will go to, and how many there will be before the run removes its oldest.

    Args:
        config: The base config.
        root: The checkpoint folder to resume from; a relative path in the config is assumed to name this folder.
    """
    folder = config.save_path.rstrip("/") if os.path.isabs(config.save_path) else root
    return NextSaves(folder=folder, inside=(), count=max(config.save_max, 1) + 1, stays=_STAYS)
