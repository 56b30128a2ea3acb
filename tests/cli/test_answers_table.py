"""A new answer is one module and one line: what is in the one and not in the other is noticed."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import pytest

from ckpttool.cli import answers
from ckpttool.cli.answers import Answer
from ckpttool.render import answers as modules
from ckpttool.render import schemas

KINDS = {kind.noun: kind for kind in vars(answers).values() if isinstance(kind, Answer)}


@pytest.mark.parametrize("noun", KINDS)
def test_an_answer_has_its_document_beside_its_table_and_a_schema_of_its_name(noun: str) -> None:
    module = KINDS[noun].render
    assert module is import_module(f"ckpttool.render.answers.{noun.replace('-', '_')}")
    assert callable(module.document)
    assert callable(module.table)
    assert noun in schemas.names()


def test_no_module_with_a_document_and_a_table_is_left_out_of_the_list_of_answers() -> None:
    found = (import_module(f"{modules.__name__}.{each.name}") for each in iter_modules(modules.__path__))
    with_both = {module.__name__.rpartition(".")[2] for module in found if {"document", "table"} <= vars(module).keys()}
    assert with_both == {noun.replace("-", "_") for noun in KINDS}
