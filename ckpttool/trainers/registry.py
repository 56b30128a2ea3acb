"""All trainers, and the layout that a folder's names speak of."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ckpttool.core.domain.frozen import replace
from ckpttool.core.errors import CkptToolError, ForeignConfigError, UsageError
from ckpttool.trainers.base import referred
from ckpttool.trainers.common import LOOSE_FILE_LAYOUT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ckpttool.core.domain.advice import SpikeAdvice, StopAdvice
    from ckpttool.core.domain.data_position import SkipBatches, TrainersSkip
    from ckpttool.core.domain.settings import RunConfig
    from ckpttool.core.logs.reading import LogReader
    from ckpttool.trainers.abilities import HealthFile, Phrasing
    from ckpttool.trainers.base import Layout, LayoutSigns, Trainer
    from ckpttool.trainers.listing import Listing

TRAINERS: tuple[str | Trainer, ...] = (
    "ckpttool.trainers.mindformers:TRAINER",
    "ckpttool.trainers.orbax:TRAINER",
    "ckpttool.trainers.megatron:TRAINER",
    "ckpttool.trainers.verl:TRAINER",
    "ckpttool.trainers.deepspeed:TRAINER",
    "ckpttool.trainers.huggingface:TRAINER",
    "ckpttool.trainers.accelerate:TRAINER",
    "ckpttool.trainers.torchtitan:TRAINER",
    "ckpttool.trainers.lightning:TRAINER",
    "ckpttool.trainers.torch_dcp:TRAINER",
)
"""Most specific first; each by where it is, so that a start imports those that it asks."""

FIRST = "mindformers"
"""Whose words documents had before they had every trainer's."""


def trainers() -> Iterator[Trainer]:
    """Yield all trainers, most specific first; who stops early has imported no other."""
    for trainer in TRAINERS:
        yield cast("Trainer", referred(trainer)) if isinstance(trainer, str) else trainer


def layouts() -> tuple[LayoutSigns, ...]:
    """Return what tells how all trainers arrange checkpoints, most specific first."""
    return tuple(layout for trainer in trainers() for layout in trainer.layouts)


def layout_names() -> tuple[str, ...]:
    """Return what `--layout` takes, the most usual first."""
    names = [name for trainer in trainers() for name in reversed(trainer.layout_names)]
    return (*names, LOOSE_FILE_LAYOUT)


def log_reader(columns: str | None = None, *, curves: bool = False) -> LogReader:
    """Return a reader of all trainers' logs, which knows where they lie.

    Args:
        columns: `step=iter,global_norm=gnorm`: what the fields are called in logs with named columns.
        curves: Whether learning rates and validation losses are asked for.

    Raises:
        UsageError: The columns cannot be meant.
    """
    from ckpttool.core.logs.reading import LogReader

    formats = [format_ for trainer in trainers() for format_ in trainer.log_formats]
    places = [trainer.log_places for trainer in trainers() if trainer.log_places is not None]
    return LogReader(formats, places, columns=columns, curves=curves)


def health_file_of(layout: Layout) -> HealthFile | None:
    """Return the file in which the health of such saves is recorded; for a lone file, which is nobody's, the first."""
    owner = trainer_of(layout)
    if owner is not None:
        return owner.health_file
    return next((trainer.health_file for trainer in trainers() if trainer.health_file is not None), None)


def words_of_all() -> Iterator[Phrasing]:
    """Yield how each trainer is told what ckpttool advises, of those that can be told."""
    return (trainer.words for trainer in trainers() if trainer.words is not None)


def told_trainers(advice: SpikeAdvice | StopAdvice, trainer: Trainer | None) -> SpikeAdvice | StopAdvice:
    """Return the advice with its detour in the settings of every trainer that can do it.

    Args:
        advice: What to do.
        trainer: The trainer that is to go around. Where it is none of them, nobody's settings are of use to it.
    """
    if advice.detour is None:
        return advice
    detours = [detour for phrasing in words_of_all() if (detour := phrasing.detour(advice)) is not None]
    if trainer is not None and trainer.name not in {detour.trainer for detour in detours}:
        detours = [replace(detour, config=(), argument=None) for detour in detours]  # documents name them all
    return replace(advice, detour=replace(advice.detour, detours=tuple(detours)))


def told_skip(skip: SkipBatches, trainer: Trainer | None) -> TrainersSkip | None:
    """Return a skip in its trainer's setting; where nobody says whose it is, in that of the first that has one."""
    asked: Iterable[Phrasing | None] = words_of_all() if trainer is None else (trainer.words,)
    return next(
        (phrased for phrasing in asked if phrasing is not None and (phrased := phrasing.skip(skip)) is not None), None
    )


