"""Pages, messages, docstrings and comments are written in plain English: phrases that nobody else writes are named."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import BLOCK, FENCE, PAGES, ROOT

PHRASES = {
    "where for if": (r"(?:^|[.;:(,] )[Ww]here (?:it|that|they|one|nothing|none|no|there|each|some)\b", "Where it is"),
    "conditional where": (r"\b(?:None|[Oo]nly|but) where\b(?! to)|(?:^|[.;] )Where (?!to )[^.:;?]+, ", "None where"),
    "of what": (r"\b(?:[Oo]f|[Ii]n|[Ff]rom|[Ww]ith|[Bb]y|[Ff]or|[Oo]n|[Aa]t|[Bb]eside) what\b", "of what is read"),
    "lies": (r"\b(?:lies|lay)\b", "lies beside it"),
    "goes on": (r"\b(?:goes|go|went|going) on\b", "the data go on"),
    "nobody": (r"\b(?:[Nn]obody|[Ss]omebody)\b", "nobody knows"),
    "tells": (r"\btells\b", "nothing tells"),
    "stands": (r"(?<!as.it.)\bstands\b", "what stands there"),
    "by itself": (r"\bby (?:itself|themselves)\b", "by itself"),
    "anew": (r"\banew\b", "begins anew"),
    "meant": (r"\bmeant\b", "what is meant"),
    "is none": (r"\b(?:is|are) none\b", "that is none"),
    "a for per": (r"\b(?:samples|batches|one|file|row|page) an? (?:batch|sink|shard|rank|step|epoch)\b", "one a rank"),
    "but for": (r"\bbut (?:for what|for the|what|in|of|by)\b", "but for the rest"),
    "mend": (r"\bmend(?:s|ed|ing)?\b", "mend it"),
    "spell": (r"\bspel(?:ls|led|t)\b", "is spelled"),
    "looked at": (r"\blook(?:s|ed|ing)? (?:at|into)\b", "is not looked at"),
    "holds": (r"\b(?:holds|held)\b", "the file holds a tensor"),
    "told, said": (r"\b(?:[Tt]old|[Ss]aid)\b", "it is told"),
    "is no": (r"\b(?<!here )(?<!which )(?:is|are) no (?!longer\b|more\b|without\b)\w", "it is no number"),
    "power cut": (r"\bpower cuts?\b", "after a power cut"),
    "lone": (r"\blone\b", "a lone file"),
    "cut short": (r"\bcut short\b", "the log is cut short"),
    "a link to nowhere": (r"\bleads? (?:nowhere|out of|round)\b", "a link that leads nowhere"),
    "whoever": (r"\b[Ww]hoever\b", "whoever starts it"),
    "in its place": (r"\bas it stands\b|\btoo much here\b", "the config as it stands"),
    "shows what there is": (r"\bwhat there is\b|\bthat is there\b", "it shows what there is"),
    "obeyed, believed": (r"\b(?:obey|believ)\w*\b", "it is not obeyed"),
    "contraction": (r"\b\w+n't\b(?! match epoch)", "it doesn't load"),
}  # fmt: skip
"""By its name: the phrase, and an example of it. Say "if", "per", a noun, the field's words."""

WRITTEN = [*PAGES, ROOT / "CHANGELOG.md"]


def prose(text: str) -> str:
    """Return a page without what is generated and without code, each line at its place."""
    for part in (BLOCK, FENCE):
        text = part.sub(lambda found: "\n" * found[0].count("\n"), text)
    return re.sub(r"`[^`\n]*`", "``", text)


def messages(source: str) -> Iterator[str]:
    """Return a module's literal texts, each with its line: all but docstrings; a value in one is `{}`."""
    tree = ast.parse(source)
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (docs | parts):
            text = node.value
        else:
            continue
        if " " in text.strip():
            yield f"{node.lineno}: {' '.join(text.split())}"


def notes(source: str) -> Iterator[tuple[int, str]]:
    """Yield a module's docstrings and comments, each with its first line, without code in them."""
    for node in ast.walk(ast.parse(source)):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.lineno, prose(value.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], prose(token.string)


def notes_with_phrases(source: str) -> Iterator[str]:
    """Name every phrase in a module's docstrings and comments, with its line; one may be on two lines."""
    for line, text in notes(source):
        for fault in phrases(" ".join(text.split())):
            yield f"{line}: {fault.partition(': ')[2]}"


def phrases(text: str) -> Iterator[str]:
    """Name every phrase in a text, with its line."""
    for number, line in enumerate(text.splitlines(), 1):
        for name, (pattern, _example) in PHRASES.items():
            if found := re.search(pattern, line):
                yield f"{number}: {name}: {found[0]!r}"


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_phrase_that_nobody_else_writes(page: Path) -> None:
    assert list(phrases(prose(page.read_text(encoding="utf-8")))) == []


def test_no_message_has_a_phrase_that_nobody_else_writes() -> None:
    found = []
    for module in sorted((ROOT / "ckpttool").rglob("*.py")):
        for message in messages(module.read_text(encoding="utf-8")):
            found += [f"{module.relative_to(ROOT)}:{message}: {each}" for each in phrases(prose(message))]
    assert found == []


def test_no_docstring_or_comment_has_a_phrase_that_nobody_else_writes() -> None:
    faults = []
    for folder in ("ckpttool", "benchmarks"):
        for module in sorted((ROOT / folder).rglob("*.py")):
            source = module.read_text(encoding="utf-8")
            faults += [f"{module.relative_to(ROOT)}:{fault}" for fault in notes_with_phrases(source)]
    assert faults == []


def test_faults_in_docstrings_and_comments_are_found_and_those_in_code_are_not() -> None:
    source = (
        'def stands(lies):  # it stands there\n    """Return it.\n\n    The file is\n    cut short.\n    """\n'
        '    told = f"it lies {lies}"\n    held = 1\n    """Bytes that are held, in `lies`."""\n    return told, held\n'
    )
    assert sorted(notes_with_phrases(source)) == [
        "1: stands: 'stands'",
        "2: cut short: 'cut short'",
        "9: holds: 'held'",
    ]


def test_a_docstring_is_no_message_and_a_text_in_a_value_is_one() -> None:
    source = 'def f():\n    """It lies."""\n    return f"it {x(\'is told\')} lies"\n'
    assert sorted(messages(source)) == ["3: is told", "3: it {} lies"]


@pytest.mark.parametrize("name", PHRASES)
def test_each_phrase_is_found_in_its_example_and_not_in_code(name: str) -> None:
    example = PHRASES[name][1]
    assert [found.split(": ")[1] for found in phrases(prose(f"# A page\n\n{example}\n"))] == [name]
    assert (
        list(phrases(prose(f"`{example}`\n```sh\n{example}\n```\n<!-- a:begin -->\n{example}\n<!-- a:end -->\n"))) == []
    )
