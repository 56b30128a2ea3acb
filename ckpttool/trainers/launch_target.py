"""What a training framework must offer so that a resume plan can be started with it."""

from __future__ import annotations

from typing import Protocol

from ckpttool.domain.launch import LaunchConfig, LaunchJob
from ckpttool.domain.plan import ResumePlan


class LaunchTarget(Protocol):
    """One framework. A new one is one module and one line in `TARGETS`."""

    def config(self, base_text: str, plan: ResumePlan) -> LaunchConfig:
        """Return the user's config with what the plan says, and nothing else, changed."""
        ...

    def commands(self, job: LaunchJob) -> tuple[str, ...]:
        """Return the shell command for each node, by node rank."""
        ...
