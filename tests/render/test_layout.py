"""Lines break between words, never inside, and what does not fit moves nothing else."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ckpttool.render.layout import Indented, Pairs, stack, whole_words

WORDS = st.lists(st.text("ab/模", min_size=1, max_size=30), min_size=1, max_size=12)


def drawn(renderable: RenderableType, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(renderable, crop=False)
    return [line.rstrip() for line in captured.get().splitlines()]


@given(words=WORDS, width=st.integers(min_value=1, max_value=40))
def test_no_word_is_broken_and_a_line_is_too_long_only_for_a_word_that_is(words: list[str], width: int) -> None:
    lines = drawn(stack(Text(" ".join(words))), width)
    assert " ".join(lines).split() == words
    for line in lines:
        assert Text(line).cell_len <= width or " " not in line


@given(words=WORDS, width=st.integers(min_value=10, max_value=40))
def test_what_is_moved_to_the_right_keeps_its_words_too(words: list[str], width: int) -> None:
    lines = drawn(stack(Indented(Text(" ".join(words)), 4)), width)
    assert " ".join(lines).split() == words
    assert all(line.startswith("    ") for line in lines)


def test_a_long_value_sticks_out_and_the_others_break_where_they_always_do() -> None:
    rows = [("load", "x" * 40), ("format", "one two three four")]
    assert drawn(stack(Pairs(rows)), 22) == [
        "  load    " + "x" * 40,
        "  format  one two",
        "          three four",
    ]
    assert drawn(stack(Pairs([("load", "x"), rows[1]])), 22)[1:] == ["  format  one two", "          three four"]


@pytest.mark.parametrize("no_wrap", [True, False])
def test_a_text_that_must_not_be_broken_keeps_its_blanks(no_wrap: bool) -> None:
    said = drawn(stack(Pairs([("load", Text("my own folder", no_wrap=no_wrap))])), 16)
    assert said == (["  load  my own folder"] if no_wrap else ["  load  my own", "        folder"])


def test_a_table_breaks_no_name_and_wraps_what_is_prose() -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("NAME")
    table.add_column("WHY")
    table.add_row("iteration_00000030", Text("kept for another"))
    assert drawn(whole_words(table), 20) == [
        "NAME                WHY",
        "iteration_00000030  kept for",
        "                    another",
    ]
