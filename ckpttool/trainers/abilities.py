"""Optional abilities of a trainer.

Each ability is an object that answers questions; None means that nothing is known.
"""

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
    from ckpttool.core.domain.weights import Weights, WeightsRequest
    from ckpttool.core.formats.config_text import ConfigFile
    from ckpttool.core.storage.base import Storage

PolicyWords: TypeAlias = "tuple[tuple[str, str | float], ...]"
"""Settings of a policy, as pairs of name and value."""


class HealthFile(Protocol):
    """A file in which a trainer records the health of its saves, in the folder of the saves or above it."""

    @property
    def name(self) -> str:
        """Name of the file."""
        ...

    def read(self, storage: Storage, path: str) -> HealthBook:
        """Read the records, and report problems as findings.

        The path is relative to the storage's root.
        """
        ...

    def updated(self, old: bytes | None, judgements: Iterable[tuple[str, Health]]) -> bytes:
        """Return the file's content with the health of the given saves added.

        Each judgement is a save's recorded name and its health. If nothing changes, the old content is returned.

        Raises:
            ValueError: The old content is not from such a file.
        """
        ...


class ConfigReader(Protocol):
    """Reader of a trainer's configs."""

    def may_be_own(self, content: bytes) -> bool:
        """Check, without parsing, whether a file may be the trainer's config.

        The result is False only if `read` would return None.
        """
        ...

    def read(self, file: ConfigFile, *, devices: int | None = None) -> RunConfig | None:
        """Return the config's settings for resuming, parallelism and data; None if it is not this trainer's.

        Only keys that no other trainer uses identify the trainer.

        Args:
            file: The complete file.
            devices: Number of ranks to start, for configs that do not contain the number.

        Raises:
            CkptToolError: The config belongs to this trainer, but cannot be used.
        """
        ...

    def saves_in(self, config: RunConfig) -> str | None:
        """Return the layout in which a run with this config saves and loads; None if unknown.

        Raises:
            UsageError: The config belongs to a different trainer.
        """
        ...

    def lint(self, config: RunConfig) -> tuple[Finding, ...]:
        """Return the mistakes in a config, in the order of the file, including those found by `read`."""
        ...

    def fixes(self, config: RunConfig) -> tuple[SafeFix, ...]:
        """Return the fix for each mistake that has only one correct value."""
        ...


class LaunchTarget(Protocol):
    """The config and the commands that start a trainer."""

    @property
    def folder(self) -> str:
        """The folder in which the trainer's commands are run, as named in its documentation."""
        ...

    def config(self, base: RunConfig, plan: ResumePlan) -> LaunchConfig:
        """Return the user's config with only the settings of the plan changed.

        Raises:
            CkptToolError: This config cannot be changed that way.
        """
        ...

    def fresh_config(self, base: RunConfig, root: str) -> LaunchConfig:
        """Return the user's config for a start from scratch; a config that already starts so is unchanged.

        Weights of another model that the config loads stay, because they are part of such a start.

        Args:
            base: The user's config.
            root: The folder of the run's saves, which has none.

        Raises:
            UsageError: The config resumes from another run.
            CkptToolError: This config cannot be changed that way.
        """
        ...

    def commands(self, base: RunConfig, job: LaunchJob) -> tuple[str, ...]:
        """Return the shell command for each node, ordered by node rank.

        Raises:
            UsageError: No job can be started with these arguments.
        """
        ...

    def other_devices(self, base: RunConfig, devices: int) -> tuple[Finding, ...]:
        """Report a config that is written for a different number of devices, whatever the checkpoint."""
        ...

    def next_saves(self, base: RunConfig, inventory: Inventory) -> NextSaves:
        """Return the folder that the next saves will go to, and how many saves must fit there."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStart:
    """A start of the trainer without an explicitly named save."""

    storage: Storage
    """The tree."""
    inventory: Inventory
    checked: Callable[[Checkpoint], Verdict]
    """Checks a save's headers and sizes. Most trainers choose by name, and notice damage only while loading."""
    config: RunConfig | None
    """Config of the run to resume; None if unknown."""
    world_size: int | None
    """Number of ranks according to the user."""


class Simulator(Protocol):
    """Simulator of the save that a trainer chooses on its own."""

    def pick(self, start: OwnStart, version: str | None) -> Simulation:
        """Return the save that a version of the trainer would load, the reason, and the outcome.

        Args:
            start: The tree, the run's config, and its number of ranks.
            version: The version, such as `2.1`; None for the newest known version, or for the behaviour of all
                known versions.

        Raises:
            UsageError: The version is unknown.
        """
        ...

    def as_it_stands(self, start: OwnStart, plan: ResumePlan | None) -> JudgedStart:
        """Return the save that a start with the current config, records and names would load, by the same rules.

        Args:
            start: The tree, the run's config, and its number of ranks.
            plan: The plan: the checkpoint to load, and the position in the data. None for a start from scratch.
        """
        ...


class Phrasing(Protocol):
    """Translation of ckpttool's advice into a trainer's settings."""

    @property
    def own_policy(self) -> str | None:
        """Name of the policy that is the trainer's own rule with its defaults; None if the trainer has no such rule."""
        ...

    def detour(self, advice: SpikeAdvice | StopAdvice) -> TrainersDetour | None:
        """Return the trainer's settings for a detour around bad data; None if the trainer has none."""
        ...

    def thresholds(self, calibration: Calibration) -> ThresholdSettings | None:
        """Return the trainer's settings for thresholds; None if the trainer has none."""
        ...

    def skip(self, skip: SkipBatches) -> TrainersSkip | None:
        """Return the trainer's settings for skipping batches of the data; None if the trainer has none."""
        ...

    def policy_words(self, settings: PolicyWords) -> PolicyWords:
        """Format the settings of the trainer's own policy in its terms; return other policies' settings unchanged."""
        ...


class WeightsSource(Protocol):
    """A function that finds the weights of a save: `Trainer.weights_at`."""

    def __call__(self, storage: Storage, checkpoint: Checkpoint, request: WeightsRequest) -> Weights:
        """Return the model's tensors and the places of their elements, from headers and records alone.

        The storage has the tree as its root, and all paths are relative to it. Files of others are untrusted: nothing
        in them is executed, a path from a record must not leave the save, and a count from a record is never used to
        reserve memory.

        Raises:
            NotExportableError: The weights cannot be exported, for the reason in its finding.
            OSError: The disk could not be read.
        """
        ...
