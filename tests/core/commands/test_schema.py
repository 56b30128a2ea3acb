"""The JSON that scripts read is a promise: every document has a schema that ships, and keeps to it."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ckpttool.core.render import schemas
from tests.conftest import TESTS
from tests.support.commands import ask
from tests.support.json_schemas import problems_of

GOLDEN = sorted((TESTS / "golden").rglob("*.json"))
PRINTED = re.compile(r'(?:"schema": |SCHEMA = )"ckpttool/([a-z0-9-]+)/1"')
OUR_OWN_FILES = {
    "capture",
    "capture-rank",
    "damaged",
    "events",
    "guard-state",
    "heal-journal",
    "ledger",
    "prune-journal",
    "starts",
    "recorded-replay",
    "training-state",
    "watch-state",
}  # written for ourselves, never printed


def test_every_document_that_is_printed_has_a_schema_and_no_schema_is_left_over() -> None:
    sources = (TESTS.parent / "ckpttool").rglob("*.py")
    printed = {name for source in sources for name in PRINTED.findall(source.read_text(encoding="utf-8"))}
    assert printed - OUR_OWN_FILES == set(schemas.names())


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", schemas.names())
def test_a_schema_is_one_and_is_printed_whole(name: str) -> None:
    said = ask("schema", name)
    assert said.code == 0
    schema = json.loads(said.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["properties"]["schema"] == {"const": f"ckpttool/{name}/1"}
    assert set(re.findall(r'"\$ref": "([^"]+)"', said.stdout)) <= {f"#/$defs/{part}" for part in schema["$defs"]}


def test_a_table_has_the_fields_of_one_document_and_of_its_parts() -> None:
    said = ask("schema", "verdicts", "--format", "table")
    assert said.code == 0
    assert said.stdout.startswith("### ckpttool/verdicts/1\n\n")
    assert "\n| `checkpoints[].name` | text |" in said.stdout
    assert "\n### A finding\n" in said.stdout
    assert "### ckpttool/plan/1" not in said.stdout


def test_json_is_the_schema_as_without_a_format() -> None:
    plain = ask("schema", "skip").stdout
    assert plain.startswith("{\n")
    assert ask("schema", "skip", "--json").stdout == ask("schema", "skip", "--format", "json").stdout == plain


@pytest.mark.sample(25)
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: str(path.relative_to(TESTS / "golden")))
def test_a_golden_document_keeps_to_its_schema(path: Path) -> None:
    assert problems_of(json.loads(path.read_text(encoding="utf-8"))) == []


def test_a_field_that_is_renamed_is_noticed_wherever_it_stands() -> None:
    document = json.loads((TESTS / "golden/resolve/missing-shard.json").read_text(encoding="utf-8"))
    assert problems_of(document) == []
    changed = copy.deepcopy(document)
    changed["rejected"][0]["reasons"][0]["text"] = changed["rejected"][0]["reasons"][0].pop("message")
    first, second = problems_of(changed)
    assert "'message' is a required property" in first + second
    assert "'text' was unexpected" in first + second


def test_the_list_is_json_for_whoever_asks_for_json() -> None:
    listed = ask("schema", "--json").json["schemas"]
    assert [f"{each['name']:{max(map(len, schemas.names())) + 2}}{each['about']}" for each in listed] == ask(
        "schema"
    ).stdout.splitlines()


def fields(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:  # noqa: ANN401  JSON
    for name, field in node.get("properties", {}).items():
        yield f"{path}{name}", field
        yield from fields(field, f"{path}{name}.")
    for inner in (*node.get("anyOf", ()), *node.get("$defs", {}).values(), node.get("items")):
        yield from fields(inner, path) if isinstance(inner, dict) else ()


def test_every_field_says_what_it_holds() -> None:
    of_itself = {"schema"}  # and a reference to a part, which says it there
    for name in schemas.names():
        silent = [path for path, field in fields(schemas.schema(name)) if not {"description", "$ref"} & field.keys()]
        assert {path for path in silent if path.rpartition(".")[2] not in of_itself} == set(), name
