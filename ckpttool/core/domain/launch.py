"""A launch: the config that carries out a plan, the commands that start it, and the written files."""

from __future__ import annotations

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.plan import NoResumePoint, OfChoice, ResumePlan, exit_of
from ckpttool.core.domain.view import USUAL, View
from ckpttool.core.errors import ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """One key that the launch config changes."""

    key: str
    """Dotted, for example `section.key`."""
    before: str | None
    """As written in the config; None if the key was absent."""
    after: str | None
    """As written in the config; None if the key is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """A config that makes the trainer follow a plan."""

    text: str
    """The complete file; write it as UTF-8 without changing line ends."""
    changes: tuple[ConfigChange, ...]
    """Differences from the base config, most important first; empty if the base config was already right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchJob:
    """The settings of a launch command other than the plan."""

    config: str
    """Absolute path of the launch config, because the trainer may look for a relative path elsewhere."""
    nodes: int = 1
    devices_per_node: int = 8
    master_addr: str | None = None
    """Host name or address of node 0; required if there are several nodes."""
    script: str | None = None
    """The start script; None for the trainer's own script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment(OfChoice, Answered):
    """The settings for a trainer whose configs are not edited, and which the user starts."""

    NOUN = "launch"

    decision: ResumePlan | NoResumePoint
    """The decision, with a path that the trainer can open wherever it is started."""
    strict: bool = False
    """Whether a rejected newer checkpoint has its own exit code."""
    view: View = USUAL
    """The table's view of the plan."""

    @property
    def exit_code(self) -> ExitCode:
        """The exit code that `resolve` would return."""
        return exit_of(self.decision, strict=self.strict)

    @property
    def chosen(self) -> ResumePlan | None:
        """The decision, if it is a plan."""
        return self.decision if isinstance(self.decision, ResumePlan) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch(OfChoice, Answered):
    """A launch config on disk, and the commands that start it."""

    NOUN = "launch"

    plan: ResumePlan
    output: str
    """The launch config, as the user gave its path."""
    changes: tuple[ConfigChange, ...]
    commands: tuple[str, ...]
    """One command per node, node 0 first."""
    folder: str
    """Folder in which to run the commands, as the trainer names it."""
    written: bool = True
    """False if the file already had this content, or in a dry run, so that the file and its `.bak` are unchanged."""
    dry_run: bool = False
    view: View = USUAL
    """The table's view of the plan."""

    @property
    def exit_code(self) -> ExitCode:
        """Return 0, because the config is written or was already correct."""
        return ExitCode.OK

    @property
    def chosen(self) -> ResumePlan | None:
        """The plan."""
        return self.plan
