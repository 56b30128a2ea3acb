"""The command `ckpttool launch`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool.core.commands import progress
from ckpttool.core.commands.answers import show
from ckpttool.core.commands.options import OF_A_TREE, OF_WRITING, DryRun, Format, FormatOpt, Quiet, exits, grouped
from ckpttool.core.commands.output import error, looking_at
from ckpttool.core.commands.output_files import assert_folder
from ckpttool.core.commands.reports import Allow, codes
from ckpttool.core.commands.tree_options import EntryScript, from_here
from ckpttool.core.domain.data_position import DataQuestion
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.preflight import Preflight
from ckpttool.core.domain.question import LaunchOrder, ResumeQuestion, StartQuestion, TreeQuestion
from ckpttool.core.domain.view import View
from ckpttool.core.errors import UsageError

Base = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="BASE.yaml",
        help="Training config to start from; it is not changed.",
        rich_help_panel="Launch",
    ),
]
Output = Annotated[
    str | None,
    typer.Option("--output", metavar="NEW.yaml", help="Path of the launch config to write.", rich_help_panel="Launch"),
]
AfterFailedStarts = Annotated[
    int | None,
    typer.Option(
        "--after-failed-starts",
        min=1,
        metavar="N",
        help="Count this launch as a start. After N starts without a newer save, mark their checkpoint as bad.",
        rich_help_panel="Launch",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The machines of a launch, and how strictly it is checked."""

    nodes: Annotated[
        int, typer.Option(min=1, help="Number of nodes; prints one command for each.", rich_help_panel="Launch")
    ] = 1
    devices_per_node: Annotated[
        int | None,
        typer.Option(
            min=1, help="Devices per node. Default: the world size divided by the nodes.", rich_help_panel="Launch"
        ),
    ] = None
    master_addr: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Address of node 0, for a launch on several nodes.", rich_help_panel="Launch"
        ),
    ] = None
    script: EntryScript = None
    force: Annotated[
        bool, typer.Option("--force", help="Replace NEW.yaml, and keep the old one as .bak.", rich_help_panel="Launch")
    ] = False
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Write nothing and exit with 10 if a newer checkpoint was skipped.",
            rich_help_panel="Which checkpoint",
        ),
    ] = False
    allow: Allow = None
    load_checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="LOCALDIR",
            help="Path of the local copy, if the tree is in an object store.",
            rich_help_panel="Launch",
        ),
    ] = None

    after_failed_starts: AfterFailedStarts = None
    dry_run: DryRun = False

    def order(self, base: str, output: str, view: View) -> LaunchOrder:
        """Return these options as a `LaunchOrder`."""
        return LaunchOrder(
            base=base,
            output=output,
            force=self.force,
            strict=self.strict,
            nodes=self.nodes,
            devices_per_node=self.devices_per_node,
            master_addr=self.master_addr,
            script=self.script,
            allowed=codes(self.allow),
            view=view,
            load_checkpoint=self.load_checkpoint,
            dry_run=self.dry_run,
            after_failed_starts=self.after_failed_starts,
        )


@exits(
    {
        0: "The config was written.",
        10: "Training would not start or not behave as intended; nothing was written.",
        11: "There is no checkpoint to resume from.",
        **OF_A_TREE,
        16: OF_WRITING[16],
    }
)
@grouped
def launch(
    *,
    tree: TreeQuestion,
    choice: ResumeQuestion,
    start: StartQuestion,
    data: DataQuestion,
    job: JobOptions,
    look: View,
    config: Base = None,
    output: Output = None,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Write a config that resumes the run, and print the command.

    The config resumes from the checkpoint that `resolve` chooses, and its comments are preserved. Nothing is written
    if `preflight` answers no-go. The batch size comes from BASE.yaml. Without --config, prints the settings, for
    trainers whose configs ckpttool does not edit.

    Example: ckpttool launch --config pretrain.yaml --output resume.yaml
    """
    from ckpttool.core.verbs import launching

    launch_order, position = choice, replace(data, sink_size=tree.steps_per_epoch)
    if config is None or output is None:
        _assert_neither(config, output)
        with progress.watched(quiet=quiet):
            count = None if job.dry_run else job.after_failed_starts
            fragment = launching.fragment(
                from_here(tree), launch_order, position, start, strict=job.strict, after_failed_starts=count
            )
        raise typer.Exit(show(replace(fragment, view=look), fmt))
    assert_folder(output, option="--output")
    with progress.watched(quiet=quiet):
        answer = launching.launch(from_here(tree), launch_order, position, start, order=job.order(config, output, look))
    if isinstance(answer, Preflight):
        looking_at(answer.resolved_from, quiet=quiet)
    code = show(answer, fmt)
    if isinstance(answer, Preflight):
        error(f"{output} was not written; see the result for the reason")
    raise typer.Exit(code)


def _assert_neither(config: str | None, output: str | None) -> None:
    if config is not None or output is not None:
        missing = "--config BASE.yaml" if config is None else "--output NEW.yaml"
        raise UsageError(f"also give {missing}, or omit --config and --output if no config is to be edited")
