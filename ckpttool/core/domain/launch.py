"""A launch: the config that carries out a plan, the commands that start the run, and the files written."""

from __future__ import annotations

from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.plan import FreshStart, NoResumePoint, OfChoice, ResumePlan, exit_of
from ckpttool.core.domain.view import USUAL, View
from ckpttool.core.errors import ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """A change to one key of the launch config."""

    key: str
    """Dotted key, for example `section.key`."""
    before: str | None
    """Value as written in the config; None if the key was absent."""
    after: str | None
    """Value as written in the config; None if the key is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """A training config that follows a plan."""

    text: str
    """Complete text of the file; write it as UTF-8 without changing line ends."""
    changes: tuple[ConfigChange, ...]
    """Differences from the base config, most important first; empty if the base config was already right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchJob:
    """Settings of a launch command that are not part of the plan."""

    config: str
    """Absolute path of the launch config, because the trainer may search elsewhere for a relative path."""
    nodes: int = 1
    devices_per_node: int = 8
    master_addr: str | None = None
    """Host name or address of node 0; required if there are several nodes."""
    script: str | None = None
    """Path of the start script; None for the trainer's own script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment(OfChoice, Answered):
    """Answer with the load settings for a trainer whose configs ckpttool does not edit; the user starts the run."""

    NOUN = "launch"

    decision: ResumePlan | NoResumePoint
    """The decision, with a path that the trainer can open from any folder."""
    strict: bool = False
    """Whether a rejected newer checkpoint has its own exit code."""
    view: View = USUAL
    """Display options for the plan."""
    remark: str | None = None
    """What the trainer does at a start from scratch; None if a checkpoint was chosen, or if it is unknown."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code, the same as for `resolve`."""
        return exit_of(self.decision, strict=self.strict)

    @property
    def chosen(self) -> ResumePlan | None:
        """The plan; None if no checkpoint was chosen."""
        return self.decision if isinstance(self.decision, ResumePlan) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch(OfChoice, Answered):
    """Answer with a launch config on disk, and the commands that start the run."""

    NOUN = "launch"

    plan: ResumePlan | FreshStart
    output: str
    """Path of the launch config, as the user typed it."""
    changes: tuple[ConfigChange, ...]
    commands: tuple[str, ...]
    """One command per node, node 0 first."""
    folder: str
    """Folder in which to run the commands, as the trainer names it."""
    written: bool = True
    """False if the file already had this content, or in a dry run, so that the file and its `.bak` are unchanged."""
    dry_run: bool = False
    view: View = USUAL
    """Display options for the plan."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code, always 0, because the config is written or was already correct."""
        return ExitCode.OK

    @property
    def chosen(self) -> ResumePlan | None:
        """The plan that the launch config follows; None for a start from scratch."""
        return self.plan if isinstance(self.plan, ResumePlan) else None
