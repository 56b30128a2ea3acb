"""What a training framework must offer so that a resume plan can be started with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ckpttool.domain.plan import ResumePlan
from ckpttool.trainers.mindformers.train_config import ConfigChange


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """A config that makes the trainer do what a plan says."""

    text: str
    """The whole file; write it as UTF-8 without changing line ends."""
    changes: tuple[ConfigChange, ...]
    """What differs from the base config, in the order of a reader's interest; empty where it obeyed already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchJob:
    """What a launch command needs to know besides the plan."""

    config: str
    """Path of the launch config, absolute: `run_mindformer.py` looks for a relative one beside itself."""
    nodes: int = 1
    devices_per_node: int = 8
    master_addr: str | None = None
    """Host name or address of node 0; needed with several nodes."""
    script: str = "run_mindformer.py"


class LaunchTarget(Protocol):
    """One framework. A new one is one module and one line in `TARGETS`."""

    def config(self, base_text: str, plan: ResumePlan) -> LaunchConfig:
        """Return the user's config with what the plan says, and nothing else, changed."""
        ...

    def commands(self, job: LaunchJob) -> tuple[str, ...]:
        """Return the shell command for each node, by node rank."""
        ...
