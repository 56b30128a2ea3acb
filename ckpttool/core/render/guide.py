"""The pages of the manual: Markdown files in the package, readable on a node without a network."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from ckpttool.core.render import schema_tables
from ckpttool.core.render.json import Document

_FOLDER = files("ckpttool") / "guide"
_CONTENTS = "README"
_CHINESE = "zh"
_ENTRY = re.compile(r"^- \[(?P<name>[a-z0-9-]+)\]\((?P=name)\.md\): (?P<what>.*)$", re.MULTILINE)
_VERDICTS = re.compile(r"^\| verdict \| meaning \| what to do \|\n.*\n(?P<rows>(?:\|.*\n)+)", re.MULTILINE)


class Place(NamedTuple):
    """The place of a topic in the manual."""

    page: str
    heading: str = ""
    """The beginning of a heading of the page; empty for the whole page."""


class Match(NamedTuple):
    """A section of the manual that mentions a word."""

    page: str
    heading: str
    line: str
    """The first line with the word; empty if only the heading has the word."""


class Verdict(NamedTuple):
    """The meaning of a verdict, from the page on concepts."""

    word: str
    meaning: str
    remedy: str


@cache
def pages() -> dict[str, str]:
    """Return every page with a one-sentence summary, in the order for a new reader."""
    return {entry["name"]: entry["what"] for entry in _ENTRY.finditer(_read(_CONTENTS))}


def topics() -> tuple[str, ...]:
    """Return every topic that `ckpttool guide` accepts: pages, commands, and search words."""
    return (*pages(), *(word for word in _places() if word not in pages()))


def place_of(topic: str) -> Place | None:
    """Return the place of a topic, or None if the manual has no page for it."""
    return Place(topic) if topic in pages() else _places().get(topic)


def page_of(topic: str) -> str | None:
    """Return the name of the page about a topic, or None if there is no such page."""
    place = place_of(topic)
    return None if place is None else place.page


def page(topic: str) -> str | None:
    """Return the Markdown of the page or section about a topic, or None if there is no such topic."""
    place = place_of(topic)
    if place is None:
        return None
    text = _text(place.page)
    return text if not place.heading else _section(text, place.heading)


def search(text: str) -> tuple[Match, ...]:
    """Return the sections that mention the text or, failing that, all words of the text, ignoring case.

    There is one match per section, in the order of the pages; the page in Chinese, which repeats the others, comes
    last.
    """
    words = text.lower().split()
    matches = _sections_with([" ".join(words)]) or (_sections_with(words) if len(words) > 1 else [])
    return tuple(sorted(matches, key=lambda match: match.page == _CHINESE))


def _sections_with(words: list[str]) -> list[Match]:
    """Return the sections that mention each of the words, with the first line that has most of the words."""
    matches = []
    for name in pages():
        for heading, lines in _sections(_read(name)):
            text = " ".join((heading, *lines)).lower()
            if all(word in text for word in words):
                counts = [sum(word in line.lower() for word in words) for line in lines]
                most = max(counts, default=0)
                matches.append(Match(name, heading, lines[counts.index(most)].strip() if most else ""))
    return matches


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each heading of a page with the lines up to the next heading."""
    heading, below = "", list[str]()
    for line, level in _lines(text):
        if level:
            yield heading, below
            heading, below = line.strip("# "), []
        else:
            below.append(line)
    yield heading, below


@cache
def _places() -> dict[str, Place]:
    """Read the places of search words from lines of the form `page: words` or `page#Heading: words`."""
    lines = (_FOLDER / "topics.txt").read_text(encoding="utf-8").splitlines()
    split = (line.split(": ") for line in lines)
    return {word: Place(*target.split("#")) for target, words in split for word in words.split()}


def _section(text: str, heading: str) -> str:
    """Return a section of a page, with the sections below it."""
    lines: list[str] = []
    top = 0
    for line, level in _lines(text):
        if not lines and level and line.strip("# ").startswith(heading):
            top = level
        elif lines and 0 < level <= top:
            break
        if top:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _lines(text: str) -> Iterator[tuple[str, int]]:
    """Yield each line of a page with its heading level, 0 for any other line; comments in code are not headings."""
    in_code = False
    for line in text.splitlines():
        in_code ^= line.startswith("```")
        yield line, 0 if in_code else len(line) - len(line.lstrip("#"))


def verdicts() -> tuple[Verdict, ...]:
    """Return all verdicts, best first."""
    table = _VERDICTS.search(_read("concepts"))
    rows = [line.strip("| ").split(" | ") for line in table["rows"].splitlines()] if table else []
    return tuple(
        Verdict(name, *(text.replace("`", "") for text in (meaning, remedy)))
        for names, meaning, remedy in rows
        for name in re.findall("`([a-z-]+)`", names)
    )


def matches_text(matches: tuple[Match, ...], text: str, *, width: int) -> str:
    """List the sections that mention a text, each with the matching part of its first matching line."""
    rows = []
    for match in matches:
        rows.append(f"{match.page}: {match.heading}")
        if match.line:
            rows.append(f"    {_excerpt(match.line, text.lower().split(), max(width - 4, 40))}")
    return "\n".join([*rows, "", "Show one: ckpttool guide PAGE"])


def _excerpt(line: str, words: list[str], width: int) -> str:
    """Cut a line to a width so that the first of the words remains visible."""
    at = min((place for word in words if (place := line.lower().find(word)) >= 0), default=0)
    before = line.rfind(" ", 0, at - width // 2) + 1 if at > width * 2 // 3 else 0
    dots = "… " if before else ""
    return textwrap.shorten(dots + line[before:], width, placeholder=" …")


def list_text(*, width: int) -> str:
    """List every page with its summary."""
    indent = max(map(len, pages())) + 2
    return "\n".join(
        textwrap.fill(
            about.replace("`", ""), max(width, 2 * indent), initial_indent=f"{name:{indent}}",
            subsequent_indent=" " * indent, break_on_hyphens=False,
        )
        for name, about in pages().items()
    )  # fmt: skip


def document(topic: str | None = None, matches: tuple[Match, ...] | None = None) -> Document:
    """Return `ckpttool/guide/1`. It has one page or, without text, all pages or the pages that match a search."""
    if matches is not None:
        selected = [*dict.fromkeys(match.page for match in matches)]
    else:
        selected = [*pages()] if topic is None else [name for name in (page_of(topic),) if name is not None]
    entries: list[Document] = []
    for name in selected:
        entry: dict[str, Document] = {
            "name": name,
            "about": pages()[name],
            "markdown": None if topic is None else _text(name),
        }
        if matches is not None:
            entry["matches"] = [
                {"heading": match.heading, "line": match.line} for match in matches if match.page == name
            ]
        entries.append(entry)
    return {"schema": "ckpttool/guide/1", "pages": entries}


def _text(name: str) -> str:
    """Return a page; the page about JSON ends with the generated fields of every document."""
    return _read(name) + ("\n## Fields\n\n" + schema_tables.every() if name == "json" else "")


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.md").read_text(encoding="utf-8")
