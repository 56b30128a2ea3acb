"""What a user asks of training logs: which logs, judged by which rule, set against which checkpoints."""

from __future__ import annotations

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.units import Step

STDIN = "-"
"""As a log: this process's own input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuestion:
    """Which logs, and what their columns mean."""

    patterns: tuple[str, ...] = ()
    """Files, folders of logs, globs, or `-`."""
    columns: str | None = None
    """`step=iter,global_norm=gnorm`: what the fields are called in logs with named columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeQuestion:
    """Which spike, and which checkpoints there are to go around it."""

    around: Step | None = None
    """The spike nearest to this step; None: the last one, or the stop where training ended in one."""
    every: int | None = None
    """Checkpoints were saved every so many steps and all are good; None: the tree tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceQuestion:
    """What logs have to say about which checkpoint to choose."""

    threshold: float | None = None
    """As in `HealthQuestion`."""
    logs: LogQuestion = LogQuestion()
    timeline: tuple[str, ...] = ()
    """Logs, or what `ckpttool replay --format json` printed: checkpoints in their suspect stretches are passed over."""
    spike_threshold: float | None = None
    """Global norm from which a step is a spike; None: a robust z-score tells."""
    margin_minutes: float = 0.0
    """How much earlier than its first event a strike's damage may have begun."""
    spike: SpikeQuestion | None = None
    """Go around a spike, or on after a stop."""
