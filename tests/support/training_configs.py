"""Training configs that lie in files."""

from __future__ import annotations

from ckpttool import api
from ckpttool.trainers.mindformers.train_config import TrainConfig, own


def read_train_config(path: str) -> TrainConfig:
    return own(api.read_config(path))
