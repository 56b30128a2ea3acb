"""`health --write` changes the marks and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.domain.health import Health
from ckpttool.trainers.mindformers.health_file import updated_health_json

REAL = Path(__file__).parents[3] / "fixtures" / "health_pp2" / "output" / "health_ckpts.json"
HEALTHY, UNHEALTHY, UNKNOWN = Health.HEALTHY, Health.UNHEALTHY, Health.UNKNOWN


def test_a_file_that_says_it_already_stays_byte_for_byte() -> None:
    old = REAL.read_bytes()
    assert updated_health_json(old, [("llama2_7b_rank_0-15_2.ckpt", UNHEALTHY)]) is old
    assert updated_health_json(old, []) is old


def test_a_changed_mark_changes_one_digit_of_the_real_file() -> None:
    old = REAL.read_bytes()
    new = updated_health_json(old, [("llama2_7b_rank_0-5_2.ckpt", UNHEALTHY)])
    assert new == old.replace(b'"is_health": 0', b'"is_health": 1', 1)


def test_unknown_fields_other_entries_and_their_order_stay() -> None:
    old = b'[{"x": [1], "ckpt_name": "b", "is_health": 1}, {"y": null}, {"ckpt_name": "a", "is_health": 0}]'
    new = json.loads(updated_health_json(old, [("b", HEALTHY), ("c", UNHEALTHY)]))
    assert new == [
        {"x": [1], "ckpt_name": "b", "is_health": 0},
        {"y": None},
        {"ckpt_name": "a", "is_health": 0},
        {"is_health": 1, "ckpt_name": "c"},
    ]
    assert list(new[0]) == ["x", "ckpt_name", "is_health"]


def test_all_entries_of_a_name_are_brought_in_line() -> None:
    old = b'[{"ckpt_name": "a", "is_health": 0}, {"ckpt_name": "a", "is_health": true}, {"ckpt_name": "a"}]'
    new = json.loads(updated_health_json(old, [("a", UNHEALTHY)]))
    assert [entry["is_health"] for entry in new] == [1, 1, 1]
    assert all(entry["is_health"] is not True for entry in new)


def test_what_is_unknown_is_not_written() -> None:
    assert json.loads(updated_health_json(None, [("a", UNKNOWN)])) == []
    assert updated_health_json(b"[]", [("a", UNKNOWN)]) == b"[]"


def test_without_a_file_one_is_made_as_mindformers_makes_it() -> None:
    made = updated_health_json(None, [("m_rank_0-1_1.ckpt", HEALTHY)])
    assert made == b'[\n    {\n        "is_health": 0,\n        "ckpt_name": "m_rank_0-1_1.ckpt"\n    }\n]'


@pytest.mark.parametrize("old", [b"{}", b"[1]", b"not json", b""])
def test_a_file_that_is_no_list_of_objects_is_not_overwritten(old: bytes) -> None:
    with pytest.raises(ValueError, match=r"list of objects|Expecting"):
        updated_health_json(old, [("a", HEALTHY)])


ENTRIES = st.lists(st.fixed_dictionaries({"ckpt_name": st.sampled_from("abc"), "is_health": st.sampled_from([0, 1])}))
JUDGED = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(Health)), unique_by=lambda pair: pair[0])


@given(ENTRIES, JUDGED)
def test_writing_twice_changes_nothing_more(
    entries: list[dict[str, object]], judgements: list[tuple[str, Health]]
) -> None:
    once = updated_health_json(json.dumps(entries).encode(), judgements)
    assert updated_health_json(once, judgements) is once
