"""Settings that make a trainer load exactly one checkpoint, each with its place."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from ckpttool.core.domain.frozen import dataclass, replace

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Rename

SettingValue: TypeAlias = "str | bool | int | None"
"""None: not set, which a config may say in so many words."""


class PlaceKind(str, Enum):
    """The kind of place from which a trainer reads a setting."""

    CONFIG = "config"
    ARGUMENT = "argument"
    ENVIRONMENT = "environment"
    CODE = "code"
    """An argument of a call in the training's own script."""
    FILE = "file"
    """A small file beside the saves that must name one before the start: a tracker, `latest`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Place of a setting: `config:a.b`, `argument:--load`, `environment:RANK_ID`, `code:fit(..., ckpt_path)`."""

    kind: PlaceKind
    name: str
    """Keys of a config joined by dots; an argument with its dashes (one without is said as `name=value`); the name of a
    variable; a call with the keyword that takes the value, behind `..., ` where it has further arguments; the path of a
    file below the checkpoint folder, whose content the value is."""

    def __str__(self) -> str:
        """Return the form that JSON and tables use."""
        return f"{self.kind.value}:{self.name}"

    @classmethod
    def parsed(cls, text: str) -> Place:
        """Parse the text form of a place.

        Raises:
            ValueError: It names no place.
        """
        kind, colon, name = text.partition(":")
        if not colon or not name:
            kinds = "config:a.b, argument:--x, environment:X, code:f(..., x) or file:x"
            raise ValueError(f"expected a place like {kinds}, found {text!r}")
        return cls(kind=PlaceKind(kind), name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSetting:
    """One setting to pass to a trainer."""

    place: Place
    value: SettingValue
    is_path: bool = False
    """Whether the value is the path of what is loaded, which a launch spells in full."""
    is_default: bool = False
    """Whether to say nothing means the same to the trainer: then it is said only where something else stands."""
    is_alternative: bool = False
    """Whether it says what the setting before it says, at another place: one of both is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """The settings that make one trainer load exactly this checkpoint, and continue at its data position."""

    trainer: str
    path: str
    """What is loaded; relative to where we were started, unless the user gave it in full."""
    settings: tuple[TrainerSetting, ...]
    """What to load; the most important first."""
    data: tuple[TrainerSetting, ...] = ()
    """Where the data continue."""
    first: tuple[Rename, ...] = ()
    """What must be done before, in this order; paths are relative to the checkpoint folder."""
    remarks: tuple[str, ...] = ()
    """What else whoever starts it must know, a sentence each: what never to say, what to look at after the start."""
    older: tuple[tuple[str, str], ...] = ()
    """Fields under `resume` in `ckpttool/plan/1`, each with the place of the setting that it repeats."""

    def value(self, place: str) -> SettingValue:
        """Return the value at a place; None if there is none."""
        return next((setting.value for setting in self.settings if str(setting.place) == place), None)

    def at(self, path: str) -> LoadSettings:
        """Return the same with another spelling of the path."""
        settings = tuple(replace(setting, value=path) if setting.is_path else setting for setting in self.settings)
        return replace(self, path=path, settings=settings)
