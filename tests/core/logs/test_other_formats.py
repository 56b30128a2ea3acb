"""CSV and JSON lines."""

from __future__ import annotations

import json
import math

import pytest

from ckpttool.core.errors import UsageError
from ckpttool.core.logs.columns import Csv, JsonLines
from ckpttool.core.logs.fields import parse_columns
from tests.core.logs.reading import LOGS, log, notes, problems, read, read_log, steps


def test_csv_with_named_columns_is_read_and_bad_rows_are_told() -> None:
    items = log(Csv(), "columns_made.csv", global_norm="gnorm")
    assert [(row.step, row.global_norm, row.loss) for row in steps(items)] == [
        (1, 1.5, 2.5),
        (2, math.inf, 2.4),
        (3, None, 2.3),
        (2, 1.6, 2.1),
    ]
    assert [(problem.line, problem.reason) for problem in problems(items)] == [
        (4, "global_norm is not a number"),
        (5, "expected 4 columns, found 2"),
        (6, "the row has no step"),
    ]
    assert [note.step for note in notes(items)] == [2]


def test_csv_without_a_step_column_asks_for_it() -> None:
    with pytest.raises(UsageError, match="name it, as in --columns step=iter"):
        read(Csv(), b"a,b\n1,2\n")
    assert [row.step for row in steps(read(Csv(), b"a,b\n1,2\n", columns={"step": "a"}))] == [1]


@pytest.mark.parametrize("step", [b"1.5", b"nan", b"-1", b"inf", b"1e400"])
def test_a_step_that_is_no_count_is_none(step: bytes) -> None:
    assert steps(read(Csv(), b"step,loss\n" + step + b",2\n")) == []


def test_csv_passes_over_a_line_that_is_too_long() -> None:
    items = read(Csv(), b"step,loss\n\n1,2\n" + b"x" * (3 << 20) + b"\n3,4\n")
    assert ([row.step for row in steps(items)], len(problems(items))) == ([1, 3], 1)
    assert len(problems(read(Csv(), b"step,loss\n1,2\n" + b"x" * (3 << 20)))) == 1


def test_json_lines_of_one_step_are_one_step() -> None:
    items = log(JsonLines(), "columns_made.jsonl")
    rows = steps(items)
    assert [(row.step, row.loss) for row in rows] == [(1, 2.5), (2, 2.4), (1, 2.3)]
    assert rows[0].global_norm == 1.5
    assert (math.isnan(rows[1].global_norm or 0), rows[1].skipped) == (True, True)
    assert [problem.line for problem in problems(items)] == [5]
    assert [note.previous_step for note in notes(items)] == [2]


def test_json_lines_without_a_step_ask_for_it_and_take_any_name() -> None:
    data = b'{"i": 4, "g": 2.5}\n'
    with pytest.raises(UsageError, match="--columns step=iter"):
        read(JsonLines(), data)
    (row,) = steps(read(JsonLines(), data, columns={"step": "i", "global_norm": "g"}))
    assert (row.step, row.global_norm) == (4, 2.5)
    assert read(JsonLines(), b"\n") == []


def test_json_lines_pass_over_a_line_that_is_too_long() -> None:
    items = read(JsonLines(), b'{"step": 1}\n' + b"x" * (3 << 20) + b'\n{"step": 2}\n')
    assert ([row.step for row in steps(items)], len(problems(items))) == ([1, 2], 1)


def test_the_real_embedding_norms_of_a_mindformers_run_are_read() -> None:
    path = LOGS.parent / "health_pp2" / "train_log_first_rank_0.jsonl"
    rows = {row.step: row for row in steps(read_log(str(path)))}
    truth = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    norms = {line["step"]: line["embedding_local_norm"][0] for line in truth if "embedding_local_norm" in line}
    assert {step: row.embedding_local_norm for step, row in rows.items()} == norms


def test_a_column_of_which_no_answer_makes_use_may_be_named_and_hold_anything() -> None:
    assert parse_columns("step=iter,epoch=e,optimizer_step=n") == {"step": "iter"}
    columns = parse_columns("step=i,learning_rate=rate")
    data = b"i,loss,rate,optimizer_step\n1,2.5,warm,?\n"
    items = read(Csv(), data, columns=columns)
    assert ([(row.step, row.loss) for row in steps(items)], problems(items)) == ([(1, 2.5)], [])
    (problem,) = problems(read(Csv(), data, columns=columns, curves=True))  # of who holds runs against each other
    assert problem.reason == "learning_rate is not a number"


def test_columns_are_named_as_field_equals_column() -> None:
    assert parse_columns("step=iter, global_norm = gnorm") == {"step": "iter", "global_norm": "gnorm"}
    for wrong, words in (
        ("step", "field=column"),
        ("step=", "field=column"),
        ("gnorm=global_norm", "unknown field 'gnorm'"),
    ):
        with pytest.raises(UsageError, match=words):
            parse_columns(wrong)


def test_a_log_line_with_commas_in_it_is_no_header_of_columns() -> None:
    assert not Csv().recognise(b"[Event][2025-03-01 09:10:00] [Rank 3]: a spike may happen, param name x, step y\n")
    assert Csv().recognise(b"step,loss at 2025-03-01,norm\n")
