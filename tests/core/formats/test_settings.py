"""A config as settings: all of them, as YAML reads them, with line and spelling."""

from __future__ import annotations

import pytest

from ckpttool.core.domain.settings import Nested, Setting
from ckpttool.core.errors import ConfigError
from ckpttool.core.formats.safe_yaml import parse_document, settings_of


def entries(text: str) -> dict[str, Setting]:
    settings = settings_of(parse_document(text.encode(), where="base.yaml"), path="base.yaml")
    assert settings.path == "base.yaml"
    return {".".join(map(str, entry.key)): entry for entry in settings.entries}


def test_every_setting_is_there_with_its_line_a_section_before_its_content() -> None:
    found = entries("a: 1\nb:\n  c: [x, {d: null}]\n")
    assert [(name, entry.value, entry.line) for name, entry in found.items()] == [
        ("a", 1, 1), ("b", Nested.MAPPING, 2), ("b.c", Nested.LIST, 3), ("b.c.0", "x", 3), ("b.c.1", Nested.MAPPING, 3),
        ("b.c.1.d", None, 3),
    ]  # fmt: skip


def test_only_what_stands_without_quotes_has_a_spelling() -> None:
    found = entries("a: 010\nb: '010'\nc: 1:30\nd: word\ne: True\nf: 1.50\ng: |\n  text\n")
    assert {name: entry.spelt for name, entry in found.items()} == {
        "a": "010", "b": None, "c": "1:30", "d": "word", "e": None, "f": "1.50", "g": None,
    }  # fmt: skip
    assert (found["a"].value, found["c"].value, found["f"].value) == (8, 90, 1.5)


def test_what_an_alias_brings_in_is_there_without_a_line_of_its_own() -> None:
    found = entries("a: &x {b: 1}\nc: *x\n")
    assert (found["a.b"].line, found["c.b"].line, found["c"].line) == (1, None, 2)
    assert found["c.b"].value == 1


def test_a_date_comes_as_text_and_a_key_of_another_type_by_its_words() -> None:
    found = entries("a: 2024-01-05\n7: b\nTrue: c\n")
    assert found["a"].value == "2024-01-05"
    assert set(found) == {"a", "7", "True"}


def test_what_is_wrong_with_the_yaml_is_told_with_its_line() -> None:
    for text, line in (("a: 1\nb: 2\na: 3\n", 3), ("a: [1\n", 2), ("a: 1\n\tb: 2\n", 2), ("a: !mine 1\n", 1)):
        with pytest.raises(ConfigError) as error:
            parse_document(text.encode(), where="base.yaml")
        assert error.value.line == line
    with pytest.raises(ConfigError) as error:
        parse_document(b"", where="base.yaml")
    assert error.value.line is None
