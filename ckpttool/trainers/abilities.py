"""What ckpttool may know of a trainer, or not: an object that answers, or None if nothing is known."""

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
    """A file in which a trainer records the health of its saves, in or above the folder that holds them."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    def read(self, storage: Storage, path: str) -> HealthBook:
        """Return what it says; whatever is wrong with it is a finding. The path is relative to the storage's root."""
        ...

    def updated(self, old: bytes | None, judgements: Iterable[tuple[str, Health]]) -> bytes:
        """Return its new content with what saves, by their recorded names, were found to be; the old where that is it.

        Raises:
            ValueError: The old content is none of such a file.
        """
        ...


class ConfigReader(Protocol):
    """How a trainer's configs are read."""

    def may_be_own(self, content: bytes) -> bool:
        """Tell without parsing a file; False only where `read` could never say that it is this trainer's."""
        ...

    def read(self, file: ConfigFile, *, devices: int | None = None) -> RunConfig | None:
        """Return what a config says about resuming, parallelism and data; None if it is none of this trainer's.

        Whose it is, its words tell: what another trainer may have, too, tells nothing.

        Args:
            file: The whole file.
            devices: Ranks that will be started, for configs in which that does not stand.

        Raises:
            CkptToolError: It is one of this trainer's and cannot be used.
        """
        ...

    def saves_in(self, config: RunConfig) -> str | None:
        """Name the layout in which a run with this config saves and loads; None if it does not tell.

        Raises:
            UsageError: The config is another trainer's.
        """
        ...

    def lint(self, config: RunConfig) -> tuple[Finding, ...]:
        """Say what a config gets wrong, in the order of the file; what was found when it was read is a part of it."""
        ...

    def fixes(self, config: RunConfig) -> tuple[SafeFix, ...]:
        """Name which of that one value mends, if nothing else can be meant."""
        ...


class LaunchTarget(Protocol):
    """How a trainer is started."""

    @property
    def folder(self) -> str:
        """In which folder its commands are to be run, as its people call it."""
        ...

    def config(self, base: RunConfig, plan: ResumePlan) -> LaunchConfig:
        """Return the user's config with what the plan says, and nothing else, changed.

        Raises:
            CkptToolError: It cannot be made of this one.
        """
        ...

    def commands(self, job: LaunchJob) -> tuple[str, ...]:
        """Return the shell command for each node, by node rank.

        Raises:
            UsageError: No job can be made of these.
        """
        ...

    def other_devices(self, base: RunConfig, devices: int) -> tuple[Finding, ...]:
        """Find that a config is for another number of devices than will be started, whatever it resumes from."""
        ...

    def next_saves(self, base: RunConfig, inventory: Inventory) -> NextSaves:
        """Say where the next saves go, and how many must fit there."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStart:
    """A start at which nobody names the trainer a save."""

    storage: Storage
    """The tree."""
    inventory: Inventory
    checked: Callable[[Checkpoint], Verdict]
    """Checks a save's headers and sizes: most trainers pick by names, and find out later."""
    config: RunConfig | None
    """Of the run that is to resume; None: not known."""
    world_size: int | None
    """Ranks that the user says it has."""


class Simulator(Protocol):
    """What a trainer would do on its own."""

    def pick(self, start: OwnStart, version: str | None) -> Simulation:
        """Tell which save a version would take, why, and what would come of it.

        Args:
            start: What it finds.
            version: As people write it: `2.1`; None: the newest known, or as all known versions do it.

        Raises:
            UsageError: The version is not known.
        """
        ...

    def as_it_stands(self, start: OwnStart, plan: ResumePlan) -> JudgedStart:
        """Tell what a start with the config, the records and the names as they are would load; by the same rules.

        Args:
            start: What it finds.
            plan: What it should load, and where its data should continue.
        """
        ...


class Phrasing(Protocol):
    """How a trainer is told what ckpttool advises."""

    @property
    def own_policy(self) -> str | None:
        """Name of the policy that is its own rule, with its own defaults; None if it has none."""
        ...

    def detour(self, advice: SpikeAdvice | StopAdvice) -> TrainersDetour | None:
        """Say how it is told to go around bad data, of an advice that has a detour; None if it cannot be."""
        ...

    def thresholds(self, calibration: Calibration) -> ThresholdSettings | None:
        """Say how it is told thresholds; None if it takes none."""
        ...

    def skip(self, skip: SkipBatches) -> TrainersSkip | None:
        """Say how it is told to skip batches of the data; None if it is not."""
        ...

    def policy_words(self, settings: PolicyWords) -> PolicyWords:
        """Encode a policy's settings in its people's words, where the policy is its own rule; any other as it is."""
        ...
