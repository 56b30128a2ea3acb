"""The manual's pages: Markdown that ships in the package, so that it can be read on a node without a network."""

from __future__ import annotations

import re
import textwrap
from importlib.resources import files

PAGES = (
    "concepts",
    "on-call",
    "resolve",
    "scan",
    "verify",
    "health",
    "data-skip",
    "launch",
    "preflight",
    "ci",
    "prune",
    "replay",
    "asd",
    "mindformers",
    "findings",
    "exits",
    "json",
    "library",
    "limits",
    "reliability",
    "architecture",
)
"""Every page, in the order in which somebody who is new would read them."""

_FOLDER = files("ckpttool") / "guide"


def topics() -> tuple[str, ...]:
    """Return all that a page can be asked for by: its own name, or a command that has its options there."""
    return (*PAGES, *(command for command in _commands() if command not in PAGES))


def page_of(topic: str) -> str | None:
    """Return the name of the page that a topic is on; None where it is none."""
    return topic if topic in PAGES else _commands().get(topic)


def page(topic: str) -> str | None:
    """Return the Markdown of the page that a topic is on; None where it is none."""
    name = page_of(topic)
    return None if name is None else _read(name)


def list_text(*, width: int) -> str:
    """Name every page, and what it tells: the first sentence under its heading."""
    indent = max(map(len, PAGES)) + 2
    return "\n".join(
        textwrap.fill(
            _first_sentence(_read(name)), max(width, 2 * indent), initial_indent=f"{name:{indent}}",
            subsequent_indent=" " * indent, break_on_hyphens=False,
        )
        for name in PAGES
    )  # fmt: skip


def _commands() -> dict[str, str]:
    """Return the page on which each command's options stand."""
    return {
        command: name
        for name in PAGES
        for command in re.findall(r"^#+ Options of `ckpttool ([a-z-]+)`$", _read(name), re.MULTILINE)
    }


def _first_sentence(text: str) -> str:
    _heading, paragraph, *_rest = text.split("\n\n")
    return re.split(r"(?<=\.)\s", paragraph.replace("`", ""))[0].replace("\n", " ")


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.md").read_text(encoding="utf-8")
