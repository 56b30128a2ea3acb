"""All that can be found: each row is whole, and what Markdown shows of its entry is what ckpttool prints."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from markdown_it import MarkdownIt

import ckpttool
from ckpttool.core.extensions import row_of, rows
from ckpttool.core.findings import Code, Row
from ckpttool.core.render.answers import explanation as explain
from ckpttool.trainers.registry import trainers

if TYPE_CHECKING:
    from markdown_it.token import Token

PAGE = (Path(ckpttool.__file__).parent / "guide" / "findings.md").read_text(encoding="utf-8")

COMMONMARK = MarkdownIt("commonmark").enable(["strikethrough", "table"])


def test_a_row_is_called_like_its_code_and_a_code_has_one_row() -> None:
    assert [row.name for row in rows()] == [row.upper().replace("-", "_") for row in rows()]
    assert len({*rows()}) == len([*rows()])


def test_a_row_is_the_same_object_in_another_process() -> None:
    assert all(pickle.loads(pickle.dumps(row)) is row for row in rows())  # noqa: S301  our own


def test_a_code_that_no_row_has_is_an_error() -> None:
    assert row_of("shard-missing") is Code.SHARD_MISSING
    with pytest.raises(ValueError, match="'shard-mising' is no finding's code"):
        row_of("shard-mising")


def test_the_page_speaks_of_no_trainer_but_those_that_there_are() -> None:
    assert {title for row in rows() for title in row.trainers} <= {trainer.title for trainer in trainers()}


def as_shown(tokens: Sequence[Token]) -> Iterator[str]:
    """Return what a reader of the rendered page sees, a line for each paragraph, item and command."""
    for token in tokens:
        if token.type == "code_block":
            yield from token.content.splitlines()
        if token.children is not None:
            kinds = {child.type for child in token.children}
            assert kinds <= {"text", "softbreak", "code_inline", "strong_open", "strong_close"}, token.content
            yield "".join(" " if child.type == "softbreak" else child.content for child in token.children)


def as_printed(one: Row) -> Iterator[str]:
    yield one.value
    yield one.headline
    yield f"What it is: {one.meaning}"
    yield f"How we know: {one.evidence}"
    for title, text in one.trainers.items():
        yield f"{title}: {text}"
    yield f"Severity: {', '.join(severity.word for severity in one.weights)}"
    yield "What to do:"
    yield from one.steps


def entries_as_shown() -> Iterator[list[str]]:
    tokens = COMMONMARK.parse(PAGE)
    starts = [index for index, token in enumerate(tokens) if token.type == "heading_open"]
    for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
        if tokens[start].tag == "h3":
            yield list(as_shown(tokens[start:end]))


def test_what_markdown_shows_of_an_entry_is_what_explain_says() -> None:
    shown = list(entries_as_shown())
    printed = [[line.replace("`", "") for line in as_printed(one)] for one in explain.in_groups()]
    assert shown == printed


def test_every_code_is_an_anchor_of_its_own() -> None:
    headings = [line.lstrip("# ").lower().replace(" ", "-") for line in PAGE.splitlines() if line.startswith("#")]
    assert len(set(headings)) == len(headings)
    assert set(explain.codes()) < set(headings)


def test_the_library_has_every_code_by_its_name() -> None:
    assert list(ckpttool.Code) == list(rows())
    assert all(getattr(ckpttool.Code, row.name) is row for row in rows())
    code: Any = ckpttool.Code
    assert code("fp8-margin") is ckpttool.Code.FP8_MARGIN
    with pytest.raises(AttributeError, match="no finding has the code SHARD_MISING"):
        _ = code.SHARD_MISING


def test_the_library_can_be_asked_for_codes_as_an_enum_can() -> None:
    code: Any = ckpttool.Code
    assert code["FP8_MARGIN"] is ckpttool.Code.FP8_MARGIN
    with pytest.raises(KeyError, match="SHARD_MISING"):
        _ = code["SHARD_MISING"]
    assert len(code) == len([*rows()])
    assert isinstance(ckpttool.Code.FP8_MARGIN, ckpttool.Code)
    assert not isinstance("fp8-margin", ckpttool.Code)


def test_type_checkers_know_every_class_of_rows() -> None:
    code = (Path(ckpttool.__file__).parent / "codes.py").read_text(encoding="utf-8")
    typed = next(node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ClassDef))
    names = {ast.unparse(base).removeprefix("core.") for base in typed.bases}
    assert names == {row.rows.__name__ for row in rows()}
