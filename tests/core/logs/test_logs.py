"""Logs are found, told apart by content, unpacked, and put log."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path

import pytest

from ckpttool.core.domain.metrics import LogNote, NoteKind, StepMetrics
from ckpttool.core.domain.units import Step
from ckpttool.core.errors import UsageError
from ckpttool.core.logs.base import Block, UnreadableError, escaped, number
from ckpttool.core.logs.columns import Csv
from ckpttool.core.logs.merge import merge
from ckpttool.core.logs.reading import expand_globs
from ckpttool.trainers.registry import log_reader
from tests.core.logs.reading import LOGS, problems, read_log, steps
from tests.support.log_rows import NAN

FORMATS = {
    "bloom176b_chronicles.log": "megatron",
    "megatron_gpt2_n16_ds_off.log": "megatron",
    "megatron_core_made.log": "megatron",
    "mindformers_skip_stage0_made.log": "mindformers",
    "mindformers_health_stage0_made.log": "mindformers",
    "mindformers_every_form_made.log": "mindformers",
    "mindformers_resumed_made.log": "mindformers",
    "mindformers_steps_not_printed_made.log": "mindformers",
    "trainer_state_made.json": "hf-trainer",
    "hf_printed_4.57.log": "hf-printed",
    "hf_printed_5.24.log": "hf-printed",
    "columns_made.csv": "csv",
    "columns_made.jsonl": "json-lines",
}


@pytest.mark.parametrize(("name", "expected"), FORMATS.items())
def test_each_log_is_recognised_by_its_content(name: str, expected: str) -> None:
    head = (LOGS / name).read_bytes()
    assert next(format_.name for format_ in log_reader().formats if format_.recognise(head)) == expected


@pytest.mark.parametrize("data", [b"just some words\nand more\n", b"\0\1\2\3", b"1,2\n3,4\n", b"a,\n", b"one\n"])
def test_what_is_no_log_is_one_problem_without_a_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    (problem,) = problems(read_log(str(tmp_path / "x")))
    assert (problem.line, "is not a log that ckpttool recognizes" in problem.reason) == (0, True)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("Dear all, this is no log\nand, 7 lines\nmore\n", False),
        ("Dear all, this is no log\nand, seven lines\nmore\n", False),
        ("Dear all, this is no log\n\nmore, or, 3\n", False),
        ("iter,gnorm\n1,0.5\n", True),
        ("it,gnorm\n\n1,nan\n", True),
        ("it,gnorm\n,\n", False),
        ("it,gnorm\n", False),
        ("step,gnorm\n", True),
    ],
)
def test_names_with_a_row_of_numbers_below_or_a_step_among_them_are_a_csv(text: str, known: bool) -> None:
    assert Csv().recognise(text.encode()) is known


def test_a_gzipped_log_reads_as_the_plain_one(tmp_path: Path) -> None:
    for name in FORMATS:
        (tmp_path / name).write_bytes(gzip.compress((LOGS / name).read_bytes()))
        columns = {"global_norm": "gnorm"} if name.endswith(".csv") else None
        plain = [*read_log(str(LOGS / name), columns=columns)]
        packed = [*read_log(str(tmp_path / name), columns=columns)]
        assert [repr(step) for step in steps(packed)] == [repr(step) for step in steps(plain)]


def test_a_gzipped_log_cut_short_gives_what_it_has_and_a_problem(tmp_path: Path) -> None:
    content = (LOGS / "megatron_gpt2_n16_ds_off.log").read_bytes() * 50
    packed = gzip.compress(content)
    for size in (len(packed) // 2, len(packed) - 4):
        (tmp_path / "log.gz").write_bytes(packed[:size])
        items = list(read_log(str(tmp_path / "log.gz")))
        assert "truncated or damaged" in problems(items)[-1].reason
    (tmp_path / "log.gz").write_bytes(packed[:200] + b"\xff" * 200 + packed[400:])
    assert problems(list(read_log(str(tmp_path / "log.gz"))))[-1].line == 0


def test_a_dash_is_the_standard_input() -> None:
    content = (LOGS / "mindformers_resumed_made.log").read_bytes()
    assert len(steps(read_log("-", stdin=io.BytesIO(content)))) == 5
    assert len(steps(read_log("-", stdin=io.BytesIO(gzip.compress(content))))) == 5


def test_a_dash_is_this_process_own_standard_input_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    content = (LOGS / "mindformers_resumed_made.log").read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert len(steps(read_log("-"))) == 5


def test_a_file_that_cannot_be_opened_is_a_problem_of_its_own(tmp_path: Path) -> None:
    (problem,) = problems(read_log(str(tmp_path)))
    assert "cannot be read" in problem.reason


def test_globs_come_in_natural_order_and_each_file_once(tmp_path: Path) -> None:
    for name in ("worker_10.log", "worker_2.log", "other.txt"):
        (tmp_path / name).touch()
    found = expand_globs([str(tmp_path / "worker_*.log"), str(tmp_path / "worker_2.log"), "-"])
    assert [Path(name).name for name in found] == ["worker_2.log", "worker_10.log", "-"]
    with pytest.raises(UsageError, match="no log matches"):
        expand_globs([str(tmp_path / "nothing*")])


def row(step: int, norm: float | None = 1.0, **more: float | str | None) -> StepMetrics:
    return StepMetrics(step=Step(step), global_norm=norm, **more)  # type: ignore[arg-type]  # fields differ in type


def test_ranks_complete_each_other_and_the_worst_embedding_norm_counts() -> None:
    first_stage = [row(1, embedding_local_norm=200.0), row(2, embedding_local_norm=NAN)]
    other_rank = [row(1, embedding_local_norm=300.0), row(2, embedding_local_norm=250.0)]
    last_stage = [row(1, loss=2.5), row(2, None, loss=2.4)]
    log = merge([("a", first_stage), ("b", other_rank), ("c", last_stage)])
    assert [(each.step, each.loss) for each in log.metrics] == [(1, 2.5), (2, 2.4)]
    assert log.metrics[0].embedding_local_norm == 300.0
    assert repr(log.metrics[1].embedding_local_norm) == "nan"
    assert log.notes == ()
    assert log.sources == ("a", "b", "c")


def test_of_two_attempts_the_later_by_the_clock_counts_whatever_the_order() -> None:
    old = [row(1, 1.0, time="2025-01-01 00:00:01"), row(2, 9.0, time="2025-01-01 00:00:02")]
    new = [row(2, 2.0, time="2025-01-02 00:00:02"), row(3, 3.0, time="2025-01-02 00:00:03")]
    for logs in ([("old", old), ("new", new)], [("new", new), ("old", old)]):
        log = merge(logs)
        assert [each.global_norm for each in log.metrics] == [1.0, 2.0, 3.0]
        (note,) = log.notes
        assert (note.kind, note.step) == (NoteKind.REWIND, 2)


def test_without_a_clock_the_later_log_counts() -> None:
    assert merge([("a", [row(1, 1.0)]), ("b", [row(1, 2.0)])]).metrics[0].global_norm == 2.0


def test_within_one_log_the_last_attempt_counts_and_the_rewind_is_kept() -> None:
    log = merge([(name, read_log(str(LOGS / name))) for name in ("mindformers_resumed_made.log",)])
    assert [each.global_norm for each in log.metrics] == [1.5, 1.6, 1.7, 1.8]
    assert [note.kind for note in log.notes] == [NoteKind.REWIND]
    assert isinstance(log.notes[0], LogNote)


def test_problems_are_counted_but_not_all_kept() -> None:
    (problem,) = problems(read_log(os.devnull + "/nothing"))
    log = merge([("a", [problem] * 1000)])
    assert (log.problem_count, len(log.problems)) == (1000, 50)


@pytest.mark.parametrize(
    ("text", "value"),
    [(b"[1.5]", 1.5), (b" 2 ", 2.0), (b"[1.2e+05]", 1.2e5), (b"-.5", -0.5), (b"inf", float("inf")), (b"None", None)],
)
def test_numbers_are_read_with_and_without_brackets(text: bytes, value: float | None) -> None:
    assert number(text) == value


@pytest.mark.parametrize("text", [b"1 31049", b"1_000", b"0x10", b"one", b"1.2.3", b"[1.0 2.0]", b"1,5"])
def test_what_only_looks_like_a_number_is_refused(text: bytes) -> None:
    with pytest.raises(UnreadableError):
        number(text)


def test_an_excerpt_is_short_and_safe_for_a_terminal() -> None:
    shown = escaped(b"\x1b[31mred\x07\r\xff" + b"x" * 1000)
    assert shown.isprintable()
    assert shown.startswith("\\x1b[31mred\\x07\\r\\xff")
    assert len(shown) < 250


def test_the_number_of_a_line_is_the_same_in_whatever_order_it_is_asked_for() -> None:
    block = Block(b"a\nbc\n\nd", 7)
    expected = [7, 7, 8, 8, 8, 9, 10]
    for places in (range(7), range(6, -1, -1), (6, 0, 3, 3, 5)):
        assert [block.line_number(place) for place in places] == [expected[place] for place in places]
