"""The group of commands `ckpttool fp8`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ckpttool.core.commands import output, progress, reports
from ckpttool.core.commands.answers import show
from ckpttool.core.commands.helped import Command, command_group
from ckpttool.core.commands.options import OF_A_TREE, Format, FormatOpt, Quiet, Verbose, always_writes, exits, grouped
from ckpttool.core.commands.output_files import assert_outside, assert_replaceable, first_line, root_of, same_file
from ckpttool.core.commands.reports import ReportOptions
from ckpttool.core.commands.tree_options import OneName, What, one_name
from ckpttool.core.domain.frozen import dataclass, replace
from ckpttool.core.domain.question import COLUMNS, DIR, LAYOUT
from ckpttool.core.domain.units import Step
from ckpttool.core.domain.view import View
from ckpttool.core.errors import UsageError
from ckpttool.fp8.frameworks.frameworks import framework_names
from ckpttool.fp8.model.curves import RUN, SWITCH_STEP, TOLERANCE, WITHIN_CHANCE, CurvesQuestion, Tolerance
from ckpttool.fp8.model.fp8 import Recipe
from ckpttool.fp8.model.plan import PlanQuestion
from ckpttool.fp8.model.probe import ProbeQuestion
from ckpttool.fp8.rules.grounds import LONGEST, SHORTEST

if TYPE_CHECKING:
    from ckpttool.core.storage.base import ByteSource

_option = partial(typer.Option, rich_help_panel="FP8")

app = command_group("fp8")


@app.callback()
@exits(
    {
        0: "No harm from FP8 was found.",
        10: "FP8 hurts: a weight would be lost, or an FP8 checkpoint is damaged.",
        11: "There is no checkpoint to inspect.",
        **OF_A_TREE,
    }
)
def fp8() -> None:
    """Find out whether FP8 hurts a training run, why, and how to fix it.

    Example: ckpttool fp8 probe output/checkpoint
    """


# --- probe -----------------------------------------------------------------------------------------------------------


@app.command(cls=Command)
@exits(
    {
        0: "No weight would be lost under the recipe that determines the result.",
        10: "A weight would be lost, or a shard or its FP8 data is damaged.",
        11: "There is no checkpoint to inspect.",
        **OF_A_TREE,
        14: "A tensor could not be read, or changed during the read.",
    }
)
@grouped
def probe(
    *,
    what: What = None,
    checkpoint: OneName = None,
    question: ProbeQuestion,
    stats: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the numbers of each tensor as JSON lines.")
    ] = None,
    top: Annotated[int, typer.Option("--top", min=0, metavar="N", help="Maximum number of rows per table.")] = 20,
    layout: Annotated[str | None, LAYOUT] = None,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Show what FP8 would do to the weights of a checkpoint, without a GPU or framework.

    Reads each tensor once and casts it as the hardware does. Lists the worst tensors first.

    Example: ckpttool fp8 probe output/checkpoint --recipe blockwise
    """
    from ckpttool.fp8.verbs import probe

    if stats is not None:
        _assert_numbers_replaceable(stats, what)
    with progress.watched(quiet=quiet):
        answer = probe.fp8_probe(what, question, checkpoint=one_name(checkpoint), layout=layout)
    if stats is not None and not output.is_dry_run():
        from ckpttool.core.write import files
        from ckpttool.fp8.answers.probe import stats_lines

        files.replace(stats, "".join(stats_lines(answer)).encode("ascii"), overwrite=True, backup=False)
    raise typer.Exit(show(replace(answer, most_rows=top), fmt))


def _assert_numbers_replaceable(path: str, requested: str | None) -> None:
    """Raise an error if the target is a file that ckpttool did not write, before any checkpoint is read.

    Raises:
        UsageError: The target is the probed file or is in the probed tree, its folder does not exist, or something
            else has that path.
    """
    from ckpttool.core.domain.question import TreeQuestion

    if requested is not None and same_file(path, requested):
        raise UsageError(f"--stats {path!r} is the input file; give another file")
    assert_outside(path, root_of(TreeQuestion(path=requested)), option="--stats")
    assert_replaceable(path, option="--stats", is_ours=_holds_probe, purpose="numbers")


def _holds_probe(source: ByteSource) -> bool:
    first = first_line(source)
    return isinstance(first, dict) and {"name", "recipes"} <= first.keys()


