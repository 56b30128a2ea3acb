"""The trainer's records are spelled as it spells them, and what is read is what would be written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ckpttool.domain.units import Rank, Step
from ckpttool.formats.strict_json import ParseError
from ckpttool.storage.local import LocalStorage
from ckpttool.trainers.mindformers.layouts.pointers import (
    meta_pointers,
    metas_naming,
    tracked_step,
    tracker_naming,
    tracker_pointer,
)
from tests.inventories import checkpoint

TRACKER = "latest_checkpointed_iteration.txt"
REAL = Path(__file__).parents[4] / "fixtures"


def test_a_real_record_is_read_as_what_would_be_written() -> None:
    records = sorted(REAL.glob("*/output/checkpoint/rank_0/meta.json"))
    assert records
    for record in records:
        (pointer,) = meta_pointers(LocalStorage(str(record.parents[1])), [Rank(0)])
        assert pointer.content == record.read_bytes()
        assert pointer.target == f"rank_0/{pointer.name}"


def test_a_record_names_the_file_that_its_rank_has_and_a_new_one_is_readable_as_rank_0_s() -> None:
    texts = metas_naming(checkpoint("30_2", ranks=range(2)))
    assert {path: text.name for path, text in texts.items()} == {
        "rank_0/meta.json": "llama_rank_0-30_2.ckpt",
        "rank_1/meta.json": "llama_rank_1-30_2.ckpt",
    }
    text = texts["rank_1/meta.json"]
    assert text.content == b'{"last_epoch": 30, "last_step": 2, "last_ckpt_file": "llama_rank_1-30_2.ckpt"}'
    assert text.like == "rank_0/meta.json"


@pytest.mark.parametrize("text", ["30", " 30\n", "0000030"])
def test_a_tracker_holds_the_bare_step(tmp_path: Path, text: str) -> None:
    (tmp_path / TRACKER).write_text(text)
    assert tracked_step(LocalStorage(str(tmp_path))) == Step(30)
    pointer = tracker_pointer(LocalStorage(str(tmp_path)))
    assert (pointer.name, pointer.target, pointer.content) == ("iteration_00000030", "iteration_00000030", b"30")
    save = replace(checkpoint("20_2"), name="iteration_00000030")
    assert tracker_naming(save)[TRACKER].content == b"30"


@pytest.mark.parametrize("text", ["", "3_0", "-1", "\u0663", "9" * 19, "release"])
def test_a_tracker_without_a_step_names_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / TRACKER).write_text(text)
    with pytest.raises(ParseError, match="expected a step"):
        tracked_step(LocalStorage(str(tmp_path)))
    pointer = tracker_pointer(LocalStorage(str(tmp_path)))
    assert (pointer.target, pointer.trouble, pointer.unknown) == (None, "holds no step", False)
