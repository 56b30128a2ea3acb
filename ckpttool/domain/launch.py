"""A launch: what was written, and how to start it."""

from __future__ import annotations

from ckpttool.domain.frozen import dataclass
from ckpttool.domain.plan import ResumePlan
from ckpttool.trainers.mindformers.train_config import ConfigChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch config on disk, and the commands that start it."""

    plan: ResumePlan
    output: str
    """The launch config, as the user gave its path."""
    changes: tuple[ConfigChange, ...]
    commands: tuple[str, ...]
    """One for each node, node 0 first."""
    written: bool = True
    """False where the file said all of it already: it and its `.bak` are as they were."""
