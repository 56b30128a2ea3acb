"""The trainer's records are spelled as it spells them, and what is read is what would be written."""

from __future__ import annotations

from pathlib import Path

from ckpttool.core.domain.units import Rank
from ckpttool.core.storage.local import LocalStorage
from ckpttool.trainers.mindformers.layouts.pointers import (
    meta_pointers,
    metas_naming,
)
from tests.support.inventories import checkpoint

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
