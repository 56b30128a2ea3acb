"""Settings that make a trainer load exactly one checkpoint, and the places where they belong."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from ckpttool.core.domain.frozen import dataclass, replace

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Rename

SettingValue: TypeAlias = "str | bool | int | None"
"""Value of a setting; None if it is not set, which a config may also state explicitly."""


class PlaceKind(str, Enum):
    """Kind of place from which a trainer reads a setting."""

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
    """Name within the kind of place.

    For a config, its keys joined by dots. For an argument, its dashes and name (without dashes it is written
    `name=value`). For an environment variable, its name. For code, a call with the keyword that takes the value, after
    `..., ` if the call has further arguments. For a file, the path below the checkpoint folder; its content is the
    value.
    """

    def __str__(self) -> str:
        """Return the text form that JSON and tables use."""
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
    """One setting for a trainer."""

    place: Place
    value: SettingValue
    is_path: bool = False
    """Whether the value is the path of the checkpoint, which a launch makes absolute."""
    is_default: bool = False
    """Whether it is the trainer's default, which is set only if the config has another value."""
    is_alternative: bool = False
    """Whether this setting is equivalent to the previous one in a different place, so that only one of them is needed.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """Settings that make one trainer load exactly this checkpoint and continue at its data position."""

    trainer: str
    path: str
    """Path to load; relative to the working directory, unless the user typed an absolute path."""
    settings: tuple[TrainerSetting, ...]
    """Settings, most important first."""
    data: tuple[TrainerSetting, ...] = ()
    """Settings for the position where the data continue."""
    first: tuple[Rename, ...] = ()
    """Files to rename first, in this order, with paths relative to the checkpoint folder."""
    remarks: tuple[str, ...] = ()
    """Further notes for the start, one sentence each: options to avoid, checks after the start."""
    older: tuple[tuple[str, str], ...] = ()
    """Older fields under `resume` in `ckpttool/plan/1`, each with the place of the setting that it repeats."""

    def value(self, place: str) -> SettingValue:
        """Return the value of the setting at a place; None if there is no such setting."""
        return next((setting.value for setting in self.settings if str(setting.place) == place), None)

    def at(self, path: str) -> LoadSettings:
        """Return the same settings for a different form of the path."""
        settings = tuple(replace(setting, value=path) if setting.is_path else setting for setting in self.settings)
        return replace(self, path=path, settings=settings)
