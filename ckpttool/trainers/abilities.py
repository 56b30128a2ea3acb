"""Optional knowledge about a trainer: an object with answers, or None if nothing is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ckpttool.core.domain.frozen import dataclass

if TYPE_CHECKING:
    from ckpttool.core.domain.advice import Calibration, SpikeAdvice, StopAdvice, ThresholdSettings, TrainersDetour
    from ckpttool.core.domain.checkpoint import Checkpoint, Inventory
    from ckpttool.core.domain.data_position import SkipBatches, TrainersSkip
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.health import Health, HealthBook
    from ckpttool.core.domain.launch import LaunchConfig, LaunchJob
    from ckpttool.core.domain.plan import JudgedStart, ResumePlan, Simulation
    from ckpttool.core.domain.preflight import NextSaves
    from ckpttool.core.domain.settings import RunConfig, SafeFix
    from ckpttool.core.domain.verdict import Verdict
    from ckpttool.core.formats.config_text import ConfigFile
    from ckpttool.core.storage.base import Storage

PolicyWords: TypeAlias = "tuple[tuple[str, str | float], ...]"
"""Settings of a policy, by name."""


class HealthFile(Protocol):
    """A file in which a trainer records the health of its saves, in their folder or above it."""

    @property
    def name(self) -> str:
        """Its file name."""
        ...

    def read(self, storage: Storage, path: str) -> HealthBook:
        """Read the records and report problems as findings. The path is relative to the storage's root."""
        ...

    def updated(self, old: bytes | None, judgements: Iterable[tuple[str, Health]]) -> bytes:
        """Return its new content with the health of saves, by their recorded names; the old content if nothing changes.

        Raises:
            ValueError: The old content is not from such a file.
        """
        ...


class ConfigReader(Protocol):
    """Reader of a trainer's configs."""

    def may_be_own(self, content: bytes) -> bool:
        """Return, without parsing, if a file may be this trainer's config; False only if `read` would return None."""
        ...

    def read(self, file: ConfigFile, *, devices: int | None = None) -> RunConfig | None:
        """Return the config's settings for resuming, parallelism and data; None if it is not a config of this trainer.

        Only keys that no other trainer uses identify the trainer.

        Args:
            file: The complete file.
            devices: Number of ranks to start, for configs that do not contain it.

        Raises:
            CkptToolError: The config is this trainer's and cannot be used.
        """
        ...

    def saves_in(self, config: RunConfig) -> str | None:
        """Return the layout in which a run with this config saves and loads; None if unknown.

        Raises:
            UsageError: The config is another trainer's.
        """
        ...

    def lint(self, config: RunConfig) -> tuple[Finding, ...]:
        """Return the mistakes in a config, in the order of the file, including those found by `read`."""
        ...

    def fixes(self, config: RunConfig) -> tuple[SafeFix, ...]:
        """Return the right value of each mistake that has exactly one."""
        ...


class LaunchTarget(Protocol):
    """How a trainer is started."""

    @property
    def folder(self) -> str:
        """The folder in which its commands are run, as its documentation names it."""
        ...

    def config(self, base: RunConfig, plan: ResumePlan) -> LaunchConfig:
        """Return the user's config with only the settings of the plan changed.

        Raises:
            CkptToolError: This config cannot be changed that way.
        """
        ...

    def commands(self, base: RunConfig, job: LaunchJob) -> tuple[str, ...]:
        """Return the shell command for each node, by node rank.

        Raises:
            UsageError: No job can be started with these arguments.
        """
        ...

    def other_devices(self, base: RunConfig, devices: int) -> tuple[Finding, ...]:
        """Report a config for a different number of devices than will be started, for any checkpoint."""
        ...

    def next_saves(self, base: RunConfig, inventory: Inventory) -> NextSaves:
        """Return the folder of the next saves, and how many must fit there."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStart:
    """A start without an explicitly named save."""

    storage: Storage
    """The tree."""
    inventory: Inventory
    checked: Callable[[Checkpoint], Verdict]
    """Checks a save's headers and sizes. Most trainers choose by name, and notice damage only when they load."""
    config: RunConfig | None
    """Config of the run to resume; None if unknown."""
    world_size: int | None
    """Number of ranks according to the user."""


class Simulator(Protocol):
    """Simulation of a trainer's own choice."""

    def pick(self, start: OwnStart, version: str | None) -> Simulation:
        """Return the save that a version would load, why, and the outcome.

        Args:
            start: The tree, and the config and the number of ranks of the run.
            version: The version as people write it: `2.1`; None for the newest known version, or the behaviour of all
                known versions.

        Raises:
            UsageError: The version is unknown.
        """
        ...

    def as_it_stands(self, start: OwnStart, plan: ResumePlan) -> JudgedStart:
        """Return the save that a start with the current config, records and names would load, by the same rules.

        Args:
            start: The tree, and the config and the number of ranks of the run.
            plan: The plan: the checkpoint to load, and the position in the data.
        """
        ...


class Phrasing(Protocol):
    """A trainer's settings for ckpttool's advice."""

    @property
    def own_policy(self) -> str | None:
        """Name of the policy that is the trainer's own rule, with its defaults; None if it has no such rule."""
        ...

    def detour(self, advice: SpikeAdvice | StopAdvice) -> TrainersDetour | None:
        """Return the trainer's settings for a detour around bad data; None if it has no such settings."""
        ...

    def thresholds(self, calibration: Calibration) -> ThresholdSettings | None:
        """Return the settings for thresholds; None if it has none."""
        ...

    def skip(self, skip: SkipBatches) -> TrainersSkip | None:
        """Return the settings for skipping batches of the data; None if it has none."""
        ...

    def policy_words(self, settings: PolicyWords) -> PolicyWords:
        """Format a policy's settings in the trainer's terms if the policy is its own; else return them unchanged."""
        ...
