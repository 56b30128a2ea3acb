"""The command `ckpttool log replay`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from ckpttool.core.commands import progress
from ckpttool.core.commands.answers import show
from ckpttool.core.commands.log_options import Logs
from ckpttool.core.commands.options import Format, FormatOpt, Quiet, Verbose, exits, finite, grouped
from ckpttool.core.commands.tree_options import say_tree
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.question import AROUND_SPIKE, COLUMNS, MARGIN, LogQuestion, SpikeQuestion, TreeQuestion
from ckpttool.core.errors import UsageError
from ckpttool.health.model.questions import ReplayQuestion
from ckpttool.health.policies.registry import POLICIES
from ckpttool.trainers.mindformers.policies import NAN_BY_DEFAULT, NanWord


class PolicyName(str, Enum):
    """Policies that can be replayed."""

    _ignore_ = "name"
    for name in POLICIES:
        vars()[name.upper()] = name


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """The policy and its settings."""

    policy: Annotated[
        PolicyName | None,
        typer.Option(
            help="Policy to replay. Default: skip for MindFormers logs, else zscore.", rich_help_panel="Policy"
        ),
    ] = None
    threshold: Annotated[
        float | None,
        typer.Option(
            callback=finite,
            metavar="X",
            help="For skip: norm (3.0). For zscore, zclip and olmo: standard deviations (7, 2.5, 6).",
            rich_help_panel="Policy",
        ),
    ] = None
    count: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="With skip: stop at the Nth consecutive skipped step (10).",
            rich_help_panel="Policy",
        ),
    ] = None
    nan: Annotated[
        NanWord,
        typer.Option(
            help="For skip: strict counts NaN toward the stop, as-mindformers does not.", rich_help_panel="Policy"
        ),
    ] = NAN_BY_DEFAULT
    dialect: Annotated[
        str | None,
        typer.Option(
            "--dialect",
            metavar="D",
            help="For features: torch_npu, mindspore or mindformers.",
            rich_help_panel="Policy",
        ),
    ] = None
    asd_config: Annotated[
        str | None,
        typer.Option(
            metavar="STRING", help="For features: value of NPU_ASD_CONFIG; see ckpttool asd.", rich_help_panel="Policy"
        ),
    ] = None
    margin: Annotated[float, MARGIN] = 0.0

    def question(self, logs: LogQuestion, around: SpikeQuestion | None) -> ReplayQuestion:
        """Return these options as a question for the library."""
        return ReplayQuestion(
            logs=logs,
            policy=None if self.policy is None else self.policy.value,
            threshold=self.threshold,
            count=self.count,
            nan_counts=self.nan is NanWord.STRICT,
            dialect=self.dialect,
            asd_config=self.asd_config,
            margin_minutes=self.margin,
            spike=around,
        )


Timeline = Annotated[
    str | None,
    typer.Option(
        "--tree",
        "--health-timeline",
        metavar="DIR",
        help="Mark the checkpoints in DIR that were saved during a spike or after a strike. Also: --health-timeline.",
        rich_help_panel="Which tree",
    ),
]
Every = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="STEPS",
        help="For --around-spike: assumed number of steps between checkpoints.",
        rich_help_panel="Evidence",
    ),
]


@exits(
    {
        0: "The log was replayed.",
        12: "--tree is not a checkpoint folder.",
        14: "A log could not be read, or has no steps to judge.",
    }
)
@grouped
def replay(
    *,
    logs: Logs,
    policy: PolicyOptions,
    columns: Annotated[str | None, COLUMNS] = None,
    health_timeline: Timeline = None,
    around_spike: Annotated[SpikeQuestion | None, AROUND_SPIKE] = None,
    every: Every = None,
    fmt: FormatOpt = Format.TABLE,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Show what a skip or health policy would have done in a logged run.

    With --tree, also shows the affected checkpoints. Reads logs of MindFormers, Megatron-LM and Hugging Face, CSV, JSON
    lines and TensorBoard files, gzipped or not.

    Example: ckpttool log replay output/log/rank_0/info.log --policy skip --threshold 3.0
    """
    from ckpttool.core.verbs import scanning
    from ckpttool.health.verbs import replay

    log_question = LogQuestion(patterns=tuple(logs), columns=columns)
    if every is not None:
        if around_spike is None:
            raise UsageError("--every needs --around-spike: give both")
        around_spike = replace(around_spike, every=every)
    question = policy.question(log_question, around_spike)
    tree = None if health_timeline is None else scanning.scan(TreeQuestion(path=health_timeline, sizes=True))
    if tree is not None:
        say_tree(tree, quiet=quiet, verbose=verbose)
    with progress.busy("reading the logs", quiet=quiet):
        answer = replay.replay(question, tree)
    raise typer.Exit(show(answer, fmt))
