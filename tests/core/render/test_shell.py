"""Proves by running bash that words come back as they were meant, once quoted and through an unquoted `eval`."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ckpttool.core.render.shell import join, join_for_eval, quote, quote_for_eval

HOSTILE = [
    "",
    " ",
    "  ",
    "two  spaces",
    "tab\tand\nline end\r",
    "it's",
    '"quoted"',
    "$HOME ${x} $(id) `id` !!",
    "*",
    "/*",
    "?[a-z]{a,b}~",
    "back\\slash",
    "\\",
    "$'already'",
    "-n",
    "#hash;&|<>()",
    "~root",
    "naïve 日本",
    "\x1b[31m",
    "\u2028\x85",
    "caf\udce9",
    "a=b",
    "\x0112",
]
words = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8), max_size=4)


def run(script: str) -> list[str]:
    """Run `script` in bash, with `show` printing its arguments; return them."""
    show = "show() { (( $# )) && printf '%s\\0' \"$@\"; true; }\n"
    output = subprocess.run(["bash", "-c", show + script], check=True, capture_output=True).stdout
    return os.fsdecode(output).split("\0")[:-1]


@example(HOSTILE)
@given(words)
def test_bash_reads_a_joined_line_as_the_words_it_was_made_of(arguments: list[str]) -> None:
    assert run(join(["show", *arguments])) == arguments


@example(HOSTILE)
@given(words)
def test_an_unquoted_eval_reads_the_words_that_were_meant(arguments: list[str]) -> None:
    text = quote(join_for_eval(["show", *arguments]))
    assert run(f"TEXT={text}; eval $TEXT") == arguments


@pytest.mark.parametrize("word", HOSTILE)
def test_a_quoted_word_stays_on_one_line_and_shows_nothing_that_moves_a_cursor(word: str) -> None:
    for quoted in (quote(word), quote_for_eval(word)):
        assert quoted.isprintable()
        quoted.encode("utf-8")


def test_an_ordinary_path_is_not_made_ugly() -> None:
    assert quote("/data/run 1/new.yaml") == quote_for_eval("/data/run 1/new.yaml") == "'/data/run 1/new.yaml'"
    assert quote("/data/new.yaml") == quote_for_eval("/data/new.yaml") == "/data/new.yaml"


@pytest.mark.parametrize("quoting", [quote, quote_for_eval])
def test_a_word_that_no_program_can_be_given_is_refused(quoting: object) -> None:
    with pytest.raises(ValueError, match="NUL"):
        quoting("a\0b")  # type: ignore[operator]
