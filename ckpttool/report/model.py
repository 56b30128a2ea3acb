"""Everything known about a tree at one moment: the choice, every save, the logs, the disk."""

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


class PageForm(str, Enum):
    """The format of a report."""

    HTML = "html"
    MARKDOWN = "markdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportQuestion:
    """The subject of a report."""

    tree: Annotated[TreeQuestion, QUESTION] = TreeQuestion()
    choice: Annotated[ResumeQuestion, QUESTION] = ResumeQuestion()
    """Which checkpoints may be chosen, and how hard all of them are checked. What it asks of logs is drawn, too."""
    data: Annotated[DataQuestion, QUESTION] = DataQuestion()
    keep_last: Annotated[
        int | None,
        Option("--keep-last", "Also show what `prune --keep-last N` would do.", "What stays", metavar="N", least=1),
    ] = None
    """Newest good checkpoints that a prune would keep; None: nobody asks what it would do."""
    strict: Annotated[
        bool, Option("--strict", "Exit with 10 if a newer checkpoint was skipped.", "Which checkpoint")
    ] = False
    """Whether a newer checkpoint that was rejected is an exit of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One quantity that a log shows, over the steps."""

    title: str
    unit: str
    """What it is measured in, for people."""
    points: tuple[tuple[Step, float], ...]
    """Ascending by step; a value may be NaN or infinite."""
    threshold: float | None = None
    """From which on a value is too high; None: nobody said."""
    shows_spikes: bool = False
    """Whether the spikes of the report are of this quantity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReport:
    """The contents of a report."""

    resolution: Resolution
    loaded_from: str | None
    """The path of what is loaded, from `/` on; None: nothing is, or its spelling in the answer is all there is."""
    layout: str
    """The word by which `--layout` knows it."""
    trainer: str | None
    """What people call whose tree it is; None for a lone file."""
    verification: Verification
    """Of every checkpoint."""
    health: HealthAnswer
    curves: tuple[Curve, ...]
    """What the logs show; none if there is no log."""
    spikes: tuple[HealthEvent, ...]
    """Steps whose global norm was a spike, ascending."""
    notes: tuple[LogNote, ...]
    """Where training stopped, and where it was resumed."""
    pruning: Pruning | None
    """What a prune would do; None where nobody asked, or there is no answer."""
    why_not_pruned: str | None
    """Why there is none, where someone asked."""
    free_bytes: ByteCount | None
    """What is left on the disk; None where the disk does not tell."""
    settings: tuple[tuple[str, str], ...]
    """What was asked for, by name."""
    resolved_from: str | None
    """What was taken instead of the path that was given, for people."""
    made: float
    """Seconds since 1970."""
    seconds: float
    """How long it took to look."""
