"""Lines break between words, never inside, and what does not fit moves nothing else."""

from __future__ import annotations

import io

import pytest
import rich.table
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from rich.text import Text

from ckpttool.core.render import text as layout
from ckpttool.core.render.text import Indented, Pairs, Table, stack

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
    table = Table()
    table.add_column("NAME")
    table.add_column("WHY")
    table.add_row("iteration_00000030", Text("kept for another"))
    assert drawn(table, 29)[1:] == ["iteration_00000030  kept for", "                    another"]
    assert drawn(table, 20) == [
        "NAME                WHY",
        "iteration_00000030  kept",
        "                    for",
        "                    another",
    ]


CELLS = st.text("ab 模é", max_size=9).map(str.strip)
LOOKS = st.sampled_from(["", "red", "bold green", "dim"])
TABLE_ROWS = st.lists(st.tuples(CELLS, CELLS, st.tuples(CELLS, LOOKS)), min_size=1, max_size=6)


def made_of(rows: list[tuple[str, str, tuple[str, str]]], times: int = 1) -> Table:
    table = Table()
    table.add_column("NAME")
    table.add_column("STEP", justify="right", no_wrap=True)
    table.add_column("WHY")
    for name, step, (why, look) in rows * times:
        table.add_row(Text(name), step, Text(why, style=look))
    return table


@given(rows=TABLE_ROWS, width=st.integers(min_value=5, max_value=60))
def test_a_table_looks_as_rich_draws_it(rows: list[tuple[str, str, tuple[str, str]]], width: int) -> None:
    assert drawn(made_of(rows), width) == drawn(made_of(rows).by_rich(), width)


@given(rows=TABLE_ROWS)
def test_a_table_has_the_colours_that_rich_gives_it(rows: list[tuple[str, str, tuple[str, str]]]) -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, markup=False, highlight=False)

    def coloured(table: RenderableType) -> list[tuple[str, str]]:
        return [
            (word, str(segment.style or "none")) for segment in console.render(table) for word in segment.text.split()
        ]

    assert coloured(made_of(rows)) == coloured(made_of(rows).by_rich())


@pytest.mark.parametrize(("width", "is_by_rich"), [(16, False), (15, True)])
def test_rich_draws_a_table_if_it_does_not_fit(width: int, is_by_rich: bool) -> None:
    console = Console(width=width)
    table = made_of([("15_2", "30", ("kept", "green"))], 201)
    (first, *_) = table.__rich_console__(console, console.options)
    assert isinstance(first, rich.table.Table) is is_by_rich


@pytest.mark.parametrize(
    ("columns", "drawn_in"), [(30, 30), (100, 100), (300, layout.WIDEST), (layout.UNLIMITED, layout.WIDTH)]
)
def test_a_picture_is_as_wide_as_its_terminal_and_no_wider_than_a_curve_needs(columns: int, drawn_in: int) -> None:
    picture = layout.Picture(lambda *, width, unicode: "-" * width)  # noqa: ARG005  drawn in either
    assert [len(line) for line in drawn(stack(picture), columns)] == [drawn_in]


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", "─"), ("ascii", "-")])
def test_a_picture_is_drawn_in_what_its_terminal_can_show(encoding: str, shown: str) -> None:
    written = io.BytesIO()
    file = io.TextIOWrapper(written, encoding=encoding, write_through=True)
    picture = layout.Picture(lambda *, width, unicode: "─" if unicode else "-")  # noqa: ARG005  one column
    Console(file=file, width=80).print(stack(picture))
    assert written.getvalue().decode(encoding).strip() == shown
