"""The save that a trainer chooses on its own, if one rule applies to all versions of the trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ckpttool.core.decide.lint_engine import View
from ckpttool.core.domain.finding import Severity
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.plan import AS_CONFIGURED, ON_ITS_OWN, JudgedStart, Outcome, Simulation
from ckpttool.trainers.common.named_path import started_in

if TYPE_CHECKING:
    from ckpttool.core.domain.checkpoint import Checkpoint
    from ckpttool.core.domain.finding import Finding
    from ckpttool.core.domain.plan import ResumePlan
    from ckpttool.trainers.abilities import OwnStart
    from ckpttool.trainers.base import Trainer

Choice: TypeAlias = tuple[str | None, Outcome, str]
"""The chosen save or None, the outcome, and one sentence with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceUnknown:
    """The reason why the save that a start loads is unknown."""

    why: str
    by_script: bool = False
    """Whether the training script makes the choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChoice:
    """The effect of a config on a start."""

    choice: Choice | ChoiceUnknown | None = None
    """The config's choice; None if the config leaves the choice to the trainer."""
    key: str = ""
    """The setting that decides."""
    mend: str | None = None
    """The change that makes the config load the chosen save."""
    lacks: str | None = None
    """The parts of the save that the config leaves out, and the consequence."""
    path: str | None = None
    """The opened folder from which the config loads."""


def _by_itself(start: OwnStart, view: View) -> ConfigChoice:
    del start, view
    return ConfigChoice()


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnChoice:
    """Simulator of a trainer with a single rule for all versions."""

    trainer: Trainer
    choose: Callable[[OwnStart], Choice | ChoiceUnknown]
    choice_of: Callable[[OwnStart, View], ConfigChoice] = _by_itself
    """Returns the effect of a config on a start."""
    by_records: bool = False
    """Whether the rule uses small records next to the saves, which `repair pointer` writes."""

    def pick(self, start: OwnStart, version: str | None) -> Simulation:
        """Apply the rule.

        The version does not affect the result.
        """
        choice = self.choose(start)
        if isinstance(choice, ChoiceUnknown):
            choice = None, Outcome.UNKNOWN, choice.why
        return self._simulation(choice, version)

    def as_it_stands(self, start: OwnStart, plan: ResumePlan | None) -> JudgedStart:
        """Return the choice of the config if it names the save to load; otherwise apply the rule."""
        del plan
        config = start.config
        outcome, line = ConfigChoice(), None
        lead = ON_ITS_OWN if config is None else AS_CONFIGURED
        if config is not None and config.trainer == self.trainer.name:
            view = View(config.settings)
            outcome = self.choice_of(start, view)
            line = view.line(outcome.key)
        choice = outcome.choice or self.choose(start)
        if isinstance(choice, ChoiceUnknown):
            return JudgedStart(
                simulation=None, lead=lead, why=choice.why, by_script=choice.by_script, line=line, mend=outcome.mend
            )
        return JudgedStart(
            simulation=self._simulation(choice, None),
            lead=lead,
            by_records=self.by_records and outcome.choice is None,
            line=line,
            mend=outcome.mend,
            lacks=outcome.lacks,
            only_in=None if outcome.path is None else started_in(start.inventory.root, outcome.path),
        )

    def _simulation(self, choice: Choice, version: str | None) -> Simulation:
        name, outcome, because = choice
        return Simulation(
            trainer=self.trainer.name,
            title=self.trainer.title,
            version=version,
            would_resume=name,
            outcome=outcome,
            because=because,
        )


def holder(checkpoints: Iterable[Checkpoint], name: str) -> Checkpoint | None:
    """Return the save that a file or folder belongs to, under this name or an alias."""
    return next((save for save in checkpoints if name in {save.name, *save.aliases}), None)


def choice_with(
    findings: Sequence[Finding], save: Checkpoint, because: str, *, stops: str = "and then it stops"
) -> Choice:
    """Return the outcome of loading a save with findings: a stop, unless its files only could not be read from here.

    Args:
        findings: The findings that prevent the save from counting as good, at least one.
        save: The save.
        because: The reason for the choice of this save.
        stops: The words for the stop.
    """
    gravest = max(findings, key=lambda finding: finding.severity)
    if gravest.severity is Severity.UNKNOWN:
        return save.name, Outcome.UNKNOWN, f"{because}; {save_finding_text(gravest, save)}"
    return save.name, Outcome.STOPS, f"{because}, {stops}: {save_finding_text(gravest, save)}"


def save_finding_text(finding: Finding, save: Checkpoint) -> str:
    """Format a finding about a save, with its path."""
    return f"{finding.path or save.name}: {finding.message}"
