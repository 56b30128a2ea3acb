"""Edits of one text stand in the order that YAML needs, whichever was asked for first."""

from __future__ import annotations

import pytest
import yaml

from ckpttool.core.render.yaml_edit import Editor


@pytest.mark.parametrize("is_added_first", [True, False])
@pytest.mark.parametrize("text", ["{a: }", "{a:}", "a:"])
def test_a_key_is_added_behind_the_value_that_an_empty_one_gets_at_the_same_place(
    text: str, is_added_first: bool
) -> None:
    editor = Editor(text)
    values = {"new": 2, "a": 1} if is_added_first else {"a": 1, "new": 2}
    for key, value in values.items():
        editor.set(editor.top, key, value, after=("a",))
    assert yaml.safe_load(editor.apply()) == values
