"""The command `ckpttool schema`."""

from __future__ import annotations

from typing import Annotated

import typer

from ckpttool.core.commands import completing, output
from ckpttool.core.commands.options import Format, exits, grouped
from ckpttool.core.errors import unknown_word
from ckpttool.core.render import schema_tables, schemas
from ckpttool.core.render.json import dumps

NameArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        autocompletion=completing.documents,
        help="Name of the document, as in its `schema` field. Default: list all documents.",
        rich_help_panel="Arguments",
    ),
]

FormatOption = Annotated[
    Format | None,
    typer.Option("--format", help="json: the JSON Schema (the default); table: one row per field."),
]

_OF_COMMAND = {
    "resolve": "plan",
    "scan": "inventory",
    "verify": "verdicts",
    "inspect": "contents",
    "diff": "difference",
}
"""The document of each command whose name is not the document's name."""


@exits({0: "The schema was printed."})
@grouped
def schema(name: NameArgument = None, fmt: FormatOption = None) -> None:
    """Print the JSON Schema of a command's output.

    The schema describes the output of --format json. Without NAME, lists every document, one per line, or with
    --json as a list.

    Example: ckpttool schema plan
    """
    if name is None:
        output.result(dumps(schemas.list_document()) if fmt is Format.JSON else schemas.list_text())
        return
    noun = name.removeprefix("ckpttool/").removesuffix("/1")
    if noun not in schemas.names():
        matches = [_OF_COMMAND[noun]] if noun in _OF_COMMAND else ()
        raise unknown_word("document", name, schemas.names(), "`ckpttool schema` lists them", matches)
    if fmt is Format.TABLE:
        output.page(schema_tables.table_of(noun))
        return
    output.result(dumps(schemas.schema(noun)))
