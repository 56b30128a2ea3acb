"""Settings that make a trainer load exactly one checkpoint, each with its location."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from ckpttool.core.domain.frozen import dataclass, replace

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Rename

SettingValue: TypeAlias = "str | bool | int | None"
"""None if not set, which a config may also state explicitly."""


class PlaceKind(str, Enum):
    """The kind of place from which a trainer reads a setting."""

    CONFIG = "config"
    ARGUMENT = "argument"
    ENVIRONMENT = "environment"
    CODE = "code"
    """An argument of a call in the training's own script."""
    FILE = "file"
    """A small file next to the saves that must name a save before the start: a tracker, `latest`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Place of a setting: `config:a.b`, `argument:--load`, `environment:RANK_ID`, `code:fit(..., ckpt_path)`."""

    kind: PlaceKind
    name: str
    """Keys of a config joined by dots; an argument with its dashes (without dashes it is written `name=value`); the
    name of a variable; a call with the keyword that takes the value, after `..., ` if it has further arguments; or the
    path of a file below the checkpoint folder whose content is the value."""

    def __str__(self) -> str:
        """Return the form that JSON and tables use."""
        return f"{self.kind.value}:{self.name}"

    @classmethod
    def parsed(cls, text: str) -> Place:
        """Parse the text form of a place.

        Raises:
            ValueError: The text does not name a place.
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
    """Whether the value is the path to load, which a launch makes absolute."""
    is_default: bool = False
    """Whether it is the trainer's default, which is set only if the config has another value."""
    is_alternative: bool = False
    """Whether it is equivalent to the previous setting in a different place, so that only one of the two is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """The settings that make one trainer load exactly this checkpoint, and continue at its data position."""

    trainer: str
    path: str
    """The path to load; relative to the working directory, unless the user gave an absolute one."""
    settings: tuple[TrainerSetting, ...]
    """The settings, most important first."""
    data: tuple[TrainerSetting, ...] = ()
    """Settings for the position where the data continue."""
    first: tuple[Rename, ...] = ()
    """Files to rename first, in this order; paths are relative to the checkpoint folder."""
    remarks: tuple[str, ...] = ()
    """Further notes for the start, one sentence each: options to avoid, checks after the start."""
    older: tuple[tuple[str, str], ...] = ()
    """Fields under `resume` in `ckpttool/plan/1`, each with the place of the setting that it repeats."""

    def value(self, place: str) -> SettingValue:
        """Return the value at a place; None if there is no value."""
        return next((setting.value for setting in self.settings if str(setting.place) == place), None)

    def at(self, path: str) -> LoadSettings:
        """Return the same settings with the path in a different form."""
        settings = tuple(replace(setting, value=path) if setting.is_path else setting for setting in self.settings)
        return replace(self, path=path, settings=settings)
