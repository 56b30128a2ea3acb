"""A new answer is a noun and one module: what is in the one and not in the other is noticed."""

from __future__ import annotations

import re
from importlib import import_module
from pkgutil import iter_modules, walk_packages

import pytest

import ckpttool
from ckpttool.core import domain
from ckpttool.core.domain.answered import Answered
from ckpttool.core.render import answers as modules
from ckpttool.core.render import schemas

MODELS = [each.name for each in walk_packages(ckpttool.__path__, "ckpttool.")]


def of_each_noun() -> dict[str, list[type[Answered]]]:
    """Return every kind of answer by its noun; several kinds may be told as one document."""
    found: dict[str, list[type[Answered]]] = {}
    names = [f"{domain.__name__}.{each.name}" for each in iter_modules(domain.__path__)]
    names += [name for name in MODELS if re.fullmatch(r"ckpttool\.\w+\.model(\.\w+)?", name)]
    for name in names:
        for kind in vars(import_module(name)).values():
            if isinstance(kind, type) and issubclass(kind, Answered) and kind is not Answered:
                kinds = found.setdefault(kind.NOUN, [])
                if kind not in kinds:
                    kinds.append(kind)
    return found


KINDS = of_each_noun()


@pytest.mark.parametrize("noun", KINDS)
def test_an_answer_has_its_document_beside_its_table_and_a_schema_of_its_name(noun: str) -> None:
    module = import_module(place_of(noun))
    assert callable(module.document)
    assert callable(module.table)
    assert noun in schemas.names()


def place_of(noun: str) -> str:
    return modules.TEXTS.get(noun) or f"{modules.__name__}.{noun.replace('-', '_')}"


def test_no_module_with_a_document_and_a_table_is_left_without_an_answer() -> None:
    names = [f"{modules.__name__}.{each.name}" for each in iter_modules(modules.__path__)]
    names += [name for name in MODELS if re.match(r"ckpttool\.\w+\.answers", name)]
    with_both = {name for name in names if {"document", "table"} <= vars(import_module(name)).keys()}
    assert with_both == {*map(place_of, KINDS)}


@pytest.mark.parametrize("kind", [kind for kinds in KINDS.values() for kind in kinds])
def test_an_answer_says_how_a_command_ends_that_gives_it(kind: type[Answered]) -> None:
    assert "exit_code" not in getattr(kind, "__abstractmethods__", ())
