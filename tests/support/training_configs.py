"""Training configs that lie in files."""

from __future__ import annotations

import ckpttool
from ckpttool.trainers.mindformers.train_config import TrainConfig, with_trainer_defaults


def read_train_config(path: str) -> TrainConfig:
    return with_trainer_defaults(ckpttool.library.read_config(path))
