"""The spelling of JSON: what it stands for, and its bytes."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.finding import Code, Finding, Severity
from ckpttool.core.render import json as document


def test_a_finding_tells_every_field_it_has_but_the_beginning_of_its_message() -> None:
    finding = Finding(code=Code.SHARD_MISSING, severity=Severity.DAMAGE, message="gone", path="rank_1/x", remedy="look")
    spelled = document.finding_document(finding)
    # The fact is the beginning of the message, for texts that need no more.
    assert spelled.keys() == {field.name for field in fields(Finding)} - {"fact"}
    assert (spelled["code"], spelled["severity"]) == ("shard-missing", "damage")


def test_any_name_survives_as_ascii() -> None:
    text = document.dumps({"name": "模\udcff\x1b"})
    assert text.isascii()
    assert json.loads(text) == {"name": "模\udcff\x1b"}


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
DOCUMENTS = st.recursive(
    LEAVES | st.sampled_from([Code.SHARD_MISSING, "},\n{", "}", '"', "\\"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


@given(DOCUMENTS)
def test_a_document_is_spelled_as_the_standard_library_spells_it(value: document.Document) -> None:
    spelled = json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False)
    assert document.dumps(value) == spelled
    assert "".join(document.pieces(value)) == spelled


@pytest.mark.parametrize(
    "value",
    [
        [{"a": [], "b": {}}, {"a": {}}, {"b": "},\n        {"}],
        [{"a": 1}, {}],
        [{"a": [1]}, {"a": []}],
        {"list": [{"x": {}}, {"y": "}"}], "more": [[], [{}], [{"z": None}]]},
        [{"a": "{"}, {"}": "}"}],
        (),
        [()],
    ],
)
def test_objects_in_lists_are_spelled_as_the_standard_library_spells_them(value: document.Document) -> None:
    assert document.dumps(value) == json.dumps(value, indent=2)


@pytest.mark.parametrize("value", [float("nan"), [1.5, float("inf")], {"loss": {"scale": float("-inf")}}])
def test_a_number_that_is_none_is_spelled_nowhere(value: document.Document) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        document.dumps(value)
