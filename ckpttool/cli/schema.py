"""`ckpttool schema`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool.cli import completing, output
from ckpttool.cli.grouped import grouped
from ckpttool.errors import UsageError
from ckpttool.render import schemas
from ckpttool.render.json import dumps

NameArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        autocompletion=completing.documents,
        help="The noun in a document's `schema`; all where left out.",
    ),
]


@grouped
def schema(name: NameArgument = None) -> None:
    """Print the JSON Schema of what a command prints.

    That is what --format json gives. Without NAME: every document that there is, in a line.

    Example: ckpttool schema plan
    """
    if name is None:
        output.result(schemas.list_text())
        return
    noun = name.removeprefix("ckpttool/").removesuffix("/1")
    if noun not in schemas.names():
        raise UsageError(f"there is no document {name!r}: `ckpttool schema` lists them")
    output.result(dumps(schemas.schema(noun)))
