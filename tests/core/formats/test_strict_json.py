"""Foreign JSON means one thing to every reader, or an error that names file and key."""

from __future__ import annotations

import json
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.formats import strict_json as parse
from ckpttool.core.formats.strict_json import Json, ParseError, parse_json, parse_object

JSON_VALUES: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_whatever_json_writes_is_read_back_unchanged(value: Json) -> None:
    assert parse_json(json.dumps(value).encode(), where="f") == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode(), where="f") == value


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b'{"a": 1, "a": 1}', "occurs twice"),
        (b'[{"b": {"a": 1, "c": 2, "a": 3}}]', "occurs twice"),
        (b'{"a": NaN}', "found NaN"),
        (b'{"a": -Infinity}', "found -Infinity"),
        (b'{"a": 1e999}', "a float can hold"),
        (b'{"a": 1', "line 1, column 8"),
        (b"", "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'"\\ud800"', "not UTF-8"),
        (b"[" * 65 + b"]" * 65, "nesting of at most 64"),
        (b"[" * 1_000_000, "nesting of at most 64"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nesting of at most 64"),
        (b"1" * 10_000, "number that is too long"),
    ],
)
def test_a_document_that_readers_could_understand_differently_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(ParseError, match=problem) as caught:
        parse_json(data, where="rank_0/meta.json")
    assert str(caught.value).startswith("rank_0/meta.json: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 64 + b"]" * 64,
        b"[" + b",".join([b"[]"] * 1000) + b"]",
        json.dumps(["[" * 500, '"[{' * 500, "\\" * 33, {"[[[": "]"}]).encode(),
        b'"\\ud83d\\ude00"',
    ],
)
def test_brackets_in_strings_and_side_by_side_are_not_taken_for_nesting(data: bytes) -> None:
    assert parse_json(data, where="f") == json.loads(data)


def test_a_file_over_its_limit_is_refused_and_one_at_the_limit_is_not() -> None:
    assert parse_json(b"[1,2]", where="f", limit=5) == [1, 2]
    with pytest.raises(ParseError, match="at most 4 bytes, found 5"):
        parse_json(b"[1,2]", where="f", limit=4)


@pytest.mark.parametrize("data", [b"", b" \n"])
def test_an_empty_file_is_called_empty(data: bytes) -> None:
    with pytest.raises(ParseError) as caught:
        parse_json(data, where="a/common.json")
    assert str(caught.value) == "a/common.json: not JSON: it is empty"
    assert caught.value.within("a/common.json") == "not JSON: it is empty"
    assert caught.value.within("another") == str(caught.value)


def test_a_syntax_error_tells_its_line() -> None:
    with pytest.raises(ParseError) as caught:
        parse_json(b'{\n "a": 1,\n}', where="f")
    assert caught.value.line in {2, 3}  # Python versions place it differently


RECORD: dict[str, Json] = {
    "whole": 3,
    "minus": -1,
    "half": 1.5,
    "text": "x",
    "yes": True,
    "null": None,
    "list": [1],
    "object": {"a": 1},
    "huge": 10**400,
}


def test_values_of_the_right_type_come_back_as_they_are() -> None:
    assert parse.get_int(RECORD, "whole") == 3
    assert parse.get_int(RECORD, "minus", minimum=None) == -1
    assert parse.get_str(RECORD, "text") == "x"
    assert parse.get_bool(RECORD, "yes") is True
    assert parse.get_list(RECORD, "list") == [1]
    assert parse.get_object(RECORD, "object") == {"a": 1}
    assert parse.get_optional_int(RECORD, "whole") == 3
    assert parse.get_optional_float(RECORD, "half") == 1.5
    assert parse.get_optional_float(RECORD, "whole") == 3.0
    assert parse.get_optional_str(RECORD, "text") == "x"
    assert parse_object(b'{"a": 1}', where="f") == {"a": 1}


@pytest.mark.parametrize("key", ["null", "absent"])
def test_absent_and_null_are_none_where_that_is_allowed(key: str) -> None:
    assert parse.get_optional_int(RECORD, key) is None
    assert parse.get_optional_float(RECORD, key) is None
    assert parse.get_optional_str(RECORD, key) is None


