"""Training configs: the fields common to all trainers, and all settings with their lines."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from ckpttool.core.domain.finding import Finding, Row
from ckpttool.core.domain.frozen import dataclass

KeyPath: TypeAlias = "tuple[str | int, ...]"
"""Keys, and indices of lists, on the path from the root of the config to a value."""


class Nested(Enum):
    """Placeholder for a key that contains settings instead of a value."""

    MAPPING = "mapping"
    LIST = "list"


Value: TypeAlias = "str | int | float | bool | Nested | None"
"""Value of a setting in YAML; None if the setting is empty. Dates are text."""


def dotted(key: KeyPath) -> str:
    """Format a key path with dots."""
    return ".".join(map(str, key))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key of a config, or one item of a list."""

    key: KeyPath
    value: Value
    line: int | None
    """Line number, from 1; None if an alias refers to a value that is written elsewhere."""
    spelt: str | None = None
    """Original text of unquoted strings and numbers; None for every other value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a config."""

    path: str
    """Path of the config, as the user typed it."""
    entries: tuple[Setting, ...]
    """Settings, with each section before its contents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepIntervals:
    """How often a training run logs and saves."""

    logged: int | None
    """Steps between two logged losses; None if the loss is logged once per epoch, or never."""
    saved: int | None
    """Steps between two checkpoints; None if a checkpoint is saved once per epoch."""
    path: str
    """Path of the config or record that sets them."""
    logs: bool = True
    """Whether the run logs a loss at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SafeFix:
    """Fix for a setting that has exactly one right value."""

    code: Row
    key: KeyPath
    line: int
    """Line number of the key, from 1."""
    value: str
    """New value, as YAML."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Settings of a training config that all trainers share; subclasses for trainers add more.

    A field is None if the setting is not set and has no known default.
    """

    trainer: str
    """Name of the trainer that reads the config."""
    path: str
    """Path of the config, as the user typed it."""
    text: str
    """Complete text of the file, because a launch config is made from it and the file may change in the meantime."""
    settings: Settings
    world_size: int | None
    """Number of ranks that the config starts."""
    global_batch_size: int | None
    """Samples per batch over all ranks."""
    sink_size: int | None
    """Batches per data sink; None if there is no data sinking, or if another, unread file may set the size."""
    prefix: str | None
    """Prefix of the file names of the next saves."""
    findings: tuple[Finding, ...]
    """Findings about wrong types and unknown places of settings that affect a resume, with lines."""
    pipeline_stages: int | None = None
    replicas: int | None = None
    """Number of data-parallel ranks, if only these are known; model parallelism may multiply the total."""

    def started_on(self, devices: int | None) -> RunConfig:
        """Return the config with the sizes that result from starting it on a number of devices.

        `devices` is None if the number is unknown.

        By default this is the config itself; it differs if a trainer's config does not state the devices.
        """
        del devices
        return self

    def line(self, key: str) -> int | None:
        """Return the line number of a setting; None if the config has no such key."""
        return next((entry.line for entry in self.settings.entries if dotted(entry.key) == key), None)
