"""The answer of `postflight`: whether the run resumed as planned, and the evidence."""

from __future__ import annotations

from enum import Enum

from ckpttool.core.domain.finding import Row
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.preflight import Check, Reported
from ckpttool.core.domain.units import Step
from ckpttool.core.domain.view import USUAL, View
from ckpttool.postflight.model import Comparison, Judged


class Outcome(str, Enum):
    """Whether the run resumed as planned."""

    RESUMED = "resumed"
    WRONG = "wrong"
    UNKNOWN = "unknown"


class StepSource(str, Enum):
    """The source of the step of the save."""

    OPTION = "option"
    """`--from-step`."""
    PLAN = "plan"
    TREE = "tree"
    """The newest save before the first new step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The outcome, and what is missing for a certain one."""

    outcome: Outcome
    missing: str | None = None
    """Why it is unknown, in one clause; None if it is known."""
    until: Step | None = None
    """The step that the resumed run has to log for a certain outcome or cause; None if unknown, or none helps."""
    is_final: bool = True
    """Whether further steps of the resumed run cannot change the outcome or its cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The save that the run should have resumed from, and the logs."""

    saved: Step | None
    """None if nothing shows it yet."""
    source: StepSource | None
    """None without a step."""
    before: tuple[str, ...]
    """Names of the logs of the first run; the same as `after` if one log has both runs."""
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Postflight(Reported):
    """Whether a run resumed as planned, according to its log and the log of the run before it."""

    NOUN = "postflight"

    root: str | None
    """The checkpoint folder; None if only logs were read."""
    resume: Resumed
    aspects: tuple[Judged, ...]
    """One per aspect, in the order of `Aspect`."""
    comparison: Comparison | None
    """None if the logs do not show two runs yet."""
    conclusion: Conclusion
    headline: str
    """The answer in one line."""
    assumptions: tuple[str, ...]
    """Conditions of the answer that nothing confirms, one sentence each."""
    checks: tuple[Check, ...]
    """One per aspect."""
    view: View = USUAL

    @property
    def command(self) -> str:
        """The name of its command."""
        return "postflight"

    @property
    def place(self) -> str:
        """Path for findings that are not about a file: the resumed run's log."""
        return next(iter((*self.resume.after, *((self.root,) if self.root else ()))), ".")

    @property
    def step(self) -> Step | None:
        """The step of the save that the run should have resumed from."""
        return self.resume.saved

    @property
    def faults(self) -> tuple[Row, ...]:
        """Kinds of findings that contradict the plan, in the order of the aspects."""
        return tuple(reason.finding.code for check in self.checks for reason in check.reasons if reason.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastResume:
    """The last start in some logs, judged as a resume of the starts before it."""

    start: tuple[object, ...]
    """Facts that identify the start, and stay the same while its log grows."""
    answer: Postflight
    is_settled: bool
    """Whether it has logged enough steps to show a fault, and more of them cannot change the answer."""
