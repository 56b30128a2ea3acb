"""Training configs that lie in files."""

from __future__ import annotations

from ckpttool.formats.safe_yaml import read_bytes
from ckpttool.trainers.mindformers.config import TrainConfigs
from ckpttool.trainers.mindformers.train_config import TrainConfig


def read_train_config(path: str) -> TrainConfig:
    return TrainConfigs().read(read_bytes(path), path=path)
