"""Questions about health according to training logs."""

from __future__ import annotations

from typing import Annotated

from ckpttool.core.domain.frozen import dataclass
from ckpttool.core.domain.option import QUESTION, Option
from ckpttool.core.domain.question import LogQuestion, SpikeQuestion


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthQuestion:
    """The evidence for the health of checkpoints, and the threshold."""

    threshold: Annotated[
        float | None,
        Option(
            "--threshold",
            "Embedding local norm (sum of squares) at which a checkpoint is unhealthy.",
            "Evidence",
            least=0,
        ),
    ] = None
    """Embedding local norm (sum of squares) at or above which a checkpoint is unhealthy; None to use the record."""
    logs: Annotated[LogQuestion, QUESTION] = LogQuestion()
    """The logs. Without patterns: those in the output folder."""
    health_file: str | None = None
    pipeline_stages: int | None = None
    """Number of stages of the run. With one stage nothing is measured."""
    write: Annotated[
        bool, Option("--write", "Update health_ckpts.json from the log, and keep the old file as .bak.", "What stays")
    ] = False
    """Whether to update the health file with the judgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayQuestion:
    """The policy to replay, and its settings; None for the policy's own default."""

    logs: LogQuestion
    policy: str | None = None
    """Policy name; None for `skip` if it has a setting, else the rule of the logs' trainer, else `zscore`."""
    threshold: float | None = None
    """`skip`: the norm. `zscore`, `zclip`, `olmo`: standard deviations."""
    count: int | None = None
    """`skip`: number of consecutive skips at which training stops."""
    nan_counts: bool = False
    """`skip`: whether NaN counts, unlike in the trainer."""
    dialect: str | None = None
    """`features`: the implementation of the detector; None for torch_npu's."""
    asd_config: str | None = None
    """`features`: the value of the detector's environment variable."""
    margin_minutes: float = 0.0
    spike: SpikeQuestion | None = None
