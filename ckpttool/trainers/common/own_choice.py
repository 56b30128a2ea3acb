"""What a trainer takes by itself, where one rule tells it for all its versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from ckpttool.domain.frozen import dataclass
from ckpttool.domain.plan import Outcome, Simulation

if TYPE_CHECKING:
    from ckpttool.domain.checkpoint import Checkpoint
    from ckpttool.domain.finding import Finding
    from ckpttool.trainers.abilities import OwnStart
    from ckpttool.trainers.base import Trainer

Choice: TypeAlias = tuple[str | None, Outcome, str]
"""What it takes, None where that is nothing; what comes of it; one sentence why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnChoice:
    """A simulator by one rule."""

    trainer: Trainer
    choose: Callable[[OwnStart], Choice]

    def pick(self, start: OwnStart, version: str | None) -> Simulation:
        """Ask the rule, whatever the version."""
        name, outcome, because = self.choose(start)
        return Simulation(
            trainer=self.trainer.name,
            title=self.trainer.title,
            version=version,
            would_resume=name,
            outcome=outcome,
            because=because,
        )


def said(finding: Finding, save: Checkpoint) -> str:
    """Say of what in a save a finding is, and what it says."""
    return f"{finding.path or save.name}: {finding.message}"
