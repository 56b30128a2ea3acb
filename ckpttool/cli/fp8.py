"""`ckpttool fp8`: a group."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from ckpttool import api
from ckpttool.cli import output_files, progress, reports
from ckpttool.cli.answers import FP8_COMPARE, FP8_PROBE, show
from ckpttool.cli.grouped import grouped
from ckpttool.cli.helped import Command, Group
from ckpttool.cli.log_options import Columns
from ckpttool.cli.options import Format, FormatOpt, LayoutOpt, OneName, Quiet, Verbose, one_name
from ckpttool.cli.reports import ReportOptions
from ckpttool.domain.fp8 import Fp8Format, Recipe
from ckpttool.domain.fp8_curves import CurveMetric, PairedBy, Tolerance
from ckpttool.domain.frozen import dataclass, replace
from ckpttool.domain.units import Step
from ckpttool.domain.view import View
from ckpttool.errors import UsageError

app = typer.Typer(
    name="fp8",
    cls=Group,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def fp8() -> None:
    """Training in FP8: does it hurt, where, and what to do.

    Example: ckpttool fp8 probe output/checkpoint
    """


# --- probe -----------------------------------------------------------------------------------------------------------

Probed = Annotated[
    str | None,
    typer.Argument(
        metavar="[FILE|DIR|NAME]",
        show_default=api.DEFAULT_DIR,
        help="A shard of any format, a checkpoint folder, DIR:NAME, or a checkpoint's name.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """What is asked of every tensor."""

    recipe: Annotated[
        list[Recipe] | None,
        typer.Option(metavar="R", help="Judge by this recipe of scaling; repeat it.  [default: tensorwise]"),
    ] = None
    format_of: Annotated[
        str, typer.Option(metavar="weight=F,…", help="Formats of weights: e4m3, e5m2. The first one decides.")
    ] = "weight=e4m3"
    exact: Annotated[bool, typer.Option("--exact", help="Cast every element, not a sample.")] = False
    optimizer: Annotated[bool, typer.Option("--optimizer", help="Look at the states of the optimizer, too.")] = False
    swiglu: Annotated[
        bool, typer.Option("--swiglu/--no-swiglu", help="Compare gate and up weights where they are found.")
    ] = True
    history: Annotated[
        int | None, typer.Option(min=1, metavar="STEPS", help="So far back a delayed scale looks at checkpoints.")
    ] = None
    as_stored: Annotated[bool, typer.Option("--as-stored", help="Do not round numbers of 32 bits to BF16 first.")] = (
        False
    )

    def question(self) -> api.ProbeQuestion:
        """Ask the library.

        Raises:
            UsageError: Two options contradict each other, or one cannot be meant.
        """
        if self.history is not None and Recipe.DELAYED not in (self.recipe or ()):
            raise UsageError("--history is what a delayed scale looks back on: add --recipe delayed")
        return api.ProbeQuestion(
            recipes=tuple(dict.fromkeys(self.recipe or ())),
            formats=_formats(self.format_of),
            exact=self.exact,
            optimizer=self.optimizer,
            swiglu=self.swiglu,
            history=self.history,
            as_stored=self.as_stored,
        )


def _formats(text: str) -> tuple[Fp8Format, ...]:
    operand, _, words = text.partition("=")
    known = {format_.value: format_ for format_ in Fp8Format}
    named = words.split(",")
    if operand != "weight" or not set(named) <= set(known) or len(set(named)) < len(named):
        raise UsageError(f"--format-of takes weight=e4m3, weight=e5m2 or weight=e4m3,e5m2, not {text!r}")
    return tuple(known[word] for word in named)


@app.command(cls=Command)
@grouped
def probe(
    *,
    what: Probed = None,
    checkpoint: OneName = None,
    options: ProbeOptions,
    stats: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write each tensor's numbers there, a line of JSON each.")
    ] = None,
    top: Annotated[int, typer.Option("--top", min=0, metavar="N", help="Rows of each table at most.")] = 20,
    layout: LayoutOpt = None,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Tell what FP8 would do to the weights that lie here. Needs neither a GPU nor a framework.

    Each tensor is read once and cast as the hardware does; the worst come first.

    Example: ckpttool fp8 probe output/checkpoint --recipe blockwise
    """
    if stats is not None:
        output_files.assert_numbers_replaceable(stats, what)
    with progress.watched(quiet=quiet):
        found = api.fp8_probe(what, options.question(), checkpoint=one_name(checkpoint), layout=layout)
    if stats is not None:
        output_files.write_numbers(stats, found)
    raise typer.Exit(show(FP8_PROBE, replace(found, most_rows=top), fmt))


