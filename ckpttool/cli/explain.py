"""The command `ckpttool explain`."""

from __future__ import annotations

import shutil
from typing import Annotated, Any

import typer

from ckpttool.core.commands import completing, output
from ckpttool.core.commands.headings import exits_of
from ckpttool.core.commands.options import Format, FormatOpt, exits, grouped
from ckpttool.core.errors import ExitCode
from ckpttool.core.render.answers import explanation as texts
from ckpttool.core.render.json import dumps
from ckpttool.core.render.text import WIDTH

CodeArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[CODE]",
        autocompletion=completing.codes,
        help="A finding's code, a verdict (struct-ok) or an exit code (14). Default: list all findings.",
        rich_help_panel="Arguments",
    ),
]


@exits({0: "The explanation was shown."})
@grouped
def explain(code: CodeArgument = None, fmt: FormatOpt = Format.TABLE) -> None:
    """Explain a finding, a verdict or an exit code.

    Includes the evidence for a finding, and the meaning of an exit code in each command. Without CODE, lists every
    finding, one per line.

    Example: ckpttool explain shard-missing
    """
    from ckpttool.core.verbs import explaining

    answer = explaining.explain(code, meanings=_meanings_of)
    if output.take(answer):
        return
    if fmt is Format.JSON:
        output.result(dumps(answer.to_dict()))
        return
    width = min(WIDTH, shutil.get_terminal_size().columns)
    if isinstance(answer.word, ExitCode):
        output.result(texts.exit_text(answer.word, answer.commands, width=width))
    elif answer.word is not None:
        output.result(texts.verdict_text(answer.word, width=width))
    elif answer.code is not None:
        output.result(texts.one_text(answer.code, width=width))
    else:
        output.result(texts.list_text(width=width))


def _meanings_of(code: ExitCode) -> dict[str, str]:
    """Return the meaning of an exit code in each command that declares it; a group represents its commands."""
    from ckpttool.cli.main import app

    group: Any = typer.main.get_command(app)
    by_command = {name: exits_of(group.get_command(None, name)) for name in group.list_commands(None)}
    return {name: exits[code] for name, exits in by_command.items() if code in exits}
