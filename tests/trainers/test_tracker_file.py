"""The tracker is read as the trainers write it, and spelled so."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpttool.core.domain.units import Step
from ckpttool.core.formats.strict_json import ParseError
from ckpttool.core.storage.local import LocalStorage
from ckpttool.trainers.common import TRACKER
from ckpttool.trainers.common.tracker_file import tracked_step, tracker_naming, tracker_pointer


def folder(step: Step) -> str:
    return f"iter_{step:07d}"


@pytest.mark.parametrize("text", ["30", " 30\n", "0000030"])
def test_a_tracker_holds_the_bare_step(tmp_path: Path, text: str) -> None:
    (tmp_path / TRACKER).write_text(text)
    assert tracked_step(LocalStorage(str(tmp_path))) == Step(30)
    pointer = tracker_pointer(LocalStorage(str(tmp_path)), folder)
    assert (pointer.name, pointer.target, pointer.content) == ("iter_0000030", "iter_0000030", b"30")
    assert tracker_naming("iter_0000030", Step(30))[TRACKER].content == b"30"


@pytest.mark.parametrize("text", ["", "3_0", "-1", "\u0663", "9" * 19, "release"])
def test_a_tracker_without_a_step_names_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / TRACKER).write_text(text)
    with pytest.raises(ParseError, match="expected a step"):
        tracked_step(LocalStorage(str(tmp_path)))
    pointer = tracker_pointer(LocalStorage(str(tmp_path)), folder)
    assert (pointer.target, pointer.trouble, pointer.unknown) == (None, "has no step", False)
