"""`ckpttool explain`."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from ckpttool import api
from ckpttool.cli import completing, output
from ckpttool.cli.grouped import grouped
from ckpttool.cli.options import Format, FormatOpt
from ckpttool.errors import unknown_word
from ckpttool.render.answers import explanation as texts
from ckpttool.render.findings import Explanation, explained
from ckpttool.render.json import dumps
from ckpttool.render.text import WIDTH

CodeArgument = Annotated[
    str | None,
    typer.Argument(metavar="[CODE]", autocompletion=completing.codes, help="A finding's code; all where left out."),
]


@grouped
def explain(code: CodeArgument = None, fmt: FormatOpt = Format.TABLE) -> None:
    """Say what a finding means, and what to do.

    Says how ckpttool knows it, too. Without CODE: every finding that there is, in a line.

    Example: ckpttool explain shard-missing
    """
    width = min(WIDTH, shutil.get_terminal_size().columns)
    one = None if code is None else _find(code)
    if fmt is Format.JSON:
        output.result(dumps(api.explain(None if one is None else one.code).to_dict()))
    else:
        output.result(texts.list_text(width=width) if one is None else texts.one_text(one, width=width))


def _find(code: str) -> Explanation:
    found = explained(code.strip().lower().replace("_", "-"))
    if found is None:
        raise unknown_word("finding", code, texts.codes(), "`ckpttool explain` lists all codes")
    return found