# --- compare ---------------------------------------------------------------------------------------------------------

Run = "Its log: a file, a folder of logs, a glob, or - for stdin."


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """How two runs are held against each other."""

    repeat: Annotated[
        list[str] | None,
        typer.Option(metavar="LOG", help="Another run of the baseline, to tell how far apart two are; repeat it."),
    ] = None
    metric: Annotated[CurveMetric, typer.Option(help="Losses of the training, or of its validations.")] = (
        CurveMetric.LOSS
    )
    by: Annotated[
        PairedBy | None,
        typer.Option(help="What belongs together.  [default: step; samples where batches differ in size]"),
    ] = None
    tolerance: Annotated[
        str, typer.Option(metavar="X|X%", help="What counts as the same: of the loss, or in its units.")
    ] = "0.25%"
    switch_step: Annotated[
        int | None,
        typer.Option(min=0, metavar="STEP", help="Where the candidate begins with FP8, if not at its start."),
    ] = None
    evals: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="BASE CAND", help="Results of lm-evaluation-harness for both, as JSON files."),
    ] = None
    columns: Columns = None

    def question(self, baseline: str, candidate: str) -> api.CurvesQuestion:
        """Ask the library.

        Raises:
            UsageError: The tolerance cannot be meant.
        """
        return api.CurvesQuestion(
            baseline=baseline,
            candidate=candidate,
            repeats=tuple(self.repeat or ()),
            columns=self.columns,
            by=self.by,
            metric=self.metric,
            tolerance=_tolerance(self.tolerance),
            switch_step=None if self.switch_step is None else Step(self.switch_step),
            evals=self.evals,
        )


_TOLERANCE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(?:e-?\d{1,2})?(%?)")


def _tolerance(text: str) -> Tolerance:
    match = _TOLERANCE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--tolerance takes a share as 0.25% or a loss as 0.01, not {text!r}")
    number = float(text.strip().removesuffix("%"))
    return Tolerance(value=number / 100 if match[2] else number, relative=bool(match[2]))


@app.command(cls=Command)
@grouped
def compare(
    *,
    baseline: Annotated[str, typer.Argument(metavar="BASELINE", help=f"The run that is trusted. {Run}")],
    candidate: Annotated[str, typer.Argument(metavar="CANDIDATE", help=f"The run in FP8. {Run}")],
    options: CompareOptions,
    fmt: FormatOpt = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Tell whether a training leaves its baseline, since when, in which way, and whether that is more than noise.

    Spikes are taken out; of two runs alone nobody knows how far chance moves them: give --repeat.

    Example: ckpttool fp8 compare bf16.log fp8.log --repeat bf16-again.log
    """
    with progress.busy("reading the logs", quiet=quiet):
        found = api.fp8_compare(options.question(baseline, candidate))
    raise typer.Exit(show(FP8_COMPARE, found, fmt))


# --- lint ------------------------------------------------------------------------------------------------------------

Linted = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...", help="Logs, scripts with arguments, configs, debug configs, of one run; told by content."
    ),
]
EngineVersion = Annotated[
    str | None, typer.Option("--te-version", metavar="V", help="Transformer Engine's: some rules hang on it.")
]
LayerNames = Annotated[
    str | None, typer.Option("--layers", metavar="FILE", help="Names of layers, one a line, or a debug log.")
]


@app.command(cls=Command)
@grouped
def lint(
    *,
    files: Linted,
    report: ReportOptions,
    te_version: EngineVersion = None,
    layers: LayerNames = None,
    verbose: Verbose = False,
) -> None:
    """Say what in settings of FP8 does not do what it says, or is known trouble.

    Best is a log in which Megatron printed its arguments: there they all are. Scripts are read, and never run.
    A comment in a file, `# ckpttool: allow CODE`, on the line or above it, silences a finding.

    Example: ckpttool fp8 lint train.log
    """
    output_files.assert_reports_replaceable(report.files(), inputs=report.existing(*files))
    view = View(everything=verbose)
    answer = api.fp8_lint(files, allowed=report.allowed(), te_version=te_version, layers=layers, view=view)
    raise typer.Exit(reports.show(answer, report))
