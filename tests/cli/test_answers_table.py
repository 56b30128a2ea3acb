"""A new answer is a noun and one module: what is in the one and not in the other is noticed."""

from __future__ import annotations

import re
from importlib import import_module
from pkgutil import iter_modules, walk_packages

import pytest

import ckpttool
from ckpttool.core import domain
from ckpttool.core.domain.answers import Answered
from ckpttool.core.domain.preflight import Reported
from ckpttool.core.render import answers as modules
from ckpttool.core.render import schemas
from ckpttool.core.render.answers import texts_of

MODELS = [each.name for each in walk_packages(ckpttool.__path__, "ckpttool.")]


def kinds_of_answers() -> list[type[Answered]]:
    """Return every kind of answer; several may have one document."""
    found: dict[type[Answered], None] = {}
    names = [f"{domain.__name__}.{each.name}" for each in iter_modules(domain.__path__)]
    names += [name for name in MODELS if re.fullmatch(r"ckpttool\.\w+\.model(\.\w+)?", name)]
    for name in names:
        for kind in vars(import_module(name)).values():
            if isinstance(kind, type) and issubclass(kind, Answered) and kind not in {Answered, Reported}:
                found[kind] = None
    return [*found]


KINDS = kinds_of_answers()


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_has_its_document_beside_its_table_and_a_schema_of_its_name(kind: type[Answered]) -> None:
    texts = texts_of(kind)
    assert callable(texts.document)
    assert callable(texts.table)
    assert kind.NOUN in schemas.names()


def test_no_module_with_a_document_and_a_table_is_left_without_an_answer() -> None:
    names = [f"{modules.__name__}.{each.name}" for each in iter_modules(modules.__path__)]
    names += [name for name in MODELS if re.match(r"ckpttool\.\w+\.answers", name)]
    with_both = [module for module in map(import_module, names) if {"document", "table"} <= vars(module).keys()]
    assert {*map(id, with_both)} == {id(texts_of(kind)) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_says_how_a_command_ends_that_gives_it(kind: type[Answered]) -> None:
    assert "exit_code" not in getattr(kind, "__abstractmethods__", ())