# --- compare ---------------------------------------------------------------------------------------------------------


@app.command(cls=Command)
@exits(
    {
        0: "The run follows the baseline, except for spikes that pass as quickly as the baseline's.",
        10: "The run departs from the baseline, or its downstream scores do.",
        14: "The logs are inconclusive, or one could not be read.",
    }
)
@grouped
def compare(
    *,
    question: CurvesQuestion,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Show whether, when and how a run departs from its baseline by more than noise.

    Removes spikes first. Two runs alone do not show the random variation: add --repeat.

    Example: ckpttool fp8 compare bf16.log fp8.log --repeat bf16-again.log
    """
    from ckpttool.fp8.verbs import compare

    with progress.busy("reading the logs", quiet=quiet):
        answer = compare.fp8_compare(question)
    raise typer.Exit(show(answer, fmt))


# --- lint ------------------------------------------------------------------------------------------------------------

Linted = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...",
        help="Logs, launch scripts, configs and debug configs of one run, recognized by their content.",
        rich_help_panel="Arguments",
    ),
]
EngineVersion = Annotated[
    str | None, _option("--te-version", metavar="V", help="Version of Transformer Engine; some rules depend on it.")
]
LayerNames = Annotated[
    str | None, _option("--layers", metavar="FILE", help="File with layer names, one per line, or a debug log.")
]


@app.command(cls=Command)
@exits(
    {
        0: "No problem was found.",
        10: "A setting has no effect, or not the effect that its name suggests.",
        15: "A config was refused for safety: it is too large, or nested too deeply.",
    }
)
@grouped
def lint(
    *,
    files: Linted,
    report: ReportOptions,
    te_version: EngineVersion = None,
    layers: LayerNames = None,
    verbose: Verbose = False,
) -> None:
    """Check for FP8 settings that have no effect or are known to cause problems.

    The best input is a log in which Megatron printed all arguments. Scripts are read but never executed. To accept
    a finding, add the comment `# ckpttool: allow CODE` on its line or the line above.

    Example: ckpttool fp8 lint train.log
    """
    from ckpttool.fp8.verbs import lint

    paths = report.existing(*files, advice="give existing files")
    reports.assert_reports_replaceable(report.files(), inputs=paths)
    view = View(everything=verbose)
    answer = lint.fp8_lint(files, allowed=report.allowed(), te_version=te_version, layers=layers, view=view)
    raise typer.Exit(reports.show(answer, report))


# --- plan ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsOptions:
    """The runs to compare."""

    baseline: Annotated[
        str | None, _option(metavar="LOG", help=f"Log of the trusted run: {RUN} Required in round 1.")
    ] = None
    candidate: Annotated[str | None, _option(metavar="LOG", help=f"Log of the FP8 run: {RUN}")] = None
    repeat: Annotated[list[str] | None, _option(metavar="LOG", help="Another run of the baseline; repeatable.")] = None
    tolerance: Annotated[Tolerance, TOLERANCE] = WITHIN_CHANCE
    switch_step: Annotated[Step | None, SWITCH_STEP] = None
    columns: Annotated[str | None, COLUMNS] = None

    def curves(self) -> CurvesQuestion | None:
        """Return the question about the runs' differences, or None if no run was passed.

        Raises:
            UsageError: Only one of the two runs was passed.
        """
        if self.baseline is None or self.candidate is None:
            if self.baseline is self.candidate:
                return None
            raise UsageError("--baseline and --candidate are used together: give both")
        return CurvesQuestion(
            baseline=self.baseline,
            candidate=self.candidate,
            repeats=tuple(self.repeat or ()),
            columns=self.columns,
            tolerance=self.tolerance,
            switch_step=self.switch_step,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The framework of the planned experiments, and their output folder."""

    framework: Annotated[str, _option(metavar="NAME", help=f"Training framework: {', '.join(framework_names())}.")]
    output: Annotated[
        str,
        typer.Option(
            metavar="OUT",
            help="Folder for the plan: a new folder, or one with an earlier plan.",
            rich_help_panel="Launch",
        ),
    ]
    framework_version: Annotated[
        str | None, _option("--framework-version", metavar="V", help="Version of the framework.")
    ] = None
    te_version: EngineVersion = None
    recipe: Annotated[
        Recipe | None, _option(metavar="R", help="Recipe of the candidate, if its log does not print it.")
    ] = None
    round: Annotated[int, _option("--round", min=1, metavar="N", help="Plan round N, based on the logs so far.")] = 1
    checkpoint_step: Annotated[
        int | None,
        _option(
            "--checkpoint-step",
            min=0,
            metavar="STEP",
            help="Start from the checkpoint at this step, without checking it.",
        ),
    ] = None
    horizon: Annotated[
        int | None,
        _option(
            min=SHORTEST, max=LONGEST, metavar="STEPS", help="Steps per experiment. Default: as many as the gap needs."
        ),
    ] = None
    debug_logs: Annotated[
        list[str] | None,
        typer.Option(
            "--stats",
            metavar="LOG",
            help="Log with debug-feature statistics, to test the worst layers first; repeatable.",
        ),
    ] = None
    devices: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of devices; the cost is also shown in device-hours.",
            rich_help_panel="Launch",
        ),
    ] = None

    def question(self, tree: str | None, curves: CurvesQuestion | None) -> PlanQuestion:
        """Return the question for the library."""
        return PlanQuestion(
            curves=curves,
            framework=self.framework,
            output=self.output,
            tree=tree,
            checkpoint_step=None if self.checkpoint_step is None else Step(self.checkpoint_step),
            framework_version=self.framework_version,
            engine_version=self.te_version,
            horizon=self.horizon,
            recipe=self.recipe,
            round=self.round,
            stats=tuple(self.debug_logs or ()),
            devices=self.devices,
        )


