"""A new answer is a noun and one module: what is in the one and not in the other is noticed."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import pytest

from ckpttool import domain
from ckpttool.domain.answered import Answered
from ckpttool.render import answers as modules
from ckpttool.render import schemas


def of_each_noun() -> dict[str, list[type[Answered]]]:
    """Return every kind of answer by its noun; several kinds may be told as one document."""
    found: dict[str, list[type[Answered]]] = {}
    for each in iter_modules(domain.__path__):
        for kind in vars(import_module(f"{domain.__name__}.{each.name}")).values():
            if isinstance(kind, type) and issubclass(kind, Answered) and kind is not Answered:
                kinds = found.setdefault(kind.NOUN, [])
                if kind not in kinds:
                    kinds.append(kind)
    return found


KINDS = of_each_noun()


@pytest.mark.parametrize("noun", KINDS)
def test_an_answer_has_its_document_beside_its_table_and_a_schema_of_its_name(noun: str) -> None:
    module = import_module(f"{modules.__name__}.{noun.replace('-', '_')}")
    assert callable(module.document)
    assert callable(module.table)
    assert noun in schemas.names()


def test_no_module_with_a_document_and_a_table_is_left_without_an_answer() -> None:
    found = (import_module(f"{modules.__name__}.{each.name}") for each in iter_modules(modules.__path__))
    with_both = {module.__name__.rpartition(".")[2] for module in found if {"document", "table"} <= vars(module).keys()}
    assert with_both == {noun.replace("-", "_") for noun in KINDS}


@pytest.mark.parametrize("kind", [kind for kinds in KINDS.values() for kind in kinds])
def test_an_answer_says_how_a_command_ends_that_gives_it(kind: type[Answered]) -> None:
    assert "exit_code" not in getattr(kind, "__abstractmethods__", ())
