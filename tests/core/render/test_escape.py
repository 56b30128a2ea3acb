"""File names are shown, and obey nobody."""

from __future__ import annotations

import os
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ckpttool.core.render.escape import shown, size


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama2_7b_rank_0-20_2.ckpt", "llama2_7b_rank_0-20_2.ckpt"),
        ("größe 模型 é", "größe 模型 é"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\nb\tc\r", "a\\x0ab\\x09c\\x0d"),
        ("a\x7f\x9bb", "a\\x7f\\x9bb"),
        ("a\u202eb", "a\\u202eb"),
        ("a\u2028b", "a\\u2028b"),
        (os.fsdecode(b"a\xff\x80"), "a\\xff\\x80"),
        ("a\ud800b", "a\\ud800b"),
        ("\U000e0001", "\\ue0001"),
        ("[red]{x}%s", "[red]{x}%s"),
        ("", ""),
    ],
)
def test_a_name_is_shown_so_that_nothing_acts_on_it(name: str, expected: str) -> None:
    assert shown(name) == expected


@given(st.text(st.characters()))
@example("\x00\x1f\x80\u200b\ud912")
def test_nothing_that_is_shown_moves_a_cursor(text: str) -> None:
    result = shown(text)
    assert not {unicodedata.category(each) for each in result} & {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    result.encode("utf-8")


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_what_is_printable_is_shown_as_it_is(text: str) -> None:
    assert shown(text) == text


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (None, "?"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (10 * 1024**3, "10.0 GiB"),
        (5 * 1024**5, "5120.0 TiB"),
    ],
)
def test_a_size_is_spelled_for_people(nbytes: int | None, expected: str) -> None:
    assert size(nbytes) == expected
