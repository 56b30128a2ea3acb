"""Training scalars as a file of MindFormers tells them."""

from __future__ import annotations

from dataclasses import asdict

from ckpttool.core.domain.scalars import ScalarValues
from ckpttool.trainers.mindformers.scalars import TrainState


def values(state: TrainState) -> ScalarValues:
    """What a file with these says; who wrote it is told by another tensor."""
    told = {name: value for name, value in asdict(state).items() if value is not None and name != "by_own_writer"}
    return tuple(sorted(told.items()))
