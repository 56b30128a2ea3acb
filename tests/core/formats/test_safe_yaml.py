"""YAML is read as PyYAML reads it, and refused if it could be meant otherwise, or would take the machine with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckpttool.core.errors import ConfigError, ForeignConfigError, UnsafeError
from ckpttool.core.formats.safe_yaml import MAX_BYTES, MAX_DEPTH, MAX_NUMBER_CHARS, parse_document, read_bytes


def refused(text: str | bytes, kind: type[Exception] = ConfigError) -> str:
    content = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(kind) as error:
        parse_document(content, where="base.yaml")
    assert type(error.value) is kind
    return str(error.value)


def test_what_is_no_mapping_is_nobody_s_config() -> None:
    for text in ("", "[1]", "word", "7"):
        assert "has no settings" in refused(text, ForeignConfigError)


def test_several_documents_are_no_config_of_one_program() -> None:
    assert "expected a single document" in refused("a: 1\n---\nb: 2\n", ForeignConfigError)


def test_what_is_no_utf_8_is_told_with_its_byte() -> None:
    assert refused(b"a: \xff") == "'base.yaml' is not UTF-8 (byte 3)"


def test_what_yaml_cannot_make_is_told_in_one_line() -> None:
    for text in ("a: 2024-13-45", "? {a: 1}\n: 2", "a: [1", "a: \x00"):
        assert "\n" not in refused(text)


def test_a_key_that_is_a_list_or_a_mapping_is_told_with_its_line() -> None:
    assert refused("a: 1\n? [x]\n: 2\n") == "'base.yaml', line 2: a list or mapping cannot be a key"


def test_a_value_that_holds_itself_is_refused_and_one_that_is_named_twice_is_not() -> None:
    assert "contains itself through an alias" in refused("a: &x [*x]")
    assert parse_document(b"a: &x [1]\nb: *x\n", where="base.yaml").data == {"a": [1], "b": [1]}


def test_a_tag_of_its_own_is_refused_and_a_merge_is_not() -> None:
    assert "is not allowed in a config" in refused("a: !!python/object/apply:os.system [true]")
    assert "is not allowed in a config" in refused("!mine a: 1")
    assert parse_document(b"a: &x {b: 1}\nc: {<<: *x}\n", where="base.yaml").data["c"] == {"b": 1}


def test_a_number_as_long_as_a_sentence_is_refused() -> None:
    assert parse_document(f"a: {'9' * MAX_NUMBER_CHARS}".encode(), where="base.yaml").data["a"]
    assert "a number of 101 characters" in refused(f"a: {'9' * (MAX_NUMBER_CHARS + 1)}")


def test_what_nests_deeper_than_any_config_is_unsafe_and_what_nests_as_deep_is_not() -> None:
    inside = MAX_DEPTH - 2  # the file itself, and the value inside
    assert parse_document(f"a: {'[' * inside}1{']' * inside}".encode(), where="base.yaml").data
    assert "is nested more than" in refused(f"a: {'[' * (inside + 1)}1{']' * (inside + 1)}", UnsafeError)


def test_aliases_of_aliases_are_unsafe_before_anything_is_made_of_them() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "after its aliases are expanded" in refused("\n".join(lines), UnsafeError)


def test_a_file_larger_than_any_config_is_unsafe(tmp_path: Path) -> None:
    refused(b"#" * (MAX_BYTES + 1), UnsafeError)
    path = tmp_path / "base.yaml"
    path.write_bytes(b"#" * MAX_BYTES)
    assert len(read_bytes(str(path))) == MAX_BYTES
    os.truncate(path, MAX_BYTES + 1)
    with pytest.raises(UnsafeError, match="more than any config"):
        read_bytes(str(path))


@pytest.mark.parametrize("made", ["nothing", "folder", "pipe", "impossible"])
def test_what_is_no_plain_file_is_told_and_never_waited_for(tmp_path: Path, made: str) -> None:
    path = tmp_path / ("a\0b" if made == "impossible" else "base.yaml")
    if made == "folder":
        path.mkdir()
    elif made == "pipe":
        os.mkfifo(path)
    with pytest.raises(ConfigError, match="cannot read the config") as error:
        read_bytes(str(path))
    if made in {"folder", "pipe"}:
        assert "not a regular file" in str(error.value)
