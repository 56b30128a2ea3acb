"""The manual's pages: Markdown that ships in the package, so that it can be read on a node without a network."""

from __future__ import annotations

import re
import textwrap
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from ckpttool.core.render import schema_tables
from ckpttool.core.render.json import Document

_FOLDER = files("ckpttool") / "guide"
_CONTENTS = "README"
_ENTRY = re.compile(r"^- \[(?P<name>[a-z0-9-]+)\]\((?P=name)\.md\): (?P<what>.*)$", re.MULTILINE)
_OPTIONS = re.compile(r"\bOptions: ((?:`ckpttool [a-z0-9-]+ --help`[,\s]*)+)\.")
"""The words by which a page says that a command is described there."""
_VERDICTS = re.compile(r"^\| verdict \| meaning \| what to do \|\n.*\n(?P<rows>(?:\|.*\n)+)", re.MULTILINE)


class Verdict(NamedTuple):
    """What a verdict means, as the page on concepts has it."""

    word: str
    meaning: str
    remedy: str


@cache
def pages() -> dict[str, str]:
    """Return every page with a sentence of what it tells, in the order in which somebody new would read them."""
    return {entry["name"]: entry["what"] for entry in _ENTRY.finditer(_read(_CONTENTS))}


def topics() -> tuple[str, ...]:
    """Return all that a page can be asked for by: its own name, or a command that is described there."""
    return (*pages(), *(command for command in _commands() if command not in pages()))


def page_of(topic: str) -> str | None:
    """Return the name of the page that a topic is on; None where it is none."""
    return topic if topic in pages() else _commands().get(topic)


def page(topic: str) -> str | None:
    """Return the Markdown of the page that a topic is on; None if there is no such page.

    The page about JSON ends with the fields of every document, which are on no disk.
    """
    name = page_of(topic)
    if name is None:
        return None
    return _read(name) + ("\n## Fields\n\n" + schema_tables.every() if name == "json" else "")


def verdicts() -> tuple[Verdict, ...]:
    """Return every verdict, best first."""
    table = _VERDICTS.search(_read("concepts"))
    rows = [line.strip("| ").split(" | ") for line in table["rows"].splitlines()] if table else []
    return tuple(
        Verdict(name, *(text.replace("`", "") for text in (meaning, remedy)))
        for names, meaning, remedy in rows
        for name in re.findall("`([a-z-]+)`", names)
    )


def list_text(*, width: int) -> str:
    """Name every page, and what it tells."""
    indent = max(map(len, pages())) + 2
    return "\n".join(
        textwrap.fill(
            about.replace("`", ""), max(width, 2 * indent), initial_indent=f"{name:{indent}}",
            subsequent_indent=" " * indent, break_on_hyphens=False,
        )
        for name, about in pages().items()
    )  # fmt: skip


def document(topic: str | None) -> Document:
    """`ckpttool/guide/1`. One page, or all without their text."""
    selected = pages() if topic is None else (page_of(topic),)
    entries = [
        {"name": name, "about": pages()[name], "markdown": None if topic is None else page(name)}
        for name in selected
        if name is not None
    ]
    return {"schema": "ckpttool/guide/1", "pages": [*entries]}


def _commands() -> dict[str, str]:
    """Return the page that describes each command."""
    return {
        command: name
        for name in pages()
        for helps in _OPTIONS.findall(_read(name))
        for command in re.findall(r"`ckpttool ([a-z0-9-]+) ", helps)
    }


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.md").read_text(encoding="utf-8")
