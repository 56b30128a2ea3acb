"""Trees of many trainers, written again and again at any pace while they are watched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.watch.test_watch_layouts import TREES, Written, assert_told_once, written_and_watched

pytestmark = pytest.mark.skipif("not config.getoption('--nightly')", reason="writes each tree five times: --nightly")

ALL = [
    *TREES,
    Written("layouts/hf_single", ("trainer_state",)),
    Written("layouts/hf_ddp2", ("trainer_state",)),
    Written("layouts/hf_sharded_index", (".index", "trainer_state")),
    Written("layouts/hf_lora", ("trainer_state",)),
    Written("layouts/hf_only_model", ("trainer_state",)),
    Written("layouts/dcp_plain_2ranks", (".metadata",)),
    Written("layouts/dcp_fsdp2_4ranks", (".metadata",)),
    Written("layouts/titan_4ranks/checkpoint", (".metadata",)),
    Written("layouts/ds_zero3_2ranks", (), "latest"),
    Written("layouts/mcore_legacy_tp2dp2", (), "latest_checkpointed_iteration.txt"),
    Written("layouts/mcore_dist_tp2dp2", (".metadata", "metadata.json"), "latest_checkpointed_iteration.txt"),
    Written("newfmt_4rank/output/checkpoint", ("common", "metadata")),
]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("written", ALL, ids=lambda each: each.tree)
def test_at_any_pace_each_save_of_every_trainer_is_told_once_and_nothing_else(
    written: Written, seed: int, tmp_path: Path
) -> None:
    assert_told_once(*written_and_watched(written, tmp_path, seed))
