"""Everything known about a tree at one time: the choice, every save, the logs, and the disk."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from ckpttool.core.domain.data_position import DataQuestion
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.metrics import LogNote
from ckpttool.core.domain.option import QUESTION, Option
from ckpttool.core.domain.plan import Resolution
from ckpttool.core.domain.question import ResumeQuestion, TreeQuestion
from ckpttool.core.domain.retention import Pruning
from ckpttool.core.domain.units import ByteCount, Step
from ckpttool.core.domain.verdict import Verification
from ckpttool.health.model.answers import HealthAnswer
from ckpttool.health.model.events import HealthEvent
from ckpttool.postflight.model.answers import Postflight


class PageForm(str, Enum):
    """The format of a report."""

    HTML = "html"
    MARKDOWN = "markdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportQuestion:
    """The subject of a report."""

    tree: Annotated[TreeQuestion, QUESTION] = TreeQuestion()
    choice: Annotated[ResumeQuestion, QUESTION] = ResumeQuestion()
    """The allowed checkpoints, and the level of checking all of them. Requested logs are also plotted."""
    data: Annotated[DataQuestion, QUESTION] = DataQuestion()
    keep_last: Annotated[
        int | None,
        Option("--keep-last", "Also show what `prune --keep-last N` would do.", "What stays", metavar="N", least=1),
    ] = None
    """Number of newest good checkpoints that a prune would keep, or None if no prune is planned."""
    strict: Annotated[
        bool, Option("--strict", "Exit with 10 if a newer checkpoint was skipped.", "Which checkpoint")
    ] = False
    """Whether a rejected newer checkpoint has a separate exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One quantity of a log over the steps."""

    title: str
    unit: str
    """Display name of the unit."""
    points: tuple[tuple[Step, float], ...]
    """Pairs of step and value, in ascending order of steps. A value may be NaN or infinite."""
    threshold: float | None = None
    """Values at or above this threshold are too high. None if unknown."""
    shows_spikes: bool = False
    """Whether the report's spikes are spikes of this quantity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReport:
    """The contents of a report."""

    resolution: Resolution
    loaded_from: str | None
    """The loaded checkpoint's absolute path, or None if nothing is loaded or only the path in the answer is known."""
    layout: str
    """Name of the layout for `--layout`."""
    trainer: str | None
    """Display name of the tree's trainer, or None for a single file."""
    verification: Verification
    """Verdicts on all checkpoints."""
    health: HealthAnswer
    curves: tuple[Curve, ...]
    """The curves in the logs. Empty without a log."""
    spikes: tuple[HealthEvent, ...]
    """Steps whose global norm was a spike, in ascending order."""
    notes: tuple[LogNote, ...]
    """Points at which training stopped or resumed."""
    resume: Postflight | None
    """The judgement of the last start in the logs. None if the logs show one start, or cannot be read."""
    pruning: Pruning | None
    """The plan of a prune, or None if it was not requested or there is no answer."""
    why_not_pruned: str | None
    """Why no prune plan exists, if requested."""
    free_bytes: ByteCount | None
    """Free space on the disk in bytes, or None if unknown."""
    settings: tuple[tuple[str, str], ...]
    """The requested settings, by name."""
    resolved_from: str | None
    """Display name of the path that was used instead of the requested one."""
    made: float
    """Time of the report, in seconds since 1970."""
    seconds: float
    """Duration of the check, in seconds."""
