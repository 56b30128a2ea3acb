"""Options about training logs that mean the same in every command."""

from __future__ import annotations

from typing import Annotated

import typer

import ckpttool
from ckpttool.core.commands.options import duration, finite, is_count
from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import UsageError

Logs = Annotated[
    list[str],
    typer.Argument(metavar="LOG...", help="Logs, folders of logs, globs, or - for stdin.", rich_help_panel="Arguments"),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="F=C,...",
        help="Columns of CSV or JSON lines, or TensorBoard tags: step=iter,loss=train/loss.",
        rich_help_panel="Evidence",
    ),
]
LogOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--log", metavar="GLOB", help="Training log; repeat it. Else found above DIR.", rich_help_panel="Evidence"
    ),
]
AroundSpike = Annotated[
    str | None,
    typer.Option(
        metavar="STEP|last",
        help="Go around the spike at STEP, or the last one; or on after a stop.",
        rich_help_panel="Evidence",
    ),
]
Margin = Annotated[
    float,
    typer.Option(
        parser=duration("m"),
        metavar="TIME",
        show_default="0",
        help="How long before a strike's first event may be bad too (2h, or minutes).",
        rich_help_panel="Evidence",
    ),
]


def spike(text: str | None, *, every: int | None = None) -> ckpttool.SpikeQuestion | None:
    """Parse `--around-spike`.

    Raises:
        UsageError: It is neither a step nor `last`.
    """
    if text is None:
        if every is not None:
            raise UsageError("--every says where checkpoints are, for --around-spike: give that too")
        return None
    if text == "last":
        return ckpttool.SpikeQuestion(every=every)
    if is_count(text):
        return ckpttool.SpikeQuestion(around=Step(int(text)), every=every)
    raise UsageError(f"--around-spike takes a step or the word last, not {text!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceOptions:
    """What training logs shall have to say about which checkpoint to choose."""

    health_threshold: Annotated[
        float | None,
        typer.Option(
            "--health-threshold",
            "--threshold",
            callback=finite,
            min=0,
            metavar="X",
            help="Or --threshold: embedding local norm (sum of squares) that is unhealthy; needs a log.",
            rich_help_panel="Evidence",
        ),
    ] = None
    log: LogOpt = None
    columns: Columns = None
    health_timeline: Annotated[
        list[str] | None,
        typer.Option(
            "--spikes-from",
            "--health-timeline",
            metavar="LOG",
            help="Or --health-timeline: a log, or what replay printed as JSON; pass over what it makes suspect.",
            rich_help_panel="Evidence",
        ),
    ] = None
    spike_threshold: Annotated[
        float | None,
        typer.Option(
            callback=finite,
            min=0,
            metavar="X",
            help="Global norm of a spike; else a robust z-score tells.",
            rich_help_panel="Evidence",
        ),
    ] = None
    around_spike: AroundSpike = None
    margin: Margin = 0.0

    def question(self) -> ckpttool.EvidenceQuestion | None:
        """Ask the library; None where logs have no say.

        Raises:
            UsageError: An option is given without the one that it belongs to.
        """
        if self.margin and not self.health_timeline:
            raise UsageError("--margin is for --spikes-from, which tells of strikes: give that too")
        if self.spike_threshold is not None and not self.health_timeline and self.around_spike is None:
            raise UsageError("--spike-threshold is for --spikes-from or --around-spike: give one")
        if self.health_threshold is None and not self.health_timeline and self.around_spike is None:
            if self.log:
                return ckpttool.EvidenceQuestion(
                    logs=ckpttool.LogQuestion(patterns=tuple(self.log), columns=self.columns)
                )
            if self.columns is not None:
                raise UsageError("--log is for --health-threshold, --spikes-from or --around-spike: give one")
            return None
        return ckpttool.EvidenceQuestion(
            threshold=self.health_threshold,
            logs=ckpttool.LogQuestion(patterns=tuple(self.log or ()), columns=self.columns),
            timeline=tuple(self.health_timeline or ()),
            spike_threshold=self.spike_threshold,
            margin_minutes=self.margin,
            spike=spike(self.around_spike),
        )
