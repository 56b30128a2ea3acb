"""Training configs that lie in files."""

from __future__ import annotations

import ckpttool
from ckpttool.trainers.mindformers.train_config import TrainConfig, own


def read_train_config(path: str) -> TrainConfig:
    return own(ckpttool.read_config(path))
