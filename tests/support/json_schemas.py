"""What we print, held against what was published: the schemas in `tests/schemas`, and our own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

import jsonschema
import xmlschema

from ckpttool.core.render import schemas
from ckpttool.core.render.json import Document
from tests.conftest import TESTS

SCHEMAS = TESTS / "schemas"


@cache
def _sarif_schema() -> jsonschema.Draft202012Validator:
    schema = json.loads((SCHEMAS / "sarif-2.1.0.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@cache
def _junit_schema() -> xmlschema.XMLSchema:
    return xmlschema.XMLSchema(SCHEMAS / "junit-10.xsd")


def sarif_run(text: str) -> dict[str, list[dict[str, object]]]:
    """Return the one run of a SARIF log that keeps to the schema, and to what the schema cannot say."""
    log = json.loads(text)
    problems = [f"{error.json_path}: {error.message}" for error in _sarif_schema().iter_errors(log)]
    assert problems == []
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(set(rules)) == len(rules)
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        (location,) = result["locations"]  # code scanning shows nothing without one
        assert urlsplit(location["physicalLocation"]["artifactLocation"]["uri"]).scheme in {"", "file"}
    assert isinstance(run, dict)
    return run


def code_quality_entries(text: str) -> list[dict[str, Any]]:
    """Return the entries of a code quality report that have what GitLab documents, and nothing twice."""
    entries = json.loads(text)
    for entry in entries:
        assert set(entry) == {"description", "check_name", "fingerprint", "severity", "location"}
        assert all(isinstance(entry[key], str) and entry[key] for key in set(entry) - {"location"})
        assert entry["severity"] in {"info", "minor", "major", "critical", "blocker"}
        assert set(entry["location"]) == {"path", "lines"}
        assert not entry["location"]["path"].startswith("./")
        assert entry["location"]["lines"].keys() == {"begin"}
        assert type(entry["location"]["lines"]["begin"]) is int
        assert entry["location"]["lines"]["begin"] >= 1
    assert len({entry["fingerprint"] for entry in entries}) == len(entries)
    assert isinstance(entries, list)
    return entries


def junit_suite(text: str) -> ET.Element:
    """Return the one suite of a JUnit report that keeps to the schema and counts right."""
    _junit_schema().validate(text)
    root = ET.fromstring(text)  # noqa: S314  ours
    (suite,) = root
    for name, path in {"tests": "testcase", "failures": "testcase/failure", "errors": "testcase/error"}.items():
        assert int(suite.get(name, "")) == len(suite.findall(path)) == int(root.get(name, ""))
    return suite


def junit_file(path: Path) -> ET.Element:
    """Return the suite of a report in a file."""
    return junit_suite(path.read_text(encoding="utf-8"))


@cache
def _own_schema(name: str) -> jsonschema.Draft202012Validator:
    schema = schemas.schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(_closed(schema))


def _closed(schema: Mapping[str, Document]) -> dict[str, Document]:
    """Let an object hold what its schema names, and nothing beside: a reader must allow for more, a test must not."""
    closed = {key: _closed_below(value) for key, value in schema.items()}
    return {**closed, "additionalProperties": False} if {"properties", "required"} <= schema.keys() else closed


def _closed_below(value: Document) -> Document:
    if isinstance(value, Mapping):
        return _closed(value)
    return [_closed_below(each) for each in value] if isinstance(value, list) else value


def problems_of(document: object) -> list[str]:
    """Return where a document of ours is not what its schema says, by name of field."""
    assert isinstance(document, dict)
    noun = str(document["schema"]).removeprefix("ckpttool/").removesuffix("/1")
    return sorted(f"{error.json_path}: {error.message}" for error in _own_schema(noun).iter_errors(document))
