"""A tree and a config of the PyNative trainer, with one change each."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from ckpttool.core.verbs.configs import parse_config
from ckpttool.trainers.mindformers.pynative.config import PyNativeConfig
from tests.support.answers import FIXTURES

PYNATIVE = FIXTURES / "pynative"
BASE = (PYNATIVE / "pretrain.yaml").read_text()


def changed(**values: object) -> str:
    """Return the config with other values of keys that it has; a value may contain lines of further keys."""
    text = BASE
    for key, value in values.items():
        text, count = re.subn(rf"(?m)^(\s+){key}:.*$", rf"\g<1>{key}: {value}", text, count=1)
        assert count, key
    return text


def config_of(text: str, *, devices: int | None = None) -> PyNativeConfig:
    """Read a config of the PyNative trainer."""
    config = parse_config(text.encode(), path="base.yaml", devices=devices)
    assert isinstance(config, PyNativeConfig)
    return config


def tree_of(name: str, folder: Path) -> Path:
    """Copy a tree that the trainer wrote into an output folder, with its times."""
    return Path(shutil.copytree(PYNATIVE / name / "checkpoint", folder / "output" / "checkpoint"))
