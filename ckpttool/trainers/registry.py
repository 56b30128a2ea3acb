"""All trainers, and the layout that a folder's names speak of."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from ckpttool.domain.checkpoint import LayoutName
from ckpttool.storage.base import Storage
from ckpttool.trainers.base import LaunchTarget, Layout, Listing, Trainer
from ckpttool.trainers.common.loose_file import LooseFile
from ckpttool.trainers.huggingface.trainer import HuggingFace
from ckpttool.trainers.megatron.trainer import Megatron
from ckpttool.trainers.mindformers.trainer import MindFormers

if TYPE_CHECKING:
    from ckpttool.logs.reading import LogReader

TRAINERS: tuple[Trainer, ...] = (HuggingFace(), MindFormers(), Megatron())
"""Most specific first."""

LOOSE_FILE: Layout = LooseFile()
"""What is left where a path is a lone file: nobody's tree, so no folder is recognised by it."""


def layouts() -> tuple[Layout, ...]:
    """Return how all trainers arrange checkpoints, most specific first."""
    return tuple(layout for trainer in TRAINERS for layout in trainer.layouts)


def layout_of(name: str) -> Layout:
    """Return the layout that an inventory names."""
    return next(layout for layout in (*layouts(), LOOSE_FILE) if layout.name == name)


def log_reader(columns: str | None = None) -> LogReader:
    """Return a reader of all trainers' logs, which knows where they lie.

    Args:
        columns: `step=iter,global_norm=gnorm`: what the fields are called in logs with named columns.

    Raises:
        UsageError: The columns cannot be meant.
    """
    from ckpttool.logs.reading import LogReader

    formats = [format_ for trainer in TRAINERS for format_ in trainer.log_formats]
    places = [trainer.log_places for trainer in TRAINERS if trainer.log_places is not None]
    return LogReader(formats, places, columns=columns)


def trainer_of(layout: Layout) -> Trainer | None:
    """Return whose layout it is; None for that of a lone file, which is nobody's."""
    names = ((trainer, {own.name for own in trainer.layouts}) for trainer in TRAINERS)
    return next((trainer for trainer, own in names if layout.name in own), None)


def launch_target() -> LaunchTarget:
    """Return how a plan is started."""
    return next(trainer.launch for trainer in TRAINERS if trainer.launch is not None)


def list_root(storage: Storage) -> Listing:
    """List a folder, sorted by name.

    Raises:
        OSError: It cannot be listed.
    """
    return Listing(entries=tuple(sorted(storage.entries(""), key=itemgetter(0))))


def recognise(listing: Listing, *, wanted: LayoutName | None = None) -> Layout | None:
    """Return the layout of a folder; None where no layout knows it.

    Args:
        listing: The folder's names.
        wanted: Look for this one alone, where a folder holds several.
    """
    return next((layout for layout in layouts() if wanted in {None, layout.name} and layout.recognise(listing)), None)
