"""Whether streaming data can go on where the chosen checkpoint stands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from ckpttool.domain.data_position import Stateful
from ckpttool.domain.finding import Finding
from ckpttool.domain.plan import ResumePlan
from ckpttool.domain.question import DataQuestion
from ckpttool.trainers.mindformers.dataset_state import read_states
from ckpttool.trainers.mindformers.load import planned_skip
from ckpttool.trainers.mindformers.streaming import (
    no_folder,
    not_known,
    not_movable,
    state_folder,
    unusable_states,
    writers,
)
from ckpttool.trainers.mindformers.train_config import StreamingData, TrainConfig


def from_states(plan: ResumePlan, config: TrainConfig, stream: StreamingData, data: DataQuestion) -> ResumePlan:
    """Return the plan with where its data position comes from, and with what is wrong there.

    Args:
        plan: What is to be resumed.
        config: With streaming data.
        stream: What it says of them.
        data: What the user asks of the data.
    """
    found = list(not_movable(config, plan, data)) or list(_states(plan, config, stream))
    folder = state_folder(stream, plan)
    data_here = plan.data if folder is None else Stateful(where=folder, without=planned_skip(plan))
    return replace(plan, data=data_here, findings=(*found, *plan.findings))


def _states(plan: ResumePlan, config: TrainConfig, stream: StreamingData) -> Iterator[Finding]:
    """Look for the files from the folder in which we run: so does MindFormers, from where it is started."""
    folder = state_folder(stream, plan)
    if stream.state_dir is None:
        yield no_folder(config)
        return
    if folder is None:
        return
    if not os.path.isabs(stream.state_dir) and not os.path.isdir(stream.state_dir):
        yield not_known(
            config,
            f"there is no folder {stream.state_dir!r} here, and MindFormers looks from where training is started",
            "run ckpttool in that folder, or write an absolute `dataset_state_dir`",
        )
        return
    ranks = writers(stream, config.world_size)
    if ranks is None:
        yield not_known(
            config,
            "the config does not tell which ranks read data",
            "give the whole config (with `parallel`, `parallel_config` and `dataset_strategy`), and --devices in "
            "data-parallel mode",
        )
        return
    states = read_states(folder, ranks)
    yield from unusable_states(os.path.abspath(folder), states.missing, states.broken)
    for rank, why in states.unread[:1]:
        yield not_known(config, f"the state of rank {rank} in {folder} cannot be read ({why})", "let it be read")
