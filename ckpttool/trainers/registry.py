"""The registry of trainers."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ckpttool.trainers.base import referred
from ckpttool.trainers.common import LOOSE_FILE_LAYOUT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ckpttool.core.logs.base import LogFormat
    from ckpttool.core.logs.reading import LogReader
    from ckpttool.trainers.abilities import Phrasing
    from ckpttool.trainers.base import Layout, Trainer

TRAINERS: tuple[str | Trainer, ...] = (
    "ckpttool.trainers.mindformers:TRAINER",
    "ckpttool.trainers.orbax:TRAINER",
    "ckpttool.trainers.megatron:TRAINER",
    "ckpttool.trainers.verl:TRAINER",
    "ckpttool.trainers.verl.skyrl:TRAINER",
    "ckpttool.trainers.deepspeed:TRAINER",
    "ckpttool.trainers.huggingface:TRAINER",
    "ckpttool.trainers.accelerate:TRAINER",
    "ckpttool.trainers.torchtitan:TRAINER",
    "ckpttool.trainers.composer:TRAINER",
    "ckpttool.trainers.lightning:TRAINER",
    "ckpttool.trainers.olmo_core:TRAINER",
    "ckpttool.trainers.automodel:TRAINER",
    "ckpttool.trainers.torch_dcp:TRAINER",
    "ckpttool.trainers.torch_files:TRAINER",
)
"""All trainers, most specific first; each is a reference, so that a start imports only the trainers it needs."""

LAYOUT_NAMES = (
    "mindformers-rank",
    "mindformers-iteration",
    "mindformers-unified",
    "orbax",
    "megatron",
    "verl",
    "skyrl",
    "deepspeed",
    "hf-trainer",
    "accelerate",
    "torchtitan",
    "composer",
    "lightning",
    "olmo-core",
    "automodel",
    "torch-dcp",
    "torch-files",
    LOOSE_FILE_LAYOUT,
)
"""Values of `--layout`, most usual first.

They are a table, so that `--help` imports no trainer.
"""

FIRST = "mindformers"
"""The trainer whose terms older documents use.

Newer documents contain the terms of every trainer.
"""


_GUARD_LINES = "ckpttool.trainers.mindformers.logs.text:GuardLines"
"""The format of a guard's lines.

It is tried after all trainers' formats, because any trainer's log can contain such lines.
"""


def trainers() -> Iterator[Trainer]:
    """Yield all trainers, most specific first; each trainer is imported only when needed."""
    for trainer in TRAINERS:
        yield cast("Trainer", referred(trainer)) if isinstance(trainer, str) else trainer


def phrasings() -> Iterator[Phrasing]:
    """Yield the phrasing of each trainer that has one."""
    return (trainer.words for trainer in trainers() if trainer.words is not None)


def words_of_logs(formats: Collection[str]) -> Phrasing | None:
    """Return the phrasing of the trainer that wrote some logs; None if it has none, or the logs do not identify it.

    Args:
        formats: Names of the logs' formats.
    """
    for trainer in trainers():
        if any(log.name in formats for log in trainer.log_formats):
            return trainer.words_for(None, formats)
    return None


def log_reader(columns: str | None = None, *, curves: bool = False) -> LogReader:
    """Return a reader of all trainers' logs, including their places.

    Args:
        columns: `step=iter,global_norm=gnorm`: names of fields in logs with named columns.
        curves: Whether learning rates and validation losses are requested.

    Raises:
        UsageError: The columns are invalid.
    """
    from ckpttool.core.logs.reading import LogReader

    formats = [format_ for trainer in trainers() for format_ in trainer.log_formats]
    formats.append(cast("LogFormat", referred(_GUARD_LINES)))
    places = [trainer.log_places for trainer in trainers() if trainer.log_places is not None]
    return LogReader(formats, places, columns=columns, curves=curves)


def trainer_of(layout: Layout) -> Trainer | None:
    """Return the trainer of a layout; None for the layout of a single file."""
    return next((trainer for trainer in trainers() if layout.name in trainer.layout_names), None)


def trainer_named(name: str) -> Trainer:
    """Return a trainer by its name in a config or a plan."""
    return next(trainer for trainer in trainers() if trainer.name == name)
