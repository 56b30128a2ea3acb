"""What our own writer names and spells is what MindFormers does, as trees that it wrote show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckpttool.core.domain.saving import SaveLabel, SaveProgress
from ckpttool.core.domain.shard import FormatName
from ckpttool.core.domain.units import Rank, Step
from ckpttool.core.formats import read_header
from ckpttool.core.storage.local import LocalStorage
from ckpttool.trainers.mindformers.saving import RankSaves

REAL = Path(__file__).resolve().parents[3] / "fixtures" / "sink2_safetensors" / "output" / "checkpoint"
LAYOUT = RankSaves()
LABEL = SaveLabel(prefix="run", run=1, epoch=25, step=2)
PROGRESS = SaveProgress(step=Step(50), applied=48, epoch=25, step_in_epoch=2, loss_scale=1024.5, global_batch_size=8)


def test_scalars_have_the_types_and_shapes_that_mindformers_gives_them() -> None:
    path = next(REAL.glob("rank_0/*.safetensors")).relative_to(REAL)
    with LocalStorage(str(REAL)).open(str(path)) as source:
        real = {entry.name: entry for entry in read_header(source, named=FormatName.SAFETENSORS).entries}
    ours = LAYOUT.scalars(PROGRESS)
    assert {each.name: (each.dtype, each.shape) for each in ours} == {
        each.name: (real[each.name].dtype, real[each.name].shape) for each in ours
    }
    assert len(ours) == 5


def test_progress_comes_back_from_its_scalars_but_for_what_the_name_says() -> None:
    values = {each.name: each.value for each in LAYOUT.scalars(PROGRESS)}
    found = LAYOUT.progress(values)
    assert found is not None
    assert (found.step, found.applied, found.epoch, found.global_batch_size) == (50, 48, 25, 8)
    for name in ("step_num", "epoch_num", "global_step"):
        assert LAYOUT.progress({key: value for key, value in values.items() if key != name}) is None
    del values["global_batch_size"]
    less = LAYOUT.progress(values)
    assert less is not None
    assert less.global_batch_size is None


def test_meta_json_is_spelled_as_mindformers_spells_it() -> None:
    ((path, content),) = LAYOUT.records(LABEL, Rank(3))
    assert path == "rank_3/meta.json"
    real = json.loads((REAL / "rank_0/meta.json").read_bytes())
    assert list(json.loads(content)) == list(real)
    assert json.loads(content) == {"last_epoch": 25, "last_step": 2, "last_ckpt_file": "run_rank_3_1-25_2.safetensors"}


def test_each_start_counts_on_from_the_largest_of_its_own_prefix() -> None:
    names = [
        "run_rank_0-1_2.safetensors",
        "run_rank_0_3-1_2.safetensors",
        "other_rank_0_7-1_2.safetensors",
        "meta.json",
    ]
    assert LAYOUT.next_run(names, "run", Rank(0)) == 4
    assert LAYOUT.next_run(["run_rank_0_5-9_1.tmp"], "run", Rank(0)) == 6
    assert LAYOUT.next_run(["meta.json", "other_rank_0-1_2.safetensors"], "run", Rank(0)) == 0


def test_only_temporary_files_of_the_own_prefix_are_leftovers() -> None:
    own = LAYOUT.temporary(LABEL, Rank(0))
    names = [own, "other_rank_0-1_2.tmp", "tmpabcdefgh", "run_rank_0-1_2.safetensors", "x.tmp"]
    assert LAYOUT.leftovers(names, "run", Rank(0)) == [own]


@pytest.mark.parametrize(
    "file", ["run_rank_0-1_2.ckpt", "run_rank_1-1_2.safetensors", "meta.json", "../run_rank_0-1_2"]
)
def test_what_is_no_file_of_rank_0_in_this_format_is_no_save(file: str) -> None:
    assert LAYOUT.parsed(file) is None
