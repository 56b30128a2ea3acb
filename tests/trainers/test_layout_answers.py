"""What a layout answers about changing its tree: what goes with a save, what names it, where a mark of it stands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpttool.core.verbs.scanning import health_file_of
from ckpttool.trainers.base import Members, Refusal
from ckpttool.trainers.locate import signs
from tests.support.faulty_storages import layout_of
from tests.support.inventories import checkpoint

RANK, ITERATION = layout_of("mindformers-rank"), layout_of("mindformers-iteration")
SAVE = replace(checkpoint("10_2"), name="iteration_00000030")


def test_a_save_with_a_folder_of_its_own_goes_with_it_and_its_records_tell_of_writing() -> None:
    assert ITERATION.members(SAVE) == Members(
        paths=("iteration_00000030",),
        records=("iteration_00000030/common.json", "iteration_00000030/metadata.json"),
    )


@pytest.mark.parametrize(
    ("layout", "folders"), [("mindformers-unified", "rank_N/ or iteration_*/"), ("loose-file", signs()[0])]
)
def test_what_is_one_checkpoint_is_not_moved_and_named_by_no_record(layout: str, folders: str) -> None:
    refusal = layout_of(layout).members(SAVE)
    assert refusal == Refusal(why=f"is one checkpoint, not a tree of {folders} folders", is_of_tree=True)
    assert dict(layout_of(layout).pointing_to(SAVE)) == {}


def test_a_save_is_recorded_under_rank_0_s_file_even_where_that_is_lost() -> None:
    assert RANK.recorded_name(checkpoint("10_2")) == "llama_rank_0-10_2.ckpt"
    assert RANK.recorded_name(checkpoint("10_2", run=1, ranks=[1, 2, 3])) == "llama_rank_0_1-10_2.ckpt"


@pytest.mark.parametrize("name", ["mindformers-iteration", "mindformers-unified"])
def test_a_mark_inside_the_save_is_in_no_health_file(name: str) -> None:
    refusal = layout_of(name).recorded_name(SAVE)
    assert isinstance(refusal, Refusal)
    assert f"in {name} each checkpoint contains its own mark" in refusal.why


@pytest.mark.parametrize("name", ["x.safetensors.tmp", "tmpab_1cd2e", "llama_rank_0-10_2.ckpt.tmp"])
def test_a_name_under_which_a_save_is_written_is_a_sign_of_writing(name: str) -> None:
    assert ITERATION.is_unfinished(name)
    assert not ITERATION.is_unfinished(name.replace("tmp", "old"))


def test_a_health_file_is_the_trainer_s_and_of_a_lone_file_any_trainer_s() -> None:
    names = {
        name: health_file_of(layout_of(name)) for name in ("mindformers-rank", "mindformers-unified", "loose-file")
    }
    assert {file.name for file in names.values() if file is not None} == {"health_ckpts.json"}
    assert None not in names.values()
