"""What each finding means: `guide/findings.md`, read where somebody asks and not before, and the same for all who do.

The page is Markdown, so that it can be read where no ckpttool is. It is read strictly: an entry that lacks a part, has
one that no other has, or explains no `Code` is an error at a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby
from typing import NamedTuple, NoReturn

from ckpttool.core.domain.finding import Code, Severity

PAGE = "findings.md"

_WEIGHT = "Weight"
"""The part that says how grave a finding can be."""

_COMMAND = " " * 6
"""An indented block inside a list item: there a step is a command, to be copied as it is."""

_ESCAPED = re.compile(r"(`[^`]*`)|\\([!-/:-@\[-`{-~])")
"""Code, in which a backslash is one; or what a backslash keeps from being a mark of Markdown."""


class Explanation(NamedTuple):
    """One code, explained. Every text is plain prose; a line of `remedy` that begins with `ckpttool` is a command."""

    code: Code
    group: str
    """What it is about: `Shards`."""
    title: str
    """One line, no full stop."""
    severities: tuple[Severity, ...]
    """All weights that this finding can have, lightest first."""
    meaning: str
    evidence: str
    """How ckpttool knows."""
    trainers: tuple[tuple[str, str], ...]
    """What a trainer does with it, by the trainer's title; none where that is not known or not its business."""
    remedy: tuple[str, ...]
    """What to do, one step a line."""


class _Block(NamedTuple):
    """Lines without an empty one between them."""

    number: int
    """Of the first line, from 1."""
    lines: tuple[str, ...]


@cache
def explanations() -> tuple[Explanation, ...]:
    """Return one for each `Code`, in the order of the page: what costs a checkpoint first."""
    return parsed(_page())


def explained(code: str) -> Explanation | None:
    """Return what is known about a code; None where it is no code. The page's other entries are passed over."""
    entries = (entry for entry in _entries(_page()) if entry[1].lines[0] == f"### {code}")
    return next((_explanation(*entry) for entry in entries), None)


def _page() -> str:
    from importlib.resources import files

    return (files("ckpttool") / "guide" / PAGE).read_text(encoding="utf-8")


def parsed(page: str) -> tuple[Explanation, ...]:
    """Read every entry of the page.

    Raises:
        ValueError: An entry is not like the others or explains no code, or a code has none.
    """
    by_code: dict[Code, Explanation] = {}
    for group, heading, blocks in _entries(page):
        explanation = _explanation(group, heading, blocks)
        if explanation.code in by_code:
            _fail(heading, f"{explanation.code.value} is explained twice")
        by_code[explanation.code] = explanation
    if missing := [code.value for code in Code if code not in by_code]:
        _fail(_Block(page.count("\n"), ()), f"the page ends without a heading for {', '.join(missing)}")
    return tuple(by_code.values())


def _entries(page: str) -> Iterator[tuple[str, _Block, list[_Block]]]:
    """Return each code's group and heading with what stands under it; pass over what is said of page and group."""
    group, heading = "", None
    body: list[_Block] = []
    for block in _blocks(page):
        if block.lines[0].startswith(("# ", "## ", "### ")):
            if heading is not None:
                yield group, heading, body
            heading, body = (block if block.lines[0].startswith("### ") else None), []
            group = group if heading else block.lines[0].lstrip("# ")
        else:
            body.append(block)
    if heading is not None:
        yield group, heading, body


def _blocks(page: str) -> Iterator[_Block]:
    numbered = enumerate(page.split("\n"), 1)
    # A heading needs no empty line around it, in Markdown as here.
    for kind, lines in groupby(numbered, key=lambda block: -block[0] if block[1].startswith("#") else block[1] != ""):
        if kind:
            number, first = next(lines)
            yield _Block(number, (first, *(line for _, line in lines)))


def _explanation(group: str, heading: _Block, blocks: list[_Block]) -> Explanation:
    name = heading.lines[0].removeprefix("### ")
    try:
        code = Code(name)
    except ValueError:
        _fail(heading, f"{name!r} is no code")
    rest = [*blocks, _Block(heading.number, (f"the end of {name}",))]
    title = re.fullmatch(r"\*\*(.+)\*\*", "\n".join(rest[0].lines))
    if title is None:
        _fail(rest[0], f"the title of {name} stands here in **, on one line")
    del rest[0]
    return Explanation(
        code=code,
        group=group,
        title=_plain(title[1]),
        meaning=_part(rest, "What it is"),
        evidence=_part(rest, "How we know"),
        trainers=tuple(_trainers(rest)),
        severities=_severities(rest),
        remedy=_remedy(rest),
    )


def _trainers(rest: list[_Block]) -> Iterator[tuple[str, str]]:
    """Take what stands before the weight: a block for each trainer, under its title."""
    while (label := re.match(r"\*\*([^*:]+):\*\* ", rest[0].lines[0])) and label[1] != _WEIGHT:
        yield label[1], _part(rest, label[1])


def _part(rest: list[_Block], label: str) -> str:
    """Take the next block, which has to be this part."""
    block = rest[0]
    mark = f"**{label}:** "
    if not block.lines[0].startswith(mark):
        _fail(block, f"expected {mark}and found {block.lines[0]!r}")
    del rest[0]
    return _prose(block, (block.lines[0].removeprefix(mark), *block.lines[1:]))


def _severities(rest: list[_Block]) -> tuple[Severity, ...]:
    block = rest[0]
    names = _part(rest, _WEIGHT).split(", ")
    by_word = {severity.word: severity for severity in Severity}
    if unknown := [name for name in names if name not in by_word]:
        _fail(block, f"{', '.join(unknown)} is no weight; they are {', '.join(by_word)}")
    return tuple(by_word[name] for name in names)


def _remedy(rest: list[_Block]) -> tuple[str, ...]:
    """Take what is left: a list, whose items hold prose and commands."""
    heading, *blocks, end = rest
    if heading.lines != ("**What to do:**",):
        _fail(heading, f"expected **What to do:** alone and found {heading.lines[0]!r}")
    if not blocks or not blocks[0].lines[0].startswith("- "):
        _fail((blocks or [end])[0], "expected the first step as an item of a list")
    return tuple(step for block in blocks for step in _steps(block))


def _steps(block: _Block) -> Iterable[str]:
    first, *rest = block.lines
    if all(line.startswith(_COMMAND) for line in block.lines):
        return (line.removeprefix(_COMMAND) for line in block.lines)
    if not first.startswith("- ") or not all(line.startswith("  ") for line in rest):
        _fail(block, f"neither an item of a list nor commands, indented by {len(_COMMAND)}: {first!r}")
    return (_prose(block, tuple(line[2:] for line in block.lines)),)


def _prose(block: _Block, lines: tuple[str, ...]) -> str:
    if any(line != line.strip() or not line for line in lines):
        _fail(block, f"a line is indented, ends in a blank or says nothing, from {lines[0]!r} on")
    return _plain(" ".join(lines))


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda match: match[1] or match[2], text)


def _fail(block: _Block, message: str) -> NoReturn:
    raise ValueError(f"{PAGE}:{block.number}: {message}")