def trainer_of(layout: Layout) -> Trainer | None:
    """Return whose layout it is; None for that of a lone file, which is nobody's."""
    return next((trainer for trainer in trainers() if layout.name in trainer.layout_names), None)


def trainer_named(name: str) -> Trainer:
    """Return a trainer by the name that a config or a plan has."""
    return next(trainer for trainer in trainers() if trainer.name == name)


def read_config(content: bytes, *, path: str, devices: int | None = None) -> RunConfig:
    """Return what a training config says to the trainer that takes it for one of its own.

    Args:
        content: The whole file.
        path: As the user gave it.
        devices: Ranks that will be started, for configs in which that does not stand.

    Raises:
        CkptToolError: It cannot be used, or none or several take it.
    """
    configs, unread = [], None
    for reader in filter(None, (trainer.configs for trainer in trainers())):
        try:
            configs.append(reader.read(content, path=path, devices=devices))
        except CkptToolError as error:  # another reader may know what this one cannot even parse
            unread = unread or error
    readable = [config for config in configs if config is not None]
    if len(readable) == 1:
        return readable[0]
    if readable:
        titles = " or for ".join(trainer_named(config.trainer).title for config in readable)
        raise UsageError(f"{path} could be a config for {titles}: remove the settings of one of them")
    raise unread or ForeignConfigError(
        f"{path} is no training config that ckpttool knows; it reads those for {config_readers()}"
    )


def config_readers() -> str:
    """Name the trainers whose configs are read, for sentences."""
    titles = [trainer.title for trainer in trainers() if trainer.configs_at is not None]
    return " and ".join(filter(None, (", ".join(titles[:-1]), titles[-1])))


def recognised(listing: Listing, *, layout_name: str | None = None) -> list[Layout]:
    """Return every layout that a folder is arranged in: a training that changed over leaves two.

    One that gives way is returned where it is the only one, or has several saves that are none of the others'. Saves of
    trainers that are not known here are passed over, unless a layout is asked for.

    Args:
        listing: The folder's names.
        layout_name: Look for this one alone, where a folder holds several.

    Raises:
        OSError: None was found, and a folder that would tell cannot be listed.
    """
    from ckpttool.trainers.others import without_others

    layouts_here: list[LayoutSigns] = []
    unread = None
    if layout_name is None:
        listing = without_others(listing)
    for layout in sorted(layouts(), key=lambda layout: layout.gives_way):
        try:
            if layout_name in {None, layout.name} and layout.recognise(listing):
                layouts_here += (
                    [layout]
                    if not (layouts_here and layout.gives_way) or _has_its_own(layout, listing, layouts_here)
                    else []
                )
        except OSError as error:
            unread = error
    if not layouts_here and unread is not None:
        raise unread
    return [signs.layout for signs in layouts_here]


def _has_its_own(layout: LayoutSigns, listing: Listing, peers: Sequence[LayoutSigns]) -> bool:
    """Tell whether a layout that gives way has a series in a folder: one alone is what somebody exported.

    Where the others' own saves look like its saves, what nobody claims is a copy of one of theirs.

    Raises:
        OSError: A folder that would tell cannot be listed.
    """
    from ckpttool.core.storage.base import Kind

    sign_count = 0
    for entry in listing.entries:
        if entry.kind is Kind.FOLDER and layout.part(listing, entry.name, None) is not None:
            if any(peer.part(listing, entry.name, None) is not None for peer in peers):
                return False
            sign_count += 1
    return sign_count > 1


def intended(layouts_: Sequence[Layout], where: str, config: RunConfig | None) -> Layout:
    """Return the one of several layouts that is meant: neither names nor steps tell which training goes on.

    Args:
        layouts_: What a folder holds.
        where: That folder, for people.
        config: Of the run that is to resume: its trainer knows in which one it saves.

    Raises:
        UsageError: Nobody says which.
    """
    if len(layouts_) == 1:
        return layouts_[0]
    names = " and ".join(layout.name for layout in layouts_)
    if config is None:
        raise UsageError(f"{where} holds {names} side by side: say which is meant with --layout")
    trainer = trainer_named(config.trainer)
    saves_in = None if trainer.configs is None else trainer.configs.saves_in(config)
    matching = [layout for layout in layouts_ if layout.name == saves_in]
    matching_trainer = matching or [layout for layout in layouts_ if layout.name in trainer.layout_names]
    if len(matching_trainer) != 1:
        not_told = f"of which {config.path}, a config for {trainer.title}, tells none"
        raise UsageError(f"{where} holds {names} side by side, {not_told}: say which is meant with --layout")
    return matching_trainer[0]
