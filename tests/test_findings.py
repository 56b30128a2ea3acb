"""All findings: each row is complete, and the page lists each as ckpttool prints it."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

import ckpttool
from ckpttool.core.extensions import row_of, rows
from ckpttool.core.findings import Code
from ckpttool.core.render.answers import explanation as explain
from ckpttool.trainers.registry import trainers

PAGE = (Path(ckpttool.__file__).parent / "guide" / "findings.md").read_text(encoding="utf-8")

COMMONMARK = MarkdownIt("commonmark").enable(["strikethrough", "table"])


def test_a_row_is_called_like_its_code_and_a_code_has_one_row() -> None:
    assert [row.name for row in rows()] == [row.upper().replace("-", "_") for row in rows()]
    assert len({*rows()}) == len([*rows()])


def test_a_row_is_the_same_object_in_another_process() -> None:
    assert all(pickle.loads(pickle.dumps(row)) is row for row in rows())  # noqa: S301  our own


def test_a_code_that_no_row_has_is_an_error() -> None:
    assert row_of("shard-missing") is Code.SHARD_MISSING
    with pytest.raises(ValueError, match="'shard-mising' is not the code of a finding"):
        row_of("shard-mising")


def test_the_page_speaks_of_no_trainer_but_those_that_there_are() -> None:
    assert {title for row in rows() for title in row.trainers} <= {trainer.title for trainer in trainers()}


def entries_as_shown() -> Iterator[list[str]]:
    """Return the cells that a reader of the rendered page sees, by row."""
    cells: list[str] = []
    for token in COMMONMARK.parse(PAGE):
        if token.type == "tr_open":
            cells = []
        if token.children is not None:
            cells += ["".join(child.content for child in token.children if child.type != "html_inline")]
        if token.type == "tr_close":
            yield [*cells]


def test_the_page_shows_the_code_the_severities_and_the_title_of_every_row() -> None:
    rows_shown = [cells for cells in entries_as_shown() if len(cells) == 3 and cells[0] != "code"]
    assert rows_shown == [
        [row.value, ", ".join(severity.word for severity in row.weights), row.headline.replace("`", "")]
        for row in explain.in_groups()
    ]


def test_every_code_is_an_anchor_of_its_own() -> None:
    headings = [line.lstrip("# ").lower().replace(" ", "-") for line in PAGE.splitlines() if line.startswith("#")]
    assert re.findall(r'<a id="([a-z0-9-]+)"></a>', PAGE) == list(explain.codes())
    assert len({*headings, *explain.codes()}) == len([*headings, *explain.codes()])


def test_the_library_has_every_code_by_its_name() -> None:
    assert list(ckpttool.types.Code) == list(rows())
    assert all(getattr(ckpttool.types.Code, row.name) is row for row in rows())
    code: Any = ckpttool.types.Code
    assert code("fp8-margin") is ckpttool.types.Code.FP8_MARGIN
    with pytest.raises(AttributeError, match="no finding has the code SHARD_MISING"):
        _ = code.SHARD_MISING


def test_the_library_can_be_asked_for_codes_as_an_enum_can() -> None:
    code: Any = ckpttool.types.Code
    assert code["FP8_MARGIN"] is ckpttool.types.Code.FP8_MARGIN
    with pytest.raises(KeyError, match="SHARD_MISING"):
        _ = code["SHARD_MISING"]
    assert len(code) == len([*rows()])
    assert isinstance(ckpttool.types.Code.FP8_MARGIN, ckpttool.types.Code)
    assert not isinstance("fp8-margin", ckpttool.types.Code)


def test_type_checkers_know_every_class_of_rows() -> None:
    code = (Path(ckpttool.__file__).parent / "codes.py").read_text(encoding="utf-8")
    typed = next(node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ClassDef))
    names = {ast.unparse(base).removeprefix("core.") for base in typed.bases}
    assert names == {row.rows.__name__ for row in rows()}
