"""A config says the same in YAML, JSON and TOML, each key on its line."""

from __future__ import annotations

import pytest

from ckpttool.core.errors import ConfigError, ForeignConfigError, UnsafeError
from ckpttool.core.formats import config_text
from ckpttool.core.formats.config_text import ConfigFile
from ckpttool.core.formats.safe_yaml import MAX_BYTES, MAX_DEPTH, Document, parse_document
from ckpttool.core.verbs import configs
from tests.support.trees import FIXTURES

TOML = b"""\
top = 1  # first
[a.b]
c = [1, {d = 2}]
"quoted" = 3
e . f = 4

[[list]]
x = true
"""


def parse_config(content: bytes, *, path: str) -> Document:
    return ConfigFile(content, path=path).document


def test_tables_and_bare_keys_of_toml_have_their_lines() -> None:
    document = parse_config(TOML, path="x.toml")
    b = {"c": [1, {"d": 2}], "quoted": 3, "e": {"f": 4}}
    assert document.data == {"top": 1, "a": {"b": b}, "list": [{"x": True}]}
    lines = {("top",): 1, ("a", "b"): 2, ("a", "b", "c"): 3, ("a", "b", "e", "f"): 5, ("list",): 7, ("list", "x"): 8}
    assert document.lines == lines


def test_numbers_of_json_are_numbers_though_yaml_reads_them_as_text() -> None:
    document = parse_config(b'{\n\t"lr": 1e-5\n}', path="x.json")
    assert (document.data, document.lines) == ({"lr": 1e-5}, {("lr",): 2})
    assert parse_config(b"lr: 1e-5\n", path="x.yaml").data == {"lr": "1e-5"}


def test_a_flow_mapping_is_yaml_although_it_begins_as_json_does() -> None:
    assert parse_config(b"{a: True}", path="x.yaml").data == {"a": True}


def test_json_that_yaml_cannot_read_is_read_without_lines() -> None:
    key = "k" * 2000  # YAML looks for a colon no further than 1,024 characters
    document = parse_config(f'{{"{key}": 1}}'.encode(), path="x.json")
    assert (document.data, document.lines) == ({key: 1}, {})


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"a = ", ConfigError),
        (b"a = \xff", ConfigError),
        (b"a = 1\na = 2", ConfigError),
        (b"#" * (MAX_BYTES + 1), UnsafeError),
        (b".".join([b"a"] * (MAX_DEPTH + 2)) + b" = 1", UnsafeError),
        (b"a = " + b"[" * 40_000 + b"]" * 40_000, ConfigError),
    ],
)
def test_toml_that_no_config_is_is_refused_in_one_sentence(content: bytes, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^'x\.toml' [^\n]*$"):
        parse_config(content, path="x.toml")


def test_json_is_bounded_as_yaml_is() -> None:
    with pytest.raises(UnsafeError):
        parse_config(b'{"a": "' + b"x" * MAX_BYTES + b'"}', path="x.json")
    with pytest.raises(ForeignConfigError):
        parse_config(b"[1, 2]", path="x.json")


def test_a_config_is_parsed_once_however_many_readers_look_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def parse(content: bytes, *, where: str) -> Document:
        parsed.append(where)
        return parse_document(content, where=where)

    monkeypatch.setattr(config_text, "parse_document", parse)
    content = (FIXTURES / "configs" / "lightning_cli.yaml").read_bytes()
    assert configs.parse_config(content, path="c.yaml").trainer == "lightning"
    assert parsed == ["c.yaml"]