@pytest.mark.parametrize("key", ["yes", "half", "text", "null", "list", "object", "minus", "absent"])
def test_no_other_type_passes_for_an_integer(key: str) -> None:
    with pytest.raises(ParseError, match=f"meta.json: {key}: "):
        parse.get_int(RECORD, key, where="meta.json")


def test_wrong_types_are_refused_by_every_getter() -> None:
    with pytest.raises(ParseError, match="expected a number, found true"):
        parse.get_optional_float(RECORD, "yes")
    with pytest.raises(ParseError, match="float can hold, found an integer of more digits"):
        parse.get_optional_float(RECORD, "huge")
    with pytest.raises(ParseError, match="expected text, found 3"):
        parse.get_str(RECORD, "whole")
    with pytest.raises(ParseError, match="expected true or false, found 3"):
        parse.get_bool(RECORD, "whole")
    with pytest.raises(ParseError, match="expected a list, found an object"):
        parse.get_list(RECORD, "object")
    with pytest.raises(ParseError, match="expected an object, found a list"):
        parse.get_object(RECORD, "list")
    with pytest.raises(ParseError, match="expected an integer"):
        parse.get_optional_int(RECORD, "text")


def test_a_wrong_value_is_shown_on_one_line_and_short() -> None:
    with pytest.raises(ParseError) as caught:
        parse.get_int({"a": "line\nbreak\x1b[31m" + "x" * 1000}, "a")
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 120


def size_of(value: object) -> int:
    """What Python's values take; a small number takes nothing, for there is one of each."""
    parts = value if isinstance(value, list) else [*value, *value.values()] if isinstance(value, dict) else ()
    own = 0 if isinstance(value, int) and value <= 256 else sys.getsizeof(value)
    return own + sum(map(size_of, parts))


@pytest.mark.parametrize(
    "text",
    [
        f"[{','.join(str(10**6 + number) for number in range(1000))}]",
        f"[{','.join(f'{number}.5' for number in range(1000))}]",
        f"[{','.join(['{}'] * 1000)}]",
        f"[{','.join(['[]'] * 1000)}]",
        f"[{','.join(['[[[[1]]]]'] * 1000)}]",
        json.dumps([f"word {number}" for number in range(1000)]),
        json.dumps({f"key {number}": number for number in range(1000)}),
        json.dumps([{"a": number} for number in range(1000)]),
        json.dumps(["模" * 500, "é"], ensure_ascii=False),
    ],
    ids=["integers", "floats", "objects", "lists", "nested", "words", "keys", "records", "wide"],
)
def test_no_document_takes_more_memory_than_is_foreseen(text: str) -> None:
    assert size_of(json.loads(text)) <= parse.memory_of(text.encode())


def test_a_record_whose_values_would_take_more_memory_than_any_does_is_not_parsed() -> None:
    data = b"[" + b"{}," * 9 + b"{}]"
    assert parse.parse_json(data, where="meta.json", most_memory=parse.memory_of(data)) == [{}] * 10
    with pytest.raises(parse.ParseError, match=r"meta\.json: has more values than any such record, in 31 bytes"):
        parse.parse_json(data, where="meta.json", most_memory=parse.memory_of(data) - 1)


@pytest.mark.parametrize(
    ("value", "spelled"),
    [(None, None), (0.1234567, 0.123457), (1234567.0, 1234570.0), (float("nan"), "nan"), (0.0, 0.0)],
)
def test_what_was_measured_is_spelled_by_six_digits(value: float | None, spelled: object) -> None:
    assert parse.measured(value) == spelled


@pytest.mark.parametrize(("spelled", "value"), [("inf", math.inf), ("-inf", -math.inf), (1.5, 1.5)])
def test_a_number_comes_back_from_its_spelling_and_no_other_word_is_one(spelled: Json, value: float) -> None:
    assert parse.as_number(spelled) == value
    with pytest.raises(ParseError, match="expected a number"):
        parse.as_number("many")