@app.command(cls=Command)
@exits(
    {
        0: "The experiments were written.",
        11: "There is no good checkpoint before the gap.",
        **OF_A_TREE,
        14: "The experiments could not show the cause; the output gives the reason.",
        15: "The folder contains other files, or logs that would be lost.",
    }
)
@grouped
@always_writes
def plan(
    *,
    directory: Annotated[str | None, DIR] = None,
    runs: RunsOptions,
    options: PlanOptions,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Plan experiments to find the cause, and list the changes and possible outcomes of each.

    Writes one folder per experiment. All start from the newest good checkpoint before the gap, to be comparable.
    Starts no run and edits no config.

    Example: ckpttool fp8 plan output --baseline bf16.log --candidate fp8.log --framework te --output plan
    """
    from ckpttool.fp8.verbs import plan

    with progress.busy("reading the logs", quiet=quiet):
        answer = plan.fp8_plan(options.question(directory, runs.curves()))
    raise typer.Exit(show(answer, fmt))


# --- verdict ---------------------------------------------------------------------------------------------------------

OwnLogs = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        metavar="ID=LOG",
        help="Log of an experiment that is not in its folder; repeatable.",
        rich_help_panel="Evidence",
    ),
]
Planned = Annotated[str, typer.Argument(metavar="OUT", help="Folder that fp8 plan wrote.", rich_help_panel="Arguments")]


@app.command(cls=Command)
@exits(
    {
        0: "FP8 is not the cause, or a fix that keeps all products in FP8 was found.",
        10: "A cause was found, and the output gives the fix.",
        14: "The cause is undecided; the output names the missing evidence.",
        15: "The folder contains no plan written by ckpttool.",
    }
)
@grouped
def verdict(*, output: Planned, logs: OwnLogs = None, fmt: FormatOpt = Format.TABLE, quiet: Quiet = False) -> None:
    """Judge the experiments of a plan: the cause, its fix, or the next round.

    A run counts only if it finished and, according to its logs, ran as planned.

    Example: ckpttool fp8 verdict plan
    """
    from ckpttool.fp8.verbs import verdict

    with progress.busy("reading the logs", quiet=quiet):
        answer = verdict.fp8_verdict(output, _logs(logs or ()))
    raise typer.Exit(show(answer, fmt))


def _logs(options: Sequence[str]) -> dict[str, tuple[str, ...]]:
    logs: dict[str, tuple[str, ...]] = {}
    for name, equals, path in (text.partition("=") for text in options):
        if not (name and path):
            raise UsageError(f"--log takes ID=LOG, as in --log E4d=runs/e4d.log, not {name + equals + path!r}")
        logs[name] = (*logs.get(name, ()), path)
    return logs
