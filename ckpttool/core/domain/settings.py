"""A training config: the fields common to all trainers, and every setting with its line, for rules."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from ckpttool.core.domain.finding import Finding, Row
from ckpttool.core.domain.frozen import dataclass

KeyPath: TypeAlias = "tuple[str | int, ...]"
"""Keys, and indices of lists, from the root of the config to a value."""


class Nested(Enum):
    """Placeholder for a key that contains settings instead of a value."""

    MAPPING = "mapping"
    LIST = "list"


Value: TypeAlias = "str | int | float | bool | Nested | None"
"""The value of a setting in YAML; None if the setting is empty. A date is text."""


def dotted(key: KeyPath) -> str:
    """Format a key path with dots."""
    return ".".join(map(str, key))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key, or one item of a list."""

    key: KeyPath
    value: Value
    line: int | None
    """Counted from 1; None if the value is written elsewhere, and an alias refers to it."""
    spelt: str | None = None
    """The original text of unquoted strings and numbers; None for every other value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a config."""

    path: str
    """The path from the user."""
    entries: tuple[Setting, ...]
    """All settings; a section comes before its contents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SafeFix:
    """The fix for a finding whose setting has exactly one right value."""

    code: Row
    key: KeyPath
    line: int
    """Line of the key, from 1."""
    value: str
    """The new value, as YAML."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The settings of a training config that all trainers share; the class of each trainer adds more.

    A field is None if the setting is not set and has no known default.
    """

    trainer: str
    """The name of the trainer that reads the config."""
    path: str
    """The path from the user."""
    text: str
    """The complete file, because a launch config is made from it and the file may change in the meantime."""
    settings: Settings
    world_size: int | None
    """Number of ranks that the config starts."""
    global_batch_size: int | None
    """Samples per batch over all ranks."""
    sink_size: int | None
    """Batches per data sink; None if there is no data sinking, or if another file, which was not read, may set the
    size."""
    prefix: str | None
    """Beginning of the file names of the next saves."""
    findings: tuple[Finding, ...]
    """Wrong types and unknown places that change a resume, with lines."""
    pipeline_stages: int | None = None
    replicas: int | None = None
    """Data-parallel ranks, if only these are known: model parallelism may multiply the total."""

    def started_on(self, devices: int | None) -> RunConfig:
        """Return the meaning of the config on this number of devices; None if that is unknown.

        By default this is the config itself; it differs if a trainer's config does not state the devices.
        """
        del devices
        return self

    def line(self, key: str) -> int | None:
        """Return the line of a setting; None if the config has no such key."""
        return next((entry.line for entry in self.settings.entries if dotted(entry.key) == key), None)
