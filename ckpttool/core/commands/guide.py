"""The command `ckpttool guide`."""

from __future__ import annotations

import shlex
import shutil
from typing import Annotated

import typer

from ckpttool.core.commands import completing, output
from ckpttool.core.commands.options import Format, FormatOpt, exits, grouped
from ckpttool.core.errors import UsageError, unknown_word
from ckpttool.core.render import guide as pages
from ckpttool.core.render.json import dumps
from ckpttool.core.render.text import WIDTH

TopicArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[TOPIC]",
        autocompletion=completing.topics,
        help="A page, a command or a word. Default: list all pages.",
        rich_help_panel="Arguments",
    ),
]


Search = Annotated[
    str | None,
    typer.Option(
        "--search", metavar="WORDS", help="List the sections that mention these words.", rich_help_panel="Arguments"
    ),
]


@exits({0: "The text was shown."})
@grouped
def guide(topic: TopicArgument = None, *, search: Search = None, fmt: FormatOpt = Format.TABLE) -> None:
    """Show a page of the manual, offline.

    Formats the page on a terminal, and opens a pager if it is long; elsewhere, prints Markdown. TOPIC is a page, a
    command, or a word such as s3, cron or batch-size. Without TOPIC, lists every page, one per line.

    Example: ckpttool guide verify
    """
    width = min(WIDTH, shutil.get_terminal_size().columns)
    if search is not None:
        if topic is not None:
            raise UsageError("give TOPIC or --search, not both")
        matches = pages.search(search)
        if not matches:
            raise UsageError(f"no section mentions {search!r}; `ckpttool guide` lists all pages")
        if fmt is Format.JSON:
            output.result(dumps(pages.document(matches=matches)))
        else:
            output.result(pages.matches_text(matches, search, width=width))
        return
    # The same form as a link on a page.
    name = None if topic is None else topic.strip().lower().replace("_", "-").replace(" ", "-").partition(".md")[0]
    page_text = None if name is None else pages.page(name)
    if topic is not None and page_text is None:
        where = f"`ckpttool guide --search {shlex.quote(topic)}` searches the text, `ckpttool guide` lists all pages"
        raise unknown_word("page", topic, pages.topics(), where)
    if fmt is Format.JSON:
        output.result(dumps(pages.document(name)))
    elif page_text is not None:
        output.page(page_text)
    else:
        output.result(pages.list_text(width=width))
