"""The two commands of `ckpttool asd`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool.core.commands import output
from ckpttool.core.commands.answers import show
from ckpttool.core.commands.helped import Command, command_group
from ckpttool.core.commands.options import Format, FormatOpt, Quiet, exits, grouped
from ckpttool.core.domain.frozen import dataclass
from ckpttool.health.model.asd import AsdConfig

app = command_group("asd")

Text = Annotated[
    str,
    typer.Argument(
        metavar="STRING",
        help="Value of NPU_ASD_CONFIG (for MindSpore: MS_NPU_ASD_CONFIG).",
        rich_help_panel="Arguments",
    ),
]
Dialect = Annotated[
    str | None, typer.Option(metavar="D", help="torch_npu (default) or mindspore.", rich_help_panel="Policy")
]


@app.callback()
@exits({0: "The setting is read as intended.", 10: "The setting is not read as intended."})
def asd() -> None:
    """Check or write the settings of Ascend's feature detection.

    Example: ckpttool asd check "enable:true,cooldown:5"
    """


@app.command(cls=Command)
@grouped
def check(*, string: Text, dialect: Dialect = None, fmt: FormatOpt = Format.TABLE) -> None:
    """Show how the real parser reads a configuration, and what it silently drops.

    Example: ckpttool asd check "enable:true, with_checksum:true"
    """
    from ckpttool.health.verbs import asd

    raise typer.Exit(show(asd.check_asd(string, dialect), fmt))


@dataclass(frozen=True, slots=True, kw_only=True)
class AsdOptions:
    """The settings to write; defaults are left out."""

    with_checksum: Annotated[
        bool, typer.Option("--with-checksum", help="Check matrix products after a strike.", rich_help_panel="Policy")
    ] = False
    cooldown: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="MINUTES",
            help="Minutes during which repeated events do not count (5).",
            rich_help_panel="Policy",
        ),
    ] = None
    strikes_num: Annotated[
        int | None, typer.Option(min=1, help="Number of events that make a strike-out (3).", rich_help_panel="Policy")
    ] = None
    strikes_window: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="MINUTES",
            help="Minutes within which the events of a strike-out must occur (480).",
            rich_help_panel="Policy",
        ),
    ] = None
    checksum_cooldown: Annotated[
        int | None,
        typer.Option(min=1, metavar="MINUTES", help="Minutes between two checksums (180).", rich_help_panel="Policy"),
    ] = None
    upper_thresh1: Annotated[
        int | None,
        typer.Option(
            min=3, help="Multiple of the mean at which a value is abnormal (1000000).", rich_help_panel="Policy"
        ),
    ] = None
    upper_thresh2: Annotated[
        int | None,
        typer.Option(
            min=3,
            help="Largest multiple of the mean that still counts toward the mean (100).",
            rich_help_panel="Policy",
        ),
    ] = None
    grad_sample_interval: Annotated[
        int | None, typer.Option(min=1, help="Check every N-th parameter (3; MindSpore 10).", rich_help_panel="Policy")
    ] = None
    disable: Annotated[bool, typer.Option("--disable", help="Turn the detection off.", rich_help_panel="Policy")] = (
        False
    )

    def over(self, base: AsdConfig) -> AsdConfig:
        """Return the defaults of a dialect with the given settings."""
        from dataclasses import fields, replace

        names = (field.name for field in fields(AsdConfig) if field.name not in {"enable", "with_checksum"})
        settings = {name: value for name in names if (value := getattr(self, name)) is not None}
        return replace(base, enable=not self.disable, with_checksum=self.with_checksum, **settings)


@app.command(cls=Command)
@grouped
def emit(*, settings: AsdOptions, dialect: Dialect = None, fmt: FormatOpt = Format.TABLE, quiet: Quiet = False) -> None:
    """Write a configuration that both parsers read as intended.

    Example: ckpttool asd emit --cooldown 10 --strikes-num 4
    """
    from ckpttool.health.verbs import asd

    answer = asd.emit_asd(settings.over(asd.asd_defaults(dialect)), dialect)
    if fmt is Format.JSON:
        raise typer.Exit(show(answer, fmt))
    for finding in () if quiet else answer.findings:
        output.note(finding.message)
    output.result(f"{answer.variable}={answer.text}")  # alone on its line, so that it can be pasted
    raise typer.Exit(answer.exit_code)
