"""`health_ckpts.json` is believed only where it is whole; what it leaves open is unknown, never healthy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpttool.core.domain.finding import Code, Severity
from ckpttool.core.domain.health import Health, HealthBook
from ckpttool.core.storage.local import LocalStorage
from ckpttool.trainers.findings import TrainersCode
from ckpttool.trainers.mindformers import health_file as health_json
from ckpttool.trainers.mindformers.health_file import read_health, updated_health_json
from tests.conftest import FIXTURES

REAL = FIXTURES / "health_pp2" / "output" / "health_ckpts.json"


def book_of(folder: Path, data: bytes | str) -> HealthBook:
    (folder / "h.json").write_bytes(data.encode() if isinstance(data, str) else data)
    return read_health(LocalStorage(str(folder)), "h.json")


def states(book: HealthBook) -> dict[str, Health]:
    return {record.name: record.health for record in book.records}


def test_the_real_file_tells_two_healthy_checkpoints_and_one_unhealthy() -> None:
    book = read_health(LocalStorage(str(REAL.parent)), REAL.name)
    assert states(book) == {
        "llama2_7b_rank_0-5_2.ckpt": Health.HEALTHY,
        "llama2_7b_rank_0-10_2.ckpt": Health.HEALTHY,
        "llama2_7b_rank_0-15_2.ckpt": Health.UNHEALTHY,
    }
    assert book.path == "health_ckpts.json"
    assert book.findings == ()


@pytest.mark.parametrize("marks", [(0, 1), (1, 0), (1, 0, 0)])
def test_the_unhealthy_entry_wins_whatever_the_order(tmp_path: Path, marks: tuple[int, ...]) -> None:
    book = book_of(tmp_path, json.dumps([{"is_health": mark, "ckpt_name": "a\n"} for mark in marks]))
    assert states(book) == {"a\n": Health.UNHEALTHY}
    (finding,) = book.findings
    assert finding.code is TrainersCode.HEALTH_CONTRADICTORY
    assert "\n" not in finding.message


@pytest.mark.parametrize(
    "torn",
    ["", "[", '[{"is_health": 0, "ckpt_na', '{"is_health": 0, "ckpt_name": "a"}', "[NaN]", b"\xff\xfe[]", "\0" * 64],
)
def test_a_torn_or_foreign_file_leaves_everything_unknown(tmp_path: Path, torn: bytes | str) -> None:
    book = book_of(tmp_path, torn)
    assert book.records == ()
    (finding,) = book.findings
    assert (finding.code, finding.severity) == (Code.HEALTH_UNREADABLE, Severity.UNKNOWN)
    assert finding.message.startswith("h.json: ") or "h.json" in finding.message


def test_an_entry_without_a_mark_is_worse_than_a_healthy_one_of_the_same_name(tmp_path: Path) -> None:
    book = book_of(tmp_path, '[{"is_health": 0, "ckpt_name": "a"}, {"ckpt_name": "a"}]')
    assert states(book) == {"a": Health.UNKNOWN}


@pytest.mark.parametrize("mark", [True, False, "0", 0.0, 2, -1, None, [0]])
def test_a_mark_that_is_neither_zero_nor_one_is_unknown(tmp_path: Path, mark: object) -> None:
    entries = [{"is_health": mark, "ckpt_name": "odd"}, {"is_health": 0, "ckpt_name": "even", "later_field": {}}]
    book = book_of(tmp_path, json.dumps(entries))
    assert states(book) == {"odd": Health.UNKNOWN, "even": Health.HEALTHY}
    assert [finding.code for finding in book.findings] == [Code.HEALTH_UNREADABLE]


@pytest.mark.parametrize("entry", [{"is_health": 0}, {"is_health": 0, "ckpt_name": 7}, 7, None, []])
def test_an_entry_without_a_name_is_reported_and_not_guessed(tmp_path: Path, entry: object) -> None:
    book = book_of(tmp_path, json.dumps([{"is_health": 0, "ckpt_name": "a"}, entry]))
    assert states(book) == {"a": Health.HEALTHY}
    (finding,) = book.findings
    assert "entry 1" in finding.message


def test_many_wrong_entries_do_not_flood_the_report(tmp_path: Path) -> None:
    book = book_of(tmp_path, json.dumps([7] * 1000))
    assert len(book.findings) == 21
    assert "980 more" in book.findings[-1].message


def test_a_folder_and_a_file_over_the_limit_are_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    book = read_health(LocalStorage(str(tmp_path)), "folder")
    assert [finding.code for finding in book.findings] == [Code.HEALTH_UNREADABLE]
    assert not book.over_limit
    monkeypatch.setattr(health_json, "HEALTH_FILE_LIMIT", 10)
    book = book_of(tmp_path, "[" + " " * 20 + "]")
    assert [finding.code for finding in book.findings] == [Code.HEALTH_UNREADABLE]
    assert book.over_limit


def test_a_file_of_more_values_than_memory_holds_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torn = '[{"is_health": 1, "ckpt_name": "a"}, '
    assert not book_of(tmp_path, torn).over_limit
    monkeypatch.setattr(health_json, "MOST_MEMORY", 100)
    book = book_of(tmp_path, torn)
    assert book.over_limit
    assert states(book) == {"a": Health.UNHEALTHY}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0, 1])), max_size=12))
def test_any_entry_makes_a_name_bad(tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[str, int]]) -> None:
    folder = tmp_path_factory.mktemp("book")
    book = book_of(folder, json.dumps([{"is_health": mark, "ckpt_name": name} for name, mark in entries]))
    expected = {
        name: Health.UNHEALTHY if (name, 1) in entries else Health.HEALTHY for name in {name for name, _ in entries}
    }
    assert states(book) == expected
    assert [record.name for record in book.records] == sorted(expected)


HEALTHY, UNHEALTHY, UNKNOWN = Health.HEALTHY, Health.UNHEALTHY, Health.UNKNOWN


def test_a_file_that_says_it_already_stays_byte_for_byte() -> None:
    old = REAL.read_bytes()
    assert updated_health_json(old, [("llama2_7b_rank_0-15_2.ckpt", UNHEALTHY)]) is old
    assert updated_health_json(old, []) is old


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
